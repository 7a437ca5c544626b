"""Privacy of a run that starts from an earlier one (`init_from=`): both runs' releases are composed.

A model trained from an earlier state depends on the earlier data too, so its claim covers both runs. The run is not
private where the earlier run's claim is missing, cannot be verified, or protects another unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitrail.privacy.accounting import Spent
from vitrail.privacy.checked_ledger import read_run_ledger, released
from vitrail.privacy.ledger import signers
from vitrail.privacy.mechanism import Mechanism
from vitrail.utils.errors import VitrailError


@dataclass(frozen=True)
class EarlierRun:
    """What the claim of a run needs to know of the run it starts from.

    Args:
        run: Name of the earlier run's folder.
        spent: Its releases, and those of the runs before it.
        flaw: Why a run that starts from it is not private; empty: no such reason.
        says: The earlier run's own claim.
        head: Hash of the last entry of its ledger.
        seeds: Seeds from which its noise was drawn, and that of the runs before it.
    """

    run: str
    spent: Spent = ()
    flaw: str = ""
    says: str = ""
    head: str = ""
    seeds: tuple[int, ...] = ()


def earlier_run(folder: Path, state: str, mechanism: Mechanism | None, deployed: bool, seed: int | None) -> EarlierRun:
    """Read the ledger of a run from which another starts.

    Args:
        folder: The earlier run's folder.
        state: Digest of the server state that the new run starts from.
        mechanism: What protects the new run's data.
        deployed: Whether the new run's clients are nodes.
        seed: The seed from which the new run's noise is drawn; None: noise comes from the operating system.

    Returns:
        The earlier run's releases, or the reason why the new run is not private.
    """
    name = folder.name
    try:
        checked = read_run_ledger(folder)
    except VitrailError as e:
        return EarlierRun(name, flaw=f"it started from {name}, whose ledger cannot be verified ({e})")
    entries, first = checked.entries, checked.entries[0]
    claim, head = [str(entry["says"]) for entry in entries if "says" in entry][-1], str(entries[-1]["hash"])

    def flawed(why: str) -> EarlierRun:
        return EarlierRun(name, (), f"it started from {name}, {why}", claim, head)

    if not first["private"]:
        return flawed(f"which is not private ({first['says'].removeprefix('not private: ')})")
    if "" in signers(entries) or not checked.recomputed:
        return flawed("whose ledger cannot be verified: it has entries without signatures, as in version 0.1.0")
    closing = next((entry for entry in entries if entry["kind"] == "closing"), None)
    if closing is None:
        return flawed("which has not finished, so its ledger does not name its last state")
    if closing.get("state") != state:
        return flawed("whose ledger names another state than its checkpoint has")
    if mechanism is not None:
        earlier, own = f"{first['unit']}s ({first['adjacency']})", f"{mechanism.unit}s ({mechanism.adjacency})"
        if earlier != own:
            return flawed(f"which protects {earlier}, and this run {own}: they cannot be composed")
        if not first["trust"].endswith(mechanism.trust) or first.get("public", "") != mechanism.public:
            return flawed("which relies on other trust assumptions, or makes other facts public, than this run")
    seeds = tuple(first["noise_seeds"])
    if deployed and first["simulated"]:
        return flawed("which was simulated")
    if seed in seeds:
        return flawed(f"whose noise is derived from the same seed: use another than seed={seed}, or noise_source=os")
    return EarlierRun(name, tuple(released(entries)), "", claim, head, seeds)
