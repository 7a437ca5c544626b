"""Attack: eavesdroppers that rebuild a client's secret generator from its messages (PS-FedGAN, section 4.2).

The run is executed again, and each eavesdropper trains its G_A on the messages. At the end G_A and the server's G_s
generate images from the same z and labels, which are compared: accuracy of an oracle on the requested labels, NMSE and
SSIM. eavesdropper.py defines the eavesdroppers, replay.py the second execution.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vitrail.auditing.attack import Case, Curves, Figure, Finding, Target
from vitrail.auditing.eavesdropper import Eavesdropper, Eavesdropping, eavesdropping_of, kinds
from vitrail.auditing.replay import equals_run, replay_run
from vitrail.experiment.plan import Plan
from vitrail.metrics.measure import share
from vitrail.metrics.oracle import Oracle, judge, oracle_for
from vitrail.metrics.pixels import PairValues
from vitrail.models.image_grid import write_grid
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

ABOUT = "generators rebuilt from all messages of a client, with the secret seed, parts of it, or without it"
IMAGES = 200  # compared per generator
SHOWN = 6  # in the grid, per client
GRID = "eavesdroppers.png"
SAME = "the same bits as G_s"


def attack(target: Target) -> Finding | None:
    """Attack a run; return None if its method has no secret generators."""
    plan, access = target.plan, eavesdropping_of(target.plan.method)
    if access is None:
        return None
    rounds = min(target.rounds or target.answers, target.answers)
    fed, wiretap = replay_run(plan, access, kinds(access, target.r), target.users, rounds, target.rng, target.tell)
    oracle = _oracle(plan)
    cases: list[Case] = []
    curves, sheets = [], []
    clients = [client for client in wiretap.clients if client in wiretap.eavesdroppers]  # those that replied
    for client in clients:
        cloud, eavesdroppers = access.rebuilt(fed.server)[client], wiretap.eavesdroppers[client]
        found, images = _compare(access, cloud, eavesdroppers, oracle, client, target.rng.child("pictures"))
        cases += found
        curves.append(Curves(f"G's loss by message, {client}", _losses(eavesdroppers, cloud)))
        sheets.append(torch.stack([x[:SHOWN] for x in images]))
    _write_grid(plan, sheets)
    rows = "; ".join(["the cloud", *(e.kind.name for e in eavesdroppers)])
    return Finding(
        "eavesdroppers",
        ABOUT,
        note=_note(rounds, target.answers, equals_run(plan, access, fed, target.answers)),
        cases=cases,
        curves=curves,
        picture=GRID,
        caption=f"{SHOWN} images of each of {', '.join(clients)}, from the same z and labels; top to bottom: {rows}",
    )


def _oracle(plan: Plan) -> Oracle | None:
    """Train a classifier on the run's data; None without labels."""
    data = plan.data
    return oracle_for(data.train, data.test, len(data.classes)) if data.classes and len(data.test) else None


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
    ours, theirs = (np.asarray(state["generator"], np.float32).tobytes() for state in (one.state, cloud))
    return ours == theirs


def _losses(eavesdroppers: Sequence[Eavesdropper], cloud: State) -> dict[str, list[float]]:
    """Return G_A's loss in each message; a G_A that equals G_s shows the cloud's loss."""
    return {one.kind.name + (" (the cloud's)" if _equal(one, cloud) else ""): one.losses for one in eavesdroppers}


def _write_grid(plan: Plan, sheets: Sequence[Tensor]) -> None:
    """Write images: one row for the cloud and each eavesdropper, clients next to each other."""
    sheet = torch.cat(list(sheets), 1)
    if plan.folder.path.is_dir():
        write_grid(plan.folder.path / GRID, (sheet.flatten(0, 1) + 1) / 2, columns=sheet.shape[1])


def _note(rounds: int, max_rounds: int, equal: bool | None) -> str:
    note = f"{rounds} of {max_rounds} rounds with clients were executed again"
    if equal:
        note += ", with the same G_s as the run, bit for bit"
    elif equal is False:
        note += ". G_s differs from the run's (with noise_source=os keys are drawn again; or the machines differ)"
    return f"{note}. {IMAGES} images per generator; NMSE and SSIM are of brightness from 0 to 1"
