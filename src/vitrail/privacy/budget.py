"""A client's privacy budget: ε at δ over all runs, stored by the client under the name its owner gave the data.

It is identified by name, not by content, because one new image must not reset it. Every release is written to a
chained ledger in the owner's folder before anything leaves; an answer that would exceed the budget is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vitrail.privacy.accounting import answers_within, epsilon, multiplier_for
from vitrail.privacy.ledger import Ledger
from vitrail.privacy.mechanism import Mechanism, Noise
from vitrail.privacy.policy import PUBLIC_REASON
from vitrail.utils.atomic import file_lock
from vitrail.utils.errors import Refused, VitrailError
from vitrail.utils.paths import data_home

USED_UP = "refused: privacy budget used up"  # the only text that the server receives


@dataclass(frozen=True)
class Budget:
    """The ε at δ that may be spent on the data of a name, over all runs.

    Args:
        name: The owner's name for the data.
        epsilon: Largest ε of all releases together.
        delta: δ at which ε is computed.
    """

    name: str
    epsilon: float
    delta: float

    @property
    def path(self) -> Path:
        """The file that records what was spent."""
        return data_home() / "budgets" / f"{quote(self.name, safe=' ')[:200]}.json"

    def spent(self) -> list[dict[str, Any]]:
        """Return all releases so far."""
        return [e for e in Ledger(self.path, private=True).entries if e["kind"] == "release"]

    def check(self, mechanism: Mechanism | None) -> None:
        """Check that one more answer fits into the budget, without charging it.

        Raises:
            Refused: The answer would exceed the budget, or cannot be charged to it.
        """
        with _refusing():
            self._after(mechanism, self.spent())

    def has(self, request: str) -> bool:
        """Return whether the answer to a request has been charged."""
        return bool(request) and any(entry.get("request") == request for entry in self.spent())

    def charge(self, mechanism: Mechanism | None, run: bytes, round_: int, request: str = "") -> None:
        """Charge one more answer; the charge is on disk when this returns.

        Args:
            mechanism: What protects the answer.
            run: The run's id.
            round_: The round.
            request: Names the client and its request, so that `has` recognises after a crash that it was charged.

        Raises:
            Refused: The answer would exceed the budget, or cannot be charged to it.
        """
        with _refusing(), file_lock(self.path.with_suffix(".lock")):  # two runs must not spend the same remainder
            ledger = Ledger(self.path, private=True)
            total = self._after(mechanism, [e for e in ledger.entries if e["kind"] == "release"])
            if not ledger.entries:
                ledger.write(kind="budget", data=self.name)
            assert mechanism is not None  # noqa: S101  _after refuses where there is none
            ledger.write(
                kind="release",
                run=run.hex(),
                round=round_,
                mechanism=mechanism.name,
                unit=mechanism.unit,
                adjacency=mechanism.adjacency,
                noise=asdict(mechanism.noise),
                budget=self.epsilon,
                delta=self.delta,
                epsilon_in_all=total,
                **({"request": request} if request else {}),
            )

    def _after(self, mechanism: Mechanism | None, spent: list[dict[str, Any]]) -> float:
        """Return the total ε after one more answer."""
        if mechanism is None or mechanism.assumed:
            why = "adds no noise" if mechanism is None else "rests on an assumption"
            raise VitrailError(f"its budget of ε = {self.epsilon:g} allows no reply to a run that {why}")
        others = {(e["unit"], e["adjacency"]) for e in spent} - {(mechanism.unit, mechanism.adjacency)}
        if others:
            unit, adjacency = min(others)
            raise VitrailError(
                f"its budget for {self.name!r} has {unit}-level releases ({adjacency}) and this run's are "
                f"{mechanism.unit}-level ({mechanism.adjacency}): they cannot be composed; give the data another name"
            )
        before = [(Noise(**e["noise"]), 1) for e in spent]
        total = epsilon([*before, (mechanism.noise, 1)], self.delta)
        if not total <= self.epsilon * (1 + 1e-6):
            used = epsilon(before, self.delta)
            raise Refused(
                f"its budget of ε = {self.epsilon:g} at δ = {self.delta:g} for {self.name!r} is spent up to "
                f"{used:.3g}, and this reply would make it {total:.3g}; {self._instead(mechanism, before)}",
                USED_UP,
            )
        return total

    def _instead(self, mechanism: Mechanism, before: list[tuple[Noise, int]]) -> str:
        """Return what would be allowed, in words."""
        if not before:
            allowed = answers_within(mechanism.noise, self.epsilon, self.delta)
            return f"with this noise it allows {allowed} replies: use a smaller epsilon or fewer rounds"
        low, high = 0.0, self.epsilon
        for _ in range(8):  # to half a per cent of the budget
            middle = (low + high) / 2
            one = Noise(multiplier_for(lambda m: [(Noise(m), 1)], middle, self.delta))
            fits = epsilon([*before, (one, 1)], self.delta) <= self.epsilon
            low, high = (middle, high) if fits else (low, middle)
        left = f"one reply of ε = {low:.2g} would still fit" if low else "no further reply fits"
        return f"{left}: use a smaller epsilon, or let its owner raise the budget"


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn other errors, such as of the budget's file, into refusals: their text may name the budget."""
    try:
        yield
    except Refused:
        raise
    except VitrailError as e:
        raise Refused(str(e), PUBLIC_REASON) from e
