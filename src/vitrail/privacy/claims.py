"""What may be said of a run's privacy: every field of the ledger's opening entry, and one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from vitrail.privacy.accounting import Spent, accountant_of, epsilon, second_opinion
from vitrail.privacy.mechanism import Mechanism, Noise

NOTHING = "not private: nothing was noised"
SEED_IN_DEPLOYMENT = "its noise follows from the run's seed, which the server knows; use noise_source=os"


def claim(
    mechanism: Mechanism | None,
    answers: int,
    delta: float,
    entropy: str,
    leaves: str = "",
    flaw: str = "",
    *,
    before: Spent = (),
    deployed: bool = False,
    seeds: Sequence[int] = (),
) -> dict[str, Any]:
    """All that is claimed after this many answers of one client, as plain values.

    Args:
        mechanism: What protects the data; None claims nothing.
        answers: Answers of the client that answered most.
        delta: δ of the claim.
        entropy: Where noise comes from: "os" or "seed".
        leaves: What leaves a client, where no mechanism says so.
        flaw: Why nothing may be claimed although there is a mechanism.
        before: Releases of the run that this one started from; they are composed with its own.
        deployed: Whether clients were nodes of their own; otherwise the claim says that the run was simulated.
        seeds: Seeds from which noise of this run, or of those before it, was drawn.
    """
    if mechanism is None:
        return {"private": False, "says": NOTHING, "leaves": leaves}
    if deployed and entropy != "os":
        flaw = flaw or SEED_IN_DEPLOYMENT
    releases = mechanism.answers(answers)
    spent = [*before, (mechanism.noise, releases)]
    eps = epsilon(spent, delta)
    other, check = second_opinion(spent, delta)
    noise = mechanism.noise
    source = "the operating system" if entropy == "os" else "the run's seed"
    says = sentence(mechanism, eps, delta)
    if before and math.isfinite(eps):
        says += f", together with the run that it started from; by itself {epsilon(spent[-1:], delta):.3g}"
    if not deployed and not says.startswith("not private"):
        says = f"simulated, with noise from {'the operating system' if entropy == 'os' else 'the seed'}: {says}"
    found: dict[str, Any] = {
        "private": not mechanism.assumed and not flaw and math.isfinite(eps),
        "says": f"not private: {flaw}" if flaw else says,
        "simulated": not deployed,
        "mechanism": mechanism.name,
        "unit": mechanism.unit,
        "adjacency": mechanism.adjacency,
        "sensitivity": mechanism.sensitivity,
        "why": mechanism.why,
        "noise": "discrete Gaussian" if noise.discrete else "Gaussian",
        "sigma": mechanism.sigma,
        "multiplier": noise.multiplier,
        "noise_from": source if deployed else f"{source}: a simulation",
        "sampling": "none" if noise.rate == 1 else f"Poisson, rate {noise.rate:g}",
        "composition": _composition(mechanism, releases) + (", after the run that it started from" if before else ""),
        "accountant": accountant_of(spent),
        "epsilon": _finite(eps),
        "delta": delta,
        "checked_by": other,
        "checked_epsilon": _finite(check),
        "once": mechanism.once,
        "noise_seeds": list(seeds),
        "spent": write_spent(spent),
        "trust": mechanism.trust if deployed else _simulated(mechanism.trust, entropy),
        "leaves": mechanism.leaves,
    }
    if mechanism.assumed:
        found["assumed"] = mechanism.assumed
    if mechanism.public:
        found["public"] = mechanism.public
    if mechanism.bound:
        found["bound"] = mechanism.bound
    return found


def write_spent(spent: Spent) -> list[dict[str, Any]]:
    """Releases as plain values, from which a reader can compute ε again."""
    return [{**asdict(noise), "answers": answers} for noise, answers in spent]


def read_spent(found: Sequence[dict[str, Any]]) -> list[tuple[Noise, int]]:
    """The releases that a ledger records."""
    return [(Noise(**{k: v for k, v in one.items() if k != "answers"}), int(one["answers"])) for one in found]


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


def _simulated(trust: str, entropy: str) -> str:
    """Who must be trusted in a simulation: the party that runs it has all images."""
    here = "this run was simulated: the party that ran it has all images"
    if entropy != "os":
        here += ", and anyone who knows the seed, which settings and model file name, can remove the noise"
    return f"{here}. In a deployment: {trust}"


def _composition(mechanism: Mechanism, releases: int) -> str:
    if mechanism.once:
        return "one release a client; all that follows is computed from it"
    steps = f" of {mechanism.noise.steps} steps each" if mechanism.noise.steps > 1 else ""
    many = f"{releases} answers of one client, one after another" if releases != 1 else "one answer of a client"
    return many + steps


def _finite(eps: float) -> float | str:
    """JSON has no infinity."""
    return eps if math.isfinite(eps) else "infinite"
