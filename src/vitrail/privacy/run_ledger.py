"""A run's ledger.json: the claim before it starts, who is asked in each round before it is, and the result."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import Malformed
from vitrail.privacy.accounting import epsilon
from vitrail.privacy.claims import claim, read_spent
from vitrail.privacy.ledger import Entry, Ledger
from vitrail.privacy.signing import Key
from vitrail.privacy.statement import check_statement

if TYPE_CHECKING:
    from vitrail.plan import Plan


def opening(plan: Plan) -> dict[str, Any]:
    """The claim of a run before it starts, if every client that is asked answers."""
    s, method = plan.settings, plan.method
    parts = ", ".join(f"{name} ({part.how})" for name, part in method.declares().items())
    found = _claim(plan, int(getattr(method, "most_answers", s.rounds)), f"every round: {parts}")
    asked = min(s.per_round or len(plan.clients), len(plan.clients))
    return {
        "method": s.method,
        "clients": len(plan.clients),
        "rounds": s.rounds,
        **found,
        "parts": parts,
        "secure_aggregation": secure_sums(s.secure, asked) if s.secure else "off",
        "budget": f"ε = {s.budget:g} a client" if s.budget else "none was kept",
        **({"selection": _selection(plan)} if found["private"] else {}),
        **plan.ledger_notes,
    }


def _claim(plan: Plan, answers: int, leaves: str = "") -> dict[str, Any]:
    method, start = plan.method, plan.inherited
    return claim(
        method.mechanism,
        answers,
        float(getattr(method, "delta", 0.0)),
        plan.settings.entropy,
        leaves,
        plan.flaw,
        before=start.spent if start else (),
        deployed=plan.deployed,
    )


def secure_sums(threshold: int, clients: int) -> str:
    """Against whom secure aggregation hides single clients.

    >>> secure_sums(8, 10).partition(":")[0]
    'sums open with 8 clients or more'
    """
    return (
        f"sums open with {threshold} clients or more: hidden from the server and up to {threshold - 1} colluding "
        f"clients if it follows the protocol, and up to {2 * threshold - clients - 1} if it tells clients different "
        "things; it must hand on clients' keys as they are, except to nodes that know them (peer-keys)"
    )


def _selection(plan: Plan) -> str:
    """What of a private run was chosen by held-out images, which no ε covers."""
    measured = "nothing was measured on held-out images"
    if plan.settings.measure_every != 0 and len(plan.data.test):
        measured = (
            f"figures in metrics.jsonl and reports were measured on the {len(plan.data.test):,} held-out images of "
            "the same data, without noise"
        )
    return (
        f"the model is that of the last round: none was chosen, and no best.safetensors is kept; {measured}; choosing "
        "settings or runs by such figures is not covered by ε"
    )


class RunLedger:
    """The ledger of one run; after a restart it continues, and has no round twice."""

    def __init__(self, path: Path, plan: Plan, key: Callable[[], Key]) -> None:
        self.plan, self.ledger = plan, Ledger(path, key=key)
        self.asked = _asked(self.ledger.entries, plan.clients)
        if not self.ledger.entries:
            self.ledger.write(kind="opening", run=plan.id.hex(), **opening(plan))

    def opens(self, round_: int, who: Sequence[str]) -> None:
        """Record who is asked, before anyone is."""
        if not who:
            return
        if any(e["kind"] == "round" and e["round"] == round_ for e in self.ledger.entries):
            return  # recorded before an interruption: clients repeat the answers they gave then
        asked = "all" if list(who) == self.plan.clients else list(who)
        self.ledger.write(kind="round", round=round_, asked=asked)
        self.asked.update(who)

    @property
    def most(self) -> int:
        """How often the client that was asked most was asked."""
        return max(self.asked.values(), default=0)

    @property
    def private(self) -> bool:
        """Whether the run claims to be private."""
        return bool(self.ledger.entries[0]["private"])

    @property
    def says(self) -> str:
        """The claim for what was asked so far, as if all clients had answered."""
        return str(_claim(self.plan, self.most)["says"])

    def closes(self) -> None:
        """Record the result; the models that are stored then name this entry."""
        found = _claim(self.plan, self.most)
        kept = (
            "private", "says", "epsilon", "delta", "checked_by", "checked_epsilon", "composition", "bound", "spent",
        )  # fmt: skip
        self.ledger.once(kind="closing", most_answers=self.most, **{k: found[k] for k in kept if k in found})

    @property
    def head(self) -> str:
        """The hash of the last entry."""
        return self.ledger.head


def _asked(entries: Iterable[Entry], everyone: Sequence[str]) -> Counter[str]:
    """How often each client was asked."""
    asked: Counter[str] = Counter()
    for entry in entries:
        if entry["kind"] == "round":
            asked.update(everyone if entry["asked"] == "all" else entry["asked"])
    return asked


def most_asked(entries: Iterable[Entry]) -> int:
    """How often the client that was asked most was asked, read from a ledger alone."""
    rounds = [entry["asked"] for entry in entries if entry["kind"] == "round"]
    named = Counter(client for asked in rounds if asked != "all" for client in asked)
    return rounds.count("all") + max(named.values(), default=0)


def recompute(entries: Sequence[Entry]) -> bool:
    """Compute ε of a ledger's claims again from the mechanism and rounds that it records.

    Returns:
        Whether there was something to compute: a ledger of version 0.1.0, or of a run without a mechanism, records
        no releases.

    Raises:
        Malformed: a claim states another ε, or states privacy that its records do not give.
    """
    first = entries[0]
    for entry in entries:
        if entry["kind"] == "statement":
            _check_answers(entry, entries)
        if entry["kind"] not in ("opening", "closing"):
            continue
        if "spent" not in entry:
            if entry is not first and "spent" in first:
                raise Malformed("its closing entry does not record what was released")
            continue
        spent = read_spent(entry["spent"])
        if entry["kind"] == "closing":
            noise, stated = spent[-1]
            asked = most_asked(entries)
            if (noise, stated) != (read_spent(first["spent"])[-1][0], min(asked, 1) if first["once"] else asked):
                raise Malformed(f"its closing entry counts {stated} answers; its rounds and opening entry give others")
        eps = epsilon(spent, float(entry["delta"]))
        stated_eps = math.inf if entry["epsilon"] == "infinite" else float(entry["epsilon"])
        if not (eps == stated_eps or math.isclose(eps, stated_eps, rel_tol=1e-6)):
            raise Malformed(f"it states ε = {stated_eps:.4g}; the noise and rounds that it records give {eps:.4g}")
        holds = math.isfinite(eps) and f"ε = {eps:.3g} " in entry["says"] and "assumed" not in first
        if entry["private"] and not holds:
            raise Malformed(f"it claims to be private in other words than its records give: {entry['says']}")
    return "spent" in first


def _check_answers(entry: Entry, entries: Sequence[Entry]) -> None:
    """Compare a node's own count of its answers with the rounds that the ledger records."""
    stated, client = check_statement(entry)["answers"], entry["client"]
    asked = _asked(entries, [client])[client]
    if stated > asked:
        raise Malformed(f"{client} states that it answered {stated} times; the ledger has asked it {asked} times")
