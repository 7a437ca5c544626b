"""Recompute the claims of a ledger from the noise and rounds that it records, and compare them with its words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vitrail.privacy.accounting import epsilon
from vitrail.privacy.claims import read_spent
from vitrail.privacy.ledger import Entry
from vitrail.privacy.run_ledger import most_asked, requests_by_client
from vitrail.privacy.statement import check_statement
from vitrail.utils.errors import Malformed


def recompute(entries: Sequence[Entry]) -> bool:
    """Recompute ε of a ledger's claims from the mechanism and rounds that it records.

    Args:
        entries: The ledger's entries; their chain and signatures have been checked.

    Returns:
        Whether ε was recomputed. Ledgers of version 0.1.0, and of runs without a mechanism, record no releases.

    Raises:
        Malformed: Entries are not in the order of a run, a claim states another ε than its records give, or a node's
            statement is of another run.
    """
    _check_order(entries)
    for entry in entries:
        if entry["kind"] == "statement":
            _check_answers(entry, entries)
        elif entry["kind"] != "round":
            _check_claim(entry, entries)
    return "spent" in entries[0]


def _check_order(entries: Sequence[Entry]) -> None:
    """Check for an opening entry, rounds in their order, one closing entry, and statements of nodes."""
    order = ("opening", "round", "closing", "statement")
    kinds = [entry["kind"] for entry in entries]
    rounds = [entry["round"] for entry in entries if entry["kind"] == "round"]
    in_order = kinds == sorted(kinds, key=order.index) and rounds == sorted(set(rounds))
    if kinds[0] != "opening" or kinds.count("opening") + kinds.count("closing") > 2 or not in_order:
        raise Malformed("its entries are not an opening, rounds in their order, one closing and statements")


def _check_claim(entry: Entry, entries: Sequence[Entry]) -> None:
    first = entries[0]
    if not isinstance(entry.get("says"), str):
        raise Malformed(f"its {entry['kind']} entry states no claim")
    if "spent" not in entry or "spent" not in first:
        if entry["private"] and "signature" in first:
            raise Malformed("it claims to be private and does not record what was released")
        return
    spent, planned = read_spent(entry["spent"]), read_spent(first["spent"])
    noise = planned[-1][0]
    answers = min(most_asked(entries), 1) if first["once"] else most_asked(entries)
    if entry is not first and spent != [*planned[:-1], (noise, answers)]:
        raise Malformed(f"its closing entry counts {spent[-1][1]} answers; its rounds and opening entry give {answers}")
    if entry["private"] and not first["private"]:
        raise Malformed("its closing entry claims to be private and its opening entry does not")
    eps = epsilon(spent, float(entry["delta"]))
    stated = math.inf if entry["epsilon"] == "infinite" else float(entry["epsilon"])
    if not (eps == stated or math.isclose(eps, stated, rel_tol=1e-6)):
        raise Malformed(f"it states ε = {stated:.4g}; the noise and rounds that it records give {eps:.4g}")
    if not math.isclose(first["sigma"], first["sensitivity"] * noise.multiplier, rel_tol=1e-9):
        raise Malformed(f"it states σ = {first['sigma']:.4g}; sensitivity and multiplier give another value")
    _check_words(entry, first, eps)


def _check_words(entry: Entry, first: Entry, eps: float) -> None:
    """Check the sentence of a claim of privacy: simulated or not, ε, δ, mechanism and unit.

    Only these words are compared, so that ledgers whose other words are those of an earlier version are accepted.
    """
    source = "the seed" if first["noise_seeds"] else "the operating system"
    begins = f"simulated, with noise from {source}: " if first["simulated"] else ""
    begins += f"ε = {eps:.3g} at δ = {float(entry['delta']):g} for "
    named = f"({first['mechanism']}, {first['unit']}-level)"
    valid = math.isfinite(eps) and "assumed" not in first and not (first["noise_seeds"] and not first["simulated"])
    if entry["private"] and not (valid and entry["says"].startswith(begins) and named in entry["says"]):
        raise Malformed(f"it claims to be private in other words than its records give: {entry['says']}")


def _check_answers(entry: Entry, entries: Sequence[Entry]) -> None:
    """Compare a node's own count of its answers with the rounds that the ledger records."""
    facts, client = check_statement(entry), entry["client"]
    if (facts.get("client"), facts.get("run")) != (client, entries[0]["run"]):
        raise Malformed(f"the statement of {client} is of another client or run")
    requests = requests_by_client(entries, [client])[client]
    if facts["answers"] > requests:
        raise Malformed(f"{client} states {facts['answers']} answers; the ledger records {requests} requests to it")
