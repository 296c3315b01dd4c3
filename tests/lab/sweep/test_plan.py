"""Tables are planned as their files say, and runs that exist are recognized."""

import re
from pathlib import Path

import pytest
from locations import ROOT
from run_folders import compared
from tables import DIGITS, METHODS, SMALL, finished, options

from fl_lightning.__main__ import main
from fl_lightning.cli.recipes import experiment_of
from fl_lightning.errors import UserError
from fl_lightning.lab.commands.table import TableOptions
from fl_lightning.lab.sweep.plan import plan
from fl_lightning.lab.sweep.stacks import run_stack, stacked
from fl_lightning.lab.sweep.table_file import TableFile


def test_a_cell_has_the_options_of_its_row_column_and_sweep(planned):
    columns = "columns:\n  a: {lr: 0.3, methods: {fedsam: {rho: 0.4}}}\n  b: {partition: iid}\n"
    jobs = planned(SMALL + METHODS + columns + "sweep: {batch_size: [8, 16]}\n")
    places = [(row, f"a, batch_size {n}") for n in (8, 16) for row in ("fedavg", "fedsam")]
    assert [job.cells[0][:2] for job in jobs[:4]] == places
    found = options(jobs, "algorithm", "lr", "algorithm.rho", "partition", "batch_size")
    assert found[1] == ("fedsam", 0.3, 0.4, "dirichlet", 8)
    assert found[-1] == ("fedsam", 0.05, 0.2, "iid", 16)


@pytest.mark.parametrize(
    ("option", "words"), [("rhoo: 0.1", "option '--rhoo'"), ("rho: -0.1", "rho of fedsam")]
)
def test_a_wrong_option_of_a_columns_method_is_refused_and_the_cell_named(option, words, planned):
    column = f"columns: {{mild: {{methods: {{fedsam: {{{option}}}}}}}}}\n"
    with pytest.raises(UserError, match=words) as error:
        planned(SMALL + METHODS + column)
    assert error.value.__notes__ == ["in the cell 'fedsam, mild'"]


@pytest.mark.parametrize(
    ("score", "needed"),
    [("gradients_to:50", "--callback gradients"), ("personal", "--finetune-epochs")],
)
def test_a_score_that_no_run_would_record_is_refused_before_the_runs(score, needed, planned):
    text = f"{SMALL}{METHODS}callback: state_norms\nscore: [last, '{score}']\n"
    with pytest.raises(UserError, match=needed):
        planned(text)
    assert planned(text, *needed.split(), *["1"] * ("epochs" in needed))


def test_methods_of_a_table_may_be_your_own(planned, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "from fl_lightning.algorithms import fedsam\ndef mine(rho=0.1): return fedsam(rho)\n"
    )
    methods = f"methods:\n  {own}:mine: {{rho: 0.2, lr: 0.5}}\n"
    columns = f"columns:\n  a: {{}}\n  b: {{methods: {{'{own}:mine': {{rho: 0.3}}}}}}\n"
    found = options(planned(SMALL + methods + columns), "algorithm.rho", "lr")
    assert found == [(0.2, 0.5), (0.3, 0.5)]


def test_runs_that_differ_in_numbers_alone_are_stacked(planned):
    """Fedprox has another term, 8 samples other shapes, fedbabu trains less; f takes no stack."""
    rows = "a: {rho: 0.1}\n  b: {rho: 0.2, lr: 0.5}\n  c: {lr: 'cosine(0.1, 0)'}\n"
    more = "  d: {batch_size: 8}\n  e: {algorithm: fedprox}\n  f: {executor: sequential}\n"
    more += "  g: {algorithm: fedavg}\n  h: {algorithm: fedbabu}\n"
    rows = re.sub(r"\{rho", "{algorithm.rho", rows)
    jobs = planned(f"{SMALL}algorithm: fedsam\nseeds: [0, 1]\nrows:\n  {rows}{more}")
    found = [[job.folder.name for job in stack] for stack in stacked(jobs, 4)]
    alike = [["a-s0", "a-s1", "b-s0", "b-s1"], ["c-s0", "c-s1"], ["d-s0", "d-s1"]]
    others = [["e-s0", "e-s1"], ["f-s0"], ["f-s1"], ["g-s0", "g-s1"], ["h-s0", "h-s1"]]
    assert found == [*alike, *others]


