"""Measures of the global model: loss and accuracy in training, sharpness, accuracy by class."""

from dataclasses import dataclass
from math import ceil

from fl_lightning.callbacks.bases import Measure, check_classes
from fl_lightning.callbacks.scoring import (
    TrainingLoss,
    score,
    score_together,
    training_samples,
)
from fl_lightning.core.constraints import PositiveFloat, PositiveInt
from fl_lightning.core.vector import unit
from fl_lightning.data import DeviceDataset
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.federation.mean_loss import some_samples
from fl_lightning.federation.server import load_model
from fl_lightning.terms.client_models import ClientModels, Model


@dataclass(eq=False)
class TrainingScores(Measure):
    """Adds `train/global_accuracy` and `train/global_loss`: the global model on clients' samples.

    `train/loss` is another number, the mean over local steps and local models.

    Args:
        samples: Number of random training samples; None is all.
    """

    samples: PositiveInt | None = None

    def measure(self, federation: Federation) -> Metrics:
        index, data = training_samples(federation, self.samples), federation.clients.dataset
        scores = score_together(federation, federation.load_global(), data, index)
        return {f"train/global_{name}": score for name, score in scores.items()}


@dataclass(eq=False)
class Sharpness(Measure):
    """Adds `sharpness/global`: how far the global loss rises, `L(w + rho F/|F|) - L(w)`.

    L is the mean loss over the clients' samples and F its gradient, as in FedLESAM's Figure 2
    (Fan et al., ICML 2024, https://arxiv.org/abs/2405.18890).

    Args:
        rho: Radius.
        samples: Number of random training samples; None is all.
    """

    rho: PositiveFloat = 0.05
    samples: PositiveInt | None = None

    def measure(self, federation: Federation) -> Metrics:
        loss, w = TrainingLoss(federation, self.samples), federation.w.detach()
        ascent = unit(loss.gradient(w))
        return {"sharpness/global": loss(w + self.rho * ascent) - loss(w)}


class ClassAccuracy(Measure):
    """Adds the accuracy of the global model by class and over clients.

    `test/class_<name>` is the accuracy on the test samples of a class. A client's accuracy is the
    mean of these, weighted by the classes that it holds: what test samples like its own would give.
    `test/clients` is its mean over all clients, `test/clients_std` its standard deviation, and
    `test/clients_worst10` the mean over the worst tenth of the clients. Classes without a test
    sample do not count, nor does a client that holds no other.
    """

    def __init__(self, test: DeviceDataset, every: int = 10):
        super().__init__(every)
        check_classes(test, "ClassAccuracy")
        self.test = test

    def measure(self, federation: Federation) -> Metrics:
        y, classes = self.test.y, self.test.classes
        fabric, order = federation.fabric, some_samples(len(y), None).to(y.device)
        index = order[fabric.global_rank :: fabric.world_size]
        model, loss = federation.load_global(), federation.loss
        right, *_ = score(model, self.test, index, loss, fabric.autocast)
        hits = y[index][right].bincount(minlength=len(classes)).double()
        federation.all_reduce_sum(hits)
        samples = y.bincount(minlength=len(classes))
        accuracy = (hits / samples.clamp(min=1)).cpu()
        by_class = zip(classes, accuracy.tolist(), samples.tolist(), strict=True)
        held = federation.clients.class_counts * (samples > 0).cpu()
        held = held[held.sum(1) > 0]
        of_client = (held.double() @ accuracy) / held.sum(1)
        worst = of_client.sort().values[: ceil(len(of_client) / 10)]
        return {
            **{f"test/class_{name}": share for name, share, known in by_class if known},
            "test/clients": of_client.mean().item(),
            "test/clients_std": of_client.std(correction=0).item(),
            "test/clients_worst10": worst.mean().item(),
        }


class EvaluateModels(Measure):
    """Adds accuracy and loss of other models than the server's, e.g. `test/accuracy@cohort`.

    The models are kept by a term, `terms.ClientModels`, which the algorithm needs. They are scored
    with the global buffers.

    Args:
        models: The mean of the cohort's models, or of all clients' last models.

    Attributes:
        terms: The terms to add to the algorithm.
    """

    def __init__(
        self,
        test: DeviceDataset,
        models: tuple[Model, ...] = ("cohort", "clients"),
        every: int = 1,
    ):
        super().__init__(every)
        self.test, self.models, self.terms = test, models, (ClientModels(models),)

    def measure(self, federation: Federation) -> Metrics:
        module, metrics = federation.load_global(), Metrics()
        terms = zip(federation.algorithm.terms, federation.server.states, strict=True)
        kept = next(states for term, states in terms if isinstance(term, ClientModels))
        for name in self.models:
            w = kept[f"mean_{name}"]
            load_model(module, federation.layout, w, federation.server.buffers)
            scores = score_together(federation, module, self.test)
            metrics |= {f"test/{score}@{name}": value for score, value in scores.items()}
        return metrics
