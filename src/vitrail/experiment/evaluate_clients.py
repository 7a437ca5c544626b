"""Evaluate every client's personal generator against test images with that client's transform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any
from urllib.parse import unquote

from vitrail.data import load as load_data
from vitrail.data.dataset import Dataset
from vitrail.data.holdout import not_held_out
from vitrail.data.specs import parse_partition
from vitrail.data.transforms import transformed_test_images
from vitrail.engines.client import private_file
from vitrail.experiment import settings as config
from vitrail.experiment.personal import load_of_client
from vitrail.experiment.run_dir import RunDir
from vitrail.metrics.evaluation import evaluate
from vitrail.metrics.measure import Measure, with_note
from vitrail.metrics.results_io import Column, file_digest, read_measures
from vitrail.utils.errors import VitrailError

FAMILIES = ("fd-vitrail", "fid")  # metrics that need no labels and depend on the domain
MEAN = "mean of clients"
MEAN_BOUNDS = "bounds are the means of the clients' bounds, which assumes fully correlated errors"


def evaluate_clients(
    run: str | Path,
    *,
    families: Sequence[str] | None = None,
    tell: Callable[[str], None] = lambda _: None,
    kept: Path | None = None,
    **more: Any,
) -> tuple[Dataset, list[Column]]:
    """Evaluate the generator that each client of a run uses.

    Args:
        run: The run's folder.
        families: Metrics; only those in FAMILIES are computed.
        tell: Called with the name of each client.
        kept: A file of earlier results; those of the same model and options are read from it.
        **more: Options of `vitrail.metrics.evaluation.evaluate`.

    Returns:
        The data, and one column of results per client.

    Raises:
        VitrailError: If the run is not finished, or no metric is left.
    """
    place = RunDir(Path(run))
    if not place.settings.exists() or not place.model.exists():
        raise VitrailError(f"{run}: --clients needs the folder of a finished run, with its clients/")
    chosen = [f for f in families if f in FAMILIES] if families else ["fd-vitrail"]
    if not chosen:
        raise VitrailError(
            f"--clients: use {' and '.join(FAMILIES)}, not {', '.join(families or [])}; name one of them"
        )
    s = config.resolve(str(place.settings), {})
    data = load_data(s.data, size=s.size, test_fraction=s.test_fraction)
    columns = []
    for name, domain in _clients(place, s.partition).items():
        tell(name)
        file, asked = private_file(place.clients, name), {"families": chosen, **more}
        found = read_measures(kept, file, asked) if kept else None
        if found is None:
            own = replace(data, test=transformed_test_images(data, domain, s.seed)) if domain else data
            found = evaluate(load_of_client(run, name), own, families=chosen, tell=tell, **more)
            found = with_note(found, not_held_out(data, place.split))
        columns.append(Column(name, f"clients/{file.name}", file_digest(file), asked, found))
    return data, columns


def _clients(place: RunDir, partition: str) -> dict[str, str]:
    """The clients with private files, and their domains; empty: test images are used without a transform."""
    domains = parse_partition(partition).domains
    names = [unquote(p.stem) for p in sorted(place.clients.glob("*.safetensors"))]
    if not names:
        raise VitrailError(
            f"{place.clients} has no private files, so no client has a personal generator; leave --clients out"
        )
    return {name: name for name in domains if name in names} or dict.fromkeys(names, "")


def by_client(columns: Sequence[Column]) -> list[Measure]:
    """Return one result per client and metric, such as `fd-vitrail of client zoom-in`, and the mean over clients."""
    found = []
    for measures in zip(*(c.measures for c in columns), strict=True):
        first = measures[0]
        if first.name not in FAMILIES:
            continue
        low, value, high = (mean(getattr(m, end) for m in measures) for end in ("low", "value", "high"))
        note = "; ".join(filter(None, (first.note, MEAN_BOUNDS)))
        found.append(replace(first, name=f"{first.name}, {MEAN}", value=value, low=low, high=high, note=note))
        found += [replace(m, name=f"{m.name} of client {c.name}") for c, m in zip(columns, measures, strict=True)]
    return found
