"""A run's folder: the paths of its files, its lock, and its log; and a finished run, as `vitrail.train` returns it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from vitrail.experiment.settings import Settings, resolve
from vitrail.models.model_file import Classifier, Generator, load, load_classifier
from vitrail.privacy.ledger import read as read_ledger
from vitrail.utils import state as store
from vitrail.utils.atomic import write_atomically
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.renamed import current_row
from vitrail.utils.state import State

OTHER_SPLIT = (
    ". It was made by version 0.1.0, which split data without a test set by position; this version splits by "
    "content, so the training images differ, and such a run cannot be continued or audited"
)


@dataclass(frozen=True)
class RunDir:
    """The files of one run: settings.toml, metrics.jsonl, ledger.json, samples/, checkpoint, clients/, model."""

    path: Path

    settings = property(lambda self: self.path / "settings.toml")
    metrics = property(lambda self: self.path / "metrics.jsonl")
    checkpoint = property(lambda self: self.path / "checkpoint.safetensors")
    clients = property(lambda self: self.path / "clients")
    answers = property(lambda self: self.path / "answers")
    samples = property(lambda self: self.path / "samples")
    model = property(lambda self: self.path / "model.safetensors")
    best = property(lambda self: self.path / "best.safetensors")
    ledger = property(lambda self: self.path / "ledger.json")
    evaluation = property(lambda self: self.path / "evaluation.json")
    by_client = property(lambda self: self.path / "clients.json")
    audit = property(lambda self: self.path / "audit.json")
    report = property(lambda self: self.path / "report.html")
    partition = property(lambda self: self.path / "partition.png")
    nodes = property(lambda self: self.path / "nodes.json")
    key = property(lambda self: self.path / "run.key")
    unlogged_row = property(lambda self: self.path / "round.json")

    def stored_settings(self, **overrides: Any) -> Settings:
        """Return the settings of the run in this folder.

        Args:
            **overrides: Settings that take precedence.

        Raises:
            VitrailError: If it is not the folder of a run.
        """
        if not self.settings.exists():
            raise VitrailError(
                f"{self.path} is not the folder of a run: it has no settings.toml; give one that `vitrail run` printed"
            )
        return resolve(str(self.settings), overrides)

    def check_free(self) -> None:
        """Raise VitrailError if the folder is not empty."""
        try:
            taken = self.path.exists() and any(p.name != ".lock" for p in self.path.iterdir())
        except OSError as e:
            raise VitrailError(f"out={self.path} cannot be used: {e.strerror}; choose another folder with out=") from e
        if self.settings.exists():
            raise VitrailError(
                f"out={self.path} already has a run; continue it with `vitrail resume {self.path}`, "
                "or choose another folder with out="
            )
        if taken:
            raise VitrailError(f"out={self.path} has other files; choose an empty or new folder with out=")

    def begin(self, settings: str) -> None:
        """Write the settings of a new run into an empty folder."""
        self.check_free()
        write_atomically(self.settings, settings.encode())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder; the lock ends with the process.

        Raises:
            VitrailError: If another process has it, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / ".lock").acquire(timeout=0)
        except Timeout:
            raise VitrailError(
                f"{self.path} is in use by another process; wait for it, or choose another folder with out="
            ) from None
        except OSError as e:
            raise VitrailError(f"{self.path} cannot be written: {e.strerror}; choose another folder with out=") from e
        with lock:
            yield

    @property
    def split(self) -> str | None:
        """The test split that the checkpoint recorded; None for a run of version 0.1.0."""
        split: str | None = store.load(self.checkpoint).get("split")
        return split

    def load_checkpoint(self, run: bytes) -> State | None:
        """Return the last finished round, or None before the first.

        Raises:
            VitrailError: If it was written with other settings or data.
        """
        try:
            tree: State = store.load(self.checkpoint)
        except FileNotFoundError:
            return None
        except Malformed as e:
            raise Malformed(
                f"{e}; the run cannot be continued: repeat it with `vitrail run {self.settings} out=...`"
            ) from e
        if not isinstance(tree, dict) or tree.get("run") != run:
            older = isinstance(tree, dict) and "split" not in tree
            raise VitrailError(
                f"{self.checkpoint} was made with other settings or other data than {self.settings} names; "
                "restore them, or start a new run in another folder with out=" + OTHER_SPLIT * older
            )
        return tree

    def log(self, row: dict[str, Any]) -> None:
        """Append one round to metrics.jsonl."""
        try:
            with self.metrics.open("a") as f:
                f.write(json.dumps(row) + "\n")
        except OSError as e:
            raise VitrailError(f"cannot write {self.metrics}: {e.strerror}; free some space, then resume") from e

    def store_unlogged(self, row: dict[str, Any]) -> None:
        """Store the row of a round that is logged once its checkpoint is saved."""
        write_atomically(self.unlogged_row, json.dumps(row).encode())

    def load_unlogged(self, rounds: int) -> dict[str, Any] | None:
        """Return the row of the checkpoint's last round if a crash came before it was logged."""
        try:
            row: dict[str, Any] = json.loads(self.unlogged_row.read_text())
        except FileNotFoundError:
            return None
        logged = any(r["round"] == row["round"] for r in self.rows())
        return row if row["round"] == rounds - 1 and not logged else None

    def rows(self) -> list[dict[str, Any]]:
        """Return all logged rounds; a line truncated by a crash is skipped."""
        rows = []
        for line in self.metrics.read_text().splitlines() if self.metrics.exists() else ():
            with suppress(json.JSONDecodeError):
                rows.append(current_row(json.loads(line)))
        return rows

    def rewind(self, round_: int) -> None:
        """Remove the log of rounds that the checkpoint does not include."""
        for torn in self.path.rglob(".*.part"):  # files that were being written when the process was killed
            torn.unlink(missing_ok=True)
        lines = [json.dumps(row) + "\n" for row in self.rows() if row["round"] < round_]
        if self.metrics.exists():
            write_atomically(self.metrics, "".join(lines).encode())


