"""Read a run's folder for a report, also if the run is unfinished or files are damaged."""

from __future__ import annotations

import json
import re
import struct
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.experiment.run_dir import RunDir
from vitrail.privacy.checked_ledger import read_run_ledger
from vitrail.privacy.claim_rows import claim_rows
from vitrail.report.audit import AuditResults, read_audit
from vitrail.report.evaluation import Evaluation, read_evaluation
from vitrail.report.images import Grid, PersonalGrid, ReportImage, read_grids, read_image, read_personal_grids
from vitrail.report.rounds import Round, metric_names, read_rounds
from vitrail.report.table import Table
from vitrail.utils.errors import VitrailError
from vitrail.utils.quantities import plural
from vitrail.utils.renamed import current_settings
from vitrail.utils.state import unpack

_VERSION = re.compile(r"#.*?vitrail (\S+?);")
_MAX_HEADER = 100_000_000  # the format's own limit for the header of a model file


@dataclass(frozen=True)
class Facts:
    """Everything that a report shows about one run."""

    label: str  # unique among the runs of the page
    folder: Path
    settings_text: str
    settings: dict[str, Any]
    version: str
    rounds: list[Round]
    about: dict[str, Any]  # description in the model file; empty before there is one
    model_size: int | None
    best_size: int | None
    best_about: dict[str, Any]  # the same of the model of the best round
    evaluation: Evaluation | None
    audit: AuditResults | None
    ledger: Table | None
    grids: list[Grid]
    personal_grids: list[PersonalGrid]  # of clients with personal generators
    partition: ReportImage | None
    notes: list[str]

    def setting(self, name: str, default: str = "") -> str:
        """Return a setting as text."""
        return str(self.settings.get(name, default))

    @property
    def data(self) -> str:
        """Name of the data set; from the model file, without a path, if there is one."""
        return str(self.about.get("data") or self.setting("data", "unknown data"))

    @property
    def feature_network(self) -> str:
        """Feature network of the distance during training; empty if unknown."""
        chosen = str(self.best_about.get("chosen_by", "")).removeprefix("fd by ")
        return str(self.about.get("ruler") or self.setting("ruler") or chosen)

    @property
    def privacy(self) -> str:
        """Privacy statement of the model file."""
        return str(self.about.get("privacy") or "not stated: there is no model file yet")

    @property
    def clients(self) -> list[str]:
        """All clients that received or sent a message."""
        return sorted({name for r in self.rounds for name in (*r.down, *r.up)})


