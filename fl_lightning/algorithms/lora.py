"""LoRA: methods for models with adapters, such as `--model huggingface --model.lora_rank 8`.

Any other method trains and sends adapters, too.
"""

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import PositiveInt, checked
from fl_lightning.core.weighting import by_size
from fl_lightning.terms import AlternateRounds, ExactAggregation, Personal, Stacking, UnequalRanks


def fedit() -> Algorithm:
    r"""FedIT: FedAvg of the adapters A and B, weighted by samples (Zhang et al., ICASSP 2024).

    The mean of B times the mean of A is not the mean of the products B A.

    Formula:
        step: (A, B) \gets (A, B) - \eta\, g(A, B), \quad W = W_0 + s B A
        server: A^{t+1} = \sum_{i \in S} p_i\, A_i, \quad B^{t+1} = \sum_{i \in S} p_i\, B_i

    References:
        Zhang et al., ICASSP 2024, https://arxiv.org/abs/2305.05644
    """
    return Algorithm(weight=by_size)


def ffa_lora() -> Algorithm:
    r"""FFA-LoRA: training of B alone (Sun et al., ICLR 2024).

    With one A for all clients the mean of the products B A is mean(B) A.

    Formula:
        step: B \gets B - \eta\, g_B(A^0, B), \quad W = W_0 + s B A^0
        server: B^{t+1} = \mean_S B_i

    References:
        Sun et al., ICLR 2024, https://arxiv.org/abs/2403.12313
    """
    return Algorithm(trains="lora_B")


def rolora() -> Algorithm:
    r"""RoLoRA: training of B and of A in turn, round by round (Chen et al., NeurIPS 2025).

    B comes first. Weights that are no adapters, such as a new head, train in every round.

    Formula:
        step: B \gets B - \eta\, g_B(A^t, B) \text{ in rounds } t = 0, 2, 4, \ldots, \quad W = W_0 +
            s B A
        then: A \gets A - \eta\, g_A(A, B^t) \text{ in rounds } t = 1, 3, 5, \ldots
        server: B^{t+1} = \mean_S B_i \text{ or } A^{t+1} = \mean_S A_i

    References:
        Chen et al., NeurIPS 2025, https://arxiv.org/abs/2502.01755
    """
    return Algorithm(AlternateRounds())


def fedsa_lora() -> Algorithm:
    r"""FedSA-LoRA: A is averaged, B stays with its client (Guo et al., ICLR 2025).

    Formula:
        step: (A, B_i) \gets (A, B_i) - \eta\, g(A, B_i), \quad W_i = W_0 + s B_i A
        server: A^{t+1} = \mean_S A_i

    References:
        Guo et al., ICLR 2025, https://arxiv.org/abs/2410.01463
    """
    return Algorithm(Personal("lora_B"))


def fedex_lora() -> Algorithm:
    r"""FedEx-LoRA: FedAvg of A and B, made exact in the base (Singhal et al., ACL 2025).

    The base weights move by s (mean(B_i A_i) - mean(B) mean(A)), with peft's factor s, so that the
    global model is the mean of the clients' models. That is so at a server learning rate of 1.

    Formula:
        step: (A, B) \gets (A, B) - \eta\, g(A, B), \quad W = W_0 + s B A
        server: A^{t+1} = \mean_S A_i, \quad B^{t+1} = \mean_S B_i
        then: W_0 \gets W_0 + s\, \Bigl( \mean_S B_i A_i - B^{t+1} A^{t+1} \Bigr)

    References:
        Singhal et al., ACL 2025, https://arxiv.org/abs/2410.09432
    """
    return Algorithm(ExactAggregation())


def flora() -> Algorithm:
    r"""FLoRA: the base takes the mean of B A, adapters begin anew (Wang et al., NeurIPS 2024).

    Stacked adapters [B_1 ... B_M] and [A_1; ...; A_M] have the sum of the B_i A_i as their product,
    which is what the base takes. Clients are weighted by samples. All have the rank of the model. A
    server learning rate other than 1 would keep a part of the old adapters.

    Formula:
        step: (A, B) \gets (A, B) - \eta\, g(A, B), \quad W = W_0 + s B A
        server: W_0 \gets W_0 + s \sum_{i \in S} p_i\, B_i A_i, \quad B^{t+1} = 0, \quad A^{t+1}
            \text{ drawn anew}

    References:
        Wang et al., NeurIPS 2024, https://arxiv.org/abs/2409.05976
    """
    return Algorithm(Stacking(), weight=by_size)


@checked
def hetlora(ranks: tuple[PositiveInt, ...] = (2, 4, 8), by_norm: bool = True) -> Algorithm:
    r"""HetLoRA: clients of unequal ranks, zeros in the place of the rest (Cho et al., EMNLP 2024).

    Client i has rank `ranks[i % len(ranks)]` or the model's, whichever is less. The paper's pruning
    of ranks during training is left out.

    Formula:
        step: (A, B) \gets (A, B) - \eta\, g(A, B), \quad W = W_0 + s B A, \quad A \text{: the first
            } r_i \text{ rows}, \; B \text{: the first } r_i \text{ columns}
        server: A^{t+1} = \sum_{i \in S} \hat{p}_i \begin{bmatrix} A_i \\ 0 \end{bmatrix}, \quad
            B^{t+1} = \sum_{i \in S} \hat{p}_i \begin{bmatrix} B_i & 0 \end{bmatrix}, \quad
            \hat{p}_i \propto \|s B_i A_i\|

    Args:
        ranks: Ranks of the clients, in turn.
        by_norm: Weigh clients by the norm of their products B A, too.

    References:
        Cho et al., EMNLP 2024, https://arxiv.org/abs/2401.06432
    """
    return Algorithm(UnequalRanks(ranks, by_norm))