DECIDING = """
from dataclasses import dataclass
from fl_lightning import Algorithm, Term

@dataclass(frozen=True)
class Deciding(Term):
    beta: float

    def gradient(self, oracle, w, v):
        return oracle(w) if self.beta > 0.5 else w

def deciding(beta: float = 1.0) -> Algorithm:
    return Algorithm(Deciding(beta))
"""


def test_runs_that_cannot_be_stacked_train_alone(planned, tmp_path):
    """A term that branches on a number refuses the numbers of several runs."""
    (tmp_path / "mine.py").write_text(DECIDING)
    rows = "rows: {a: {algorithm.beta: 1.0}, b: {algorithm.beta: 2.0}}\n"
    method = f"algorithm: {tmp_path}/mine.py:deciding\n"
    jobs = planned(f"{SMALL}{method}local_steps: 1\naccelerator: cpu\n{rows}")
    with (tmp_path / "a").open("w") as a, (tmp_path / "b").open("w") as b:
        assert run_stack(jobs, [a, b]) == 0
        assert [job.state for job in jobs] == ["finished"] * 2
        said = [(tmp_path / name).read_text() for name in "ab"]
        assert run_stack(jobs, [a, b]) == 0  # as of another command that has waited
    assert all("with different algorithm.beta" in text for text in said)
    assert [(tmp_path / name).read_text() for name in "ab"] == said


def test_a_run_that_another_command_begins_meanwhile_keeps_its_folder(planned, monkeypatch):
    (first,) = planned(SMALL + "rows: {fedavg: {}}\n")

    def meanwhile(*args):
        finished(first, 0.5)
        return experiment_of(*args)

    monkeypatch.setattr("fl_lightning.lab.sweep.plan.experiment_of", meanwhile)
    (second,) = planned(SMALL + "rows: {fedavg: {}}\n")
    assert second.folder == first.folder
    assert second.state == "finished"


def test_a_row_may_have_several_callbacks(planned):
    jobs = planned(SMALL + "rows: {a: {callback: ['sharpness:rho=0.1,every=2', diagnostics]}}\n")
    both = ["sharpness:every=2,rho=0.1,samples=none", "diagnostics"]
    assert options(jobs, "callback") == [(both,)]


def test_a_row_may_spell_its_method_as_a_paper_does(planned):
    rows = "rows: {FedLESAM-S: {}, small: {algorithm.rho: 0.01}}\n"
    column = "columns: {a: {methods: {fedsam: {lr: 0.3}}}}\n"
    jobs = planned(SMALL + "algorithm: fedsam\n" + rows + column)
    assert options(jobs, "algorithm", "lr") == [("fedlesam_s", 0.1), ("fedsam", 0.3)]


def test_runs_on_other_folders_of_images_are_other_runs(tmp_path):
    (tmp_path / "table.yaml").write_text("rows: {fedavg: {}}\n")
    table, recipe = TableFile.read(str(tmp_path / "table.yaml")), ROOT / "recipes/image_folder.py"
    folders = [
        plan(table, recipe, tmp_path, ["--data-dir", name])[0].config["data_dir"] for name in "ab"
    ]
    assert folders == [str(Path("a").absolute()), str(Path("b").absolute())]


def test_a_recipe_may_need_an_option_that_the_table_gives(tmp_path):
    data = "data: {name: table, file: mine.csv, target: y, clients: user}\n"
    (tmp_path / "table.yaml").write_text(data + "rows: {fedavg: {}}\n")
    table, recipe = TableFile.read(str(tmp_path / "table.yaml")), ROOT / "recipes/tabular.py"
    [job] = plan(table, recipe, tmp_path / "runs")
    assert job.config["data.target"] == "y"
    assert job.config["data_dir"] == "data", "it is not read, and does not tell runs apart"


