"""What a run writes during and after training: sample grids, round metrics, the best round, the model files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitrail.engines.rounds import Federation
from vitrail.experiment.plan import Plan
from vitrail.experiment.run_dir import public_name
from vitrail.experiment.run_ledger import RunLedger
from vitrail.experiment.settings import Settings
from vitrail.metrics.round_metrics import RoundMetrics
from vitrail.models.model_file import load, open_classifier, open_model, save_model
from vitrail.nets.features import FEATURES
from vitrail.utils.state import tree_digest
from vitrail.utils.version import __version__


def _samples_due(s: Settings, done: int) -> bool:
    return done in {round((i + 1) * s.rounds / s.grids) for i in range(s.grids)}


def _evaluation_due(s: Settings, done: int) -> bool:
    return done % (s.eval_every or math.ceil(s.rounds / 10)) == 0 or done == s.rounds


def next_evaluation(s: Settings, done: int) -> int:
    """Return the number of finished rounds at which the model is next sampled or evaluated."""
    return next((t for t in range(done + 1, s.rounds) if _samples_due(s, t) or _evaluation_due(s, t)), s.rounds)


def evaluate_round(
    plan: Plan, fed: Federation, row: dict[str, Any], metrics: RoundMetrics | None, ledger: RunLedger
) -> dict[str, Any]:
    """Sample and evaluate the model where this is due, and store it if it is the best so far.

    A private run stores no best round: selecting it by test images is not covered by ε.

    Returns:
        The round's row, with the metrics that were computed.
    """
    s, folder = plan.settings, plan.folder
    drawn, measured = _samples_due(s, fed.round), metrics is not None and _evaluation_due(s, fed.round)
    models = plan.method.export_models(fed.server) if drawn or measured else {}
    generator = open_model(models["generator"], plan.data.classes) if "generator" in models else None
    if generator and drawn:
        folder.samples.mkdir(exist_ok=True)
        generator.grid(folder.samples / f"round-{fed.round:04d}.png", generator.page)
    if metrics is None or not measured:
        return row
    if generator and (fd := metrics.distance(generator)) is not None:
        row = {**row, "fd": fd}
    if "classifier" in models:
        row = {**row, "accuracy": metrics.accuracy(open_classifier(models["classifier"], plan.data.classes))}
    name, goal = ("generator", "fd") if generator else ("classifier", "accuracy")
    rows = folder.rows()
    better = min if goal == "fd" else max
    if goal in row and not ledger.private and row[goal] == better([r[goal] for r in (*rows, row) if goal in r]):
        best = {"round": fed.round, goal: row[goal]}
        more = best | ({"ruler": metrics.feature_network} if generator else {})
        _save_models(plan, fed, {name: folder.best}, [*rows, row], more, ledger)
    return row


def _save_models(
    plan: Plan,
    fed: Federation,
    paths: dict[str, Path],
    rows: Sequence[dict[str, Any]],
    more: dict[str, Any],
    ledger: RunLedger,
) -> None:
    """Write models to files, with a description of the run."""
    s = plan.settings
    about = {
        "vitrail": __version__,
        "run": plan.id.hex(),
        "method": s.method,
        "data": public_name(plan.data.name),
        "clients": len(plan.clients),
        "rounds": s.rounds,
        "seed": s.seed,
        "held_out": s.test_fraction,
        "split": plan.split,
        "bytes_up": sum(r["bytes_up"] for r in rows),
        "bytes_down": sum(r["bytes_down"] for r in rows),
        "privacy": ledger.says,
        "ledger": ledger.head,
    }
    if against := plan.against:
        about["trained_against"] = list(against)
        about["features"] = ", ".join(f"{psi}, trained on {FEATURES[psi].trained_on}" for psi in against)
    if plan.notes and not ledger.private:  # notes may name counts or pixels, which no ε covers
        about["notes"] = list(plan.notes)
    models = plan.method.export_models(fed.server)
    for name, path in paths.items():
        model = models[name]
        own = dict(about | more)
        if model.unprotected:
            own["privacy"] = f"not private: it was trained on {model.unprotected} without noise"
        save_model(path, model, plan.data.classes, own)


def finish(plan: Plan, fed: Federation, metrics: RoundMetrics | None, ledger: RunLedger) -> None:
    """Write the trained models: the generator as model.safetensors, or the classifier if there is no generator."""
    folder, models = plan.folder, plan.method.export_models(fed.server)
    digests = {name: tree_digest(exported.tree) for name, exported in models.items()}
    measured = any("fd" in row or "accuracy" in row for row in folder.rows())
    ledger.record_result(digests, tree_digest(fed.server), measured)
    model = "generator" if "generator" in models else "classifier"
    # The model last: if it exists, so do all other files.
    names = sorted(models, key=lambda n: n == model)
    paths = {n: folder.model if n == model else folder.path / f"{n}.safetensors" for n in names}
    network = {"ruler": metrics.feature_network} if metrics and model == "generator" else {}
    _save_models(plan, fed, paths, folder.rows(), network, ledger)
    if model == "generator":
        generator = load(folder.model)
        generator.grid(folder.path / "samples.png", generator.page)
