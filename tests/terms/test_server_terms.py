"""Starts, server steps and personal models against numbers worked out by hand."""

from typing import Any

import pytest
from oracles import quadratic, view
from problems import close, vec
from torch import Tensor

from fl_lightning.terms import (
    AdaptiveServer,
    FirstOrderMAML,
    NormalizedAveraging,
    RelaxedInitialization,
)


def test_yogi_moves_its_second_moment_by_the_square_towards_it() -> None:
    term = AdaptiveServer(beta1=0.5, beta2=0.75, tau=1.0, v0=4.0, kind="yogi")
    v = view(m=vec(0, 0), v=vec(4, 4))
    close(term.update(vec(4, 0), (), v), 2 / ((4 + 0.25 * 16) ** 0.5 + 1), 0)
    close(v.v, 8, 4)
    # 4 is the square already
    close(term.update(vec(1, 2), (), v), 1.5 / (7.75**0.5 + 1), 1 / (4**0.5 + 1))
    close(v.v, 8 - 0.25, 4)


@pytest.mark.parametrize(("skip", "start"), [(False, (3 + 0.5 * 3, 2 + 0.5 * 2)), (True, (3, 2))])
def test_a_first_relaxed_start_is_away_from_the_first_model_or_not_shifted(
    skip: bool, start: tuple[float, float]
) -> None:
    term, now = RelaxedInitialization(beta=0.5, skip_first=skip), vec(3, 2)
    close(term.start(now, view(w_i=term.client["w_i"](vec(0, 0), now))), *start)


def test_normalize_averages_progress_per_path_and_walks_the_mean_path() -> None:
    """Moves (2, 4) and (6, 3) on paths 1 and 3, with weights 0.5 and 1.5."""
    nova, paths, weights = NormalizedAveraging(), (1, 3), (0.5, 1.5)
    views = [view(weight=vec(p), lr_sum=vec(k)) for p, k in zip(weights, paths, strict=True)]
    moves = [nova.send(move, v) for move, v in zip((vec(2, 4), vec(6, 3)), views, strict=True)]
    sent = [v.weight for v in views]
    delta = sum(p * move for p, move in zip(sent, moves, strict=True)) / sum(sent)
    one, other = (nova.report(vec(0, 0), v) for v in views)
    mean = tuple((a + b) / 2 for a, b in zip(one, other, strict=True))
    path = 0.25 * 1 + 0.75 * 3
    expected = path * (0.25 * 2 + 0.75 * 6 / 3), path * (0.25 * 4 + 0.75 * 3 / 3)
    close(nova.update(delta, mean, None), *expected)
    close(nova.update(moves[1], other, None), 6, 3)  # the first one was skipped


def test_the_meta_step_looks_from_where_the_other_half_leads() -> None:
    class Halves:
        def part(self, index: int, count: int) -> Any:
            assert count == 2
            return (quadratic, lambda w: 10 * w)[index]

        def __call__(self, w: Tensor) -> Tensor:
            raise AssertionError("asked for the whole batch")

    direction = FirstOrderMAML(alpha=0.25).gradient(Halves(), vec(3, 2), None)
    close(direction, 10 * (3 - 0.25 * 3), 10 * (2 - 0.25 * 4))
