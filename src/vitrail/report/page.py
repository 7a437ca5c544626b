"""One or several runs as one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from vitrail.report.audit_tables import audit_charts, audit_tables
from vitrail.report.charts import Chart
from vitrail.report.comparison import comparison_tables
from vitrail.report.curves import metric_charts, races, run_legend, traffic_charts
from vitrail.report.evaluation import evaluation_tables
from vitrail.report.facts import Facts, read_runs, shared_metrics
from vitrail.report.rounds import FD, FD_NOTE, metric_names
from vitrail.report.tables import Table, clients_table, excluded_table, rounds_table, void_rounds
from vitrail.report.tiles import Tile, headline, summary, what_ran

_PLACE = re.compile(r"(^|:)([/~]|[A-Za-z]:\\)")  # a path that tells how a machine's folders are named
_GRIDS = 48  # sample grids of all runs on one page


@dataclass(frozen=True)
class Section:
    """All that the page shows of one run."""

    id: str  # keeps its ids apart from other runs'
    run: Facts
    summary: str
    what: Sequence[Tile]
    tiles: Sequence[Tile]
    metrics: Sequence[Chart]
    metrics_note: str
    traffic: Sequence[Chart]
    rounds: Table | None
    clients: Table | None
    excluded: Table | None
    void: Sequence[str]
    evaluation: Sequence[Table]
    audit: Sequence[Table]
    audit_charts: Sequence[Chart]
    commands: str
    paths: bool  # whether the settings name places on the machine that ran


def write_report(
    folders: Sequence[Path], out: Path, title: str = "", tables: Sequence[Table] = (), private: bool = True
) -> None:
    """Write a self-contained page about runs; `tables` come first, above all that is read from the folders.

    Without `private` it shows nothing of what clients keep to themselves, so that it may leave the machine.
    """
    from vitrail.utils.atomic import write_atomically

    runs = read_runs([Path(folder) for folder in folders], _GRIDS, private)
    write_atomically(Path(out), _render(runs, title, tables).encode())


def _render(runs: Sequence[Facts], title: str, tables: Sequence[Table]) -> str:
    """The page; the same runs give the same text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("vitrail", "report"),
        autoescape=True,  # names of folders and clients, reasons and settings are other people's words
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawn"] = lambda chart: Markup(chart.svg)  # noqa: S704 (matplotlib escapes its texts)
    script, style = (files("vitrail.report").joinpath(name).read_text("utf-8") for name in ("page.js", "page.css"))
    several = len(runs) > 1
    shared = shared_metrics(runs)
    shown: dict[str, Any] = {
        "title": title or (f"{len(runs)} runs side by side" if several else runs[0].label),
        "tables": tables,
        "runs": [_section(run, f"run{i}", shared, full=not several) for i, run in enumerate(runs)],
        "comparison": comparison_tables(runs) if several else [],
        "races": races(runs) if several else [],
        "legend": run_legend(runs) if several else [],
        "script": Markup(script),  # noqa: S704
        "style": Markup(style),  # noqa: S704
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    return environment.get_template("page.html").render(shown)


def _section(run: Facts, id_: str, shared: Sequence[str], *, full: bool) -> Section:
    """A run's part of the page; beside others, it leaves to the comparison what they share."""
    own = [metric for metric in metric_names(run.rounds) if metric not in shared]
    return Section(
        id=id_,
        run=run,
        summary=summary(run),
        what=what_ran(run),
        tiles=headline(run),
        metrics=metric_charts(run, own, id_),
        metrics_note=f"{FD}: {FD_NOTE}." if FD in own else "",
        traffic=traffic_charts(run.rounds) if full else (),
        rounds=rounds_table(run.rounds) if full and run.rounds else None,
        clients=clients_table(run.rounds) if full and run.clients else None,
        excluded=excluded_table(run.rounds),
        void=void_rounds(run.rounds),
        evaluation=evaluation_tables(run.evaluation) if run.evaluation else (),
        audit=audit_tables(run.audit) if run.audit else (),
        audit_charts=audit_charts(run.audit, id_) if run.audit else (),
        commands=_commands(run),
        paths=run.folder.is_absolute() or any(map(_PLACE.search, map(run.setting, ("data", "init_from", "out")))),
    )


def _commands(run: Facts) -> str:
    """How to repeat a run, measure it and draw from it."""
    folder = shlex.quote(str(run.folder))
    again = shlex.quote(f"{run.folder.name}-again")
    if run.setting("data") == "given":
        repeat = f"# the data came from Python: vitrail.train({run.setting('method')!r}, data=..., ...) repeats the run"
    else:
        repeat = f"vitrail run settings.toml out={again}"
    return f"{repeat}\nvitrail evaluate {folder}\nvitrail sample {folder} -n 64 -o grid.png"
