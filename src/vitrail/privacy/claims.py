"""What may be said of a run's privacy: every field of the ledger's opening entry, and one sentence."""

from __future__ import annotations

import math
from typing import Any

from vitrail.privacy.accounting import accountant_of, epsilon, second_opinion
from vitrail.privacy.mechanism import Mechanism

NOTHING = "not private: nothing was noised"


def claim(
    mechanism: Mechanism | None, answers: int, delta: float, entropy: str, leaves: str = "", flaw: str = ""
) -> dict[str, Any]:
    """All that is promised after so many answers of one client, as plain values; with a flaw, nothing is."""
    if mechanism is None:
        return {"private": False, "says": NOTHING, "leaves": leaves}
    releases = mechanism.answers(answers)
    spent = [(mechanism.noise, releases)]
    eps = epsilon(spent, delta)
    other, check = second_opinion(spent, delta)
    noise = mechanism.noise
    found: dict[str, Any] = {
        "private": not mechanism.assumed and not flaw and math.isfinite(eps),
        "says": f"not private: {flaw}" if flaw else sentence(mechanism, eps, delta),
        "mechanism": mechanism.name,
        "unit": mechanism.unit,
        "adjacency": mechanism.adjacency,
        "sensitivity": mechanism.sensitivity,
        "why": mechanism.why,
        "noise": "discrete Gaussian" if noise.discrete else "Gaussian",
        "sigma": mechanism.sigma,
        "multiplier": noise.multiplier,
        "noise_from": "the operating system" if entropy == "os" else "the run's seed: a simulation",
        "sampling": "none" if noise.rate == 1 else f"Poisson, rate {noise.rate:g}",
        "composition": _composition(mechanism, releases),
        "accountant": accountant_of(spent),
        "epsilon": _finite(eps),
        "delta": delta,
        "checked_by": other,
        "checked_epsilon": _finite(check),
        "trust": mechanism.trust,
        "leaves": mechanism.leaves,
    }
    if mechanism.assumed:
        found["assumed"] = mechanism.assumed
    if mechanism.public:
        found["public"] = mechanism.public
    if mechanism.bound:
        found["bound"] = mechanism.bound
    return found


def sentence(mechanism: Mechanism | None, eps: float, delta: float) -> str:
    """The claim in one sentence."""
    if mechanism is None:
        return NOTHING
    if not math.isfinite(eps):
        return f"not private: {mechanism.name} ran without noise"
    says = f"ε = {eps:.3g} at δ = {delta:g} for {mechanism.whom} ({mechanism.name}, {mechanism.unit}-level)"
    if mechanism.public:
        says += f", where anybody may know {mechanism.public}"
    if mechanism.assumed:
        return f"assumed, not proven: {says}, if {mechanism.assumed}"
    return says


def _composition(mechanism: Mechanism, releases: int) -> str:
    if mechanism.once:
        return "one release a client; all that follows is computed from it"
    steps = f" of {mechanism.noise.steps} steps each" if mechanism.noise.steps > 1 else ""
    many = f"{releases} answers of one client, one after another" if releases != 1 else "one answer of a client"
    return many + steps


def _finite(eps: float) -> float | str:
    """JSON has no infinity."""
    return eps if math.isfinite(eps) else "infinite"
