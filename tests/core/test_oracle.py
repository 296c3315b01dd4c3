"""Parts of a batch, and the head displaced alone."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from oracles import oracle_of
from problems import classifier
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fl_lightning import Algorithm, ModelError, Term
from fl_lightning.core.network import FunctionalModel
from fl_lightning.core.oracle import ForwardPass, Oracle, Request
from fl_lightning.core.vector import Layout, unit
from fl_lightning.terms import SOL, HeadSOL, Neighbor, Proximal

X = torch.randn(6, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
Y = torch.arange(6) % 3


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3)).double()


def test_the_parts_of_a_batch_are_interleaved_and_have_parts_of_their_own():
    module = network()
    oracle, w = oracle_of(module, X, Y), Layout(module).read(module)
    for part, samples in [
        (oracle.part(0, 2), [0, 2, 4]),
        (oracle.part(1, 2), [1, 3, 5]),
        (oracle.part(2, 4), [2]),
        (oracle.part(1, 2).part(0, 3), [1]),
        (oracle.part(1, 2).part(2, 3), [5]),
        (oracle.part(0, 3).part(1, 2), [3]),
    ]:
        own = oracle_of(module, X[samples], Y[samples])
        torch.testing.assert_close(part(w), own(w))
        torch.testing.assert_close(part.of(with_squares)(w), own.of(with_squares)(w))
    one, other = oracle.part(1, 2).of(with_squares), oracle.of(with_squares).part(1, 2)
    torch.testing.assert_close(one(w), other(w))


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_parts_cover_a_batch_and_are_never_empty(size, count):
    batch = torch.arange(size)
    parts = [Request(index=i, count=count).batch(batch, batch)[0].tolist() for i in range(count)]
    assert all(parts)
    assert {sample for part in parts for sample in part} == set(range(size))
    assert size < count or sum(map(len, parts)) == size  # nobody twice, unless there are too few


def with_squares(b: ForwardPass) -> Tensor:
    return b.loss + b.out.square().mean()


def test_an_oracle_returns_the_loss_that_it_differentiates():
    module = network()
    oracle, w = oracle_of(module, X, Y), Layout(module).read(module)

    def loss(x: Tensor, y: Tensor, squares: bool) -> Tensor:
        out = functional_call(module, Layout(module).named(w - 1), (x,))
        return F.cross_entropy(out, y) + squares * out.square().mean()

    for asked, expected in [
        (oracle, loss(X, Y, squares=False)),
        (oracle.of(with_squares), loss(X, Y, squares=True)),
        (oracle.part(1, 2), loss(X[1::2], Y[1::2], squares=False)),
        (oracle.part(1, 2).of(with_squares), loss(X[1::2], Y[1::2], squares=True)),
    ]:
        torch.testing.assert_close(asked.loss(w - 1), expected.detach())


ASKED = {"of": lambda oracle: oracle.of(with_squares), "part": lambda oracle: oracle.part(1, 2)}
asked = pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)


@dataclass(frozen=True)
class Asking(Term):
    """Steps along another oracle than the plain one, perturbed by itself if there is a radius."""

    ask: Callable[[Oracle], Oracle]
    rho: float = 0.0

    def gradient(self, oracle, w, v):
        other = self.ask(oracle)
        return other(w + self.rho * unit(other(w)))


def direction_of(*terms: Term, **states: Tensor) -> tuple[Tensor, Oracle, Tensor]:
    # The terms' direction, the last of them having states; the plain oracle; and w, each
    # weight moved by one.
    module = network()
    oracle, w = oracle_of(module, X, Y), Layout(module).read(module)
    facts: dict[str, Any] = {"anchor": w - 1, "layout": Layout(module)}
    begun: list[dict[str, Tensor]] = [*({} for _ in terms[1:]), states]
    return Algorithm(*terms).gradient(oracle, w, facts, begun, [{} for _ in terms])[0], oracle, w


@asked
def test_what_an_inner_term_adds_is_in_the_oracles_that_an_outer_one_makes(ask):
    direction, oracle, w = direction_of(Proximal(0.5), Asking(ask))
    torch.testing.assert_close(direction, ask(oracle)(w) + 0.5)


@asked
@pytest.mark.parametrize("fusion", [False, True])
def test_a_neighbor_answers_for_the_oracles_that_its_term_makes(ask, fusion):
    R = torch.arange(21.0, dtype=torch.float64)
    direction, oracle, w = direction_of(Neighbor(Asking(ask, 0.5), fusion=fusion), R=R)
    along = R + ask(oracle)(w) if fusion else R
    torch.testing.assert_close(direction, ask(oracle)(w + 0.5 * unit(along)))


@dataclass(frozen=True)
class Losses(Term):
    """Writes down the losses that the oracle returns, and asks twice for a gradient."""

    log: list[Tensor]

    def gradient(self, oracle, w, v):
        self.log.extend(
            [oracle.loss(w), oracle.part(1, 2).loss(w), oracle.of(with_squares).loss(w)]
        )
        return oracle(oracle(w))


def test_oracles_of_oracles_pass_the_loss_on_and_that_without_a_task_has_none():
    log = list[Tensor]()
    term = Losses(log)
    _, oracle, w = direction_of(Proximal(0.5), term)
    expected = [oracle.loss(w), oracle.part(1, 2).loss(w), oracle.of(with_squares).loss(w)]
    direction_of(Neighbor(term), R=torch.zeros_like(w))
    direction_of(SOL(term))
    squares = oracle.of(lambda b: b.out.square().mean()).loss(w)
    zero = torch.zeros_like(squares)
    for i, one in enumerate([*expected, *expected, zero, zero, squares]):
        torch.testing.assert_close(log[i], one, rtol=0, atol=1e-12)


def passed(module: nn.Module) -> ForwardPass:
    layout = Layout(module)
    b = ForwardPass(
        FunctionalModel(module, layout, {}, layout.named(layout.read(module))), X, Y, (layout.head,)
    )
    b.earlier = (lambda b: F.cross_entropy(b.out, b.y), lambda b: 2 * b.loss + b.out.sum())
    return b


def test_at_other_weights_a_displaced_head_has_its_loss_there_too():
    module = network()
    layout = Layout(module)
    w, e = layout.read(module) + 1, layout.mask("2.", layout.read(module))
    elsewhere = passed(module).at(w)
    for vector, loss in [
        (w, elsewhere.loss),
        (w + e, elsewhere.with_head_offset(e).loss),
        (w + 2 * e, elsewhere.with_head_offset(e).with_head_offset(2 * e).loss),
    ]:
        out = functional_call(module, layout.named(vector), (X,))
        torch.testing.assert_close(loss, 2 * F.cross_entropy(out, Y).detach() + out.detach().sum())
    assert passed(module).at(w).with_head_offset(e, detached=True).loss == elsewhere.loss


class Onwards(nn.Module):
    head = "top"

    def __init__(self) -> None:
        super().__init__()
        self.top, self.below = nn.Linear(3, 3), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.below(x)).tanh()


NORMED = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3))
KEEPS_STATISTICS = nn.Sequential(OrderedDict(below=nn.Linear(2, 3), top=NORMED))


@pytest.mark.parametrize("module", [Onwards(), KEEPS_STATISTICS])
def test_a_head_that_cannot_be_displaced_alone_is_refused(module):
    module.double()
    oracle, w = oracle_of(module, X, Y), Layout(module).read(module)
    facts: dict[str, Any] = {"anchor": w, "layout": Layout(module)}
    with pytest.raises(ModelError, match=r"'top' cannot be displaced alone.*attribute `head`"):
        Algorithm(HeadSOL()).gradient(oracle, w, facts, [{}], [{}])


def test_the_head_of_a_wrapper_is_that_of_its_only_child():
    wrapper = nn.Sequential(OrderedDict(flat=nn.Flatten(), net=classifier()))
    assert Layout(wrapper).head == "net.outer"
    assert Layout(wrapper).body_blocks() == ["net.norm"]
    wrapper.net.head = "norm"
    assert Layout(wrapper).head == "net.norm"
    assert Layout(nn.Sequential(nn.Flatten(), nn.Linear(3, 3))).head == "1"
    assert Layout(nn.Linear(3, 3)).head == ""


def test_the_head_that_a_model_names_is_its_head():
    assert Layout(Onwards()).head == "top"
    assert Layout(Onwards()).body_blocks() == ["below"]
    assert Layout(classifier()).head == "outer"
    assert Layout(classifier()).body_blocks() == ["norm"]  # of "inner", before it
    heads = nn.Sequential(OrderedDict(head=nn.Linear(3, 2)))
    nested = nn.Sequential(OrderedDict(body=nn.Linear(3, 3), heads=heads))
    assert Layout(nested).head == "heads"
    nested.head = "heads.head"  # type: ignore[assignment]
    assert Layout(nested).body_blocks() == ["body"]
