"""Each client's own generator, measured against held-out pictures as this client would see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any
from urllib.parse import unquote

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vitrail.data import load as load_data
from vitrail.data.dataset import Dataset
from vitrail.data.holdout import not_held_out
from vitrail.data.specs import parse_partition
from vitrail.data.transforms import held_out
from vitrail.engines.client import private_file
from vitrail.experiment import settings as config
from vitrail.experiment.run_dir import RunDir
from vitrail.metrics.evaluation import evaluate
from vitrail.metrics.measure import Measure, with_note
from vitrail.metrics.results_io import Column, file_digest, read
from vitrail.models.personal import load_of_client
from vitrail.report.intervals import with_interval
from vitrail.utils.errors import VitrailError, printable

FAMILIES = ("fd-vitrail", "fid")  # those that need no labels and see a domain
MEAN = "mean of clients"
TOGETHER = "bounds are the means of the clients' bounds, as if all erred together"


def evaluate_clients(
    run: str | Path,
    *,
    families: Sequence[str] | None = None,
    tell: Callable[[str], None] = lambda _: None,
    kept: Path | None = None,
    **more: Any,
) -> tuple[Dataset, list[Column]]:
    """Measure what every client of a run draws with; what the file `kept` holds, measured just so, is read from it."""
    place = RunDir(Path(run))
    if not place.settings.exists() or not place.model.exists():
        raise VitrailError(f"{run}: --clients needs the folder of a finished run, with its clients/")
    chosen = [f for f in families if f in FAMILIES] if families else ["fd-vitrail"]
    if not chosen:
        raise VitrailError(f"--clients measures {' and '.join(FAMILIES)}, not {', '.join(families or [])}; name one")
    s = config.resolve(str(place.settings), {})
    data = load_data(s.data, size=s.size, test_fraction=s.test_fraction)
    columns = []
    for name, domain in _clients(place, s.partition).items():
        tell(name)
        file, asked = private_file(place.clients, name), {"families": chosen, **more}
        found = read(kept, file, asked) if kept else None
        if found is None:
            own = replace(data, test=held_out(data, domain, s.seed)) if domain else data
            found = evaluate(load_of_client(run, name), own, families=chosen, tell=tell, **more)
            found = with_note(found, not_held_out(data, place.split))
        columns.append(Column(name, f"clients/{file.name}", file_digest(file), asked, found))
    return data, columns


def _clients(place: RunDir, partition: str) -> dict[str, str]:
    """The clients that keep something, with their domains; without one, they see the held-out pictures as they are."""
    domains = parse_partition(partition).domains
    names = [unquote(p.stem) for p in sorted(place.clients.glob("*.safetensors"))]
    if not names:
        raise VitrailError(
            f"{place.clients}: no client keeps anything there, so none has a generator; leave --clients out"
        )
    return {name: name for name in domains if name in names} or dict.fromkeys(names, "")


def by_client(columns: Sequence[Column]) -> list[Measure]:
    """One measure for each client and distance, such as `fd-vitrail of client zoom-in`, and their mean over clients."""
    found = []
    for measures in zip(*(c.measures for c in columns), strict=True):
        first = measures[0]
        if first.name not in FAMILIES:
            continue
        low, value, high = (mean(getattr(m, end) for m in measures) for end in ("low", "value", "high"))
        note = "; ".join(filter(None, (first.note, TOGETHER)))
        found.append(replace(first, name=f"{first.name}, {MEAN}", value=value, low=low, high=high, note=note))
        found += [replace(m, name=f"{m.name} of client {c.name}") for c, m in zip(columns, measures, strict=True)]
    return found


def show_clients(columns: Sequence[Column], console: Console) -> None:
    """A line a client, a column a distance; the mean stands below."""
    shown = [m for m in columns[0].measures if m.name in FAMILIES]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("client", *(f"{m.name} ↓ by {m.extractor}" for m in shown), "real/made"):
        table.add_column(title)
    for c in columns:
        own = [m for m in c.measures if m.name in FAMILIES]
        table.add_row(escape(printable(c.name)), *map(with_interval, own), f"{own[0].n_real:,}/{own[0].n_fake:,}")
    table.add_row(MEAN, *(with_interval(m) for m in by_client(columns) if MEAN in m.name))
    console.print(table)
    console.print(f"\nIn brackets: 95% intervals over other pictures; of the mean, {TOGETHER}.", markup=False)
    for note in dict.fromkeys(m.note for m in shown if m.note):
        console.print(note, markup=False)
