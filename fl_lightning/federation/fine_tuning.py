"""Fine-tuning: personal models by plain local steps on each client's samples."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.losses import scores_of
from fl_lightning.core.network import call
from fl_lightning.core.oracle import record_activations
from fl_lightning.core.prediction import PersonalModel
from fl_lightning.core.randomness import derived_seed
from fl_lightning.core.term import Term
from fl_lightning.core.vector import Layout
from fl_lightning.data import ClientData
from fl_lightning.errors import DivergenceError, UserError
from fl_lightning.executors import ClientTask, RoundInputs
from fl_lightning.executors.executor import Buffers
from fl_lightning.federation.federation import Federation
from fl_lightning.federation.server import copy_of, load_model
from fl_lightning.terms import LocalOnly


class FineTuning:
    """Personal models, from the global model or from the one of the algorithm (`Term.personal`).

    Fine-tuning is the local optimizer without any term, head included, in an executor like the
    federation's. It works on a copy: the federation does not change.

    Args:
        federation: After its rounds.
        lr: The learning rate; None is that of the next round.
    """

    def __init__(self, federation: Federation, lr: float | None = None):
        self.federation = federation
        self.module = copy_of(federation.load_global())
        self.trained, self.head = federation.layout, federation.layout.head
        for name in federation.untrained:
            self.module.get_parameter(name).requires_grad_(True)
        self.layout = Layout(self.module)
        self.executor = federation.new_executor(self.module, self.layout)
        self.tuning = Algorithm(LocalOnly(), local=federation.algorithm.local)
        self.lr = federation.local_training.rates.of_round(federation.round) if lr is None else lr

    def clients_of_rank(self) -> list[int]:
        """The clients whose models this rank makes."""
        fabric, training = self.federation.fabric, self.federation.local_training
        # clients that train together must not depend on the number of ranks
        block = self.executor.width if training.deterministic else 1
        every = range(self.federation.clients.num_clients)
        return [i for i in every if i // block % fabric.world_size == fabric.global_rank]

    def models(self, clients: Sequence[int], epochs: float) -> Iterator[tuple[Tensor, Buffers]]:
        """Weights and buffers of each client's model after some epochs on its samples.

        They are made on demand, and at most as many as the executor trains in parallel.
        """
        if not epochs:
            yield from map(self._initial, clients)
            return
        if not self.lr > 0:
            raise UserError("the learning rate of one more round is 0: give one for fine-tuning")
        data = self.federation.clients.lasting(epochs)
        width = min(self.executor.width, self.federation.local_training.group_size)
        for first in range(0, len(clients), width):
            yield from self._tuned(clients[first : first + width], data, min(width, len(clients)))

    def check_finite(self, lost: Tensor) -> None:
        """Raise a DivergenceError if models are not finite, unless "skip-client" is set.

        Args:
            lost: Whether a client's model is not finite, (clients,); alike on all ranks.
        """
        if lost.any() and self.federation.on_divergence == "stop":
            shown = ", ".join(map(str, lost.nonzero().flatten().tolist()[:5]))
            raise DivergenceError(
                f"the fine-tuning of clients {shown} is not finite: lower its learning rate, "
                f"{self.lr:.3g}"
            )

    def _tuned(
        self, clients: Sequence[int], data: ClientData, largest: int
    ) -> Iterator[tuple[Tensor, Buffers]]:
        """The models of clients that train in parallel, in groups of `largest` and a last one."""
        federation, visits = self.federation, []
        for client in clients:
            batches = data.visit(client, federation.round)
            seed = derived_seed(federation.seed, "adaptation", client)
            w, buffers = self._initial(client)
            states = [{"w_i": w}]
            facts, lrs = {"weight": states[0]["w_i"].new_ones(())}, [self.lr] * len(batches)
            visits.append(ClientTask(client, facts, states, batches, lrs, seed, buffers))
        anchor = visits[0].states[0]["w_i"]
        facts = federation.local_training.round_facts(1) | {"anchor": anchor, "layout": self.layout}
        sent = RoundInputs(self.tuning, facts, [{}], federation.server.buffers, largest)
        results = [*self.executor(sent, visits)]  # before `personal_model` changes the module
        for visit, result in zip(visits, results, strict=True):
            yield visit.states[0]["w_i"] + result.progress, result.buffers

    def personal_model(self, client: int, w: Tensor, buffers: Buffers) -> PersonalModel:
        """A client's model with its samples, for predictions; valid until the next one is made."""
        load_model(self.module, self.layout, w, buffers)
        data = self.federation.clients.dataset
        index = self.federation.clients.partition[client].to(data.device)
        return PersonalModel(
            self._features_and_logits, data.inputs(index), data.y[index], len(data.classes)
        )

    def _features_and_logits(self, x: Any) -> tuple[Tensor, Tensor]:
        with (
            torch.inference_mode(),
            self.federation.fabric.autocast(),
            record_activations(self.module, (self.head,)) as activations,
        ):
            out = scores_of(call(self.module, x))
        scores = out.float().reshape(len(out), -1)  # also of one score a sample, (n,)
        return activations[self.head][0].flatten(1).float(), scores

    def _initial(self, client: int) -> tuple[Tensor, Buffers]:
        """The client's model before fine-tuning: a vector of the whole model, and buffers."""
        whole: nn.Module = self.federation.load_global()
        w, buffers = personal_model(self.federation, client)
        self.trained.load(whole, w)
        parameters = map(whole.get_parameter, self.layout.names)
        return self.layout.flatten(p.detach() for p in parameters).clone(), buffers


def personal_model(federation: Federation, client: int) -> tuple[Tensor, Buffers]:
    """Weights and buffers of a client before any fine-tuning: global unless a term says else."""
    w, algorithm, training = federation.w.detach(), federation.algorithm, federation.local_training
    if all(type(term).personal is Term.personal for term in algorithm.terms):
        return w, federation.server.buffers  # and no row need be read
    states, own = training.before_visit(client)
    w = algorithm.personal(w, training.round_facts(1), states, federation.server.states)
    return w, {**federation.server.buffers, **own}
