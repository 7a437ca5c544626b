"""Eavesdroppers on PS-FedGAN: the run is played once more, and G_A grows along with G_u and G_s from what is published.

Wijesinghe et al. 2023, section 4.2. In the end both make pictures of the same z and labels, and G_A's are set beside
the cloud's G_s's: how often an oracle takes them for what was asked, NMSE, SSIM. eavesdropper.py says who listens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.auditing.attack import Case, Curves, Figure, Finding, Target
from vitrail.auditing.eavesdropper import Eavesdropper, kinds
from vitrail.auditing.replay import as_it_was, overhear
from vitrail.experiment.plan import Plan
from vitrail.methods.psfedgan.algorithm import PsFedGan
from vitrail.metrics.measure import share
from vitrail.metrics.oracle import Oracle, judge, oracle_for
from vitrail.metrics.pixels import Compared
from vitrail.models.image_grid import write_grid
from vitrail.nets.flat import from_vector, to_vector
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

ABOUT = "generators grown from all that users publish, and from the secret seed or parts of it, beside the server's"
PICTURES = 200  # of each generator that are compared
SHOWN = 6  # of each user
GRID = "eavesdroppers.png"
SAME = "the same bits as G_s"


def attack(target: Target) -> Finding | None:
    """None where generators do not grow from what is published."""
    plan, run = target.plan, target.plan.method
    if not isinstance(run, PsFedGan):
        return None
    rounds = min(target.rounds or run.max_replies, run.max_replies)
    fed, wire = overhear(plan, kinds(run, target.r), target.users, rounds, target.rng, target.tell)
    oracle = oracle_of(plan)
    found: list[Case] = []
    curves, sheets = [], []
    users = [user for user in wire.users if user in wire.listening]  # the others never answered
    for user in users:
        cloud, listening = fed.server["twins"][user], wire.listening[user]
        cases, made = compare(run, cloud, listening, oracle, user, target.rng.child("pictures"))
        found += cases
        curves.append(Curves(f"G's loss by message, {user}", losses(listening, cloud)))
        sheets.append(torch.stack([x[:SHOWN] for x in made]))
    write_sheet(plan, sheets)
    rows = "; ".join(["the cloud", *(one.kind.name for one in listening)])
    shows = f"{SHOWN} pictures of each of {', '.join(users)}, of the same z and labels"
    return Finding(
        "eavesdroppers",
        ABOUT,
        note=_note(run, rounds, as_it_was(plan, fed)),
        cases=found,
        curves=curves,
        picture=GRID,
        caption=f"{shows}; from top to bottom: {rows}",
    )


def oracle_of(plan: Plan) -> Oracle | None:
    """A classifier of the run's data; None where it has no labels."""
    data = plan.data
    return oracle_for(data.train, data.test, len(data.classes)) if data.classes and len(data.test) else None


@torch.no_grad()
def compare(
    run: PsFedGan, cloud: State, listening: Sequence[Eavesdropper], oracle: Oracle | None, user: str, rng: Rng
) -> tuple[list[Case], list[Tensor]]:
    """Each eavesdropper on one user beside the cloud, and the pictures of all, the cloud's first."""
    labels = cloud["labels"]
    z = torch.randn(PICTURES, run.latent_dim, generator=rng.child(user).torch()).to(run.task.device)
    y = torch.tensor(labels).repeat(-(-PICTURES // len(labels)))[:PICTURES] if labels else None

    def draws(G: nn.Module) -> Tensor:
        pictures: Tensor = G.eval()(z, None if y is None else y.to(run.task.device))
        return pictures.cpu()

    theirs = draws(from_vector(run.generator().to(run.task.device), cloud["generator"]))
    cases, made = [], [theirs]
    for one in listening:
        x = draws(one.twin.G)
        made.append(x)
        figures = []
        if oracle is not None and y is not None:
            figures = [
                Figure("accuracy", *share(judge(oracle.net, x, y)[0].numpy())),
                Figure("cloud's accuracy", *share(judge(oracle.net, theirs, y)[0].numpy())),
                Figure("by chance", 1 / len(labels)),
            ]
        pairs = Compared()
        pairs.add(x, theirs)
        ssim, nmse = pairs.bounded(rng.child("bootstrap").numpy())
        figures += [Figure("NMSE", *nmse), Figure("SSIM", *ssim)]
        cases.append(Case(one.kind.name, user, figures, SAME if same(one, cloud) else ""))
    return cases, made


def same(one: Eavesdropper, cloud: State) -> bool:
    """Whether G_A is G_s, to the bit."""
    return to_vector(one.twin.G).tobytes() == np.asarray(cloud["generator"], np.float32).tobytes()


def losses(listening: Sequence[Eavesdropper], cloud: State) -> dict[str, list[float]]:
    """G's loss in each message; that of one with the bits of G_s is the cloud's own."""
    return {one.kind.name + (" (the cloud's)" if same(one, cloud) else ""): one.losses for one in listening}


def write_sheet(plan: Plan, sheets: Sequence[Tensor]) -> None:
    """A row for the cloud and for each eavesdropper, users side by side."""
    sheet = torch.cat(list(sheets), 1)
    if plan.folder.path.is_dir():
        write_grid(plan.folder.path / GRID, (sheet.flatten(0, 1) + 1) / 2, columns=sheet.shape[1])


def _note(run: PsFedGan, rounds: int, as_before: bool | None) -> str:
    played = f"{rounds} of {run.max_replies} rounds with clients were played again"
    if as_before:
        played += ", and ended with the run's own G_s, to the bit"
    elif as_before is False:
        played += (
            ". They ended elsewhere than the run did (keys of noise_source=os are drawn anew; machines may differ)"
        )
    return f"{played}. {PICTURES} pictures of each; in NMSE and SSIM their brightness goes from 0 to 1"
