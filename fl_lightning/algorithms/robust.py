"""Robust aggregation: what a few clients send cannot decide the server's step."""

from typing import Annotated

from typing_extensions import Doc

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import BelowOneFloat, PositiveFloat, PositiveInt, checked
from fl_lightning.terms import CenteredClipping, GeometricMedian, Krum, TrimmedMean
from fl_lightning.terms.robust import UpToHalf


def fedmedian() -> Algorithm:
    r"""FedMedian: the median of each number in the cohort's updates (Yin et al., ICML 2018).

    Of an even number of clients it is the mean of the two middle ones.

    Formula:
        server: w^{t+1} = w^t + \operatorname{median}_{i \in S}\, (u_i - w^t)

    References:
        Yin et al., ICML 2018, https://arxiv.org/abs/1803.01498
    """
    return Algorithm(TrimmedMean(0.5))


@checked
def trimmed_mean(
    share: Annotated[UpToHalf, Doc("Part of the cohort that is left out on each side.")] = 0.2,
) -> Algorithm:
    r"""Trimmed mean: each number's mean without the extreme clients (Yin et al., ICML 2018).

    Formula:
        server: w^{t+1} = w^t + \operatorname{mean}\, \{ x_{(k)} : b < k \le M - b \}, \quad x_i =
            u_i - w^t, \quad b = \lfloor \mathrm{share} \cdot M \rfloor
        with: x_{(1)} \le \dots \le x_{(M)} \text{: in each number the sorted updates}

    References:
        Yin et al., ICML 2018, https://arxiv.org/abs/1803.01498
    """
    return Algorithm(TrimmedMean(share))


@checked
def krum(
    share: Annotated[BelowOneFloat, Doc("Part of the cohort that may attack, f / M.")] = 0.2,
    kept: Annotated[PositiveInt, Doc("Updates that are averaged; 1 is Krum.")] = 1,
) -> Algorithm:
    r"""Krum: the update nearest to its neighbors, or several (Blanchard et al., NeurIPS 2017).

    Formula:
        server: w^{t+1} = w^t + \operatorname{mean}\, \{ x_i : s_i \text{ among the least} \}, \quad
            s_i = \sum_{j \in N_i} \|x_i - x_j\|^2, \quad x_i = u_i - w^t
        with: N_i \text{: the } M - f - 2 \text{ other clients nearest to } x_i

    References:
        Blanchard et al., NeurIPS 2017, https://arxiv.org/abs/1703.02757
    """
    return Algorithm(Krum(share, kept))


@checked
def rfa(
    steps: Annotated[PositiveInt, Doc("Steps of Weiszfeld's algorithm, from the mean.")] = 4,
    nu: Annotated[PositiveFloat, Doc("The least distance that counts.")] = 1e-5,
) -> Algorithm:
    r"""RFA: nearly the geometric median of the updates (Pillutla et al., IEEE TSP 2022).

    Formula:
        server: w^{t+1} = w^t + z, \quad z \gets \frac{\sum_{i \in S} b_i\, (u_i - w^t)}{\sum_{i \in
            S} b_i}, \quad b_i = \frac{1}{\max(\nu, \|z - (u_i - w^t)\|)}

    References:
        Pillutla et al., IEEE TSP 2022, https://arxiv.org/abs/1912.13445

    Released code:
        It has these defaults, weighs clients by samples, and stops once a step changes little.
    """
    return Algorithm(GeometricMedian(steps, nu))


@checked
def centered_clipping(
    tau: Annotated[PositiveFloat, Doc("Largest norm of an update's difference from c.")] = 1.0,
    steps: Annotated[PositiveInt, Doc("Corrections of c in a round.")] = 1,
) -> Algorithm:
    r"""Centered clipping: the last result and clipped differences (Karimireddy et al., ICML 2021).

    Formula:
        server: w^{t+1} = w^t + c, \quad c \gets c + \mean_S (x_i - c)\, \min \Bigl( 1,
            \frac{\tau}{\|x_i - c\|} \Bigr), \quad x_i = u_i - w^t

    Args:
        tau: In the unit of a client's move. On gradients the authors try 0.1, 10 and 1,000.

    References:
        Karimireddy, He and Jaggi, ICML 2021, https://arxiv.org/abs/2012.10333

    Released code:
        Clients send gradients with a momentum that they keep. Here they send moves of visits.
    """
    return Algorithm(CenteredClipping(tau, steps))
