"""Every option of every algorithm and modifier, with a value that is not its default."""

from collections.abc import Callable
from inspect import signature
from typing import Any, Literal, get_args, get_origin, get_type_hints

from every_algorithm import LORA

from fl_lightning.algorithms.modifiers import PARTS
from fl_lightning.algorithms.registry import ALGORITHMS

MAKERS: dict[str, Callable[..., Any]] = {
    **{name: make for name, make in ALGORITHMS.items() if name not in LORA},
    **{f"--{part} {name}": make for part, makers in PARTS.items() for name, make in makers.items()},
}

NOT_NONE: dict[str, Any] = {"alpha": 0.1, "v0": 0.01, "d": 1.5, "layers": ("outer",), "capacity": 3}
NOT_NONE |= {"global_rho": 0.2, "quantile": 0.3, "eta": 0.3}
"""Values of options that are none by default."""

OTHER = {
    "fedgkd models": 1,
    "fedgf threshold": 0.1,
    "fedgf window": 1,
    "krum kept": 2,
    "rfa nu": 10.0,
}
OTHER |= {f"{name} eps": 1e-6 for name in ("fedexp", "--server_optimizer extrapolation")}
OTHER |= {"centered_clipping tau": 0.01, "centered_clipping steps": 2}
OTHER |= {f"{name} eps": 1e-3 for name in ("local_adamw", "fedadamw", "diloco")}
"""Values of options whose half does what the default does in the tests."""
OF_A_FEW = {"share": [0.1, 0.5], "word": ["inner", "outer"]}
OF_A_FEW |= {f"--send {attack} share": [0.1, 0.4] for attack in ("alie", "ipm", "min_max")}
"""Values of options that depend on the model or on the clients, of whom there are few."""

WITH: dict[str, dict[str, Any]] = {
    "dp_fedavg clip_lr": {"quantile": 0.3},
    "dp_fedsam clip_lr": {"quantile": 0.3},
    "feddisco size_weighting": {"alpha": 0.1},
    "feddisco prox_clip": {"alpha": 0.1},
    "fedams beta2": {"eps": 1e-9},
    "--server_optimizer amsgrad beta2": {"eps": 1e-9},
    "fedsol first_step": {"strength": "fixed"},
    "fedsol proximal": {"scope": "all"},  # moon does not see the head
    "fedsol_ablation beta": {"row": "a5"},  # a1, the default, does not use it
    "fedtoga carry": {"perturbation": "neighbor"},
    "fedrs alpha": {"restricts": "rare"},  # each client has all classes
    "fedgf global_rho": {"threshold": 0.05},
    "fedgf window": {"threshold": 0.1},
    "centered_clipping steps": {"tau": 0.01},
}
"""What else has to be chosen for an option to count."""


NEEDS_A_PAST = {
    f"{name} {option}"
    for names, options in {
        "dp_fedavg dp_fedsam": "clip_lr",
        "fedacg fedavgm": "beta",
        "afl": "step",
        "fednova": "variates",
        "fedinit": "beta first_participation server",
        "scaffold feddc": "correction_lr size_weighting",
        "fedvra": "d",
        "adabest": "mu",
        "fedgkd": "gamma models tau",
        "fedadmm": "memory",
        "fedlesam fedlesam_s fedlesam_d": "rho reference first_participation correction",
        "fedssg": "alpha gate_map gate_alignment gate_memory alignment correction correction_lr "
        "size_weighting",
        "fedtoga": "kappa beta carry delta",
        "fedsol": "proximal first_step",
        "fedsmoo": "consensus",
        "fedwmsam": "decay prediction",
        "fedgmt": "alpha beta dual",
        "fedgloss": "rho",
        "fedgf": "global_rho threshold window",
        "fednsam": "gamma memory",
        "fedmoswa": "gamma",
        "fedadamw": "gamma second_moment first_count",
        "fedmuon fedpac_muon fedpac_sophia": "gamma rank",
        "fedmuon_lmo": "correct",
        "fedbuff fedasync": "max_staleness decay",
        "moon": "mu tau",
        "fedrcl": "threshold",
    }.items()
    for name in names.split()
    for option in options.split()
}
# Options of algorithms that change nothing before a second or third round; those of most
# modifiers do not.

ACCOUNTED = "delta", "accountant"
"""Options of private methods that change what is said of the rounds, and not the rounds."""

OPTIONS = [
    (name, option)
    for name, make in MAKERS.items()
    for option in signature(make).parameters
    if not (name.startswith("dp_") and option in ACCOUNTED)
]


def values(name: str, option: str) -> list[Any]:
    """All that an option may be, or its default and another one."""
    make = MAKERS[name]
    for few in (f"{name} {option}", option):
        if few in OF_A_FEW:
            return OF_A_FEW[few]
    hint, default = get_type_hints(make)[option], signature(make).parameters[option].default
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if default is None:
        return [None, NOT_NONE[option]]
    if f"{name} {option}" in OTHER:
        return [default, OTHER[f"{name} {option}"]]
    if isinstance(default, bool):
        return [False, True]
    return [default, default // 2 if isinstance(default, int) else default / 2 or 0.5]
