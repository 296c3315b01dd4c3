"""Options that several algorithms have: their ranges and help texts, and what their values mean."""

from functools import partial
from typing import Annotated, Any, Literal

from torch.optim import SGD
from typing_extensions import Doc

from fl_lightning import terms
from fl_lightning.core.algorithm import Algorithm, OptimizerFactory
from fl_lightning.core.constraints import (
    BelowOneFloat,
    NonNegativeFloat,
    OpenFraction,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    UnitInterval,
)
from fl_lightning.core.term import Term
from fl_lightning.errors import UserError
from fl_lightning.terms import attacks, privacy, released, sending, sol

# Perturbations

Rho = Annotated[NonNegativeFloat, Doc("Radius of the perturbation.")]
Eta = Annotated[NonNegativeFloat, Doc("Number added to the scale |w|.")]
Parts = Annotated[PositiveInt, Doc("Parts of a batch, each perturbed along its own gradient.")]
Theta = Annotated[
    PositiveFraction, Doc("Weight of the newest gradient (0.9 in the authors' code); 1 is SAM.")
]
KeptAverage = Annotated[bool, Doc("Keep the average from one visit of a client to the next.")]
Gap = Annotated[
    NonNegativeFloat, Doc("Weight of the surrogate gap (the authors' example 0.2); 0 is SAM.")
]
Scaled = Annotated[
    Literal["all", "weights"],
    Doc("Parameters that scale the ball: all, or those whose name contains `weight`."),
]
SCALED = {"all": "", "weights": "weight"}

First = Annotated[
    Literal["init", "skip"],
    Doc(
        "At a client's first visit take w^0 for its last model, or skip the perturbation or shift."
    ),
]

Reference = Annotated[
    Literal["last_active", "last_round", "as_released"],
    Doc(
        "Older model to point to: the one received at the last visit (paper), the last round's "
        "(the intent of the released code), or what its indexing error makes of that."
    ),
]

Kappa = Annotated[NonNegativeFloat, Doc("Weight of Delta in the ascent direction.")]
TrendBeta = Annotated[NonNegativeFloat, Doc("Weight of Delta in the descent direction.")]
TrendScale = Annotated[
    Literal["steps", "epochs", "gradient"],
    Doc(
        "Divisor of the mean movement Delta: K local steps (third-party code), K local epochs (the "
        "K of the paper's experiments), or K eta, which makes it a gradient (FedCM)."
    ),
]
TREND_SCALES: dict[str, Any] = {"steps": "steps", "epochs": "epochs", "gradient": "lr_sum"}
Carry = Annotated[
    bool, Doc("Keep the previous perturbed gradient from one visit of a client to the next.")
]

Strength = Annotated[
    Literal["adaptive", "fixed"],
    Doc("Perturb each weight by how far it has moved, or all equally."),
]
Per = Annotated[
    sol.Per,
    Doc("Norm of the adaptive strength: of each column (released code) or parameter (paper)."),
]
Scope = Annotated[sol.Scope, Doc("Part of the model that is perturbed.")]
Tau = Annotated[PositiveFloat, Doc("Temperature of the distillation.")]

# Duals, variates, momenta

Alpha = Annotated[NonNegativeFloat, Doc("Strength of the regularizer.")]
Lam = Annotated[NonNegativeFloat, Doc("Multiplier of the proximal term and the dual.")]
Dual = Annotated[
    Literal["all", "active"],
    Doc("Clients whose mean dual the server adds: all, or those of the cohort."),
]
ProxClip = Annotated[
    Literal["whole", "split"],
    Doc(
        "What --clip-norm clips: the whole proximal term, or only its constant part (released code "
        "puts the rest into the weight decay)."
    ),
]
Pull = Annotated[
    Literal["squared", "norm"],
    Doc(
        "Proximal term: the squared distance to the received model, or the distance (FedGMT's "
        "repository), a pull of constant length lam / 2."
    ),
]
SizeWeighting = Annotated[
    bool,
    Doc(
        "Divide corrections by the client's relative size. Released code only; those of small "
        "clients grow large."
    ),
]
Length = Annotated[
    Literal["current", "base"],
    Doc(
        "Divisor of a client's move, which then estimates its gradient: K eta of this visit, or "
        "K eta_0 of the first round (released code)."
    ),
]
GradientWeight = Annotated[
    PositiveFraction, Doc("Weight of the client's own gradient; the momentum has the rest.")
]
Momentum = Annotated[BelowOneFloat, Doc("Momentum of the server.")]
Beta1 = Annotated[BelowOneFloat, Doc("Decay of the first moment.")]
Beta2 = Annotated[BelowOneFloat, Doc("Decay of the second moment.")]
Adaptivity = Annotated[PositiveFloat, Doc("Number added to the root of the second moment.")]
SecondMoment = Annotated[
    NonNegativeFloat | None, Doc("Initial value of the second moment; none is tau^2 (paper).")
]
StartBeta = Annotated[
    NonNegativeFloat,
    Doc("Shift, in multiples of the received minus the client's last model."),
]
MaxStaleness = Annotated[
    PositiveInt, Doc("The largest staleness: rounds since the model that a client starts from.")
]
StaleDecay = Annotated[NonNegativeFloat, Doc("A stale move counts (1 + staleness)^-decay.")]

