"""Write a run's ledger.json: the claim before the run starts, the clients of each round, and the result.

An entry is stored before anything that it records is requested from a client. `vitrail.privacy.checked_ledger`
verifies it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.experiment.plan import Plan
from vitrail.privacy.claims import claim
from vitrail.privacy.ledger import Entry, Ledger, requests_by_client
from vitrail.utils.errors import VitrailError
from vitrail.utils.keys import Key


def opening_claim(plan: Plan) -> dict[str, Any]:
    """Return the claim of a run before it starts, as if every requested client replied.

    Args:
        plan: The run that is ready to start.

    Returns:
        The fields of the ledger's opening entry.
    """
    s, method = plan.settings, plan.method
    parts = ", ".join(f"{name} ({part.how})" for name, part in method.reply_spec().items())
    found = _claim(plan, method.max_replies, f"every round: {parts}")
    requested = min(s.clients_per_round or len(plan.clients), len(plan.clients))
    return {
        "method": s.method,
        "clients": len(plan.clients),
        "rounds": s.rounds,
        **found,
        "parts": parts,
        "secure_aggregation": secure_sums(s.secagg_threshold, requested) if s.secagg_threshold else "off",
        "budget": f"ε = {s.budget:g} per client" if s.budget else "none",
        **({"selection": _selection(s.eval_every != 0, len(plan.data.test))} if found["private"] else {}),
        **plan.ledger_notes,
    }


def _claim(plan: Plan, answers: int, leaves: str = "") -> dict[str, Any]:
    method, start = plan.method, plan.earlier_run
    seeds = [*(start.seeds if start else ()), *([plan.settings.seed] if plan.settings.noise_source == "seed" else [])]
    return claim(
        method.mechanism,
        answers,
        method.delta,
        "seed" if seeds else "os",
        leaves,
        plan.flaw,
        before=start.spent if start else (),
        deployed=plan.deployed,
        seeds=seeds,
        copies=plan.has_copies,
    )


def secure_sums(threshold: int, clients: int) -> str:
    """Return from whom secure aggregation hides single clients, in words.

    Args:
        threshold: Number of clients that must remain so that a sum is revealed.
        clients: Number of clients that a round requests.

    Examples:
        >>> secure_sums(8, 10).partition(":")[0]
        'a sum is revealed if at least 8 clients remain'
    """
    return (
        f"a sum is revealed if at least {threshold} clients remain: what a single client sends is hidden from the "
        f"server and up to {threshold - 1} colluding clients if the server follows the protocol, and from the server "
        f"and up to {2 * threshold - clients - 1} if it sends clients different messages; the server must forward "
        "clients' keys unchanged, except to nodes that know them (peer-keys)"
    )


def _selection(measures: bool, images: int) -> str:
    """What of a private run was selected by held-out images, which ε does not cover."""
    measured = "nothing was measured on held-out images"
    if measures and images:
        measured = (
            f"metrics in metrics.jsonl and reports were computed on the {images:,} held-out images of the same data, "
            "without noise"
        )
    if images:
        measured += "; selecting settings or runs by metrics on held-out images is not covered by ε"
    return f"the model is that of the last round: no round was selected, and no best.safetensors is stored; {measured}"


class RunLedger:
    """The ledger of one run. After a restart it continues, and records no round twice.

    Args:
        path: The ledger's file.
        plan: The run.
        key: Returns the key that signs new entries.
        head: Hash of the last entry when the run's checkpoint was saved; empty for a new run.

    Raises:
        VitrailError: The ledger does not have the entry `head`.
    """

    def __init__(self, path: Path, plan: Plan, key: Callable[[], Key], head: str = "") -> None:
        self.plan, self.ledger = plan, Ledger(path, key=key)
        self.requested = requests_by_client(self.ledger.entries, plan.clients)
        if not self.ledger.entries and not head:
            self.ledger.write(kind="opening", run=plan.id.hex(), **opening_claim(plan))
        if head and all(entry["hash"] != head for entry in self.ledger.entries):
            raise VitrailError(
                f"{path} does not have the entries that it had at the last checkpoint: it was removed, cut or "
                "replaced, so what the run released is no longer known. Restore it, then continue"
            )

    def opens(self, round_: int, who: Sequence[str]) -> None:
        """Record the clients of a round before anything is requested from them."""
        recorded = any(e["kind"] == "round" and e["round"] == round_ for e in self.ledger.entries)
        if not who or recorded:  # before an interruption: clients repeat the answers they gave then
            return
        requested = "all" if list(who) == self.plan.clients else list(who)
        self.ledger.write(kind="round", round=round_, asked=requested)
        self.requested.update(who)

    @property
    def most(self) -> int:
        """Largest number of requests to one client."""
        return max(self.requested.values(), default=0)

    @property
    def private(self) -> bool:
        """Whether the run claims to be private."""
        return bool(self.ledger.entries[0]["private"])

    @property
    def says(self) -> str:
        """The claim for all requests so far, as if all clients had replied."""
        return str(_claim(self.plan, self.most)["says"])

    def record_result(self, models: Mapping[str, str], state: str, measured: bool) -> None:
        """Record the result. The model files that are stored afterwards name this entry.

        Args:
            models: Digests of the run's models by name; the entry commits to them.
            state: Digest of the server's last state, from which another run may start.
            measured: Whether any round was measured on held-out images.

        Raises:
            VitrailError: The ledger already has a closing entry with another state.
        """
        closing = self._closing
        if closing is not None:  # after an interruption, or of a run that version 0.1.0 finished
            if closing.get("state", state) != state:
                raise VitrailError(
                    f"{self.ledger.path} has a closing entry with another state than the run ended with; restore the "
                    "checkpoint that belongs to it"
                )
            return
        found = _claim(self.plan, self.most)
        found["private"] = found["private"] and self.private  # never more than the opening entry claims
        if found["private"]:
            found["selection"] = _selection(measured, len(self.plan.data.test))
        fields = (
            "private", "says", "epsilon", "delta", "checked_by", "checked_epsilon", "composition", "bound", "spent",
            "selection",
        )  # fmt: skip
        facts = {"models": dict(models), "state": state, "most_answers": self.most}
        self.ledger.write(kind="closing", **facts, **{k: found[k] for k in fields if k in found})

    @property
    def _closing(self) -> Entry | None:
        return next((entry for entry in self.ledger.entries if entry["kind"] == "closing"), None)

    @property
    def head(self) -> str:
        """The hash of the closing entry, or else of the last; nodes' statements follow after the model is stored."""
        closing = self._closing
        return self.ledger.head if closing is None else str(closing["hash"])
