"""Attack a run's folder with all attacks that apply, and store the claim and the findings in audit.json."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from vitrail.auditing import ATTACKS
from vitrail.auditing.attack import KEYS, Attack, Finding, Target
from vitrail.auditing.eavesdropper import R, check_r
from vitrail.experiment.plan import Plan, prepare
from vitrail.experiment.run_dir import RunDir
from vitrail.models.model_file import load
from vitrail.privacy.accounting import epsilon
from vitrail.privacy.claims import sentence
from vitrail.privacy.ledger import read as read_ledger
from vitrail.utils.atomic import write_atomically
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import Malformed, VitrailError, nearest
from vitrail.utils.rng import Rng
from vitrail.utils.version import __version__


@dataclass(frozen=True)
class Audit:
    """The claim of a run, and what attacks found.

    Args:
        claim: The run's claim: `says`, `epsilon`, `delta` and so on.
        findings: What the attacks found.
        skipped: Attacks that do not apply to the run.
        seed: Seed of the audit.
    """

    claim: dict[str, Any]
    findings: Sequence[Finding]
    skipped: Sequence[str]
    seed: int

    @property
    def refuted(self) -> bool:
        """Whether an attack found more than was claimed."""
        return any(lower.refutes for finding in self.findings for lower in finding.lowers)

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if self.refuted:
            return "An attack found more than was claimed: the claim is false, or the mechanism is not the one claimed."
        if self.claim["private"]:
            return "No attack found more than was claimed. That is no proof: a better attack may find more."
        return "Nothing was claimed to be private, so nothing is refuted. An attack that fails proves nothing."


def audit_run(
    folder: str | Path,
    attacks: Sequence[str] | None = None,
    *,
    data: Any = None,
    shadows: int = 0,
    r: Sequence[float] | None = None,
    seed: int = 0,
    **effort: Any,
) -> Audit:
    """Attack a run.

    Args:
        folder: The run's folder.
        attacks: Names of attacks; by default all, `shadows` only if `shadows` is above 0.
        data: The data of a run that was trained from Python.
        shadows: Number of shadow runs.
        r: Factors of eavesdroppers' first layer.
        seed: Seed of coins, canaries and samples.
        **effort: Other fields of `vitrail.auditing.attack.Target`, such as `canaries=400`.

    Returns:
        The claim of the run, and what the attacks found.

    Raises:
        VitrailError: The folder is not that of a run, an attack is unknown, or an option does not fit the run.
    """
    chosen = dict.fromkeys(attacks or [name for name in ATTACKS if name != "shadows" or shadows])
    if unknown := [name for name in chosen if name not in ATTACKS]:
        raise VitrailError(f"--attacks {unknown[0]}: unknown attack; {nearest(unknown[0], ATTACKS)}")
    place = RunDir(Path(folder))
    plan = prepare(place.stored_settings(out=str(folder)), data)
    if r and plan.method.eavesdropping() is None:
        raise VitrailError(
            f"--r is for eavesdroppers on a secret generator, and {plan.settings.method} has none; remove --r, or "
            "give a run of a method whose server rebuilds secret generators"
        )
    place.load_checkpoint(plan.id)  # refuses other data than the run was trained on
    factors = check_r(r or R)
    generator = load(place.model) if place.model.exists() else None
    rng = Rng((seed,)).child("audit")
    target = Target(plan, rng, generator, shadows=shadows or 8, r=factors, **{"canaries": 400, **effort})
    found, skipped = [], []
    with one_thread():
        for name in chosen:
            results = [attack(replace(target, rng=rng.child(name))) for attack in _attacks(name)]
            found += [finding for finding in results if finding is not None]
            skipped += [name] if not any(results) else []
    return Audit(claim_of(plan), found, skipped, seed)


def _attacks(name: str) -> list[Attack]:
    canaries = ("canary_images", "canary_masks", "canary_vectors", "twin_clients")
    modules = canaries if name == "canaries" else (name,)
    return [import_module(f"vitrail.auditing.{module}").attack for module in modules]


def claim_of(plan: Plan) -> dict[str, Any]:
    """Return what a run claims: by its ledger if that is valid, else by its settings."""
    try:
        claims, problem = [e for e in read_ledger(plan.folder.path / "ledger.json") if "says" in e], ""
    except Malformed as e:
        claims, problem = [], str(e)
    mechanism, delta = plan.method.mechanism, plan.method.delta
    if claims:
        last = claims[0] | claims[-1]
        names = ("private", "says", "epsilon", "delta", "unit", "adjacency", "mechanism")
        return {"private": False, "delta": delta} | {k: last[k] for k in names if k in last} | {"by": "the ledger"}
    releases = 0 if mechanism is None else mechanism.answers(plan.method.max_replies)
    eps = math.inf if mechanism is None else epsilon([(mechanism.noise, releases)], delta)
    return {
        "private": mechanism is not None and not mechanism.assumed and math.isfinite(eps),
        "says": sentence(mechanism, eps, delta),
        "epsilon": eps,
        "delta": delta,
        "by": f"its settings; {problem or 'there is no ledger'}",
    }


def write(path: Path, audit: Audit) -> None:
    """Write an audit as JSON: infinity as "infinite", NaN as null."""
    tree = {"vitrail": __version__, "verdict": audit.verdict, "refuted": audit.refuted, **asdict(audit)}
    write_atomically(path, (json.dumps(_plain(tree), indent=1, ensure_ascii=False) + "\n").encode())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {KEYS.get(k, k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "infinite"
    return value
