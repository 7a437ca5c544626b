"""A run's folder under attack: which attacks apply, what was claimed, what they found, kept in audit.json."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from vitrail import __version__
from vitrail.auditing import ATTACKS
from vitrail.auditing.attack import DELTA, Attack, Finding, Target
from vitrail.auditing.eavesdropper import R, check_r, eavesdropping_of
from vitrail.experiment import settings as config
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


@dataclass(frozen=True)
class Audit:
    """What was claimed of a run, and what attacks found."""

    claim: dict[str, Any]
    findings: Sequence[Finding]
    skipped: Sequence[str]  # attacks that there is nothing for
    seed: int

    @property
    def refuted(self) -> bool:
        """Whether an attack found more than was claimed."""
        return any(lower.refutes for finding in self.findings for lower in finding.lowers)

    @property
    def verdict(self) -> str:
        """All of it in a sentence."""
        if self.refuted:
            return "An attack found more than was claimed: the claim is false, or the mechanism is not what it says."
        if self.claim["private"]:
            return "No attack found more than was claimed. That is no proof: a better attack may find more."
        return "Nothing was claimed to be private, so nothing is refuted. An attack that fails proves nothing."


def audit_run(
    folder: str | Path,
    attacks: Sequence[str] | None = None,
    *,
    data: Any = None,
    canaries: int = 400,
    shadows: int = 0,
    samples: int = 2000,
    seconds: float = 120.0,
    r: Sequence[float] | None = None,
    users: int = 3,
    rounds: int = 0,
    seed: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Attack a run: by default with all attacks that apply; shadow runs only where some are asked for."""
    chosen = check_attacks(attacks or [name for name in ATTACKS if name != "shadows" or shadows])
    place = RunDir(Path(folder))
    if not place.settings.exists():
        raise VitrailError(f"{folder} holds no run (there is no settings.toml); give the folder `vitrail run` named")
    plan = prepare(config.resolve(str(place.settings), {"out": str(folder)}), data)
    if r and eavesdropping_of(plan.method) is None:
        raise VitrailError(
            f"--r is for eavesdroppers on a secret generator, and {plan.settings.method} has none; leave --r out, or "
            "give a run of psfedgan"
        )
    place.load_checkpoint(plan.id)  # refuses other data: its members would not be what the run was trained on
    factors = check_r(r or R)
    generator = load(place.model) if place.model.exists() else None
    rng = Rng((seed,)).child("audit")
    found, skipped = [], []
    with one_thread():
        for name in chosen:
            target = Target(
                plan, rng.child(name), generator, canaries, shadows or 8, samples, seconds, factors, users, rounds, tell
            )  # fmt: skip
            results = [attack(target) for attack in _attacks(name)]
            found += [finding for finding in results if finding is not None]
            skipped += [name] if not any(results) else []
    return Audit(claim_of(plan), found, skipped, seed)


def check_attacks(names: Sequence[str]) -> list[str]:
    """The names of attacks, all of them known."""
    for name in names:
        if name not in ATTACKS:
            raise VitrailError(f"--attacks {name}: there is no such attack; {nearest(name, ATTACKS)}")
    return list(dict.fromkeys(names))


def _attacks(name: str) -> list[Attack]:
    modules = {"canaries": ("canaries", "updates", "steps", "averages", "twins")}.get(name, (name,))
    return [import_module(f"vitrail.auditing.{module}").attack for module in modules]


def claim_of(plan: Plan) -> dict[str, Any]:
    """What the run claims: by its ledger where that holds together, else by its settings."""
    try:
        said = [entry for entry in read_ledger(plan.folder.path / "ledger.json") if "says" in entry]
    except Malformed as e:
        said, trouble = [], str(e)
    else:
        trouble = ""
    mechanism, delta = plan.method.mechanism, float(getattr(plan.method, "delta", 0) or DELTA)
    if said:
        last = said[0] | said[-1]
        keep = ("private", "says", "epsilon", "delta", "unit", "adjacency", "mechanism")
        return {"private": False, "delta": delta} | {k: last[k] for k in keep if k in last} | {"by": "the ledger"}
    answers = getattr(plan.method, "max_replies", plan.settings.rounds)
    eps = math.inf if mechanism is None else epsilon([(mechanism.noise, mechanism.answers(answers))], delta)
    return {
        "private": mechanism is not None and not mechanism.assumed and math.isfinite(eps),
        "says": sentence(mechanism, eps, delta),
        "epsilon": eps,
        "delta": delta,
        "by": f"its settings; {trouble or 'there is no ledger'}",
    }


def write(path: Path, audit: Audit) -> None:
    """Keep an audit; JSON has no infinity and no NaN, so one is a word and the other nothing."""
    tree = {"vitrail": __version__, "verdict": audit.verdict, "refuted": audit.refuted, **asdict(audit)}
    write_atomically(path, (json.dumps(_plain(tree), indent=1, ensure_ascii=False) + "\n").encode())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "infinite"
    return value
