"""Adaptation: clients make the global model their own, by plain local steps on their own samples."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from math import isclose

import torch
from torch import Tensor, nn

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.oracle import record_activations
from fl_lightning.core.prediction import PersonalModel
from fl_lightning.core.randomness import derived_seed
from fl_lightning.core.vector import Layout
from fl_lightning.data import ClientData
from fl_lightning.executors import Visit
from fl_lightning.executors.executor import Buffers
from fl_lightning.federation.federation import Federation
from fl_lightning.terms import LocalOnly


class FineTuning:
    """The clients' own models, begun from the global one, or from what the algorithm keeps for them (`Term.personal`).

    Fine-tuning is the local optimizer without any term, head included, in the federation's kind of
    executor. It works on a copy: the federation stays as it is.

    Args:
        federation: After its rounds.
        lr: The learning rate; None is that of the next round.
    """

    def __init__(self, federation: Federation, lr: float | None = None):
        self.federation = federation
        self.module = deepcopy(federation.load_global())
        self.trained, self.head = federation.layout, federation.layout.head
        self.module.get_submodule(self.head).requires_grad_(True)
        self.layout = Layout(self.module)
        self.executor = federation.local_training.new_executor(self.module, self.layout)
        self.tuning = Algorithm(LocalOnly(), local=federation.algorithm.local)
        self.lr = (
            federation.local_training.local_lr * federation.schedule(federation.round, 0)
            if lr is None
            else lr
        )

    def models(self, clients: Sequence[int], epochs: float) -> Iterator[tuple[Tensor, Buffers]]:
        """Weights and buffers of each client's own model after so many epochs on its own samples.

        They are made when asked for, and no more at once than the executor trains together.
        """
        if isclose(epochs, 0):
            yield from ((self._begun(client), self.federation.buffers) for client in clients)
            return
        data = self.federation.clients.lasting(epochs)
        width = min(
            self.executor.width, self.federation.local_training.group_size
        )  # fewer where memory did not suffice
        for first in range(0, len(clients), width):
            yield from self._tuned(clients[first : first + width], data)

    def _tuned(self, clients: Sequence[int], data: ClientData) -> Iterator[tuple[Tensor, Buffers]]:
        """The models of clients that train together."""
        federation, visits = self.federation, []
        for client in clients:
            batches = data.visit(client, federation.round)
            seed = derived_seed(federation.seed, "adaptation", client)
            states = [{"w_i": self._begun(client)}]
            visits.append(Visit(client, {}, states, batches, [self.lr] * len(batches), seed))
        common = federation.round_facts(1) | {
            "anchor": visits[0].states[0]["w_i"],
            "layout": self.layout,
        }
        outcomes = list(
            self.executor(self.tuning, common, visits, [{}], federation.buffers)
        )  # `own` moves the module
        for visit, outcome in zip(visits, outcomes, strict=True):
            yield visit.states[0]["w_i"] + outcome.progress, outcome.buffers

    def own(self, client: int, w: Tensor, buffers: Buffers) -> PersonalModel:
        """What predictions for a client are made from; valid until the next model is made or asked for."""
        self.layout.load(self.module, w)
        live = dict(self.module.named_buffers())
        for name, value in buffers.items():
            live[name].copy_(value)
        self.module.eval()
        data = self.federation.clients.dataset
        index = self.federation.clients.partition[client].to(data.y.device)
        return PersonalModel(self._look, data.inputs(index), data.y[index], len(data.classes))

    def _look(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with (
            torch.inference_mode(),
            self.federation.fabric.autocast(),
            record_activations(self.module, (self.head,)) as seen,
        ):
            out = self.module(x)
        return seen[self.head][0].flatten(1).float(), out.float()

    def _begun(self, client: int) -> Tensor:
        """What the client would use without fine-tuning, as a vector of the whole model."""
        whole: nn.Module = self.federation.load_global()
        self.trained.load(whole, self.federation.personal(client))
        return self.layout.flatten(
            p.detach() for p in map(whole.get_parameter, self.layout.names)
        ).clone()
