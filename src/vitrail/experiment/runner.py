"""One run, start to finish."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from vitrail import __version__
from vitrail.data import draw_partition
from vitrail.engines import server
from vitrail.engines.federation import Ask, Federation, RoundResult, select_clients
from vitrail.engines.journal import Journal
from vitrail.engines.simulation import SimulatedClients, SimulationEngine
from vitrail.experiment import settings as config
from vitrail.experiment.checkpoints import evaluate_round, finish, next_evaluation
from vitrail.experiment.personal_grids import draw_personal
from vitrail.experiment.plan import Plan, prepare
from vitrail.experiment.run_dir import RunDir, new_run_dir
from vitrail.experiment.settings import Settings
from vitrail.experiment.tensorboard import TensorBoardCallback
from vitrail.experiment.validation import GIVEN
from vitrail.metrics.round_metrics import round_metrics_for
from vitrail.models.model_file import Classifier, Generator, load, load_classifier
from vitrail.privacy.ledger import read as read_ledger
from vitrail.privacy.run_ledger import RunLedger
from vitrail.report import write_report
from vitrail.utils import state as store
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import VitrailError
from vitrail.utils.keys import load_or_create_key
from vitrail.utils.rng import Rng

VOID_LIMIT = 3  # rounds in a row that change nothing, after which a run stops


class Engine(Protocol):
    """What carries messages."""

    @property
    def ask(self) -> Ask: ...

    def count(self, outcome: RoundResult) -> None:
        """Add what travelled beside the messages of a round."""
        ...


MakeEngine = Callable[[Plan], AbstractContextManager[Engine]]


class Callback(Protocol):
    """Somebody who looks on."""

    def begin(self, plan: Plan, done: int) -> None: ...
    def during(self, outcome: RoundResult) -> None: ...
    def round(self, outcome: RoundResult, row: dict[str, Any]) -> None: ...
    def end(self, run: Run) -> None: ...


class NullCallback:
    """Looks at nothing."""

    def begin(self, plan: Plan, done: int) -> None: ...
    def during(self, outcome: RoundResult) -> None: ...
    def round(self, outcome: RoundResult, row: dict[str, Any]) -> None: ...
    def end(self, run: Run) -> None: ...


class CallbackList:
    """Several who look on."""

    def __init__(self, *watches: Callback) -> None:
        self.watches = watches

    def begin(self, plan: Plan, done: int) -> None:
        for watch in self.watches:
            watch.begin(plan, done)

    def during(self, outcome: RoundResult) -> None:
        for watch in self.watches:
            watch.during(outcome)

    def round(self, outcome: RoundResult, row: dict[str, Any]) -> None:
        for watch in self.watches:
            watch.round(outcome, row)

    def end(self, run: Run) -> None:
        for watch in self.watches:
            watch.end(run)


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    settings: Settings = field(repr=False)
    rows: Sequence[dict[str, Any]] = field(repr=False)

    @property
    def privacy(self) -> str:
        """What may be said of its privacy; ledger.json says why."""
        return [str(entry["says"]) for entry in read_ledger(RunDir(self.folder).ledger) if "says" in entry][-1]

    @property
    def generator(self) -> Generator:
        """What came out, loaded from the stored model."""
        return load(self.folder)

    @property
    def classifier(self) -> Classifier:
        """The classifier that came out, where the method makes one, loaded from its file."""
        return load_classifier(self.folder)


def train(
    method: str, *, data: Any = None, progress: bool = False, watch: Callback | None = None, **settings: Any
) -> Run:
    """Train a method, or repeat a settings file, and return the run.

    `data` is a source's name, a `vitrail.data.Dataset`, or any torch Dataset of pictures. `progress` shows what the
    command line shows.
    """
    if progress and watch is None:
        from vitrail.cli.progress import ProgressDisplay

        watch = ProgressDisplay()
    if data is None or isinstance(data, str):
        return begin(config.resolve(method, settings | ({} if data is None else {"data": data})), None, watch)
    return begin(config.resolve(method, settings | {"data": GIVEN}), data, watch)


def begin(settings: Settings, data: Any = None, watch: Callback | None = None) -> Run:
    """Start a run in a folder of its own."""
    out = Path(settings.out) if settings.out else new_run_dir(settings.method, settings.data)
    RunDir(out).check_free()
    plan = prepare(settings.model_copy(update={"out": str(out)}), data)
    with plan.folder.locked():
        plan.folder.begin(config.to_toml(plan.settings, __version__))
        return run_rounds(plan, engine_for, watch or NullCallback())


def resume(
    folder: str | Path, *, data: Any = None, workers: int | str | None = None, watch: Callback | None = None
) -> Run:
    """Go on with a run that was interrupted; the result has the bits of one that was not."""
    place = RunDir(Path(folder))
    if not place.settings.exists():
        raise VitrailError(
            f"{folder} holds no run (there is no settings.toml); give the folder that `vitrail run` named"
        )
    if place.nodes.exists():
        raise VitrailError(
            f"{folder} holds a run over nodes; `flwr run` with its settings and out goes on with it (docs/flower.md)"
        )
    overrides: dict[str, Any] = {"out": str(folder)} | ({} if workers is None else {"workers": workers})
    plan = prepare(config.resolve(str(place.settings), overrides), data)
    with place.locked():
        return run_rounds(plan, engine_for, watch or NullCallback())


def engine_for(plan: Plan) -> AbstractContextManager[Engine]:
    """The engine that the settings name, with all clients on this machine."""
    s = plan.settings
    workers = min(len(plan.clients), os.cpu_count() or 1) if s.workers == "auto" else int(s.workers)
    if s.engine == "flower":
        from vitrail.experiment.deployment.virtual_nodes import simulation

        return simulation(plan, workers)
    holds = dict(zip(plan.partition.names, plan.partition.indices, strict=True))
    crew = SimulatedClients(plan.method, plan.id, Rng((s.seed,)), holds, plan.folder.clients, plan.budget)
    return SimulationEngine(crew, plan.data.train, workers, s.client_dropout)


def run_rounds(plan: Plan, make_engine: MakeEngine, watch: Callback) -> Run:
    """All rounds of a run over an engine, from its last checkpoint or the start; its folder is locked meanwhile."""
    s, folder, method = plan.settings, plan.folder, plan.method
    rng = Rng((s.seed,))
    watch = CallbackList(watch, TensorBoardCallback()) if s.tensorboard else watch
    saved = folder.load_checkpoint(plan.id)
    fed = Federation.from_tree(saved["federation"]) if saved else _first(plan, rng)
    closed, void = (saved["closed"] if saved else 0), 0  # rounds that changed the model; rounds in a row that did not
    folder.rewind(fed.round)
    if not saved and any(map(len, plan.partition.indices)):
        draw_partition(plan.partition, plan.data, folder.partition)
    head = str(saved.get("ledger", "")) if saved else ""
    ledger = RunLedger(folder.ledger, plan, lambda: plan.key or load_or_create_key(folder.key), head)
    journal = Journal(folder.answers)

    def chosen(t: int) -> list[str]:
        return select_clients(plan.clients, s.clients_per_round or len(plan.clients), rng.child("choose", t))

    def save() -> None:
        tree = {"run": plan.id, "federation": fed.tree(), "closed": closed, "split": plan.split}
        tree["ledger"] = ledger.head
        store.save(folder.checkpoint, tree, private=True)
        journal.clear()

    def publish(row: dict[str, Any]) -> dict[str, Any]:
        """Draw, measure and log the round of the checkpoint, after it is saved: a crash must not noise a sum twice."""
        shown = evaluate_round(plan, fed, row, gauge, ledger) if closed else row
        folder.log(shown)
        return shown

    if not saved and method.num_async_rounds:
        save()  # where keys come from the operating system, what clients answer to must outlive a kill
    watch.begin(plan, fed.round)
    with one_thread(), make_engine(plan) as engine:
        gauge = round_metrics_for(plan.data, plan.against) if s.eval_every != 0 else None
        if (row := folder.unpublished(fed.round)) is not None:
            publish(row)
        while fed.round < s.rounds:
            began = time.perf_counter()
            played = server.run_rounds(
                method, fed, plan.id, chosen, next_evaluation(s, fed.round), engine.ask, rng, journal,
                quorum=s.quorum, on_progress=watch.during, on_start=ledger.opens,
            )  # fmt: skip
            for outcome, after in played:
                engine.count(outcome)
                closed, void = (closed, void + 1) if outcome.void else (closed + 1, 0)
                row = _row(outcome, time.perf_counter() - began)
                began = time.perf_counter()
                if after:
                    fed = after
                    folder.hold(row)
                    save()
                    row = publish(row)
                else:
                    folder.log(row)
                watch.round(outcome, row)
            _check_void(void, outcome, folder)
        journal.clear()  # a kill may have come between the last checkpoint and this
        _check_closed(closed, folder)
        finish(plan, fed, gauge, ledger)
        draw_personal(plan, fed.server)
    return _ended(plan, watch)


def _ended(plan: Plan, watch: Callback) -> Run:
    """The finished run, with its report."""
    folder = plan.folder
    folder.key.unlink(missing_ok=True)  # the ledger has its last entry: no other can be signed with this key
    folder.held.unlink(missing_ok=True)
    write_report([folder.path], folder.report)
    run = Run(folder.path, plan.settings, folder.rows())
    watch.end(run)
    return run


def _check_void(void: int, outcome: RoundResult, folder: RunDir) -> None:
    """Stop a run whose rounds change nothing."""
    if void >= VOID_LIMIT:
        raise VitrailError(
            f"stopped: {void} rounds in a row changed nothing, the last because {outcome.void}"
            f"{_reasons(outcome)}. Fix this, then continue with `vitrail resume {folder.path}`"
        )


def _check_closed(closed: int, folder: RunDir) -> None:
    """Refuse to store a model that no round has changed."""
    if not closed:
        raise VitrailError(
            f"no round changed the model, so none is stored; {folder.metrics} lists who was excluded, and why. "
            f"Fix this, then repeat the run with `vitrail run {folder.settings} out=...`"
        )


def _reasons(o: RoundResult) -> str:
    few = [f"{client}: {reason}" for client, reason in list(o.excluded.items())[:3]]
    return f" ({'; '.join(few)}{'; ...' if len(o.excluded) > 3 else ''})" if few else ""


def _first(plan: Plan, rng: Rng) -> Federation:
    """The server before the first round; with `from`, where an earlier run of the same method ended."""
    held = plan.partition.server
    data = plan.data.train.take(held) if len(held) else None
    return Federation(0, plan.method.server_init(rng.child("server", "init"), data, plan.start))


def _row(o: RoundResult, seconds: float) -> dict[str, Any]:
    return {
        "round": o.round,
        "seconds": round(seconds, 3),
        "requested": o.requested,
        "replied": len(o.replied),
        "excluded": o.excluded,
        **({"outliers": o.outliers} if o.outliers else {}),
        "void": o.void,
        "bytes_up": sum(o.up.values()),
        "bytes_down": sum(o.down.values()),
        "floats_up": o.floats_up,
        "floats_down": o.floats_down,
        "up": o.up,
        "down": o.down,
        **{k: float(np.float32(v)) for k, v in o.metrics.items()},
    }