def test_what_the_program_fills_in_does_not_tell_runs_apart(tmp_path):
    """The folder of MNIST, or the number of classes of a network."""
    (tmp_path / "table.yaml").write_text("data: mnist\nmodel: lenet\nrows: {fedavg: {}}\n")
    table, recipe = TableFile.read(str(tmp_path / "table.yaml")), ROOT / "recipes/papers.py"
    [job] = plan(table, recipe, tmp_path / "runs")
    finished(job, 0.5)
    [again] = plan(table, recipe, tmp_path / "runs")
    assert again.folder == job.folder


def test_equal_options_are_one_run_of_several_cells(planned):
    jobs = planned(SMALL + METHODS + "sweep: {algorithm.rho: [0.2, 0.4]}\nseeds: [0, 1]\n")
    methods = ("fedavg", None), ("fedsam", 0.2), ("fedsam", 0.4)
    expected = [(*method, seed) for method in methods for seed in (0, 1)]
    assert options(jobs, "algorithm", "algorithm.rho", "seed") == expected
    assert [column for _, column, _ in jobs[0].cells] == ["rho 0.2", "rho 0.4"]


def test_tuned_values_share_a_cell(planned):
    jobs = planned(SMALL + METHODS + "tune: {lr: [0.1, 0.3]}\n")
    cells = [job.cells for job in jobs[:2]]
    assert cells == [[("fedavg", "", "lr 0.1")], [("fedavg", "", "lr 0.3")]]


def test_a_run_is_finished_if_it_says_so(planned, tmp_path):
    """Files of a run that was extended and killed may lie in any order of time."""
    jobs = planned(SMALL + METHODS)
    finished(jobs[0], 0.5, 0.6)
    assert jobs[0].state == "finished"
    (jobs[0].folder / "environment.yaml").write_text("python: 3.11\n")
    (jobs[0].folder / "model.pt").touch()
    assert jobs[0].state == "begun"


def test_a_run_with_other_callbacks_is_another_run(planned):
    jobs = planned(SMALL + METHODS)
    for job in jobs:
        finished(job, 0.5, 0.6)
    again = planned(SMALL + METHODS, "--callback", "training_scores")
    assert [job.state for job in again] == ["missing", "missing"]
    tracked = planned(SMALL + METHODS, "--checkpoint-every", "3")
    assert [job.state for job in tracked] == ["finished", "finished"]


def test_a_run_of_another_table_in_the_folder_is_not_taken(planned):
    """As two tables make them at the same time."""
    jobs, others = planned(SMALL + METHODS), planned(SMALL + METHODS, "--clients", "5")
    assert jobs[0].folder == others[0].folder
    finished(others[0], 0.5, 0.6)
    assert (jobs[0].state, others[0].state) == ("missing", "finished")


def test_data_and_models_of_the_package_are_known_by_name_in_every_recipe(planned):
    jobs = planned(SMALL + "rows: {fedavg: {}}\ncolumns: {a: {data: svhn, model: vgg11}, b: {}}\n")
    assert options(jobs, "data", "model") == [("svhn", "vgg11"), ("digits", "mlp")]


def test_labels_that_differ_by_case_alone_have_folders_that_do_not(planned):
    """A Mac's disk would take them for one."""
    jobs = planned(SMALL + "rows: {SAM: {algorithm: fedsam}, sam: {algorithm: fedavg}}\n")
    assert [job.folder.name for job in jobs] == ["SAM-s0", "sam-s0-2"]


def test_a_long_label_makes_a_folder_of_a_length_that_disks_take(planned):
    column = f"columns: {{{'ä' * 300}: {{}}}}\n"
    jobs = planned(SMALL + "rows: {fedavg: {}}\nseeds: [0, 1]\n" + column)
    assert [job.folder.name[-3:] for job in jobs] == ["-s0", "-s1"]
    assert all(len(job.folder.name.encode()) < 250 for job in jobs)