@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        folder: The run's folder.
        settings: Its resolved settings.
        rows: One dict per round: the lines of metrics.jsonl.

    Examples:
        >>> import tempfile, vitrail
        >>> run = vitrail.train("prism", data="digits", size=8, clients=2, rounds=1, local_steps=1, workers=1,
        ...                     eval_every=0, out=tempfile.mkdtemp())
        >>> run.rows[0]["replied"], run.privacy, run.generator.shape
        (2, 'not private: no noise was added', (1, 8, 8))
    """

    folder: Path
    settings: Settings = field(repr=False)
    rows: Sequence[dict[str, Any]] = field(repr=False)

    @property
    def privacy(self) -> str:
        """The privacy claim in one sentence; ledger.json has its details."""
        return [str(entry["says"]) for entry in read_ledger(RunDir(self.folder).ledger) if "says" in entry][-1]

    @property
    def generator(self) -> Generator:
        """The trained generator, loaded from the stored model."""
        return load(self.folder)

    @property
    def classifier(self) -> Classifier:
        """The trained classifier, loaded from its file, if the method trains one."""
        return load_classifier(self.folder)


def best_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the row of the best measured round: by distance, or by accuracy in runs without images.

    Examples:
        >>> best_row([{"round": 0, "fd": 3.0}, {"round": 1, "fd": 2.0}, {"round": 2}])["round"]
        1
    """
    goal, sign = ("fd", 1) if any("fd" in row for row in rows) else ("accuracy", -1)
    return min((row for row in rows if goal in row), key=lambda row: sign * row[goal], default=None)


def new_run_dir(method: str, data: str) -> Path:
    """Return the next free folder below runs/."""
    name = "".join(c if c.isalnum() or c in "-_" else "-" for c in data.rsplit("/", 1)[-1])
    n = 1
    while (path := Path("runs") / f"{method}-{name}-{n}").exists():
        n += 1
    return path


def public_name(data: str) -> str:
    """Return a data set's name without its path, because a model file may be published.

    Examples:
        >>> public_name("folder:/home/me/scans"), public_name("cifar10:1"), public_name("mine:/home/me/scans")
        ('folder:scans', 'cifar10:1', 'mine:scans')
    """
    kind, colon, where = data.partition(":")
    return data if kind == "hf" else kind + colon + Path(where).name
