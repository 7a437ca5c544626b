"""A claim in words: rows for the terminal and the report, and what other choices would give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.privacy.accounting import answers_within, delta_at, epsilon, multiplier_for
from vitrail.privacy.ledger import Entry, read, signers
from vitrail.privacy.mechanism import Mechanism
from vitrail.privacy.statement import check_statement
from vitrail.utils.errors import Malformed, VitrailError

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
    names = {
        "leaves": "leaves",
        "selection": "selection",
        "started_from": "started from",
        "features": "features",
        "secure_aggregation": "secure sums",
        "budget": "budget",
    }
    return rows + [(shown, str(claim[name])) for name, shown in names.items() if claim.get(name)]


def said(entry: Entry) -> str:
    """A node's statement in words."""
    facts = check_statement(entry)
    answers = f"{facts['answers']} answer{'s' * (facts['answers'] != 1)}"
    cost = f", ε = {_shown(facts['epsilon'])} at δ = {facts['delta']:g}" if "epsilon" in facts else ""
    return f"{answers}, mechanism {facts['mechanism']}{cost}; key {entry['node_key']}"


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


@dataclass(frozen=True)
class Checked:
    """A run's ledger whose chain and signatures hold."""

    entries: list[Entry]
    model: str  # how it stands to the model file
    recomputed: bool  # whether ε was computed again from what it records
    compared: bool = False  # whether the stored model was compared with the digest that it names

    @property
    def signed(self) -> str:
        """Who signed it, in words."""
        keys = signers(self.entries)
        if keys == [""]:
            return "not signed (version 0.1.0 signed nothing): anyone could have rewritten it"
        names = ["nobody at first (version 0.1.0)" if key == "" else key for key in keys]
        return f"signed by {' and '.join(names)}"

    @property
    def proves(self) -> str:
        """What a ledger that passes all checks proves, and what it does not."""
        again = "ε follows from the noise and rounds that it records" if self.recomputed else "ε was not recomputed"
        if "" in signers(self.entries):
            return f"that its entries fit together; {again}. Not who wrote it, nor when, nor what ran."
        model = ", and that the weights of the model are those they name" if self.compared else ""
        return (
            f"that the holder of the key signed these entries in this order{model}; {again}. Not that the code which "
            "ran adds this noise, nor whose key it is: compare it with one that you know (--key)."
        )

    def check_key(self, key: str) -> None:
        """Refuse a ledger that another key has signed."""
        if signers(self.entries) != [key.lower()]:
            raise Malformed(f"the ledger is {self.signed}, not by {key}: it is of another party, or was rewritten")


def read_run_ledger(folder: Path) -> Checked:
    """Read a run's ledger and check its chain, its signatures, its ε, and that the model file names it.

    Raises:
        VitrailError: there is no ledger.
        Malformed: one of the checks fails.
    """
    from vitrail.experiment.run_dir import RunDir
    from vitrail.privacy.run_ledger import recompute
    from vitrail.report.header import read_about

    place = RunDir(folder)
    if not place.ledger.exists():
        raise VitrailError(f"{folder} has no ledger.json: give the folder of a run")
    entries = read(place.ledger)
    try:
        recomputed = recompute(entries)
        compared = _check_model(entries, place.model)
    except Malformed as e:
        raise Malformed(f"{place.ledger}: {e}") from e
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as e:
        raise Malformed(f"{place.ledger}: an entry lacks what it should have ({type(e).__name__}: {e})") from e
    if not place.model.exists():
        return Checked(entries, "there is no model file yet to compare it with", recomputed, compared)
    head = read_about(place.model).get("ledger")
    at = next((e["n"] for e in entries if e["hash"] == head), None)
    if at is None:
        raise Malformed(f"{place.model} names a line that {place.ledger} does not have: one of them is of another run")
    stands = "the model file names its last line"
    if at + 1 < len(entries):
        stands = f"the model file names line {at + 2}, {len(entries) - at - 1} before the last"
    return Checked(entries, stands, recomputed, compared)


def _check_model(entries: list[Entry], model: Path) -> bool:
    """Compare the stored model with the digests that the closing entry names.

    Returns:
        Whether there was a model, and a digest to compare it with.
    """
    from vitrail.utils import state

    if not model.exists():
        return False
    named = next((entry.get("models") for entry in entries if entry["kind"] == "closing"), None)
    if named is None:
        if "signature" in entries[-1]:
            raise Malformed(f"there is a {model.name}, and no closing entry names it")
        return False
    if state.tree_digest(state.load(model)["model"]) not in named.values():
        raise Malformed(f"{model.name} is not the model that its closing entry names")
    return True
