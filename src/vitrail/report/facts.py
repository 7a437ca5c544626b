"""A run's folder read into plain facts, finished or not, whole or damaged."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.experiment.run_dir import RunDir
from vitrail.report.audit import Audited, read_audit
from vitrail.report.evaluation import Evaluation, read_evaluation
from vitrail.report.header import read_about
from vitrail.report.images import Grid, PersonalGrid, ReportImage, read_grids, read_image, read_personal_grids
from vitrail.report.ledger import ledger_table
from vitrail.report.rounds import Round, metric_names, read_rounds
from vitrail.report.tables import Table
from vitrail.utils.errors import VitrailError
from vitrail.utils.quantities import plural
from vitrail.utils.renamed import current_settings

_VERSION = re.compile(r"#.*?vitrail (\S+?);")


@dataclass(frozen=True)
class Facts:
    """All that a page tells of one run."""

    label: str  # tells it apart from the other runs of the page
    folder: Path
    settings_text: str
    settings: dict[str, Any]
    version: str
    rounds: list[Round]
    about: dict[str, Any]  # what the model file says about itself; nothing before there is one
    model_size: int | None
    best_size: int | None
    best_about: dict[str, Any]  # the same of the model of the best measured round
    evaluation: Evaluation | None
    audit: Audited | None
    ledger: Table | None
    grids: list[Grid]
    own: list[PersonalGrid]  # grids of clients with a style of their own
    partition: ReportImage | None
    notes: list[str]

    def setting(self, name: str, default: str = "") -> str:
        """A setting as text."""
        return str(self.settings.get(name, default))

    @property
    def data(self) -> str:
        """The data set's name, without the path to it once the model file says it so."""
        return str(self.about.get("data") or self.setting("data", "unknown data"))

    @property
    def ruler(self) -> str:
        """The network that the distance along the way is measured with, where the run says it."""
        chosen = str(self.best_about.get("chosen_by", "")).removeprefix("fd by ")
        return str(self.about.get("ruler") or self.setting("ruler") or chosen)

    @property
    def privacy(self) -> str:
        """What the model file says about privacy."""
        return str(self.about.get("privacy") or "not stated: there is no model file yet")

    @property
    def clients(self) -> list[str]:
        """Everybody who was sent something or sent something."""
        return sorted({name for r in self.rounds for name in (*r.down, *r.up)})


def read_run(folder: Path, label: str, grids: int, private: bool = True) -> Facts:
    """The facts of one run, with at most so many sample grids; `private` with those of clients' own style."""
    place = RunDir(folder)
    if not place.settings.is_file():
        raise VitrailError(
            f"{folder} is not a run's folder (it holds no settings.toml); "
            "give folders that `vitrail run` made, such as runs/prism-mnist5k-1"
        )
    text = place.settings.read_text("utf-8", errors="replace")
    notes: list[str] = []
    try:
        settings = current_settings(text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as e:
        settings = {}
        notes.append(f"settings.toml is damaged ({e}), so this page does not know what ran.")
    rounds, damaged = read_rounds(place.metrics)
    about = read_about(place.model)
    evaluation, problem = read_evaluation(place.evaluation)
    audit, trouble = read_audit(place.audit)
    ledger, doubt = ledger_table(folder)
    shown, left = read_grids(folder, grids)
    version = _VERSION.match(text)
    notes += _shortfalls(settings, rounds, place, damaged, left)
    notes += filter(None, [problem, trouble, doubt])
    told = about.get("notes")
    notes += map(str, told) if isinstance(told, list) else []
    return Facts(
        label=label,
        folder=folder,
        settings_text=text,
        settings=settings,
        version=version[1] if version else str(about.get("vitrail", "of unknown version")),
        rounds=rounds,
        about=about,
        model_size=place.model.stat().st_size if place.model.is_file() else None,
        best_size=place.best.stat().st_size if place.best.is_file() else None,
        best_about=read_about(place.best),
        evaluation=evaluation,
        audit=audit,
        ledger=ledger,
        grids=shown,
        own=read_personal_grids(folder) if private else [],
        partition=read_image(place.partition),
        notes=notes,
    )


def _shortfalls(settings: dict[str, Any], rounds: list[Round], place: RunDir, damaged: int, left: int) -> list[str]:
    """What a reader should know before believing the figures."""
    notes = []
    planned = settings.get("rounds")
    if not place.model.is_file():
        done = f"{len(rounds):,} of {planned or 'an unknown number of'} rounds are here"
        notes.append(f"This run has no model file yet; {done}. Go on with it by: vitrail resume {place.path}")
    if damaged:
        notes.append(f"{plural(damaged, 'line')} of metrics.jsonl could not be read; the totals lack their rounds.")
    for name in dict.fromkeys(name for r in rounds for name in r.broken):
        times = sum(name in r.broken for r in rounds)
        notes.append(f"{name} was infinite or not a number in {plural(times, 'round')}; its curve leaves them out.")
    if left:
        notes.append(f"{plural(left, 'sample grid')} of those in samples/ are left out, to keep this page small.")
    return notes


def read_runs(folders: Sequence[Path], most: int, private: bool = True) -> list[Facts]:
    """The facts of several runs under labels that tell them apart; `most` bounds the sample grids of all."""
    if not folders:
        raise VitrailError("no run was given; name at least one folder that `vitrail run` made")
    once = {folder.resolve(): folder for folder in folders}
    grids = max(3, min(40, most // len(once)))
    return [
        read_run(folder, label, grids, private)
        for label, folder in zip(short_labels(list(once)), once.values(), strict=True)
    ]


def short_labels(folders: Sequence[Path]) -> list[str]:
    """The ends of paths, as long as they must be to differ.

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
    """The metrics that at least two of the runs have."""
    names = dict.fromkeys(name for run in runs for name in metric_names(run.rounds))
    return [name for name in names if sum(name in metric_names(run.rounds) for run in runs) > 1]
