"""A second execution of a run from its settings, with eavesdroppers on some of its clients.

Clients do not depend on each other, so only the attacked ones are requested. Keys and noise come from the run's seed,
so the messages have the same bits as in the run. With noise_source=os they are drawn again: a different run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.auditing.eavesdropper import Eavesdropper, Eavesdropping, Kind
from vitrail.engines.replies import Failure
from vitrail.engines.rounds import Federation, RoundResult, run_round, select_clients
from vitrail.engines.simulation import SimulatedClients, SimulationEngine
from vitrail.experiment.plan import Plan
from vitrail.utils.errors import VitrailError
from vitrail.utils.quantities import plural
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, load
from vitrail.wire.message import decode


class Wiretap:
    """All eavesdroppers of a run. Messages are processed one at a time and not stored.

    Args:
        access: The method's hook.
        kinds: The eavesdroppers on each client.
        clients: The clients that are attacked.
        server: The server's state, with its private key; used only for what eavesdroppers are granted.
        rng: Randomness of guessed seeds.
    """

    def __init__(
        self, access: Eavesdropping, kinds: Sequence[Kind], clients: Sequence[str], server: State, rng: Rng
    ) -> None:
        self.access, self.kinds, self.clients, self.server, self.rng = access, kinds, clients, server, rng
        self.last: dict[str, Any] = {}  # each client's last message
        self.eavesdroppers: dict[str, list[Eavesdropper]] = {}

    def receive(self, client: str, reply: bytes) -> None:
        """Take a message that the server accepted; its next request reveals that to everyone."""
        parts = {part.name: part.array() for part in decode(reply).parts}
        before = self.last.get(client)
        self.last[client] = message = self.access.read(parts, before.state() if before else None)
        if client not in self.eavesdroppers:
            secret, guess = self.access.secret_start(self.server, client, parts), self.rng.child("guess", client)
            self.eavesdroppers[client] = [Eavesdropper(kind, self.access, secret, guess) for kind in self.kinds]
        for eavesdropper in self.eavesdroppers[client]:
            eavesdropper.receive(message)


def replay_run(
    plan: Plan,
    access: Eavesdropping,
    kinds: Sequence[Kind],
    users: int,
    rounds: int,
    rng: Rng,
    tell: Callable[[str], None],
) -> tuple[Federation, Wiretap]:
    """Run a run's first rounds again with its first clients and all eavesdroppers on them.

    Args:
        plan: The run.
        access: The method's hook.
        kinds: The eavesdroppers on each client.
        users: The number of clients.
        rounds: The number of rounds.
        rng: Randomness of the eavesdroppers.
        tell: Receives progress messages.

    Returns:
        The federation after these rounds, and the eavesdroppers.

    Raises:
        VitrailError: If none of the clients replied.
    """
    s, method, root = plan.settings, plan.method, Rng((plan.settings.seed,))
    fed = Federation(0, method.server_init(root.child("server", "init")))
    wiretap = Wiretap(access, kinds, plan.clients[:users], fed.server, rng)
    indices = dict(zip(plan.partition.names, plan.partition.indices, strict=True))
    replies: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory(prefix="vitrail-audit-") as folder:
        clients = SimulatedClients(method, plan.id, root, indices, Path(folder))
        engine = SimulationEngine(clients, plan.data.train, dropout=s.client_dropout)

        def ask(requests: Iterable[tuple[str, bytes] | None]) -> Iterator[tuple[str, bytes | Failure]]:
            for client, reply in engine.ask(requests):
                if isinstance(reply, bytes):
                    replies[client] = reply
                yield client, reply

        def accepted(result: RoundResult) -> None:
            for client in set(result.replied) & set(replies):
                wiretap.receive(client, replies.pop(client))
            replies.clear()

        for t in range(rounds):
            tell(f"eavesdroppers: round {t + 1} of {rounds}")
            chosen = select_clients(plan.clients, s.clients_per_round or len(plan.clients), root.child("choose", t))
            attacked = [client for client in chosen if client in wiretap.clients]
            fed, _ = run_round(method, fed, plan.id, attacked, ask, root, on_progress=accepted)
    if not wiretap.eavesdroppers:
        raise VitrailError(
            f"{', '.join(wiretap.clients)}: no message in {plural(rounds, 'round')}; increase --users or --rounds"
        )
    return fed, wiretap


def equals_run(plan: Plan, access: Eavesdropping, fed: Federation, max_replies: int) -> bool | None:
    """Return whether a replay ended with the G_s of the run's checkpoint; None if that is at another round."""
    if not plan.folder.checkpoint.exists():
        return None
    stored = load(plan.folder.checkpoint)["federation"]
    if min(stored["round"], max_replies) != min(fed.round, max_replies):
        return None
    originals = access.rebuilt(stored["server"])
    return all(
        client in originals and np.array_equal(user["generator"], originals[client]["generator"])
        for client, user in access.rebuilt(fed.server).items()
    )
