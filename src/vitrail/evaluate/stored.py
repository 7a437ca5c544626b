"""What is evaluated: the stored model, loaded from its file, against the data it was trained on or any other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vitrail import config
from vitrail.artifact import Generator, load
from vitrail.config import Settings
from vitrail.data import load as load_data
from vitrail.data.pictures import Dataset
from vitrail.errors import VitrailError
from vitrail.evaluate.evaluation import evaluate
from vitrail.evaluate.kept import Column, file_digest
from vitrail.folder import Folder, public_name
from vitrail.problems import GIVEN

ENSEMBLE = "mask ensemble (a new mask for each batch; not what is stored)"


def evaluate_stored(
    where: str | Path,
    data: Dataset | str | None = None,
    *,
    best: bool = False,
    ensemble: bool = False,
    tell: Callable[[str], None] = lambda _: None,
    families: Iterable[str] | None = None,
    **more: Any,
) -> tuple[Dataset, list[Column]]:
    """Evaluate a run's model, or a model file; of a run also its best round, or its ensemble of masks."""
    where = Path(where)
    run = where.is_dir()
    if (best or ensemble) and not run:
        raise VitrailError(f"{where}: --best and --ensemble are for a run's folder; give the folder, or leave them out")
    place = Folder(where)
    files = {"stored model": place.model if run else where}
    if best:
        files["best round"] = place.best
    if ensemble:
        files[ENSEMBLE] = place.path / "ensemble.safetensors"
    generators = {name: _load(place, name, path) for name, path in files.items()}
    found = data if isinstance(data, Dataset) else _data(where, next(iter(generators.values())), data)
    chosen = None if families is None else list(families)
    asked = {"families": chosen, **more}
    columns = []
    for name, generator in generators.items():
        tell(name)
        measures = evaluate(generator, found, families=chosen, tell=tell, **more)
        columns.append(Column(name, files[name].name, file_digest(files[name]), asked, measures))
    return found, columns


def _load(place: Folder, name: str, path: Path) -> Generator:
    if not path.exists() and name != "stored model":
        raise VitrailError(f"there is no {path}: this run kept no {name.partition(' (')[0]}; leave the option out")
    if not path.exists() and place.settings.exists():
        raise VitrailError(f"{place.path} has no model yet: `vitrail resume {place.path}` finishes the run")
    return load(path)


def _data(where: Path, generator: Generator, named: str | None) -> Dataset:
    """The data asked for, else what the model was trained on; at the model's size, divided as its run divided it."""
    own = str(generator.about.get("data", ""))
    settings = _settings(where, own)
    name = named or (settings.data if settings else own)
    if not name or name == GIVEN:
        raise VitrailError("the model does not say which data it was trained on; name some with --data")
    held_out = generator.about.get("held_out", settings.held_out if settings else 0.2)
    return load_data(name, size=generator.shape[1], held_out=held_out)


def _settings(where: Path, data: str) -> Settings | None:
    """The settings of the run that a model belongs to: of its folder, if they speak of the same data."""
    place = Folder(where if where.is_dir() else where.parent)
    if not place.settings.exists():
        return None
    settings = config.resolve(str(place.settings), {})
    return settings if where.is_dir() or public_name(settings.data) == data else None
