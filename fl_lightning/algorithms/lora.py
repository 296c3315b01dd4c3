"""LoRA: methods for models with adapters, such as `--model huggingface --model.lora_rank 8`.

Any other method trains and sends adapters, too.
"""

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import PositiveInt, checked
from fl_lightning.core.weighting import by_size
from fl_lightning.terms import AlternateRounds, ExactAggregation, Personal, Stacking, UnequalRanks


@checked
def fedit() -> Algorithm:
    """FedIT: FedAvg of the adapters A and B, weighted by samples (Zhang et al., ICASSP 2024).

    The mean of B times the mean of A is not the mean of the products B A.

    References:
        Zhang et al., ICASSP 2024, https://arxiv.org/abs/2305.05644
    """
    return Algorithm(weight=by_size)


@checked
def ffa_lora() -> Algorithm:
    """FFA-LoRA: training of B alone (Sun et al., ICLR 2024).

    With one A for all clients the mean of the products B A is mean(B) A.

    References:
        Sun et al., ICLR 2024, https://arxiv.org/abs/2403.12313
    """
    return Algorithm(trains="lora_B")


@checked
def rolora() -> Algorithm:
    """RoLoRA: training of B and of A in turn, round by round (Chen et al., NeurIPS 2025).

    B comes first. Weights that are no adapters, such as a new head, train in every round.

    References:
        Chen et al., NeurIPS 2025, https://arxiv.org/abs/2502.01755
    """
    return Algorithm(AlternateRounds())


@checked
def fedsa_lora() -> Algorithm:
    """FedSA-LoRA: A is averaged, B stays with its client (Guo et al., ICLR 2025).

    References:
        Guo et al., ICLR 2025, https://arxiv.org/abs/2410.01463
    """
    return Algorithm(Personal("lora_B"))


@checked
def fedex_lora() -> Algorithm:
    """FedEx-LoRA: FedAvg of A and B, made exact in the base (Singhal et al., ACL 2025).

    The base weights move by s (mean(B_i A_i) - mean(B) mean(A)), with peft's factor s, so that the
    global model is the mean of the clients' models.

    References:
        Singhal et al., ACL 2025, https://arxiv.org/abs/2410.09432
    """
    return Algorithm(ExactAggregation())


@checked
def flora() -> Algorithm:
    """FLoRA: the base takes the mean of B A, adapters begin anew (Wang et al., NeurIPS 2024).

    Stacked adapters [B_1 ... B_M] and [A_1; ...; A_M] have the sum of the B_i A_i as their product,
    which is what the base takes. Clients are weighted by samples. All have the rank of the model.

    References:
        Wang et al., NeurIPS 2024, https://arxiv.org/abs/2409.05976
    """
    return Algorithm(Stacking(), weight=by_size)


@checked
def hetlora(ranks: tuple[PositiveInt, ...] = (2, 4, 8), by_norm: bool = True) -> Algorithm:
    """HetLoRA: clients of unequal ranks, zeros in the place of the rest (Cho et al., EMNLP 2024).

    Client i has rank `ranks[i % len(ranks)]` or the model's, whichever is less. The paper's pruning
    of ranks during training is left out.

    Args:
        ranks: Ranks of the clients, in turn.
        by_norm: Weigh clients by the norm of their products B A, too.

    References:
        Cho et al., EMNLP 2024, https://arxiv.org/abs/2401.06432
    """
    return Algorithm(UnequalRanks(ranks, by_norm))
