"""Starts, server steps and personal models against numbers worked out by hand."""

from typing import Any

import pytest
from oracles import quadratic, view
from problems import close, vec
from torch import Tensor

from fl_lightning.terms import (
    AdaptiveServer,
    FirstOrderMAML,
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


def test_the_meta_step_looks_from_where_the_other_half_leads() -> None:
    class Halves:
        def part(self, index: int, count: int) -> Any:
            assert count == 2
            return (quadratic, lambda w: 10 * w)[index]

        def __call__(self, w: Tensor) -> Tensor:
            raise AssertionError("asked for the whole batch")

    direction = FirstOrderMAML(alpha=0.25).gradient(Halves(), vec(3, 2), None)
    close(direction, 10 * (3 - 0.25 * 3), 10 * (2 - 0.25 * 4))
