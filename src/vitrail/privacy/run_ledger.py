"""A run's ledger.json: the claim before it starts, who is asked in each round before it is, and the result."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.privacy.accounting import epsilon
from vitrail.privacy.claims import claim, read_spent
from vitrail.privacy.ledger import Entry, Ledger
from vitrail.privacy.statement import check_statement
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.keys import Key

if TYPE_CHECKING:
    from vitrail.experiment.plan import Plan


def opening(plan: Plan) -> dict[str, Any]:
    """The claim of a run before it starts, if every client that is asked answers."""
    s, method = plan.settings, plan.method
    parts = ", ".join(f"{name} ({part.how})" for name, part in method.reply_spec().items())
    found = _claim(plan, method.max_replies, f"every round: {parts}")
    asked = min(s.clients_per_round or len(plan.clients), len(plan.clients))
    return {
        "method": s.method,
        "clients": len(plan.clients),
        "rounds": s.rounds,
        **found,
        "parts": parts,
        "secure_aggregation": secure_sums(s.secagg_threshold, asked) if s.secagg_threshold else "off",
        "budget": f"ε = {s.budget:g} a client" if s.budget else "none was kept",
        **({"selection": _selection(plan.settings.eval_every != 0, len(plan.data.test))} if found["private"] else {}),
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


def _selection(measures: bool, images: int) -> str:
    """What of a private run was chosen by held-out images, which no ε covers."""
    measured = "nothing was measured on held-out images"
    if measures and images:
        measured = (
            f"figures in metrics.jsonl and reports were measured on the {images:,} held-out images of the same data, "
            "without noise"
        )
    return (
        f"the model is that of the last round: none was chosen, and no best.safetensors is kept; {measured}; choosing "
        "settings or runs by such figures is not covered by ε"
    )


class RunLedger:
    """The ledger of one run; after a restart it continues, and has no round twice."""

    def __init__(self, path: Path, plan: Plan, key: Callable[[], Key], head: str = "") -> None:
        self.plan, self.ledger = plan, Ledger(path, key=key)
        self.asked = asked_by_client(self.ledger.entries, plan.clients)
        if not self.ledger.entries and not head:
            self.ledger.write(kind="opening", run=plan.id.hex(), **opening(plan))
        self.check_has(head)

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

    def check_has(self, head: str) -> None:
        """Refuse a ledger without the entry that was its last when the checkpoint was saved.

        Raises:
            VitrailError: The ledger was removed, shortened or replaced since.
        """
        if head and all(entry["hash"] != head for entry in self.ledger.entries):
            raise VitrailError(
                f"{self.ledger.path} does not have the entries that it had at the last checkpoint: it was removed, cut "
                "or replaced, so what the run released is no longer known. Restore it, then continue"
            )

    def closes(self, models: Mapping[str, str], state: str, measured: bool) -> None:
        """Record the result; the models that are stored then name this entry.

        Args:
            models: Digests of what the run made, by name; the entry commits to them.
            state: Digest of the server's last state, from which another run may start.
            measured: Whether any round was measured on held-out images.
        """
        closing = self._closing
        if closing is not None:  # after an interruption, or of a run that version 0.1.0 ended
            if closing.get("state", state) != state:
                raise VitrailError(f"{self.ledger.path} has closed with another state than the run ends with")
            return
        found = _claim(self.plan, self.most)
        found["private"] = found["private"] and self.private  # what the opening entry does not claim, nothing adds
        if found["private"]:
            found["selection"] = _selection(measured, len(self.plan.data.test))
        kept = (
            "private", "says", "epsilon", "delta", "checked_by", "checked_epsilon", "composition", "bound", "spent",
            "selection",
        )  # fmt: skip
        facts = {"models": dict(models), "state": state, "max_replies": self.most}
        self.ledger.write(kind="closing", **facts, **{k: found[k] for k in kept if k in found})

    @property
    def _closing(self) -> Entry | None:
        return next((entry for entry in self.ledger.entries if entry["kind"] == "closing"), None)

    @property
    def head(self) -> str:
        """The hash of the closing entry, or of the last one; statements of nodes follow when the model is stored."""
        closing = self._closing
        return self.ledger.head if closing is None else str(closing["hash"])


def asked_by_client(entries: Iterable[Entry], everyone: Sequence[str]) -> Counter[str]:
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
        Malformed: entries are not in the order of a run, a claim states another ε than its records give, or a node's
            statement is of another run.
    """
    _check_order(entries)
    first = entries[0]
    for entry in entries:
        if entry["kind"] == "statement":
            _check_answers(entry, entries)
        elif entry["kind"] != "round":
            _check_claim(entry, entries)
    return "spent" in first


def _check_order(entries: Sequence[Entry]) -> None:
    """An opening entry, rounds in their order, one closing entry, statements of nodes."""
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
    asked = min(most_asked(entries), 1) if first["once"] else most_asked(entries)
    if entry is not first and spent != [*planned[:-1], (noise, asked)]:
        raise Malformed(f"its closing entry counts {spent[-1][1]} answers; its rounds and opening entry give {asked}")
    if entry["private"] and not first["private"]:
        raise Malformed("its closing entry claims to be private and its opening entry does not")
    eps, delta = epsilon(spent, float(entry["delta"])), float(entry["delta"])
    stated = math.inf if entry["epsilon"] == "infinite" else float(entry["epsilon"])
    if not (eps == stated or math.isclose(eps, stated, rel_tol=1e-6)):
        raise Malformed(f"it states ε = {stated:.4g}; the noise and rounds that it records give {eps:.4g}")
    if not math.isclose(first["sigma"], first["sensitivity"] * noise.multiplier, rel_tol=1e-9):
        raise Malformed(f"it states σ = {first['sigma']:.4g}; sensitivity and multiplier give another")
    source = "the seed" if first["noise_seeds"] else "the operating system"
    begins = f"simulated, with noise from {source}: " if first["simulated"] else ""
    begins += f"ε = {eps:.3g} at δ = {delta:g} for "
    named = f"({first['mechanism']}, {first['unit']}-level)"
    holds = math.isfinite(eps) and "assumed" not in first and not (first["noise_seeds"] and not first["simulated"])
    if entry["private"] and not (holds and entry["says"].startswith(begins) and named in entry["says"]):
        raise Malformed(f"it claims to be private in other words than its records give: {entry['says']}")


def _check_answers(entry: Entry, entries: Sequence[Entry]) -> None:
    """Compare a node's own count of its answers with the rounds that the ledger records."""
    facts, client = check_statement(entry), entry["client"]
    if (facts.get("client"), facts.get("run")) != (client, entries[0]["run"]):
        raise Malformed(f"the statement of {client} is of another client or run")
    asked = asked_by_client(entries, [client])[client]
    if facts["answers"] > asked:
        raise Malformed(f"{client} states {facts['answers']} answers; the ledger has asked it {asked} times")
