"""Read a run's ledger and check it: chain, signatures, recomputed ε, and the model file that names it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.privacy.ledger import Entry, read, signers
from vitrail.privacy.ledger_checks import recompute
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
    names = "the model file names its last line"
    if at + 1 < len(entries):
        names = f"the model file names line {at + 2}, {len(entries) - at - 1} before the last"
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
