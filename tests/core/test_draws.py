"""Local work that is drawn for each visit."""

from pathlib import Path

import pytest
import torch
from executors import STACKED, assert_agree
from problems import classification, federation, round_after_round
from regressions import all_three, mean_gradient, regression

from fl_lightning import Algorithm, FederatedData, FederatedTrainer, UserError, algorithms
from fl_lightning.callbacks import Gradients
from fl_lightning.core.draws import Draw, parse, stragglers, uniform


@pytest.mark.parametrize("text", ["uniform(2, 5)", "stragglers(20, 0.9)"])
def test_a_draw_is_what_its_text_says(text: str) -> None:
    assert str(parse(text)) == str(parse(f" {text} ".replace(", ", ","))) == text


@pytest.mark.parametrize(
    ("draw", "chances"),
    [
        (uniform(2, 4), {2: 1 / 3, 3: 1 / 3, 4: 1 / 3}),
        (stragglers(3, 0.6), {1: 0.2, 2: 0.2, 3: 0.6}),
        (stragglers(3, 0), {3: 1}),
    ],
    ids=str,
)
def test_numbers_come_as_often_as_they_should(draw: Draw, chances: dict[int, float]) -> None:
    g = torch.Generator().manual_seed(0)
    numbers = torch.tensor([draw(g) for _ in range(2000)])
    found = {int(n): float((numbers == n).double().mean()) for n in numbers.unique()}
    assert found == pytest.approx(chances, abs=0.04)
    assert draw.mean == pytest.approx(sum(n * chance for n, chance in chances.items()))


NO_WORK = "uniform(2)", "uniform(5, 2)", "uniform(0, 2)", "uniform(1.5, 3)", "uniform(1, inf)"
NO_SHARE = "stragglers(20, 1.1)", "stragglers(20, nan)"


@pytest.mark.parametrize("text", [*NO_WORK, *NO_SHARE, "normal(1, 2)", "uniform(2, 5"])
def test_what_draws_no_work_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="amount of work"):
        parse(text)


@pytest.mark.parametrize(
    ("work", "lengths_of_visits", "mean"),
    [({"epochs": uniform(1, 3)}, {2, 4, 6}, 4), ({"steps": stragglers(3, 0.5)}, {1, 2, 3}, 2)],
)
def test_visits_are_as_long_as_drawn_for_seed_round_and_client(
    work: dict, lengths_of_visits: set[int], mean: int
) -> None:
    clients, again, other = (classification([9, 9], seed=seed, **work) for seed in (0, 0, 1))
    lengths = [clients.steps_in(0, round) for round in range(20)]
    assert lengths == [len(again.visit(0, round)) for round in range(20)]
    assert lengths != [clients.steps_in(1, round) for round in range(20)]
    assert lengths != [other.steps_in(0, round) for round in range(20)]
    assert {*lengths} == lengths_of_visits
    assert clients.num_steps(0) == clients.mean_steps == mean


def test_executors_agree_and_gradients_are_counted() -> None:
    given = {"algorithm": algorithms.fednova(), "clients": classification(epochs=uniform(1, 3))}
    one_by_one, together = federation(**given), federation(**given, executor=STACKED)
    cohort = one_by_one.sampler(one_by_one.clients.num_clients, one_by_one.seed, 0)
    one_by_one.train_round(), together.train_round()
    assert_agree(one_by_one, together)
    steps = sum(len(one_by_one.clients.visit(client, 0)) for client in cohort)
    counter = Gradients()
    counter.cohort, counter.rows = cohort, {}
    assert counter.measure(one_by_one) == {"client/gradients": steps}


def test_control_variates_still_find_the_optimum() -> None:
    def gradient_after(rounds: int, algorithm: Algorithm) -> float:
        run = regression(algorithm, steps=uniform(1, 6), sampler=all_three, lr=0.2)
        return mean_gradient(round_after_round(run, rounds).w.detach()).norm().item()

    assert gradient_after(60, algorithms.scaffold()) < 1e-12
    assert gradient_after(10, algorithms.fedavg()) > 0.1


def test_a_run_records_its_draw_and_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    x = torch.arange(24.0).view(12, 2)
    data = FederatedData((x, x.sum(1)), clients=[0, 1, 2] * 4)

    def fitted(folder: str, rounds: int, resume: bool = False) -> torch.Tensor:
        options = {"rounds": rounds, "run_dir": tmp_path / folder, "loss": "mse", "lr": 1e-3}
        trainer = FederatedTrainer(local_epochs="uniform(1, 4)", **options)
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Flatten(0))
        run = trainer.fit(module, data, resume=resume)
        assert run.config["local_epochs"] == "uniform(1, 4)"
        return module[0].weight

    fitted("halted", 2)
    assert torch.equal(fitted("halted", 4, resume=True), fitted("whole", 4))
