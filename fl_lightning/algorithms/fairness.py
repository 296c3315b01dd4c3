"""Fairness: clients with large losses weigh more."""

from typing import Annotated

from typing_extensions import Doc

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import NonNegativeFloat, checked
from fl_lightning.terms import Agnostic, FairStep, LossWeight

Q = Annotated[
    NonNegativeFloat,
    Doc("Power of the losses (0.001 to 5 in the paper, by data set); 0 is FedAvg, equal weights."),
]


@checked
def qffl(q: Q = 1.0) -> Algorithm:
    r"""q-FFL: FedAvg with weights F_i^q (Li et al., ICLR 2020).

    F_i is the loss of w^t on the client's samples, the mean over the batches of its visit. The
    weighted mean of the moves is a step down q-FFL's objective, the mean of F_i^{q+1} / (q + 1).

    Formula:
        server: w^{t+1} = w^t + \frac{\sum_{i \in S} F_i^q\, (u_i - w^t)}{\sum_{i \in S} F_i^q}
        with: F_i \text{: the loss of } w^t \text{ on the samples of client } i

    References:
        Li et al., ICLR 2020, https://arxiv.org/abs/1905.10497
    """
    return Algorithm(LossWeight(q))


@checked
def qfedavg(q: Q = 1.0) -> Algorithm:
    r"""q-FedAvg: q-FFL with a step length from losses and moves (Li et al., ICLR 2020).

    The server moves by sum(F_i^q d_i) / sum(F_i^q + q F_i^{q-1} L |d_i|^2) with d_i = u_i - w^t
    and L = 1 / eta.

    Formula:
        server: w^{t+1} = w^t + \frac{\sum_{i \in S} F_i^q\, d_i}{\sum_{i \in S} \bigl( F_i^q + q\,
            F_i^{q-1} L\, \|d_i\|^2 \bigr)}, \quad d_i = u_i - w^t, \quad L = \frac{1}{\eta}
        with: F_i \text{: the loss of } w^t \text{ on the samples of client } i

    References:
        Li et al., ICLR 2020, https://arxiv.org/abs/1905.10497
    """
    return Algorithm(FairStep(q))


@checked
def afl(
    step: Annotated[NonNegativeFloat, Doc("Learning rate of the clients' weights.")] = 0.1,
) -> Algorithm:
    r"""AFL: the best model for the worst mixture of clients (Mohri et al., ICML 2019).

    Weights lambda of the clients ascend along their losses and stay on the simplex. The server
    moves by the mean of u_i - w^t with these weights. Everybody should take part in each round: a
    cohort whose weights are all 0 moves the weights alone.

    Formula:
        server: w^{t+1} = w^t + \frac{\sum_{i \in S} \lambda_i\, (u_i - w^t)}{\sum_{i \in S}
            \lambda_i}, \quad \lambda \gets \operatorname{project}\Bigl( \lambda + \mathrm{step}\,
            \frac{N}{M}\, F \Bigr)
        with: F_i \text{: the loss of } w^t \text{ on the samples of client } i \text{, 0 outside of
            } S, \quad \operatorname{project} \text{: to the simplex}

    References:
        Mohri et al., ICML 2019, https://arxiv.org/abs/1902.00146

    Released code:
        The paper's result is the mean of w^t over the rounds. Here it is the last one.
    """
    return Algorithm(Agnostic(step))
