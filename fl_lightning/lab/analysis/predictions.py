"""Features and predictions of a model, and its scores by class and by client."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fl_lightning.core.losses import scores_of
from fl_lightning.core.network import call
from fl_lightning.core.oracle import record_activations
from fl_lightning.core.prediction import is_right, predicted
from fl_lightning.core.vector import Layout
from fl_lightning.data import DeviceDataset, Partition
from fl_lightning.errors import UserError
from fl_lightning.federation.mean_loss import evaluating, some_samples


@dataclass(frozen=True)
class Predictions:
    """A model's view of some samples. The tensors are on the CPU.

    Attributes:
        features: (n, F) the inputs of the head (`Layout.head`), flattened.
        logits: (n, classes), or (n, 1) of two classes.
        y: (n,) labels.
    """

    features: Tensor
    logits: Tensor
    y: Tensor

    @property
    def predicted(self) -> Tensor:
        """(n,) the predicted classes."""
        return predicted(self.logits, self.y)

    @property
    def right(self) -> Tensor:
        """(n,) whether the prediction is right; never if a logit is NaN."""
        return is_right(self.logits, self.y)

    def confusion(self, classes: int = 2) -> Tensor:
        """(k, k) int64: samples by their class (rows) and prediction (columns).

        k is the number of outputs, or of `classes` where they are more: one output is of two.
        """
        # here, because training does not need it
        from torchmetrics.functional.classification import multiclass_confusion_matrix

        size = max(classes, self.logits.shape[1])
        return multiclass_confusion_matrix(self.predicted, self.y, size)

    def accuracy_by_client(self, partition: Partition) -> Tensor:
        """(clients,) float64: the accuracy on the samples of each client; NaN if it has none."""
        right = self.right[partition.indices].double()
        return partition.holders.bincount(right, minlength=len(partition)) / partition.sizes


@torch.no_grad()
def predict(
    module: nn.Module, data: DeviceDataset, samples: int | None = None, batch_size: int = 500
) -> Predictions:
    """Features and outputs of a model in evaluation mode.

    Args:
        module: The model, on the device of the data.
        data: The samples.
        samples: Number of samples, drawn at random, the same in every call; None is all. The
            results have the order of the data.
        batch_size: Samples of a forward pass.
    """
    head, features, logits = Layout(module).head, [], []
    index = some_samples(len(data), samples).to(data.device)
    with evaluating(module), record_activations(module, (head,)) as activations:
        for x, _ in data.batches(index, batch_size):
            out = scores_of(call(module, x))
            logits.append(out.float().reshape(len(out), -1).cpu())
            features.append(activations[head][0].flatten(1).float().cpu())
    order = index.argsort().cpu()
    y = data.y[index].cpu()
    return Predictions(torch.cat(features)[order], torch.cat(logits)[order], y[order])


def embedding(features: Tensor, method: str = "tsne", seed: int = 0) -> Tensor:
    """An embedding (n, 2) of features (n, F), which keeps close ones close together.

    Args:
        features: The features.
        method: `tsne` (scikit-learn) or `umap` (the package umap-learn).
        seed: Its seed.

    Raises:
        UserError: If umap-learn is not installed.
    """
    if method == "umap":
        try:
            from umap import UMAP
        except ImportError:
            raise UserError("umap is not installed: pip install umap-learn, or use tsne") from None
        plane = UMAP(random_state=seed, n_jobs=1).fit_transform(features.numpy())
    else:
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(features) - 1) / 3)
        plane = TSNE(perplexity=perplexity, random_state=seed).fit_transform(features.numpy())
    return torch.from_numpy(plane)


def silhouette(features: Tensor, y: Tensor) -> float:
    """The silhouette of the classes, from -1 to 1 (Rousseeuw, 1987); NaN for a single class."""
    from sklearn.metrics import silhouette_score

    several = 1 < len(y.unique()) < len(y)
    return float(silhouette_score(features.numpy(), y.numpy())) if several else float("nan")
