"""Evaluate a stored model, loaded from its file, on the data it was trained on or on other data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vitrail.data import load as load_data
from vitrail.data.dataset import Dataset
from vitrail.data.holdout import not_held_out
from vitrail.experiment import settings as config
from vitrail.experiment.run_dir import RunDir, public_name
from vitrail.experiment.settings import Settings
from vitrail.experiment.validation import GIVEN, NODES
from vitrail.metrics.evaluation import check_fits, check_metrics, evaluate, split_validation
from vitrail.metrics.measure import Measure, with_note
from vitrail.metrics.oracle import accuracy
from vitrail.metrics.results_io import Column, file_digest
from vitrail.models.model_file import Classifier, Generator, kind_of, load, load_classifier
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import VitrailError

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
    """Evaluate a run's model, or a model file.

    Args:
        where: A run's folder, or a model file.
        data: Data to evaluate on; default: that of the run.
        best: Also evaluate the run's best round.
        ensemble: Also evaluate the run's ensemble of masks.
        tell: Called with the name of each model.
        families: Metrics; default: those that suit the model.
        **more: Options of `vitrail.metrics.evaluation.evaluate`.

    Returns:
        The data, and one column of results per model.

    Raises:
        VitrailError: If there is no model, or it cannot be evaluated by these metrics.
    """
    where = Path(where)
    run = where.is_dir()
    if (best or ensemble) and not run:
        raise VitrailError(f"{where}: --best and --ensemble are for a run's folder; give the folder, or leave them out")
    place = RunDir(where)
    files = {"stored model": place.model if run else where}
    if best:
        files["best round"] = place.best
    if ensemble:
        files[ENSEMBLE] = place.path / "ensemble.safetensors"
    models = {name: _load(place, name, path) for name, path in files.items()}
    found = data if isinstance(data, Dataset) else _data(where, next(iter(models.values())), data)
    chosen = None if families is None else check_metrics(families)
    asked = {"families": chosen, **more}
    columns = []
    for name, model in models.items():
        tell(name)
        classifier = model if isinstance(model, Classifier) else None
        if run and name == "stored model" and (place.path / "classifier.safetensors").exists():
            classifier = load_classifier(place.path)
        measures: list[Measure] = []
        drawn = None if chosen is None else [f for f in chosen if f != "classifier"]
        if isinstance(model, Generator) and drawn != []:
            measures += evaluate(model, found, families=drawn, tell=tell, **more)
        if classifier and (chosen is None or "classifier" in chosen):
            measures.append(_accuracy(classifier, found))
        if public_name(found.name) == model.about.get("data"):
            measures = with_note(measures, not_held_out(found, model.about.get("split")))
        if not measures:
            what = (
                "made no classifier" if isinstance(model, Generator) else "is a classifier, which generates no images"
            )
            raise VitrailError(
                f"{where}: it {what}, so {', '.join(chosen or [])} cannot be measured; leave --metrics out"
            )
        columns.append(Column(name, files[name].name, file_digest(files[name]), asked, measures))
    return found, columns


def _accuracy(classifier: Classifier, data: Dataset) -> Measure:
    """A run's classifier on the held-out images that judge."""
    check_fits(classifier, data)
    _, test = split_validation(data.test)
    if test.labels is None or not len(test):
        raise VitrailError(f"data={data.name} has no labelled held-out images; measure a classifier on others")
    with one_thread():
        return accuracy(classifier.net, test)


def _load(place: RunDir, name: str, path: Path) -> Generator | Classifier:
    if not path.exists() and name != "stored model":
        raise VitrailError(f"there is no {path}: this run stored no {name.partition(' (')[0]}; leave the option out")
    if not path.exists() and place.settings.exists():
        raise VitrailError(f"{place.path} has no model yet: `vitrail resume {place.path}` finishes the run")
    return load_classifier(path) if kind_of(path) == "classifier" else load(path)


def _data(where: Path, model: Generator | Classifier, named: str | None) -> Dataset:
    """Return the given data, or the model's training data, at the model's size and with its run's split."""
    own = str(model.about.get("data", ""))
    settings = _settings(where, own)
    name = named or (settings.data if settings else own)
    if not name or name in (GIVEN, NODES):
        raise VitrailError("the model does not say which data it was trained on; name some with --data")
    held_out = model.about.get("held_out", settings.test_fraction if settings else 0.2)
    return load_data(name, size=model.shape[1], test_fraction=held_out)


def _settings(where: Path, data: str) -> Settings | None:
    """The settings of the run that a model belongs to: of its folder, if they speak of the same data."""
    place = RunDir(where if where.is_dir() else where.parent)
    if not place.settings.exists():
        return None
    settings = config.resolve(str(place.settings), {})
    return settings if where.is_dir() or public_name(settings.data) == data else None
