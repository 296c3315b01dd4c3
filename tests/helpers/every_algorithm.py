"""Every algorithm at its defaults, and its options; those of LoRA apart, as they need adapters."""

from fl_lightning import Algorithm, Term, algorithms
from fl_lightning.algorithms import lora
from fl_lightning.algorithms.registry import ALGORITHMS, functions

OPTIONS = {
    "fedspeed, active dual": algorithms.fedspeed(dual="active"),
    "fedlesam, last round": algorithms.fedlesam(reference="last_round"),
    "fedlesam, as released": algorithms.fedlesam(reference="as_released"),
    "fedlesam, skip": algorithms.fedlesam(first_participation="skip"),
    "fedlesam_s, last round": algorithms.fedlesam_s(reference="last_round"),
    "fedlesam_d, skip": algorithms.fedlesam_d(first_participation="skip"),
    "fedtoga, neighbor": algorithms.fedtoga(perturbation="neighbor"),
    "fedtoga, neighbor carried": algorithms.fedtoga(perturbation="neighbor", carry=True),
    "fedtoga, fusion": algorithms.fedtoga(perturbation="fusion"),
    "fedtoga, fusion carried": algorithms.fedtoga(perturbation="fusion", carry=True),
    "fedtoga, over epochs": algorithms.fedtoga(delta="epochs"),
    "fedtoga, as a gradient": algorithms.fedtoga(delta="gradient"),
    "fedtoga, active dual": algorithms.fedtoga(dual="active"),
    "fedtoga, as released": algorithms.fedtoga(perturbation="released"),
    "fedspeed, raw ascent, half": algorithms.fedspeed(ascent="raw", mix=0.5),
    "fedsmoo, as released": algorithms.fedsmoo(consensus="released"),
    "fedsol, all": algorithms.fedsol(scope="all"),
    "fedsol, fixed": algorithms.fedsol(strength="fixed"),
    "fedsol, by tensor": algorithms.fedsol(scope="body", per="tensor"),
    "fedsol, scaffold": algorithms.fedsol(scope="all", proximal="scaffold"),
    "fedssg, running gate": algorithms.fedssg(
        gate="running", gate_map="clip01", gate_alignment=True, gate_offset=0
    ),
    "fedssg, proximal": algorithms.fedssg(
        alignment="proximal", gate_map="logistic", gate_memory=False, size_weighting=True
    ),
    "fedssg, active": algorithms.fedssg(aggregation="active"),
    "feddc, active": algorithms.feddc(dual="active", size_weighting=True),
    "fedvra, d": algorithms.fedvra(d=1.5),
    "fedadmm, start": algorithms.fedadmm(memory="start"),
    "fedadmm, as released": algorithms.fedadmm(eta=1.0, memory="none"),
    "apfl, adaptive": algorithms.apfl(adaptive=True),
    "feddisco, on feddyn": algorithms.feddisco(alpha=0.1),
    "fednova, mean": algorithms.fednova(variates="mean"),
    "feddyn, norm": algorithms.feddyn(pull="norm"),
    "fedwmsam, as released": algorithms.fedwmsam(direction="as_released"),
    "fedwmsam, steps": algorithms.fedwmsam(prediction="steps", side="toward"),
    "fedgmt, active dual": algorithms.fedgmt(dual="active"),
    "fedgloss, released dual": algorithms.fedgloss(local_rho=0.0, server_dual="released"),
    "fedgf, often": algorithms.fedgf(threshold=0.0, global_rho=0.2),
    "fednsam, momentum": algorithms.fednsam(ascent="momentum"),
    "fednsam, as released": algorithms.fednsam(memory="as_released"),
    "fedams, sum": algorithms.fedams(stabilization="sum"),
    "fedinit, models": algorithms.fedinit(server="models"),
    "fedadamw, vision": algorithms.fedadamw(second_moment="whole", first_count="run"),
    "fedadamw, language": algorithms.fedadamw(first_count="run", alignment="mixed"),
    "fedmuon, low rank": algorithms.fedmuon(rank=0.5),
    "fedmuon_lmo, local": algorithms.fedmuon_lmo(correct=False, server="mean"),
    "fedmuon_lmo, exact": algorithms.fedmuon_lmo(iterations=None),
    "fedpac_sophia, signs": algorithms.fedpac_sophia(curvature=False),
    "dp_fedavg, adaptive": algorithms.dp_fedavg(quantile=0.5),
}
LORA = {name: make() for name, make in functions(lora).items()} | {
    "hetlora, by samples": algorithms.hetlora(ranks=(1, 3), by_norm=False)
}
EVERY_ALGORITHM = {name: make() for name, make in ALGORITHMS.items() if name not in LORA} | OPTIONS


def _gradients(algorithm: Algorithm) -> frozenset[type]:
    """The classes of its terms that say what a gradient is."""
    terms = [t for term in algorithm.terms for t in (term, getattr(term, "inner", None)) if t]
    return frozenset(type(t) for t in terms if type(t).gradient is not Term.gradient)


def _with_every_gradient() -> set[str]:
    """FedAvg, and each algorithm with a term that computes gradients and none before it has.

    Those with most such terms come first.
    """
    found, seen = {"fedavg"}, frozenset[type]()
    of = {name: _gradients(algorithm) for name, algorithm in EVERY_ALGORITHM.items()}
    for name in sorted(of, key=lambda name: -len(of[name])):
        if of[name] - seen:
            found.add(name)
            seen |= of[name]
    return found


DIFFERENT_GRADIENTS = _with_every_gradient()
"""Every term that computes gradients is in one of these algorithms."""
