"""Progress of a run: a live line on a terminal, one plain line per round elsewhere."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any, NoReturn

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from vitrail.engines.rounds import RoundResult
from vitrail.experiment.callbacks import Callback
from vitrail.experiment.plan import Plan, feature_network
from vitrail.experiment.run_dir import Run, best_row
from vitrail.experiment.run_ledger import opening_claim
from vitrail.nets.features import FEATURES
from vitrail.utils.console import Console
from vitrail.utils.errors import printable
from vitrail.utils.quantities import number, plural, size


class ProgressDisplay(Callback):
    """A callback that prints the progress of a run.

    Args:
        summary: Print at the end where the results are and which commands follow; otherwise one line.
    """

    def __init__(self, summary: bool = True) -> None:
        self.summary = summary
        self.console = console = Console()
        self.up = self.down = 0
        self.folder: Path | None = None  # set when the run starts
        self.interrupted = False
        self.outliers: set[str] = set()  # clients already reported
        self.previous_handler: Any = None  # of Ctrl-C
        self.progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(24),
            TextColumn("{task.fields[clients]}", markup=False),
            TextColumn("{task.fields[news]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def on_run_start(self, plan: Plan, done: int) -> None:
        """Print what will run."""
        s, p, most = plan.settings, plan.partition, plan.method.max_replies
        self.folder = plan.folder.path
        self.data_option = " --data DATA" if plan.deployed else ""  # the server does not know the nodes' data
        sizes = sorted(len(i) for i in p.indices if len(i))
        share = f" of {sizes[0]}{f' to {sizes[-1]}' if sizes[-1] != sizes[0] else ''} images" if sizes else ""
        self.console.print(
            f"[bold]{s.method}[/bold] on {escape(printable(plan.data.name))}: {plural(len(plan.clients), 'client')} "
            f"({escape(printable(p.spec))}){share}, {plural(s.rounds, 'round')}, seed {s.seed}"
            + (f", a client replies in at most {plural(most, 'round')}" if most < s.rounds else "")
            + (f", {len(p.server)} images on the server" if len(p.server) else "")
        )
        if psi := feature_network(s):
            self.console.print(f"features: {psi}, trained on {FEATURES[psi].trained_on}")
        self.console.print(f"privacy: {escape(str(opening_claim(plan)['says']))}", soft_wrap=True)
        for note in plan.notes:
            self.console.print(f"[yellow]{escape(note)}[/yellow]")
        if plan.empty:
            few = ", ".join(plan.empty[:5]) + (", ..." if len(plan.empty) > 5 else "")
            self._warn(f"{plural(len(plan.empty), 'client')} without images, skipped: {printable(few)}")
        self.console.print(
            f"[dim]{escape(str(plan.folder.path))}/[/dim]"
            + ("" if not done else " is finished" if done == s.rounds else f" continues after round {done}")
        )
        for row in plan.folder.rows():
            self.up, self.down = self.up + row["bytes_up"], self.down + row["bytes_down"]
        self.task = self.progress.add_task("", total=s.rounds, completed=done, clients="", news="")
        self.progress.start()
        if threading.current_thread() is threading.main_thread():
            self.previous_handler = signal.signal(signal.SIGINT, self._interrupt)

    def _warn(self, text: str) -> None:
        self.console.print(text, style="yellow", markup=False)

    def _interrupt(self, *_: object) -> NoReturn:
        """Stop at Ctrl-C, or after this round if a library swallowed the exception."""
        self.interrupted = True
        raise KeyboardInterrupt

    def on_reply(self, outcome: RoundResult) -> None:
        """Count a client that replied or was excluded."""
        n = len(outcome.replied) + len(outcome.excluded)
        self.progress.update(self.task, clients=f"clients {n}/{outcome.requested}")

    def on_round_end(self, outcome: RoundResult, row: dict[str, Any]) -> None:
        """Print the result of a round."""
        self.up, self.down = self.up + row["bytes_up"], self.down + row["bytes_down"]
        measured: dict[str, float] = {**outcome.metrics, **{k: row[k] for k in ("fd", "accuracy") if k in row}}
        metrics = " ".join(f"{k} {number(v)}" for k, v in measured.items())
        sent = f"up {size(self.up)}  down {size(self.down)} so far"
        news = "  ".join(filter(None, (metrics, sent)))
        self.progress.update(self.task, advance=1, news=news)
        if not self.console.is_terminal:
            replies = f"{len(outcome.replied)}/{outcome.requested} clients  {news}"
            text = replies if outcome.requested else f"server only  {metrics}".rstrip()  # nothing is sent
            self.console.print(f"round {outcome.round + 1}: {text}  {row['seconds']:.1f} s", soft_wrap=True)
        for client, reason in list(outcome.excluded.items())[:5]:
            self._warn(f"round {outcome.round + 1}: {printable(client)} excluded: {printable(reason)}")
        if len(outcome.excluded) > 5:
            self._warn(f"... and {len(outcome.excluded) - 5} more; see metrics.jsonl, where rounds count from 0")
        for client, note in list(outcome.outliers.items())[:5]:
            if client not in self.outliers:  # once per run; metrics.jsonl has every round
                text = f"round {outcome.round + 1}: {client} is far from the other clients: {note}"
                self.console.print(f"[yellow]{escape(text)}[/yellow]")
        self.outliers |= set(outcome.outliers)
        if outcome.void:
            self._warn(f"round {outcome.round + 1}: {printable(outcome.void)}; the model is unchanged")
        if self.interrupted:
            raise KeyboardInterrupt

    def on_run_end(self, run: Run) -> None:
        """Print where the results are."""
        self.stop()
        model = run.folder / "model.safetensors"
        clients = len({client for row in run.rows for client in row["down"]})
        each = f"{size(self.up / max(clients, 1))} up and {size(self.down / max(clients, 1))} down per client"
        done = f"{plural(len(run.rows), 'round')}, {plural(clients, 'client')}"
        self.console.print(f"\n[bold green]done[/bold green]: {done}")
        if not self.summary:
            return
        self.console.print(f"  sent    {size(self.up)} up, {size(self.down)} down in total; {each}")
        self.console.print(f"  model   {escape(str(model))} ({size(model.stat().st_size)})")
        drawn = (run.folder / "samples.png").exists()
        if (best := best_row(run.rows)) and (run.folder / "best.safetensors").exists():
            path, goal = escape(str(run.folder / "best.safetensors")), "fd" if "fd" in best else "accuracy"
            self.console.print(f"  best    {path} (round {best['round'] + 1}, {goal} {number(best[goal])})")
        if drawn:
            self.console.print(f"  samples {escape(str(run.folder / 'samples.png'))}")
        self.console.print(f"  report  {escape(str(run.folder / 'report.html'))}")
        self.console.print(f"  privacy {escape(run.privacy)}", soft_wrap=True)
        where = escape(str(run.folder))
        if drawn:
            self.console.print(f"  more images: vitrail sample {where} -n 64 -o grid.png", soft_wrap=True)
        self.console.print(f"  measure it: vitrail evaluate {where}{self.data_option}", soft_wrap=True)

    def stop(self) -> None:
        """Stop the live line and restore Ctrl-C."""
        self.progress.stop()
        if self.previous_handler is not None:
            signal.signal(signal.SIGINT, self.previous_handler)
            self.previous_handler = None