# Clients' optimizers

Decay = Annotated[NonNegativeFloat, Doc("Decoupled weight decay; it takes --weight-decay's place.")]
Gamma = Annotated[UnitInterval, Doc("Weight of the global move in every step.")]
own_optimizer = partial(Algorithm, clips=False, sgd_options=("lr",))
"""Plain steps along the terms' direction, which has momentum and decay of its own."""

# What is sent

Share = Annotated[PositiveFraction, Doc("Share of the model's numbers that are sent.")]
Bits = Annotated[sending.Bits, Doc("Bits of a number that is sent, its sign included.")]
Norm = Annotated[
    sending.Norm,
    Doc("Norm that is divided into levels: the largest number (the paper's experiments) or l2."),
]
Attackers = Annotated[
    BelowOneFloat, Doc("Part of all clients that attacks: those with the smallest numbers.")
]
Flipped = Annotated[NonNegativeFloat, Doc("Factor on the opposite of an attacker's update.")]
Colluders = Annotated[
    attacks.BelowHalf,
    Doc("Part of a round's clients that attacks: those with the smallest numbers, rounded down."),
]
Deviations = Annotated[PositiveFloat, Doc("Standard deviations off the mean of the others.")]
Opposite = Annotated[PositiveFloat, Doc("Factor on the opposite of the others' mean.")]

# What clients keep

Word = Annotated[str, Doc("Word in the names of the parameters, e.g. lora_B.")]


def sgd(lr: float) -> OptimizerFactory:
    """A server optimizer that moves by `lr` times the update."""
    return partial(SGD, lr=lr)


def control_variate(correction_lr: str, size_weighting: bool, whole: bool = False) -> Term:
    """SCAFFOLD's control variate: the paper's, or released code's where an option asks for it."""
    if correction_lr == "current" and not size_weighting:
        return terms.ControlVariate()
    return released.ReleasedControlVariate(1.0, correction_lr == "base", size_weighting, whole)


def dynamic(
    lam: float,
    dual: str = "all",
    prox_clip: str = "whole",
    size_weighting: bool = False,
    participation: float | None = None,
    pull: str = "squared",
) -> tuple[Term, ...]:
    """FedDyn's regularizer: the paper's, or released code's where an option asks for it."""
    split, all_clients = prox_clip == "split", dual == "all"
    if pull == "norm":
        if split or size_weighting:
            raise UserError(
                "pull='norm' is of code that neither splits the proximal term for clipping nor "
                "weighs by size: omit prox_clip and size_weighting"
            )
        linear = terms.LinearDual if all_clients else terms.CohortLinearDual
        return linear(lam, participation), released.NormPull(lam / 2)
    if not (split or size_weighting):
        plain = terms.DynamicRegularizer if all_clients else terms.CohortDual
        return (plain(lam, participation),)
    kind = released.ReleasedRegularizer if all_clients else released.ReleasedCohortDual
    regularizer = kind(lam, participation, split, size_weighting)
    unclipped = released.UnclippedPull(lam, size_weighting)
    return (regularizer, unclipped) if split else (regularizer,)


# Differential privacy

ClipNorm = Annotated[privacy.ClipNorm, Doc("Largest norm C of a client's update.")]
NoiseMultiplier = Annotated[
    NonNegativeFloat, Doc("Deviation z of the noise on the sum of the updates, over C.")
]
PrivacyDelta = Annotated[
    OpenFraction, Doc("The delta of privacy/epsilon; far below 1 over the number of clients.")
]
Accountant = Annotated[
    privacy.Accountant,
    Doc("The accountant of opacus: prv is tighter, and takes about a second a round."),
]
Quantile = Annotated[
    OpenFraction | None,
    Doc("Part of the updates that shall stay unclipped: C adapts to it. None keeps C."),
]
ClipRate = Annotated[PositiveFloat, Doc("Learning rate of an adaptive C.")]
