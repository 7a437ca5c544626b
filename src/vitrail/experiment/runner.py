"""The round loop of a run, on any engine: from its last checkpoint, or the start, to the stored model."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from vitrail.data import plot_partition
from vitrail.engines.async_rounds import run_rounds as run_engine_rounds
from vitrail.engines.federation import Ask, Federation, RoundResult, select_clients
from vitrail.engines.journal import Journal
from vitrail.experiment.callbacks import Callback, build_callbacks, callback_names
from vitrail.experiment.plan import Plan
from vitrail.experiment.round_outputs import evaluate_round, finish, next_evaluation
from vitrail.experiment.run_dir import Run, RunDir
from vitrail.experiment.run_ledger import RunLedger
from vitrail.metrics.round_metrics import RoundMetrics, round_metrics_for
from vitrail.utils import state as store
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import VitrailError
from vitrail.utils.keys import load_or_create_key
from vitrail.utils.rng import Rng

MAX_VOID_ROUNDS = 3  # a run stops after this many rounds in a row that changed nothing


class Engine(Protocol):
    """What carries requests to clients and returns their replies."""

    @property
    def ask(self) -> Ask: ...

    def count(self, outcome: RoundResult) -> None:
        """Add the bytes that were sent in addition to a round's messages."""
        ...


MakeEngine = Callable[[Plan], AbstractContextManager[Engine]]


def run_rounds(plan: Plan, make_engine: MakeEngine, callback: Callback) -> Run:
    """Run all remaining rounds of a run, and write its model and report.

    Args:
        plan: The run; its folder must be locked by the caller.
        make_engine: Builds the engine.
        callback: Follows the progress.

    Returns:
        The finished run.

    Raises:
        VitrailError: If several rounds in a row, or all of them, changed nothing.
    """
    named = [*(["tensorboard"] if plan.settings.tensorboard else []), *callback_names(plan.settings.callbacks)]
    callback = build_callbacks(["report", callback, *dict.fromkeys(named)])
    loop = _Loop(plan, callback)
    with one_thread(), make_engine(plan) as engine:
        loop.run(engine)
    plan.folder.key.unlink(missing_ok=True)  # the ledger has its last entry: no other can be signed with this key
    plan.folder.unlogged_row.unlink(missing_ok=True)
    run = Run(plan.folder.path, plan.settings, plan.folder.rows())
    callback.on_run_end(run)
    return run


