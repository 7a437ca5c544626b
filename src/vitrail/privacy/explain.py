"""A claim in words: rows for the terminal and the report, and what other choices would give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.errors import Malformed, VitrailError
from vitrail.privacy.accounting import answers_within, delta_at, epsilon, multiplier_for
from vitrail.privacy.ledger import Entry, read
from vitrail.privacy.mechanism import Mechanism

Rows = list[tuple[str, str]]


def claim_rows(claim: Mapping[str, Any]) -> Rows:
    """Every field of a claim, said so that a reader can check it."""
    rows: Rows = [("promise", str(claim.get("says", "")))]
    if "mechanism" in claim:
        rows += [
            ("protects", f"{claim['unit']}s ({claim['adjacency']})"),
            ("sensitivity", f"{claim['sensitivity']:.4g}: {claim['why']}"),
            ("noise", f"{claim['noise']}, σ = {claim['sigma']:.4g}, {claim['multiplier']:.4g} times the sensitivity"),
            ("noise from", str(claim["noise_from"])),
            ("sampling", str(claim["sampling"])),
            ("composition", str(claim["composition"])),
            ("ε", f"{_shown(claim['epsilon'])} at δ = {claim['delta']:g} by {claim['accountant']}"),
            ("ε again", f"{_shown(claim['checked_epsilon'])} by {claim['checked_by']}"),
        ]
        rows += [(name, str(claim[name])) for name in ("assumed", "public", "bound") if claim.get(name)]
        rows.append(("trusted", str(claim["trust"])))
    names = {"leaves": "leaves", "features": "features", "secure_aggregation": "secure sums", "budget": "budget"}
    return rows + [(shown, str(claim[name])) for name, shown in names.items() if claim.get(name)]


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | int) else str(value)


def other_choices(mechanism: Mechanism, answers: int, delta: float, budget: float | None) -> Rows:
    """ε for other numbers of answers, noise for other ε, and how many answers a budget allows."""
    rows: Rows = []
    noise = mechanism.noise
    if not mechanism.once:
        for n in sorted({1, max(1, answers // 2), answers, 2 * answers}):
            rows.append((f"{n} answer{'s' * (n > 1)} with this noise", f"ε = {_shown(epsilon([(noise, n)], delta))}"))
    counted = mechanism.answers(answers)
    for asked in (0.1, 1.0, 3.0, 9.8):
        m = multiplier_for(lambda m: [(mechanism.with_multiplier(m).noise, counted)], asked, delta)
        rows.append((f"ε = {asked:g} at δ = {delta:g}", f"noise of {m:.4g} times the sensitivity"))
    if noise.rate == 1 and not noise.discrete:
        at = epsilon([(noise, counted)], delta)
        half = at / 2 if math.isfinite(at) else 1.0
        rows.append((f"this noise at ε = {half:.3g}", f"δ = {delta_at(noise, counted, half):.2g}"))
    if budget is not None:
        allowed = answers_within(noise, budget, delta)
        rows.append((f"a budget of ε = {budget:g}", f"allows {allowed:,} answers with this noise, over all runs"))
    return rows


def read_run_ledger(folder: Path) -> tuple[list[Entry], str]:
    """A run's ledger, whose chain holds, and how it stands to the model file."""
    from vitrail.folder import Folder
    from vitrail.report.header import read_about

    place = Folder(folder)
    if not place.ledger.exists():
        raise VitrailError(f"{folder} has no ledger.json: give the folder of a run")
    entries = read(place.ledger)
    head = read_about(place.model).get("ledger")
    if head is None:
        return entries, "there is no model file yet to compare it with"
    at = next((e["n"] for e in entries if e["hash"] == head), None)
    if at is None:
        raise Malformed(f"{place.model} names a line that {place.ledger} does not have: one of them is of another run")
    if at + 1 < len(entries):
        return entries, f"the model file names line {at + 2}, {len(entries) - at - 1} before the last"
    return entries, "the model file names its last line"
