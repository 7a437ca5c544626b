"""A run of PS-FedGAN played once more from its settings, for those who listen to some of its users.

Users do not depend on each other, so only these are asked. Keys and noise come from the run's seed, as they did, and
so do the messages: the same bits. With noise_source=os they are drawn anew, which makes another run of the same kind.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from vitrail.auditing.eavesdropper import Eavesdropper, Kind
from vitrail.engines.replies import Failure
from vitrail.engines.rounds import Federation, RoundResult, run_round, select_clients
from vitrail.engines.secagg.primitives import public
from vitrail.engines.simulation import SimulatedClients, SimulationEngine
from vitrail.experiment.plan import Plan
from vitrail.methods.psfedgan import twin as twins
from vitrail.methods.psfedgan.algorithm import PsFedGan
from vitrail.methods.psfedgan.messages import Published, read
from vitrail.report.quantities import plural
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, load
from vitrail.wire.message import decode


class Wire:
    """All eavesdroppers of a run; messages pass by one at a time and are not kept."""

    def __init__(self, run: PsFedGan, kinds: Sequence[Kind], users: Sequence[str], key: bytes, rng: Rng) -> None:
        self.run, self.kinds, self.users, self.rng = run, kinds, users, rng
        self.key = key  # the server's: for what eavesdroppers are granted, and for nothing else
        self.said: dict[str, Published] = {}
        self.listening: dict[str, list[Eavesdropper]] = {}

    def carry(self, client: str, reply: bytes) -> None:
        """A message that the server has kept, which its next request shows to everybody."""
        parts = {part.name: part.array() for part in decode(reply).parts}
        before = self.said.get(client)
        self.said[client] = said = read(self.run, parts, before.kept() if before else None)
        if client not in self.listening:
            key, guess = parts["key"].tobytes() if "key" in parts else b"", self.rng.child("guess", client)
            start = self.secret(client, key)
            self.listening[client] = [
                Eavesdropper(kind, self.run, start if kind.granted else None, guess) for kind in self.kinds
            ]
        for one in self.listening[client]:
            one.hear(said)

    def secret(self, client: str, key: bytes) -> State:
        """The true G before its first step."""
        secret = self.run.shared(client, self.key, key, public(self.key))
        return twins.begin(self.run.generator(), secret, 0)


def overhear(
    plan: Plan, kinds: Sequence[Kind], users: int, rounds: int, rng: Rng, tell: Callable[[str], None]
) -> tuple[Federation, Wire]:
    """Play a run's first rounds with its first users, and everybody who listens to them."""
    s, run, root = plan.settings, cast(PsFedGan, plan.method), Rng((plan.settings.seed,))
    fed = Federation(0, run.server_init(root.child("server", "init")))
    wire = Wire(run, kinds, plan.clients[:users], fed.server["key"], rng)
    holds = dict(zip(plan.partition.names, plan.partition.indices, strict=True))
    under_way: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory(prefix="vitrail-audit-") as folder:
        crew = SimulatedClients(run, plan.id, root, holds, Path(folder))
        engine = SimulationEngine(crew, plan.data.train, dropout=s.client_dropout)

        def ask(requests: Iterable[tuple[str, bytes] | None]) -> Iterator[tuple[str, bytes | Failure]]:
            for client, answer in engine.ask(requests):
                if isinstance(answer, bytes):
                    under_way[client] = answer
                yield client, answer

        def kept(outcome: RoundResult) -> None:
            for client in set(outcome.replied) & set(under_way):
                wire.carry(client, under_way.pop(client))
            under_way.clear()

        for t in range(rounds):
            tell(f"eavesdroppers: round {t + 1} of {rounds}")
            asked = select_clients(plan.clients, s.clients_per_round or len(plan.clients), root.child("choose", t))
            fed, _ = run_round(run, fed, plan.id, [c for c in asked if c in wire.users], ask, root, on_progress=kept)
    if not wire.listening:
        raise VitrailError(
            f"{', '.join(wire.users)}: no message in {plural(rounds, 'round')}; give more --users or --rounds"
        )
    return fed, wire


def as_it_was(plan: Plan, fed: Federation) -> bool | None:
    """Whether a replay ended with the very G_s of the run's checkpoint; None where that is at another round."""
    if not plan.folder.checkpoint.exists():
        return None
    stored = load(plan.folder.checkpoint)["federation"]
    most = cast(PsFedGan, plan.method).max_replies
    if min(stored["round"], most) != min(fed.round, most):
        return None
    return all(
        name in stored["server"]["twins"]
        and np.array_equal(twin["generator"], stored["server"]["twins"][name]["generator"])
        for name, twin in fed.server["twins"].items()
    )
