"""What a run inherits from the one it starts from (`init_from=`): releases to be composed with its own, or a flaw.

A model trained from an earlier state depends on the earlier data too. Its claim therefore covers both runs, and there
is none where the earlier run's is missing, cannot be verified, or protects another unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitrail.privacy.accounting import Spent
from vitrail.privacy.checked_ledger import read_run_ledger
from vitrail.privacy.claims import read_spent
from vitrail.privacy.ledger import signers
from vitrail.privacy.mechanism import Mechanism
from vitrail.privacy.run_ledger import most_asked
from vitrail.utils.errors import VitrailError


@dataclass(frozen=True)
class EarlierRun:
    """The earlier run's claim as far as it concerns this one's."""

    run: str  # the earlier run's folder, as the settings name it
    spent: Spent = ()
    flaw: str = ""  # why nothing may be claimed after such a start
    says: str = ""  # the earlier run's own claim
    head: str = ""  # hash of its ledger's last entry
    seeds: tuple[int, ...] = ()  # from which its noise was drawn, and that of the runs before it


def earlier_run(folder: Path, state: str, mechanism: Mechanism | None, deployed: bool, seed: int | None) -> EarlierRun:
    """Read the ledger of a run that is the start of another.

    Args:
        folder: The earlier run's folder.
        state: Digest of the server's state that the new run starts from.
        mechanism: What protects the new run's data.
        deployed: Whether the new run's clients are nodes of their own.
        seed: The seed from which the new run's noise is drawn; None: noise comes from the operating system.
    """
    name = folder.name
    try:
        checked = read_run_ledger(folder)
    except VitrailError as e:
        return EarlierRun(name, flaw=f"it started from {name}, whose ledger cannot be verified ({e})")
    entries, first = checked.entries, checked.entries[0]
    says, head = [str(entry["says"]) for entry in entries if "says" in entry][-1], str(entries[-1]["hash"])

    def flawed(why: str) -> EarlierRun:
        return EarlierRun(name, (), f"it started from {name}, {why}", says, head)

    if not first["private"]:
        return flawed(f"which is not private ({first['says'].removeprefix('not private: ')})")
    if "" in signers(entries) or not checked.recomputed:
        return flawed("whose ledger cannot be verified: it has entries without signatures, as in version 0.1.0")
    closing = next((entry for entry in entries if entry["kind"] == "closing"), None)
    if closing is None:
        return flawed("which has not ended, so its ledger does not say what state it ended with")
    if closing.get("state") != state:
        return flawed("whose ledger names another state than its checkpoint has")
    if mechanism is not None and (first["unit"], first["adjacency"]) != (mechanism.unit, mechanism.adjacency):
        theirs, ours = (f"{unit}s ({how})" for unit, how in (
            (first["unit"], first["adjacency"]), (mechanism.unit, mechanism.adjacency)))  # fmt: skip
        return flawed(f"which protects {theirs}, and this run {ours}: they cannot be added up")
    if mechanism is not None and not (
        first["trust"].endswith(mechanism.trust) and first.get("public", "") == mechanism.public
    ):
        return flawed("whose noise rests on other trust, or which makes other facts public, than this run")
    seeds = tuple(first["noise_seeds"])
    if deployed and first["simulated"]:
        return flawed("which was simulated")
    if seed in seeds:
        return flawed(f"whose noise follows from the same seed: use another than seed={seed}, or noise_source=os")
    planned = read_spent(first["spent"])
    noise, asked = planned[-1][0], most_asked(entries)
    return EarlierRun(name, (*planned[:-1], (noise, min(asked, 1) if first["once"] else asked)), "", says, head, seeds)
