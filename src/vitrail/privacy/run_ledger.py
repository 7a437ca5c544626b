"""A run's ledger.json: what is promised before it starts, who is asked in each round before it is, what it came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.privacy.claims import claim
from vitrail.privacy.ledger import Ledger

if TYPE_CHECKING:
    from vitrail.plan import Plan


def opening(plan: Plan) -> dict[str, Any]:
    """What a run promises before it starts, if everybody who is asked answers."""
    s, method = plan.settings, plan.method
    planned = int(getattr(method, "most_answers", s.rounds))
    parts = ", ".join(f"{name} ({part.how})" for name, part in method.declares().items())
    delta = float(getattr(method, "delta", 0.0))
    asked = min(s.per_round or len(plan.clients), len(plan.clients))
    return {
        "method": s.method,
        "clients": len(plan.clients),
        "rounds": s.rounds,
        **claim(method.mechanism, planned, delta, s.entropy, f"every round: {parts}", plan.flaw),
        "parts": parts,
        "secure_aggregation": secure_sums(s.secure, asked) if s.secure else "off",
        "budget": f"ε = {s.budget:g} a client" if s.budget else "none was kept",
        **plan.ledger_notes,
    }


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


class RunLedger:
    """The ledger of one run; after a restart it goes on where it was, and no round stands in it twice."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.plan, self.ledger = plan, Ledger(path)
        method = plan.method
        self.mechanism, self.delta = method.mechanism, float(getattr(method, "delta", 0.0))
        self.asked: Counter[str] = Counter()
        for entry in self.ledger.entries:
            if entry["kind"] == "round":
                self.asked.update(self._names(entry["asked"]))
        if not self.ledger.entries:
            self.ledger.write(kind="opening", run=plan.id.hex(), **opening(plan))

    def _names(self, asked: list[str] | str) -> Sequence[str]:
        return self.plan.clients if asked == "all" else asked

    def opens(self, round_: int, who: Sequence[str]) -> None:
        """Write down who is asked, before anybody is."""
        if not who:
            return
        if any(e["kind"] == "round" and e["round"] == round_ for e in self.ledger.entries):
            return  # it was opened before an interruption: clients give the answers they gave then
        asked = "all" if list(who) == self.plan.clients else list(who)
        self.ledger.write(kind="round", round=round_, asked=asked)
        self.asked.update(who)

    def _claim(self) -> dict[str, Any]:
        return claim(self.mechanism, self.most, self.delta, self.plan.settings.entropy, flaw=self.plan.flaw)

    @property
    def most(self) -> int:
        """How often the client that was asked most was asked."""
        return max(self.asked.values(), default=0)

    @property
    def says(self) -> str:
        """The claim for what was asked so far, as if everybody had answered."""
        return str(self._claim()["says"])

    def closes(self) -> None:
        """Write down what it came to; the models that are stored then name this entry."""
        found = self._claim()
        kept = ("private", "says", "epsilon", "delta", "checked_by", "checked_epsilon", "composition", "bound")
        self.ledger.once(kind="closing", most_answers=self.most, **{k: found[k] for k in kept if k in found})

    @property
    def head(self) -> str:
        """The hash of the last entry."""
        return self.ledger.head