def read_run(folder: Path, label: str, grids: int, private: bool = True) -> Facts:
    """Read one run.

    Args:
        folder: The run's folder.
        label: Its name on the page.
        grids: Largest number of sample grids.
        private: Whether to include grids of clients' personal generators.

    Raises:
        VitrailError: If it is not the folder of a run.
    """
    run = RunDir(folder)
    if not run.settings.is_file():
        raise VitrailError(
            f"{folder} is not the folder of a run: it has no settings.toml; "
            "give folders written by `vitrail run`, such as runs/x"
        )
    text = run.settings.read_text("utf-8", errors="replace")
    notes: list[str] = []
    try:
        settings = current_settings(text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as e:
        settings = {}
        notes.append(f"settings.toml is damaged ({e}), so the page cannot show settings.")
    rounds, damaged = read_rounds(run.metrics)
    about = read_about(run.model)
    evaluation, evaluation_problem = read_evaluation(run.evaluation)
    audit, audit_problem = read_audit(run.audit)
    ledger, ledger_problem = ledger_table(folder)
    shown, omitted = read_grids(folder, grids)
    version = _VERSION.match(text)
    notes += _problems(settings, rounds, run, damaged, omitted)
    notes += filter(None, [evaluation_problem, audit_problem, ledger_problem])
    model_notes = about.get("notes")
    notes += map(str, model_notes) if isinstance(model_notes, list) else []
    return Facts(
        label=label,
        folder=folder,
        settings_text=text,
        settings=settings,
        version=version[1] if version else str(about.get("vitrail", "of unknown version")),
        rounds=rounds,
        about=about,
        model_size=run.model.stat().st_size if run.model.is_file() else None,
        best_size=run.best.stat().st_size if run.best.is_file() else None,
        best_about=read_about(run.best),
        evaluation=evaluation,
        audit=audit,
        ledger=ledger,
        grids=shown,
        personal_grids=read_personal_grids(folder) if private else [],
        partition=read_image(run.partition),
        notes=notes,
    )


def _problems(settings: dict[str, Any], rounds: list[Round], run: RunDir, damaged: int, omitted: int) -> list[str]:
    """Describe what is missing or damaged in a run."""
    notes = []
    planned = settings.get("rounds")
    if not run.model.is_file():
        done = f"{len(rounds):,} of {planned or 'an unknown number of'} rounds are finished"
        notes.append(f"This run has no model file yet; {done}. Continue it with: vitrail resume {run.path}")
    if damaged:
        notes.append(f"{plural(damaged, 'line')} of metrics.jsonl could not be read; totals lack their rounds.")
    for name in dict.fromkeys(name for r in rounds for name in r.broken):
        times = sum(name in r.broken for r in rounds)
        notes.append(f"{name} was infinite or not a number in {plural(times, 'round')}; its curve omits them.")
    if omitted:
        notes.append(f"{plural(omitted, 'sample grid')} in samples/ omitted, to limit the size of this page.")
    return notes


def ledger_table(folder: Path) -> tuple[Table | None, str]:
    """Return the privacy claim with its assumptions, or None and a description of the problem."""
    if not (folder / "ledger.json").exists():
        return None, ""
    try:
        checked = read_run_ledger(folder)
        entries = checked.entries
        rows = [list(row) for row in claim_rows(entries[0])]
        rows += [["at the end", str(entry["says"])] for entry in entries if entry["kind"] == "closing"]
    except (VitrailError, KeyError, ValueError, TypeError, IndexError) as e:
        return None, f"ledger.json is not valid: {e}"
    note = (
        f"ledger.json has {len(entries)} entries, chained by hashes and {checked.signed}; {checked.model}. When this "
        f"page was written, the chain proved {checked.proves}"
    )
    return Table("Privacy claim and its assumptions", ["", "as recorded before anything was sent"], rows, note), ""


def read_about(path: Path) -> dict[str, Any]:
    """Return the `about` entry of a model file, read from its header alone; empty if there is no valid one."""
    try:
        with path.open("rb") as f:
            (length,) = struct.unpack("<Q", f.read(8))
            if length > min(_MAX_HEADER, path.stat().st_size):
                return {}
            header = json.loads(f.read(length))
        entries = dict(json.loads(header["__metadata__"]["vitrail"])["dict"])
        about = unpack({}, json.dumps(entries["about"]))  # it has no arrays
    except (OSError, struct.error, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def read_runs(folders: Sequence[Path], most: int, private: bool = True) -> list[Facts]:
    """Read several runs under unique labels; `most` limits the total number of sample grids."""
    if not folders:
        raise VitrailError("no run was given; give at least one folder written by `vitrail run`")
    unique = {folder.resolve(): folder for folder in folders}
    grids = max(3, min(40, most // len(unique)))
    labels = zip(unique.values(), short_labels(list(unique)), strict=True)
    return [read_run(folder, label, grids, private) for folder, label in labels]


def short_labels(folders: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that are unique.

    >>> short_labels([Path("/a/x"), Path("/a/y")]), short_labels([Path("/a/x"), Path("/b/x")])
    (['x', 'y'], ['a/x', 'b/x'])
    """
    labels: list[str] = []
    for depth in range(1, max(len(folder.parts) for folder in folders) + 1):
        labels = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(labels)) == len(labels):
            break
    return labels


def shared_metrics(runs: Sequence[Facts]) -> list[str]:
    """Return the metrics that at least two of the runs have."""
    names = dict.fromkeys(name for run in runs for name in metric_names(run.rounds))
    return [name for name in names if sum(name in metric_names(run.rounds) for run in runs) > 1]
