"""What a run makes, looked at on the way and kept: pictures, a quick measure, the best round, the model files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitrail import __version__
from vitrail.engines.rounds import Federation
from vitrail.experiment.plan import Plan
from vitrail.experiment.run_dir import public_name
from vitrail.experiment.settings import Settings
from vitrail.metrics.round_metrics import RoundMetrics
from vitrail.models.model_file import load, open_classifier, open_model, save_model
from vitrail.nets.features import FEATURES
from vitrail.privacy.run_ledger import RunLedger
from vitrail.utils.state import tree_digest


def _draws(s: Settings, done: int) -> bool:
    return done in {round((i + 1) * s.rounds / s.grids) for i in range(s.grids)}


def _measures(s: Settings, done: int) -> bool:
    return done % (s.eval_every or math.ceil(s.rounds / 10)) == 0 or done == s.rounds


def next_evaluation(s: Settings, done: int) -> int:
    """How many rounds will be done when the model is next looked at."""
    return next((t for t in range(done + 1, s.rounds) if _draws(s, t) or _measures(s, t)), s.rounds)


def evaluate_round(
    plan: Plan,
    fed: Federation,
    row: dict[str, Any],
    gauge: RoundMetrics | None,
    ledger: RunLedger,
) -> dict[str, Any]:
    """Where it is due, draw and measure what the run has made so far, and keep it if it is the best yet.

    A private run keeps no best round: which one it is depends on held-out images, and no ε covers that.
    """
    s, folder = plan.settings, plan.folder
    drawn, measured = _draws(s, fed.round), gauge is not None and _measures(s, fed.round)
    products = plan.method.export_models(fed.server) if drawn or measured else {}
    generator = open_model(products["generator"], plan.data.classes) if "generator" in products else None
    if generator and drawn:
        folder.samples.mkdir(exist_ok=True)
        generator.grid(folder.samples / f"round-{fed.round:04d}.png", generator.page)
    if gauge is None or not measured:
        return row
    if generator and (fd := gauge.distance(generator)) is not None:
        row = {**row, "fd": fd}
    if "classifier" in products:
        row = {**row, "accuracy": gauge.accuracy(open_classifier(products["classifier"], plan.data.classes))}
    name, goal = ("generator", "fd") if generator else ("classifier", "accuracy")
    rows = folder.rows()
    better = min if goal == "fd" else max
    if goal in row and not ledger.private and row[goal] == better([r[goal] for r in (*rows, row) if goal in r]):
        best = {"round": fed.round, goal: row[goal]}
        more = best | ({"ruler": gauge.ruler} if generator else {})
        _keep(plan, fed, {name: folder.best}, [*rows, row], more, ledger)
    return row


def _keep(
    plan: Plan,
    fed: Federation,
    places: dict[str, Path],
    rows: Sequence[dict[str, Any]],
    more: dict[str, Any],
    ledger: RunLedger,
) -> None:
    """Write products of the method to files, with what a person should know of them."""
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
    products = plan.method.export_models(fed.server)
    for name, path in places.items():
        model = products[name]
        own = (
            {"privacy": f"not private: it was trained on {model.unprotected} without noise"}
            if model.unprotected
            else {}
        )
        save_model(path, model, plan.data.classes, about | more | own)


def finish(plan: Plan, fed: Federation, gauge: RoundMetrics | None, ledger: RunLedger) -> None:
    """Write what came out: the generator as the model, or the classifier where there is no other."""
    folder, products = plan.folder, plan.method.export_models(fed.server)
    digests = {name: tree_digest(product.tree) for name, product in products.items()}
    measured = any("fd" in row or "accuracy" in row for row in folder.rows())
    ledger.closes(digests, tree_digest(fed.server), measured)
    model = "generator" if "generator" in products else "classifier"
    # The model last: where it stands, all else does.
    names = sorted(products, key=lambda n: n == model)
    places = {n: folder.model if n == model else folder.path / f"{n}.safetensors" for n in names}
    ruler = {"ruler": gauge.ruler} if gauge and model == "generator" else {}
    _keep(plan, fed, places, folder.rows(), ruler, ledger)
    if model == "generator":
        generator = load(folder.model)
        generator.grid(folder.path / "samples.png", generator.page)