class _Loop:
    """The state of a run between its rounds."""

    def __init__(self, plan: Plan, callback: Callback) -> None:
        self.plan, self.folder, self.callback = plan, plan.folder, callback
        self.rng = Rng((plan.settings.seed,))
        saved = self.folder.load_checkpoint(plan.id)
        self.fed = Federation.from_tree(saved["federation"]) if saved else Federation(0, plan.init_server())
        self.updates: int = saved["closed"] if saved else 0  # rounds that changed the model
        self.void = 0  # rounds in a row that did not
        head = str(saved.get("ledger", "")) if saved else ""  # hash of the last entry of the ledger at the checkpoint
        self.folder.rewind(self.fed.round)
        if not saved and any(map(len, plan.partition.indices)):
            plot_partition(plan.partition, plan.data, self.folder.partition)
        self.ledger = RunLedger(self.folder.ledger, plan, lambda: plan.key or load_or_create_key(self.folder.key), head)
        self.journal = Journal(self.folder.answers)
        if not saved and plan.method.num_async_rounds:
            self.save()  # keys from the operating system: the state that clients reply to must survive a kill
        callback.on_run_start(plan, self.fed.round)

    def run(self, engine: Engine) -> None:
        """Run all remaining rounds, then write the models."""
        s = self.plan.settings
        metrics = round_metrics_for(self.plan.data, self.plan.against) if s.eval_every != 0 else None
        if (row := self.folder.load_unlogged(self.fed.round)) is not None:
            self.publish(row, metrics)
        while self.fed.round < s.rounds:
            self.rounds_until(next_evaluation(s, self.fed.round), engine, metrics)
        self.journal.clear()  # a kill may have come between the last checkpoint and this
        if not self.updates:
            raise VitrailError(
                f"no round changed the model, so none is stored; {self.folder.metrics} lists which clients were "
                f"excluded, and why. Fix this, then repeat the run with `vitrail run {self.folder.settings} out=...`"
            )
        finish(self.plan, self.fed, metrics, self.ledger)
        if self.plan.method.has_personal_models:
            from vitrail.experiment.personal import draw_personal

            draw_personal(self.plan, self.fed.server)

    def rounds_until(self, end: int, engine: Engine, metrics: RoundMetrics | None) -> None:
        """Run the rounds up to the next evaluation."""
        s, method, began = self.plan.settings, self.plan.method, time.perf_counter()
        results = run_engine_rounds(
            method, self.fed, self.plan.id, self.select, end, engine.ask, self.rng, self.journal,
            quorum=s.quorum, on_progress=self.callback.on_reply, on_start=self.ledger.opens,
        )  # fmt: skip
        for result, after in results:
            engine.count(result)
            self.updates, self.void = (self.updates, self.void + 1) if result.void else (self.updates + 1, 0)
            row = metrics_row(result, time.perf_counter() - began)
            began = time.perf_counter()
            if after:
                self.fed = after
                self.folder.store_unlogged(row)
                self.save()
                row = self.publish(row, metrics)
            else:
                self.folder.log(row)
            self.callback.on_round_end(result, row)
        _check_void(self.void, result, self.folder)

    def select(self, t: int) -> list[str]:
        """Return the clients of a round."""
        per_round = self.plan.settings.clients_per_round or len(self.plan.clients)
        return select_clients(self.plan.clients, per_round, self.rng.child("choose", t))

    def save(self) -> None:
        """Write the checkpoint, readable by its owner only; replies that it includes need not be stored any longer."""
        tree = {"run": self.plan.id, "federation": self.fed.tree(), "closed": self.updates, "split": self.plan.split}
        store.save(self.folder.checkpoint, {**tree, "ledger": self.ledger.head}, private=True)
        self.journal.clear()

    def publish(self, row: dict[str, Any], metrics: RoundMetrics | None) -> dict[str, Any]:
        """Evaluate and log the checkpoint's round. After saving: a crash must not add noise to a sum twice."""
        shown = evaluate_round(self.plan, self.fed, row, metrics, self.ledger) if self.updates else row
        self.folder.log(shown)
        return shown


def _check_void(void: int, result: RoundResult, folder: RunDir) -> None:
    """Stop a run whose rounds change nothing."""
    if void >= MAX_VOID_ROUNDS:
        few = [f"{client}: {reason}" for client, reason in list(result.excluded.items())[:3]]
        reasons = f" ({'; '.join(few)}{'; ...' if len(result.excluded) > 3 else ''})" if few else ""
        raise VitrailError(
            f"stopped: {void} rounds in a row changed nothing, the last because {result.void}"
            f"{reasons}. Fix this, then continue with `vitrail resume {folder.path}`"
        )


def metrics_row(result: RoundResult, seconds: float) -> dict[str, Any]:
    """Return a round's line of metrics.jsonl."""
    return {
        "round": result.round,
        "seconds": round(seconds, 3),
        "requested": result.requested,
        "replied": len(result.replied),
        "excluded": result.excluded,
        **({"outliers": result.outliers} if result.outliers else {}),
        "void": result.void,
        "bytes_up": sum(result.up.values()),
        "bytes_down": sum(result.down.values()),
        "floats_up": result.floats_up,
        "floats_down": result.floats_down,
        "up": result.up,
        "down": result.down,
        **{k: float(np.float32(v)) for k, v in result.metrics.items()},
    }
