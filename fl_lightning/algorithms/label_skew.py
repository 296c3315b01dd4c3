"""Label skew: features without correlations, scores fitted to a client's classes."""

from typing import Literal

from fl_lightning import terms
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import NonNegativeFloat, PositiveFloat, UnitInterval, checked
from fl_lightning.core.weighting import by_size


@checked
def feddecorr(beta: NonNegativeFloat = 0.1, products: Literal["mean", "sum"] = "sum") -> Algorithm:
    r"""FedDecorr: features without correlations (Shi et al., ICLR 2023).

    Adds the squared correlations between the d features that enter the head, over a batch of n, so
    that they do not collapse into few dimensions. A feature that hardly varies gets a large
    gradient, which blows rounding up: --deterministic gives equal runs on any number of ranks.

    Formula:
        step: w \gets w - \eta\, \nabla \Bigl[ \ell(w) + \frac{\beta}{n\, d\, (d - 1)} \sum_{i \ne
            j} \Bigl( \sum_{b=1}^{n} \hat z_{bi}\, \hat z_{bj} \Bigr)^2 \Bigr]
        with: \hat z \text{: the features that enter the head, standardized over the batch}

    Args:
        beta: Weight of the correlations.
        products: What is squared: sums of products over the batch, whose squares are divided by n,
            or their means, the correlations K (paper), which is about n times weaker.

    References:
        Shi et al., ICLR 2023, https://arxiv.org/abs/2210.00226

    Released code:
        Its sums are the default, since its commands give them the weight 0.1. The paper has beta /
        d^2 times the squared norm of K.
    """
    return Algorithm(terms.Decorrelation(beta, products), weight=by_size)


@checked
def fedrs(
    alpha: UnitInterval = 0.5, restricts: Literal["missing", "rare"] = "missing"
) -> Algorithm:
    r"""FedRS: scores of classes that a client lacks count less (Li and Zhan, KDD 2021).

    The softmax of a client's loss has alpha times these scores, so that steps hardly move them.

    Formula:
        step: w \gets w - \eta\, \nabla \log \sum_{c} e^{r_c s_c - r_y s_y}, \quad r_c = \alpha
            \text{ for classes that the client lacks, else } 1
        with: s_c, y \text{: the score of class } c \text{ and the true class}

    Args:
        alpha: Factor on their scores; 1 is FedAvg. The authors' commands have 0.9, 0.5 and 0.1.
        restricts: Classes whose scores have a smaller factor: those that the client lacks, or all,
            with alpha + (1 - alpha) n_c / max n by its samples of each (released code).

    References:
        Li and Zhan, KDD 2021, https://doi.org/10.1145/3447548.3467254

    Released code:
        It restricts rare classes, too: `restricts="rare"`. Its classifier has no bias; here the
        factor is on the whole score.
    """
    return Algorithm(terms.RestrictedSoftmax(alpha, restricts), weight=by_size)


@checked
def fedlc(tau: PositiveFloat = 1.0) -> Algorithm:
    r"""FedLC: scores calibrated by a client's class counts (Zhang et al., ICML 2022).

    The loss subtracts tau n_c^(-1/4) from the score of class c, n_c being the client's samples of
    it: the margin of y over c grows by tau (n_y^(-1/4) - n_c^(-1/4)). Classes that the client lacks
    drop out, so that a client of one class stays where it is.

    Formula:
        step: w \gets w - \eta\, \nabla \log \sum_{c} e^{s_c - s_y + \Delta_{yc}}, \quad \Delta_{yc}
            = \tau\, \bigl( n_y^{-1/4} - n_c^{-1/4} \bigr)
        with: s_c, y \text{: the score of class } c \text{ and the true class}

    Args:
        tau: Strength of the calibration; repositories that implement it take 0.1, 0.5 or 1.

    References:
        Zhang et al., ICML 2022, https://arxiv.org/abs/2209.00189

    Released code:
        There is none of the authors. As in the code of FedDecorr's, the sum is over all classes;
        the paper prints it without the true one, and the loss then has no lower bound.
    """
    return Algorithm(terms.LogitCalibration(tau), weight=by_size)
