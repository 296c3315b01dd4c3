"""Optimizer wrappers that step with a transformed gradient: SAM, ASAM, GSAM, LESAM, your own ones.

For any PyTorch project: plain loops, `LightningModule`s under automatic optimization, Fabric. A
wrapper shares param groups and state with the optimizer that it wraps, so schedulers, gradient
clipping and checkpoints see one optimizer.

Example:
    >>> import torch
    >>> from fl_lightning.optim import SAM
    >>> model = torch.nn.Linear(4, 3)
    >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
    >>> optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rho=0.05)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = torch.nn.functional.cross_entropy(model(x), y)
    ...     loss.backward()
    ...     return loss
    >>> losses = [optimizer.step(closure).item() for _ in range(5)]
    >>> losses[-1] < losses[0]
    True

Precision is 32 bits or bf16. fp16 with a GradScaler ('16-mixed') does not work: PyTorch's scaler
takes no closure.
"""

from fl_lightning.optim.checks import check_minimizes as check_minimizes
from fl_lightning.optim.sharpness import ASAM as ASAM
from fl_lightning.optim.sharpness import GSAM as GSAM
from fl_lightning.optim.sharpness import LESAM as LESAM
from fl_lightning.optim.sharpness import SAM as SAM
from fl_lightning.optim.transform import GradientTransform as GradientTransform
from fl_lightning.optim.transform import Transform as Transform
