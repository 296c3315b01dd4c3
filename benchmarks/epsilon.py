"""Epsilon by opacus and by dp-accounting, and which one an integral in 30 digits agrees with.

    python -m venv other && other/bin/pip install dp-accounting mpmath
    python benchmarks/epsilon.py other/bin/python

Ten random settings of noise, Poisson sampling, rounds and delta, by Renyi divergences of opacus'
orders, and of the whole ones of them alone. Where both differ, the divergence of one round at
opacus' best order is computed by its definition, too. Needs the extra `privacy`.
"""

import json
import random
import subprocess
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import mpmath

from fl_lightning.callbacks.privacy import epsilon

Setting = tuple[float, float, int, float]
"""Noise multiplier, sampling rate, rounds and delta."""

THEIRS = """
import json, sys
from dp_accounting import dp_event, rdp
for noise, rate, rounds, delta, orders, best in json.load(sys.stdin):
    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    account = rdp.RdpAccountant(orders).compose(event, rounds)
    once = rdp.RdpAccountant([best]).compose(event)
    print(json.dumps([account.get_epsilon(delta), float(once._rdp[0])]))
"""


def settings(count: int = 10, seed: int = 1) -> list[Setting]:
    """Random ones."""
    draw = random.Random(seed)
    return [
        (
            round(draw.uniform(0.6, 4), 3),
            draw.choice([0.01, 0.05, 0.1, 0.2, 0.5]),
            draw.randint(10, 1000),
            10 ** -draw.randint(3, 7),
        )
        for _ in range(count)
    ]


def opacus_epsilon(
    noise: float, rate: float, rounds: int, delta: float, orders: Sequence[float]
) -> tuple[float, ...]:
    """Epsilon, the best order, and the divergence of one round at it."""
    from opacus.accountants.analysis import rdp

    total = rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=rounds, orders=orders)
    epsilon, best = rdp.get_privacy_spent(orders=orders, rdp=total, delta=delta)
    once = rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=best)
    return float(epsilon), float(best), float(once)


def direct_call(noise: float, rate: float, rounds: int, delta: float) -> float:
    """Epsilon of opacus' accountant."""
    from opacus.accountants import RDPAccountant

    account = RDPAccountant()
    account.history = [(noise, rate, rounds)]
    return float(account.get_epsilon(delta=delta))


def dp_accounting(python: str, asked: Sequence[Sequence[Any]]) -> list[tuple[float, float]]:
    """Epsilon, and the divergence of one round, of each setting with its orders."""
    ran = subprocess.run(
        [python, "-c", THEIRS], input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    return [tuple(json.loads(line)) for line in ran.stdout.splitlines()]


def compared(python: str, orders: Sequence[float]) -> tuple[list[Any], list[Any]]:
    """What opacus and dp-accounting find of the ten settings at these orders."""
    ours = [opacus_epsilon(*setting, orders) for setting in settings()]
    asked = [[*of, orders, best] for of, (_, best, _) in zip(settings(), ours, strict=True)]
    return ours, dp_accounting(python, asked)


def divergence(noise: float, rate: float, order: float) -> float:
    """That of (1 - rate) N(0, noise^2) + rate N(1, noise^2) from N(0, noise^2), by an integral."""
    mpmath.mp.dps = 30
    z, q, a = map(mpmath.mpf, (noise, rate, order))

    def integrand(x: Any) -> Any:
        ratio = 1 - q + q * mpmath.exp((2 * x - 1) / (2 * z * z))
        return mpmath.npdf(x, 0, z) * ratio**a

    ends = [z * k for k in (-40, -10, -5, 0, 5, 10, 20, 40)]
    return float(mpmath.log(mpmath.quad(integrand, ends)) / (a - 1))


def main(python: str) -> None:
    """Print a row for each setting."""
    from opacus.accountants import RDPAccountant

    warnings.simplefilter("ignore")
    orders = list(map(float, RDPAccountant.DEFAULT_ALPHAS))
    ours, theirs = compared(python, orders)
    print("| noise, rate, rounds, delta | opacus | dp-accounting | order: divergences, integral |")
    print("|---|---|---|---|")
    for of, (first, best, once), (other, other_once) in zip(settings(), ours, theirs, strict=True):
        note = ""
        if abs(other / first - 1) > 1e-6:
            note = f"{best:g}: {once:.9g}, {other_once:.9g}, {divergence(*of[:2], best):.9g}"
        print(f"| {', '.join(f'{v:g}' for v in of)} | {first:.6f} | {other:.6f} | {note} |")
    whole = zip(*compared(python, [order for order in orders if order.is_integer()]), strict=True)
    largest = max(abs(other / first - 1) for (first, *_), (other, _) in whole)
    print(f"At whole orders all ten agree to {largest:.1e}.")
    equal = sum(
        epsilon([(noise, rate, rounds)], delta, "rdp") == direct_call(noise, rate, rounds, delta)
        for noise, rate, rounds, delta in settings(100, seed=2)
    )
    print(f"Of 100 random settings, {equal} have the epsilon of a direct call of opacus here.")


if __name__ == "__main__":
    main(sys.argv[1])
