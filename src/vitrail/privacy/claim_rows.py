"""A claim as rows of text, for the terminal and the report; and what other choices of noise would cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vitrail.privacy.accounting import answers_within, delta_at, epsilon, multiplier_for
from vitrail.privacy.ledger import Entry
from vitrail.privacy.mechanism import Mechanism
from vitrail.privacy.statement import check_statement

Rows = list[tuple[str, str]]
_MORE = {
    "leaves": "leaves",
    "selection": "selection",
    "started_from": "started from",
    "features": "features",
    "secure_aggregation": "secure sums",
    "budget": "budget",
}


def claim_rows(claim: Mapping[str, Any]) -> Rows:
    """Return every field of a claim as a name and a text that a reader can check.

    Args:
        claim: A ledger's opening entry, or the fields of one (`run_ledger.opening_claim`).
    """
    rows: Rows = [("claim", str(claim.get("says", "")))]
    if "mechanism" in claim:
        rows += [
            ("protects", f"{claim['unit']}s ({claim['adjacency']})".replace("example", "image")),
            ("sensitivity", f"{claim['sensitivity']:.4g}: {claim['why']}"),
            ("noise", f"{claim['noise']}, σ = {claim['sigma']:.4g}, {claim['multiplier']:.4g} times the sensitivity"),
            ("noise from", str(claim["noise_from"])),
            ("sampling", str(claim["sampling"])),
            ("composition", str(claim["composition"])),
            ("ε", f"{_shown(claim['epsilon'])} at δ = {claim['delta']:g} by {claim['accountant']}"),
            ("ε, second accountant", f"{_shown(claim['checked_epsilon'])} by {claim['checked_by']}"),
        ]
        rows += [(name, str(claim[name])) for name in ("assumed", "public", "bound") if claim.get(name)]
        rows.append(("trusted", str(claim["trust"])))
    return rows + [(shown, str(claim[name])) for name, shown in _MORE.items() if claim.get(name)]


def statement_text(entry: Entry) -> str:
    """Return a node's statement in words.

    Raises:
        Malformed: The statement's signature is not valid, or it is no statement.
    """
    facts = check_statement(entry)
    cost = f", ε = {_shown(facts['epsilon'])} at δ = {facts['delta']:g}" if "epsilon" in facts else ""
    return f"{_replies(facts['answers'])}, mechanism {facts['mechanism']}{cost}; key {entry['node_key']}"


def other_choices(mechanism: Mechanism, answers: int, delta: float, budget: float | None) -> Rows:
    """Return ε for other numbers of replies, noise for other ε, and how many replies a budget allows.

    Args:
        mechanism: The run's mechanism.
        answers: Replies that the run plans for one client.
        delta: δ of all rows.
        budget: ε of the client's budget over all runs; None: no such row.
    """
    rows: Rows = []
    noise = mechanism.noise
    if not mechanism.once:
        for n in sorted({1, max(1, answers // 2), answers, 2 * answers}):
            rows.append((f"{_replies(n)} with this noise", f"ε = {_shown(epsilon([(noise, n)], delta))}"))
    counted = mechanism.answers(answers)
    for target in (0.1, 1.0, 3.0, 9.8):
        m = multiplier_for(lambda m: [(mechanism.with_multiplier(m).noise, counted)], target, delta)
        rows.append((f"ε = {target:g} at δ = {delta:g}", f"noise of {m:.4g} times the sensitivity"))
    if noise.rate == 1 and not noise.discrete:
        at = epsilon([(noise, counted)], delta)
        half = at / 2 if math.isfinite(at) else 1.0
        rows.append((f"this noise at ε = {half:.3g}", f"δ = {delta_at(noise, counted, half):.2g}"))
    if budget is not None:
        allowed = answers_within(noise, budget, delta)
        rows.append((f"a budget of ε = {budget:g}", f"allows {allowed:,} replies with this noise, over all runs"))
    return rows


def _replies(n: int) -> str:
    return f"{n} {'reply' if n == 1 else 'replies'}"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | int) else str(value)
