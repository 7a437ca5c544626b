"""Write one self-contained HTML page about one or several runs."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from vitrail.experiment.callbacks import Callback
from vitrail.experiment.run_dir import Run, RunDir
from vitrail.report.audit import audit_charts, audit_tables
from vitrail.report.comparison import comparison_tables
from vitrail.report.curves import metric_charts, metric_comparisons, run_legend, traffic_charts
from vitrail.report.evaluation import evaluation_tables
from vitrail.report.facts import Facts, read_runs, shared_metrics
from vitrail.report.rounds import FD, FD_NOTE, metric_names
from vitrail.report.table import Table
from vitrail.report.tables import clients_table, excluded_table, rounds_table, void_rounds
from vitrail.report.tiles import headline, summary, what_ran

_ABSOLUTE = re.compile(r"(^|:)([/~]|[A-Za-z]:\\)")  # an absolute path, which shows names of a machine's folders
_MAX_GRIDS = 48  # sample grids of all runs on one page


def write_report(
    folders: Sequence[Path], out: Path, title: str = "", tables: Sequence[Table] = (), private: bool = True
) -> None:
    """Write a self-contained HTML page about runs.

    Args:
        folders: Folders of runs; several are compared. None: the page has only the tables.
        out: The HTML file to write.
        title: Title of the page; by default the name of the run.
        tables: Tables to show first.
        private: Whether to show grids of clients' personal generators, which are private to the clients. Use False
            for a page that leaves the machine.

    Raises:
        VitrailError: If a folder is not that of a run, there is nothing to show, or the file cannot be written.
    """
    from vitrail.utils.atomic import write_atomically

    runs = read_runs([Path(folder) for folder in folders], _MAX_GRIDS, private) if folders or not tables else []
    write_atomically(Path(out), _render(runs, title, tables).encode())


class ReportCallback(Callback):
    """Writes report.html when a run is finished."""

    def on_run_end(self, run: Run) -> None:
        write_report([run.folder], RunDir(run.folder).report)


def _render(runs: Sequence[Facts], title: str, tables: Sequence[Table]) -> str:
    """Return the page; equal runs give equal text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("vitrail", "report"),
        autoescape=True,  # names, reasons and settings come from others
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = lambda chart: Markup(chart.svg)  # noqa: S704 (Matplotlib escapes its texts)
    script, style = (files("vitrail.report").joinpath(name).read_text("utf-8") for name in ("page.js", "page.css"))
    several = len(runs) > 1
    shared = shared_metrics(runs)
    context: dict[str, Any] = {
        "title": title or (f"Comparison of {len(runs)} runs" if several else runs[0].label),
        "tables": tables,
        "runs": [_section(run, f"run{i}", shared, full=not several) for i, run in enumerate(runs)],
        "comparison": comparison_tables(runs) if several else [],
        "metric_comparisons": metric_comparisons(runs) if several else [],
        "legend": run_legend(runs) if several else [],
        "script": Markup(script),  # noqa: S704
        "style": Markup(style),  # noqa: S704
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    return environment.get_template("page.html").render(context)


def _section(run: Facts, id_: str, shared: Sequence[str], *, full: bool) -> dict[str, Any]:
    """Return everything that the page shows about one run; in a comparison, without the metrics that are compared."""
    own = [metric for metric in metric_names(run.rounds) if metric not in shared]
    return {
        "id": id_,  # prefix of its ids, unique on the page
        "run": run,
        "summary": summary(run),
        "overview": what_ran(run),
        "tiles": headline(run),
        "metrics": metric_charts(run, own, id_),
        "metrics_note": f"{FD}: {FD_NOTE}." if FD in own else "",
        "traffic": traffic_charts(run.rounds) if full else (),
        "rounds": rounds_table(run.rounds) if full and run.rounds else None,
        "clients": clients_table(run.rounds) if full and run.clients else None,
        "excluded": excluded_table(run.rounds),
        "void": void_rounds(run.rounds),
        "evaluation": evaluation_tables(run.evaluation) if run.evaluation else (),
        "audit": audit_tables(run.audit) if run.audit else (),
        "audit_charts": audit_charts(run.audit, id_) if run.audit else (),
        "commands": _commands(run),
        # whether the settings contain absolute paths
        "paths": run.folder.is_absolute() or any(map(_ABSOLUTE.search, map(run.setting, ("data", "init_from", "out")))),
    }


def _commands(run: Facts) -> str:
    """Return commands that repeat a run, evaluate it and sample from it."""
    folder = shlex.quote(str(run.folder))
    again = shlex.quote(f"{run.folder.name}-again")
    if run.setting("data") == "given":
        repeat = f"# the data were given in Python: repeat with vitrail.train({run.setting('method')!r}, data=..., ...)"
    else:
        repeat = f"vitrail run settings.toml out={again}"
    return f"{repeat}\nvitrail evaluate {folder}\nvitrail sample {folder} -n 64 -o grid.png"
