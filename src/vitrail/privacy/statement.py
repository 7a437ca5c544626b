"""A node's statement at the end of a run: its number of answers and their ε, signed with the node's own key.

The server adds it to the run's ledger. Anyone who knows the node's public key can check it, and need not trust the
server for the number of answers or for ε.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from vitrail.privacy.accounting import epsilon
from vitrail.privacy.mechanism import Mechanism
from vitrail.utils.errors import Malformed, printable
from vitrail.utils.keys import Key, signed_by

LONGEST = 2**14  # bytes
_PURPOSE = b"node statement"


def write_statement(key: Key, name: str, run: str, mechanism: Mechanism | None, answers: int, delta: float) -> bytes:
    """Return a node's signed statement about a run, encoded for the wire.

    Args:
        key: The node's key.
        name: The node's name in the run.
        run: The run's id, in hexadecimal.
        mechanism: What protected the node's images, built by the node itself.
        answers: Number of answers that the node computed from its images.
        delta: The δ at which ε is computed.
    """
    facts: dict[str, Any] = {"client": name, "run": run, "answers": answers, "mechanism": "none"}
    if mechanism is not None:
        eps = epsilon([(mechanism.noise, mechanism.answers(answers))], delta)
        facts |= {
            "mechanism": mechanism.name,
            "unit": mechanism.unit,
            "adjacency": mechanism.adjacency,
            "noise": asdict(mechanism.noise),
            "noised_by": mechanism.noised_by,
            "epsilon": eps if eps < float("inf") else "infinite",
            "delta": delta,
        }
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False)
    signature = key.sign(_PURPOSE, text.encode()).hex()
    return json.dumps({"statement": text, "node_key": key.public.hex(), "node_signature": signature}).encode()


def read_statement(raw: bytes, client: str, run: str, key: bytes | None, requests: int) -> dict[str, str]:
    """Return the fields of a ledger entry from a node's statement.

    Args:
        raw: The encoded statement.
        client: The node's name in the run.
        run: The run's id, in hexadecimal.
        key: The public key that the server knows the node by.
        requests: Number of requests to this client that the ledger records.

    Raises:
        Malformed: It is not a statement of this client about this run by this key, or it counts more answers than
            requests.
    """
    try:
        if len(raw) > LONGEST:
            raise ValueError(len(raw))
        found = json.loads(raw)
        entry = {name: str(found[name]) for name in ("statement", "node_key", "node_signature")}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Malformed("its statement cannot be read") from None
    facts = check_statement(entry)
    if (facts["client"], facts["run"]) != (client, run) or key is None or entry["node_key"] != key.hex():
        raise Malformed("its statement is of another client, run or key")
    if facts["answers"] > requests:
        raise Malformed(f"it states {facts['answers']} replies and had {requests} requests")
    return entry


def check_statement(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a statement in a ledger and check its signature.

    Args:
        entry: The ledger's entry.

    Raises:
        Malformed: The signature is not that of the key in the entry, or the signed text is not a statement.
    """
    try:
        key, signature = bytes.fromhex(entry["node_key"]), bytes.fromhex(entry["node_signature"])
        text = entry["statement"].encode()
        facts = json.loads(text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Malformed("a node's statement cannot be read") from None
    if not signed_by(key, signature, _PURPOSE, text):
        raise Malformed("a node's statement is not signed by the key that it names")
    if not isinstance(facts, dict) or not _well_formed(facts):
        raise Malformed("a node's statement does not have the fields of one")
    return facts


def _well_formed(facts: dict[str, Any]) -> bool:
    """Whether a statement has its fields and no others, each of its type, and no terminal control characters."""
    private = facts.get("mechanism") != "none"
    texts = {"client", "run", "mechanism"} | ({"unit", "adjacency", "noised_by"} if private else set())
    if set(facts) != texts | {"answers"} | ({"noise", "epsilon", "delta"} if private else set()):
        return False
    if not all(isinstance(facts[name], str) and facts[name] == printable(facts[name], 255) for name in texts):
        return False
    if type(facts["answers"]) is not int or not 0 <= facts["answers"] < 2**53:
        return False
    if not private:
        return True
    eps, delta = facts["epsilon"], facts["delta"]
    if not isinstance(delta, float) or not 0 < delta < 1 or not isinstance(facts["noise"], dict):
        return False
    return eps == "infinite" or (isinstance(eps, float) and eps >= 0)
