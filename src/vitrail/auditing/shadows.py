"""Membership by likelihood ratios against shadow runs: LiRA (Carlini et al. 2022), at a small size.

Small runs with the settings of the attacked one are trained on random halves of some of its images. This gives, for
each image, the scores of models that had it and of models that did not. Each model is then attacked with the others.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.auditing.attack import Finding, Target
from vitrail.auditing.membership import BATCH, discriminate, features, figures, nearest, samples
from vitrail.data.dataset import Images
from vitrail.engines.rounds import Federation, run_round
from vitrail.engines.simulation import SimulatedClients, SimulationEngine
from vitrail.experiment.plan import Plan, prepare
from vitrail.metrics.extractors import Extractor, choose_feature_network, load_extractor
from vitrail.models.model_file import open_model
from vitrail.nets.feature_moments import to_float
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng

ABOUT = "small runs of the same settings with and without an image: which of the two a model resembles"
IMAGES = 400  # of the attacked run that shadow runs use; each has half of them
CLIENTS = 2
SMALL = {
    "clients": CLIENTS,
    "partition": "iid",
    "clients_per_round": None,
    "server_fraction": 0.0,
    "client_dropout": 0.0,
    "quorum": 1,
    "init_from": None,
}
FEWEST = 4
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def attack(target: Target) -> Finding | None:
    """Train shadow runs one after another, then attack each with the others.

    Raises:
        VitrailError: The number of shadow runs is too small.
    """
    if target.shadows < FEWEST:
        raise VitrailError(f"--shadows {target.shadows}: at least {FEWEST} are needed for a comparison; give 8")
    order = target.rng.child("pictures").numpy().permutation(len(target.members))[:IMAGES]
    images = target.members.take(np.sort(order))
    coins = target.rng.child("coins").numpy()
    has = np.stack([coins.random(len(images)) < 0.5 for _ in range(target.shadows)])
    extractor = load_extractor(choose_feature_network(target.plan.data.name, target.plan.against))
    seen: dict[str, list[Floats]] = {}
    rounds, deadline = target.plan.settings.rounds, time.monotonic() + target.seconds
    for s in range(target.shadows):
        target.report_progress(f"shadows: run {s + 1} of {target.shadows}, {rounds} rounds each")
        until = time.monotonic() + (deadline - time.monotonic()) / target.shadows if s == 0 else float("inf")
        found, rounds = _shadow(target, extractor, images, has[s], rounds, until, s)
        for name, scores in found.items():
            seen.setdefault(name, []).append(scores)
    result = []
    for name, by_run in seen.items():
        ratio = likelihood_ratios(np.stack(by_run), has)
        result += figures(ratio[has], ratio[~has], name)
    note = f"{target.shadows} runs of {rounds} rounds on halves of {len(images):,} images, {CLIENTS} clients; the "
    return Finding("shadows", ABOUT, figures=result, note=note + "attacked run is larger, which protects it more")


def likelihood_ratios(seen: Floats, has: Bools) -> Floats:
    """Return log N(in) - log N(out) for each model and image, from the other models.

    Args:
        seen: Scores, (models, images).
        has: Which model was trained on which image. Each kind has one variance for all images.

    Examples:
        >>> found = likelihood_ratios(np.array([[1.0], [0.9], [0.0], [0.1]]), np.array([[1], [1], [0], [0]], bool))
        >>> bool((found[:2] > 0).all() and (found[2:] < 0).all())
        True
    """
    spread = {kind: _spread(seen, has == kind) for kind in (True, False)}
    out = np.zeros_like(seen)
    for s in range(len(seen)):
        others = np.arange(len(seen)) != s
        logs = {}
        for kind in (True, False):
            mean = _mean(seen[others], (has == kind)[others])
            logs[kind] = -0.5 * ((seen[s] - mean) / spread[kind]) ** 2 - np.log(spread[kind])
        known = has[others].any(0) & ~has[others].all(0)
        out[s] = np.where(known, logs[True] - logs[False], 0.0)
    return out


def _mean(seen: Floats, of: Bools) -> Floats:
    return np.asarray((seen * of).sum(0) / np.maximum(of.sum(0), 1))


def _spread(seen: Floats, of: Bools) -> float:
    """Return the standard deviation within images, over all images."""
    free = max(int((of.sum(0) - 1).clip(min=0).sum()), 1)
    return float(np.sqrt((((seen - _mean(seen, of)) ** 2) * of).sum() / free)) + 1e-9


def _shadow(
    target: Target, extractor: Extractor, images: Images, has: Bools, rounds: int, until: float, s: int
) -> tuple[dict[str, Floats], int]:
    """Train one run on some of the images; return scores of all images, and the number of rounds it had time for."""
    data = replace(target.plan.data, train=images.take(np.flatnonzero(has)))
    with tempfile.TemporaryDirectory(prefix="vitrail-shadow-") as folder:
        more = {"rounds": rounds, "seed": target.plan.settings.seed + 1 + s, "out": folder}
        plan = prepare(target.plan.settings.model_copy(update={**SMALL, **more}), data)
        fed = train(plan, Path(folder), until)
    method = plan.method
    generator = open_model(method.export_models(fed.server)["generator"], plan.data.classes)
    made = samples(generator, replace(target, samples=1000, rng=Rng((s,))), "samples", plan.data.train)
    real = features(extractor, to_float(images.pixels).split(BATCH))
    found = {"distance to samples": -nearest(real, features(extractor, made)).double().numpy()}
    if "discriminator" in fed.server and method.nets():
        found["output of the discriminator"] = discriminate(method, fed.server, images)
    return found, fed.round


def train(plan: Plan, folder: Path, until: float) -> Federation:
    """Run the rounds of a small run, at least two, until the time is up."""
    rng = Rng((plan.settings.seed,))
    fed = Federation(0, plan.method.server_init(rng.child("server", "init")))
    owned = dict(zip(plan.partition.names, plan.partition.indices, strict=True))
    clients = SimulatedClients(plan.method, plan.id, rng, owned, folder / "clients")
    with SimulationEngine(clients, plan.data.train) as engine, torch.enable_grad():
        while fed.round < plan.settings.rounds and (fed.round < 2 or time.monotonic() < until):
            fed, _ = run_round(plan.method, fed, plan.id, plan.clients, engine.ask, rng)
    return fed
