"""Models that change the batch that they are given."""

import pytest
from problems import classification, federation
from torch import Tensor, nn

from fl_lightning import Algorithm, ModelError
from fl_lightning.terms import SAM


class Shifts(nn.Module):
    """Subtracts in place, before its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Linear(6, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(x.sub_(1.0))


CHANGING = {
    "a layer": (nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3)).double(), "'0'"),
    "a nested layer": (
        nn.Sequential(nn.Sequential(nn.ELU(inplace=True)), nn.Linear(6, 3)).double(),
        "'0.0'",
    ),
    "its forward": (Shifts(), "Shifts changes its input in place:"),
}


@pytest.mark.parametrize(("module", "name"), CHANGING.values(), ids=CHANGING)
def test_a_model_that_changes_its_input_is_refused_by_name(module: nn.Module, name: str) -> None:
    run = federation(Algorithm(SAM(0.1)), module=module, clients=classification())
    with pytest.raises(ModelError, match=f"in place.*{name}|{name}"):
        run.prepare()


def test_changes_of_what_the_model_made_itself_are_its_own_matter() -> None:
    layers = nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)
    federation(Algorithm(SAM(0.1)), module=nn.Sequential(*layers).double()).prepare()
