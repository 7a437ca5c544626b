"""Attack: eavesdroppers that rebuild a client's secret generator from its messages (PS-FedGAN, section 4.2).

The run is executed again, for the attacked clients only, and each eavesdropper trains its G_A on the messages. G_A and
the server's G_s then generate images from the same z and labels: accuracy of an oracle, NMSE and SSIM. Messages have
the same bits as in the run; with noise_source=os, keys and noise are drawn again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.auditing.attack import Case, Curves, Figure, Finding, Target
from vitrail.auditing.eavesdropper import Eavesdropper, EavesdropperKind, kinds
from vitrail.engines.federation import Federation, RoundResult, select_clients
from vitrail.engines.replies import Failure
from vitrail.engines.rounds import run_round
from vitrail.engines.simulation import SimulatedClients, SimulationEngine
from vitrail.experiment.plan import Plan
from vitrail.methods.audit_hooks import Eavesdropping
from vitrail.metrics.measure import share
from vitrail.metrics.oracle import Oracle, judge, oracle_for
from vitrail.metrics.pixels import PairValues
from vitrail.models.image_grid import write_grid
from vitrail.utils.errors import VitrailError
from vitrail.utils.quantities import plural
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, load
from vitrail.wire.message import decode

ABOUT = "generators rebuilt from all messages of a client, with the secret seed, parts of it, or without it"
IMAGES = 200  # compared per generator
SHOWN = 6  # in the grid, per client
GRID = "eavesdroppers.png"
SAME = "the same bits as G_s"


def attack(target: Target) -> Finding | None:
    """Attack a run; return None if its method has no secret generators."""
    plan, access = target.plan, target.plan.method.eavesdropping()
    if access is None:
        return None
    rounds = min(target.rounds or target.answers, target.answers)
    fed, wiretap = replay_run(target, access, kinds(access, target.r), rounds)
    data = plan.data
    oracle = oracle_for(data.train, data.test, len(data.classes)) if data.classes and len(data.test) else None
    cases: list[Case] = []
    curves, sheets = [], []
    clients = [client for client in wiretap.clients if client in wiretap.eavesdroppers]  # those that replied
    for client in clients:
        cloud, eavesdroppers = access.rebuilt(fed.server)[client], wiretap.eavesdroppers[client]
        found, images = _compare(access, cloud, eavesdroppers, oracle, client, target.rng.child("pictures"))
        cases += found
        losses = {e.kind.name + " (the cloud's)" * _equal(e, cloud): e.losses for e in eavesdroppers}
        curves.append(Curves(f"G's loss by message, {client}", losses))
        sheets.append(torch.stack([x[:SHOWN] for x in images]))
    if plan.folder.path.is_dir():
        sheet = torch.cat(sheets, 1)  # one row for the cloud and each eavesdropper, clients next to each other
        write_grid(plan.folder.path / GRID, (sheet.flatten(0, 1) + 1) / 2, columns=sheet.shape[1])
    rows = "; ".join(["the cloud", *(e.kind.name for e in eavesdroppers)])
    equality = {
        True: ", with the same G_s as the run, bit for bit",
        False: ". G_s differs from the run's (with noise_source=os keys are drawn again; or the machines differ)",
        None: "",
    }[equals_run(plan, access, fed, target.answers)]
    return Finding(
        "eavesdroppers",
        ABOUT,
        note=f"{rounds} of {target.answers} rounds with clients were executed again{equality}. {IMAGES} images per "
        "generator; NMSE and SSIM are of brightness from 0 to 1",
        cases=cases,
        curves=curves,
        image_file=GRID,
        caption=f"{SHOWN} images of each of {', '.join(clients)}, from the same z and labels; top to bottom: {rows}",
    )


def _compare(
    access: Eavesdropping,
    cloud: State,
    eavesdroppers: Sequence[Eavesdropper],
    oracle: Oracle | None,
    client: str,
    rng: Rng,
) -> tuple[list[Case], list[Tensor]]:
    """Compare the eavesdroppers on one client with the cloud; return cases, and all images, the cloud's first."""
    labels = cloud["labels"]
    z = torch.randn(IMAGES, access.latent_dim, generator=rng.child(client).torch())
    y = torch.tensor(labels).repeat(-(-IMAGES // len(labels)))[:IMAGES] if labels else None
    of_cloud = access.sample(cloud, z, y)
    cases, images = [], [of_cloud]
    for one in eavesdroppers:
        x = one.access.sample(one.state, z, y)
        images.append(x)
        figures = []
        if oracle is not None and y is not None:
            figures = [
                Figure("accuracy", *share(judge(oracle.net, x, y)[0].numpy())),
                Figure("cloud's accuracy", *share(judge(oracle.net, of_cloud, y)[0].numpy())),
                Figure("random guess", 1 / len(labels)),
            ]
        pairs = PairValues()
        pairs.add(x, of_cloud)
        ssim, nmse = pairs.bounded(rng.child("bootstrap").numpy())
        figures += [Figure("NMSE", *nmse), Figure("SSIM", *ssim)]
        cases.append(Case(one.kind.name, client, figures, SAME if _equal(one, cloud) else ""))
    return cases, images


def _equal(one: Eavesdropper, cloud: State) -> bool:
    """Return whether G_A equals G_s bit for bit."""
    rebuilt, secret = (np.asarray(state["generator"], np.float32).tobytes() for state in (one.state, cloud))
    return rebuilt == secret


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
        self, access: Eavesdropping, kinds: Sequence[EavesdropperKind], clients: Sequence[str], server: State, rng: Rng
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
    target: Target, access: Eavesdropping, kinds: Sequence[EavesdropperKind], rounds: int
) -> tuple[Federation, Wiretap]:
    """Run a run's first rounds again with its first clients and all eavesdroppers on them.

    Args:
        target: The run, the number of its clients, and the randomness of the eavesdroppers.
        access: The method's hook.
        kinds: The eavesdroppers on each client.
        rounds: The number of rounds.

    Returns:
        The federation after these rounds, and the eavesdroppers.

    Raises:
        VitrailError: If none of the clients replied.
    """
    plan, s, method = target.plan, target.plan.settings, target.plan.method
    root = Rng((s.seed,))
    fed = Federation(0, method.server_init(root.child("server", "init")))
    wiretap = Wiretap(access, kinds, plan.clients[: target.users], fed.server, target.rng)
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
            target.report_progress(f"eavesdroppers: round {t + 1} of {rounds}")
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
