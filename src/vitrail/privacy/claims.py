"""The privacy claim of a run: the fields of a ledger's opening entry, and the claim in one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from vitrail.privacy.accounting import Spent, accountant_of, epsilon, second_opinion
from vitrail.privacy.mechanism import Mechanism, Noise

NOTHING = "not private: no noise was added"
SEED_IN_DEPLOYMENT = "its noise is derived from the run's seed, which the server knows; use noise_source=os"
PER_COPY = "ε is per copy of an image: the partition assigns some images more than once"


def claim(
    mechanism: Mechanism | None,
    answers: int,
    delta: float,
    noise_source: str,
    leaves: str = "",
    flaw: str = "",
    *,
    before: Spent = (),
    deployed: bool = False,
    seeds: Sequence[int] = (),
    copies: bool = False,
) -> dict[str, Any]:
    """Return what is claimed after a number of answers of one client, as plain values.

    Args:
        mechanism: What protects the data; None: the run is not private.
        answers: Answers of the client that answered most often.
        delta: δ of the claim.
        noise_source: Where noise comes from: "os" or "seed".
        leaves: What leaves a client, where there is no mechanism to describe it.
        flaw: Why the run is not private although it has a mechanism; empty: no such reason.
        before: Releases of the run that this one started from; they are composed with its own.
        deployed: Whether clients were nodes; otherwise the claim states that the run was simulated.
        seeds: Seeds from which noise of this run, or of runs before it, was drawn.
        copies: Whether clients have some images more than once; ε of an example is then that of one copy.

    Returns:
        The fields of the ledger's opening entry that describe privacy; `says` is the claim in one sentence.

    Examples:
        >>> claim(None, 3, 1e-5, "os")["says"]
        'not private: no noise was added'
    """
    if mechanism is None:
        return {"private": False, "says": NOTHING, "leaves": leaves}
    if deployed and noise_source != "os":
        flaw = flaw or SEED_IN_DEPLOYMENT
    releases = mechanism.answers(answers)
    spent = [*before, (mechanism.noise, releases)]
    eps = epsilon(spent, delta)
    other, check = second_opinion(spent, delta)
    noise = mechanism.noise
    source = "the operating system" if noise_source == "os" else "the run's seed"
    text = sentence(mechanism, eps, delta)
    if before and math.isfinite(eps):
        text += f", together with the run that it started from; by itself {epsilon(spent[-1:], delta):.3g}"
    if copies and mechanism.unit == "example" and math.isfinite(eps):
        text += f"; {PER_COPY}"
    if not deployed and not text.startswith("not private"):
        text = f"simulated, with noise from {'the operating system' if noise_source == 'os' else 'the seed'}: {text}"
    found: dict[str, Any] = {
        "private": not mechanism.assumed and not flaw and math.isfinite(eps),
        "says": f"not private: {flaw}" if flaw else text,
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
        "trust": mechanism.trust if deployed else _simulated(mechanism.trust, noise_source),
        "leaves": mechanism.leaves,
    }
    optional = {"assumed": mechanism.assumed, "public": mechanism.public, "bound": mechanism.bound}
    return found | {name: text for name, text in optional.items() if text}


def write_spent(spent: Spent) -> list[dict[str, Any]]:
    """Return releases as plain values, from which a reader can recompute ε."""
    return [{**asdict(noise), "answers": answers} for noise, answers in spent]


def read_spent(found: Sequence[dict[str, Any]]) -> list[tuple[Noise, int]]:
    """Return the releases that a ledger records; the inverse of `write_spent`.

    Examples:
        >>> read_spent(write_spent([(Noise(2.0), 3)]))
        [(Noise(multiplier=2.0, steps=1, rate=1.0, discrete=False), 3)]
    """
    return [(Noise(**{k: v for k, v in one.items() if k != "answers"}), int(one["answers"])) for one in found]


def sentence(mechanism: Mechanism | None, eps: float, delta: float) -> str:
    """Return the claim in one sentence: ε, δ, unit, neighbouring relation, mechanism and assumptions.

    Args:
        mechanism: What protects the data; None: nothing does.
        eps: ε of all releases; infinite: there was no noise.
        delta: δ of the claim.
    """
    if mechanism is None:
        return NOTHING
    if not math.isfinite(eps):
        return f"not private: {mechanism.name} ran without noise"
    text = f"ε = {eps:.3g} at δ = {delta:g} for {mechanism.whom} ({mechanism.name}, {mechanism.unit}-level)"
    if mechanism.public:
        text += f", where anyone may know {mechanism.public}"
    return f"assumed, not proven: {text}, if {mechanism.assumed}" if mechanism.assumed else text


def _simulated(trust: str, noise_source: str) -> str:
    """Return which parties must be trusted in a simulation: the one that runs it has all images."""
    here = "this run was simulated: the party that ran it has all images"
    if noise_source != "os":
        here += ", and anyone who knows the seed, which is in the settings and the model file, can remove the noise"
    return f"{here}. In a deployment: {trust}"


def _composition(mechanism: Mechanism, releases: int) -> str:
    if mechanism.once:
        return "one release per client; everything later is computed from it"
    steps = f" of {mechanism.noise.steps} steps each" if mechanism.noise.steps > 1 else ""
    many = f"{releases} replies of one client in sequence" if releases != 1 else "one reply of a client"
    return many + steps


def _finite(eps: float) -> float | str:
    """JSON has no infinity."""
    return eps if math.isfinite(eps) else "infinite"