def test_rows_and_columns_may_name_presets_and_a_table_another_one(planned):
    rows = "rows: {plain: {algorithm: fedavg}}\ncolumns: {few: {config: few}}\n"
    jobs = planned(f"config: base\n{rows}", base=SMALL + METHODS, few="clients: 3\n")
    assert options(jobs, "algorithm", "rounds", "clients") == [("fedavg", 2, 3)]


def test_runs_are_recognized_by_their_options(planned, tmp_path, capsys):
    text = SMALL + METHODS
    [job, _] = planned(text)
    main(["run", str(DIGITS), *job.argv, "--run-dir", str(tmp_path / "runs/by hand")])
    again, other = planned(text, "--data-dir", "elsewhere")
    assert (again.folder.name, again.state) == ("by hand", "finished")
    assert (other.folder.name, other.state) == ("fedsam-s0", "missing")
    capsys.readouterr()
    table = ["table", str(tmp_path / "table.yaml"), "--runs", str(tmp_path / "runs")]
    main([*table, "--recipe", str(DIGITS), "--dry-run"])
    assert f"# {again.folder} is finished" in capsys.readouterr().out.splitlines()
    assert planned(text, "--rounds", "3")[0].state == "missing"
    config = again.folder / "config.yaml"
    newer = "sampling:", "callback:"
    text_of = re.sub(r"\n {2}name: none", " none", config.read_text())
    without = [line for line in text_of.splitlines() if not line.startswith(newer)]
    config.write_text("\n".join(without))
    assert planned(text)[0].state == "finished", "what an older run lacks has its default"
    environment = again.folder / "environment.yaml"
    environment.write_text(environment.read_text().partition("ended:")[0])
    begun = planned(f"{text}on_divergence: skip-client\n")[0]
    assert begun.state == "begun"
    command = begun.command()
    assert command[:3] == ["--run-dir", str(begun.folder), "--resume"]
    assert command[command.index("--on-divergence") + 1] == "skip-client"


def test_shards_part_the_commands_and_dry_run_makes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("recipe: digits\n" + SMALL + METHODS + "seeds: [0, 1]\n")
    commands = set[str]()
    for part in (1, 2, 3):
        argv = ["mine.yaml", "--dry-run", "--shard", f"{part}/3"]
        main(["table", *argv, "--columns", "*", "--methods", "fed*,scaffold"])
        *lines, total = capsys.readouterr().out.splitlines()
        assert total == "2 runs, 2 to make"
        commands |= set(lines)
    assert len(commands) == 6
    assert all(line.startswith("fl-lightning run digits --config mine.yaml") for line in commands)
    with pytest.raises(SystemExit) as done:
        main(["table", "mine.yaml", "--no-runs"])
    assert done.value.code == 0
    assert "4 of 4 runs are missing" in capsys.readouterr().out
    assert not Path("runs").exists()


def test_curves_are_values_like_others(planned, tmp_path):
    """On the command line too, where their own commas are none between values."""
    curve = "cosine(0.1, 0)"
    text = SMALL + f"methods: {{fedavg: {{}}}}\nsweep: {{lr: [0.1, '{curve}']}}\n"
    jobs = planned(text)
    assert options(jobs, "lr") == [(0.1,), (curve,)]
    for job in jobs:
        finished(job, 0.5, 0.6)
    assert [job.state for job in planned(text)] == ["finished", "finished"]
    (folder,) = {job.folder.parent for job in jobs}
    assert curve in compared(folder).table(["last"]).text.to_csv()
    command = TableOptions(str(tmp_path / "table.yaml"), tune=[f"batch_size=8,{curve}"])
    assert [*command.read().tune[""].values()] == [{"batch_size": 8}, {"batch_size": curve}]


def test_what_the_user_sends_replaces_what_a_row_sends(planned):
    row = "rows: {a: {algorithm: fedavg, send: topk, send.share: 0.3}}\n"
    for further, sent in ("sign", "sign"), ("topk --send quantize", "topk+quantize"):
        (job,) = planned(SMALL + row, "--send", *further.split())
        assert job.config["send"] == sent
