"""Read a run's ledger and check it: chain, signatures, recomputed ε, and the model file that names it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.privacy.accounting import epsilon
from vitrail.privacy.claims import read_spent
from vitrail.privacy.ledger import Entry, max_requests, read, requests_by_client, signers
from vitrail.privacy.mechanism import Noise
from vitrail.privacy.statement import check_statement
from vitrail.utils import state
from vitrail.utils.errors import Malformed, VitrailError


@dataclass(frozen=True)
class Checked:
    """A run's ledger whose chain and signatures are valid.

    Args:
        entries: The ledger's entries.
        model: How the ledger and the model file refer to each other, in words.
        recomputed: Whether ε was recomputed from what the ledger records.
        compared: Whether the stored model was compared with the digest that the ledger names.
    """

    entries: list[Entry]
    model: str
    recomputed: bool
    compared: bool = False

    @property
    def signed(self) -> str:
        """Which keys signed it, in words."""
        keys = signers(self.entries)
        if keys == [""]:
            return "not signed (version 0.1.0 signed nothing): anyone could have rewritten it"
        names = ["no key at first (version 0.1.0)" if key == "" else key for key in keys]
        return f"signed by {' and '.join(names)} (all signatures are valid)"

    @property
    def proves(self) -> str:
        """What a ledger that passes all checks proves, and what it does not."""
        again = "ε follows from the noise and rounds that it records" if self.recomputed else "ε was not recomputed"
        if "" in signers(self.entries):
            return f"that its entries fit together; {again}. It does not prove who wrote it, nor when, nor what ran."
        model = ", and that the weights of the model are those they name" if self.compared else ""
        noise = "that the code which ran adds this noise, nor " if "mechanism" in self.entries[0] else ""
        return (
            f"that the holder of the key signed these entries in this order{model}; {again}. It does not prove {noise}"
            "whose key it is: compare it with one that you know (--key)."
        )

    def check_key(self, key: str) -> None:
        """Check that a given key, and no other, signed the ledger.

        Args:
            key: The public key, 64 hexadecimal digits.

        Raises:
            Malformed: Another key signed it, or it is not signed.
        """
        if signers(self.entries) != [key.lower()]:
            raise Malformed(f"the ledger is {self.signed}, not by {key}: it is of another party, or was rewritten")


def read_run_ledger(folder: Path) -> Checked:
    """Read a run's ledger and check its chain, its signatures, its ε, and that the model file names it.

    Args:
        folder: The run's folder.

    Raises:
        VitrailError: There is no ledger.
        Malformed: One of the checks fails.
    """
    ledger, model = folder / "ledger.json", folder / "model.safetensors"
    if not ledger.exists():
        raise VitrailError(f"{folder} has no ledger.json: give the folder of a run")
    entries = read(ledger)
    try:
        recomputed = recompute(entries)
        stored = state.load(model) if model.exists() else None
        compared = stored is not None and _check_model(entries, stored, model.name)
    except Malformed as e:
        raise Malformed(f"{ledger}: {e}") from e
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as e:
        raise Malformed(f"{ledger}: an entry lacks a field or has a wrong value ({type(e).__name__}: {e})") from e
    if stored is None:
        return Checked(entries, "there is no model file yet to compare it with", recomputed, compared)
    about = stored.get("about") if isinstance(stored, dict) else None
    head = about.get("ledger") if isinstance(about, dict) else None
    at = next((e["n"] for e in entries if e["hash"] == head), None)
    if at is None:
        raise Malformed(f"{model} names a line that {ledger} does not have: one of them is of another run")
    names = "the model file names its last entry"
    if at + 1 < len(entries):
        names = f"the model file names entry {at + 1} of {len(entries)}, the last one when it was stored"
    return Checked(entries, names, recomputed, compared)


def _check_model(entries: list[Entry], stored: Any, name: str) -> bool:
    """Compare the stored model with the digests that the closing entry names.

    Returns:
        Whether there was a digest to compare it with.
    """
    named = next((entry.get("models") for entry in entries if entry["kind"] == "closing"), None)
    if named is None:
        if "signature" in entries[-1]:
            raise Malformed(f"there is a {name}, and no closing entry names it")
        return False
    if state.tree_digest(stored["model"]) not in named.values():
        raise Malformed(f"{name} is not the model that its closing entry names")
    return True


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
    spent, recorded = read_spent(entry["spent"]), released(entries)
    noise, answers = recorded[-1]
    if entry is not first and spent != recorded:
        raise Malformed(f"its closing entry counts {spent[-1][1]} replies; its rounds and opening entry give {answers}")
    if entry["private"] and not first["private"]:
        raise Malformed("its closing entry claims to be private and its opening entry does not")
    eps = epsilon(spent, float(entry["delta"]))
    stated = math.inf if entry["epsilon"] == "infinite" else float(entry["epsilon"])
    if not (eps == stated or math.isclose(eps, stated, rel_tol=1e-6)):
        raise Malformed(f"it states ε = {stated:.4g}; the noise and rounds that it records give {eps:.4g}")
    if not math.isclose(first["sigma"], first["sensitivity"] * noise.multiplier, rel_tol=1e-9):
        raise Malformed(f"it states σ = {first['sigma']:.4g}; sensitivity and multiplier give another value")
    _check_words(entry, first, eps)


def released(entries: Sequence[Entry]) -> list[tuple[Noise, int]]:
    """Return what a run released, and the runs before it: noise by its opening entry, answers by its rounds."""
    *before, (noise, _) = read_spent(entries[0]["spent"])
    answers = max_requests(entries)
    return [*before, (noise, min(answers, 1) if entries[0]["once"] else answers)]


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
        raise Malformed(f"{client} states {facts['answers']} replies; the ledger records {requests} requests to it")
