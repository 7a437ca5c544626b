"""Evaluate a stored model on its own or other data, and every client's personal generator on that client's domain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from vitrail.experiment.personal import load_of_client
from vitrail.experiment.run_dir import RunDir, public_name
from vitrail.experiment.settings import Settings
from vitrail.experiment.validation import GIVEN, NODES
from vitrail.metrics.evaluation import check_fits, check_metrics, evaluate, split_validation
from vitrail.metrics.measure import Measure, with_note
from vitrail.metrics.oracle import accuracy
from vitrail.metrics.registry import Metric
from vitrail.metrics.results_io import Column, file_digest, read_measures
from vitrail.models.model_file import Classifier, Generator, kind_of, load, load_classifier
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import MissingFiles, VitrailError
from vitrail.utils.paths import private_file

ENSEMBLE = "mask ensemble (a new mask for each batch; not what is stored)"
OF_NODES = "trained on nodes: whether they had these images is not known"
FAMILIES = ("fd-vitrail", "fid")  # metrics that need no labels and depend on the domain
MEAN = "mean of clients"
MEAN_BOUNDS = "bounds are the means of the clients' bounds, which assumes fully correlated errors"


def evaluate_stored(
    where: str | Path,
    data: Dataset | str | None = None,
    *,
    best: bool = False,
    ensemble: bool = False,
    report_progress: Callable[[str], None] = lambda _: None,
    families: Iterable[str | type[Metric]] | None = None,
    **more: Any,
) -> tuple[Dataset, list[Column]]:
    """Evaluate a run's model, or a model file.

    Args:
        where: A run's folder, or a model file.
        data: Data to evaluate on; default: that of the run.
        best: Also evaluate the run's best round.
        ensemble: Also evaluate the run's ensemble of masks.
        report_progress: Called with the name of each model.
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
        raise VitrailError(f"{where}: --best and --ensemble are for a run's folder; give the folder, or remove them")
    run_dir = RunDir(where)
    files = {"stored model": run_dir.model if run else where}
    files |= {"best round": run_dir.best} if best else {}
    files |= {ENSEMBLE: run_dir.path / "ensemble.safetensors"} if ensemble else {}
    models = {name: _load(run_dir, name, path) for name, path in files.items()}
    found = data if isinstance(data, Dataset) else _data(where, next(iter(models.values())), data)
    chosen = None if families is None else check_metrics(families)
    options = {"families": chosen, **more}
    columns = []
    for name, model in models.items():
        report_progress(name)
        classifier = model if isinstance(model, Classifier) else None
        if run and name == "stored model" and (run_dir.path / "classifier.safetensors").exists():
            classifier = load_classifier(run_dir.path)
        measures: list[Measure] = []
        drawn = None if chosen is None else [f for f in chosen if f != "classifier"]
        if isinstance(model, Generator) and drawn != []:
            measures += evaluate(model, found, families=drawn, report_progress=report_progress, **more)
        if classifier and (chosen is None or "classifier" in chosen):
            measures.append(_accuracy(classifier, found))
        if model.about.get("data") == NODES:
            measures = with_note(measures, OF_NODES)
        if public_name(found.name) == model.about.get("data"):
            measures = with_note(measures, not_held_out(found, model.about.get("split")))
        if not measures:
            did = "made no classifier" if isinstance(model, Generator) else "is a classifier, which generates no images"
            named = ", ".join(chosen or [])
            raise VitrailError(f"{where}: it {did}, so {named} cannot be measured; remove --metrics")
        columns.append(Column(name, files[name].name, file_digest(files[name]), options, measures))
    return found, columns


def _accuracy(classifier: Classifier, data: Dataset) -> Measure:
    """A run's classifier on the held-out images that judge."""
    check_fits(classifier, data)
    _, test = split_validation(data.test)
    if test.labels is None or not len(test):
        raise VitrailError(f"data={data.name} has no labelled held-out images; measure a classifier on others")
    with one_thread():
        return accuracy(classifier.net, test)


def _load(run_dir: RunDir, name: str, path: Path) -> Generator | Classifier:
    if not path.exists() and name != "stored model":
        raise VitrailError(f"there is no {path}: this run stored no {name.partition(' (')[0]}; remove the option")
    if not path.exists() and run_dir.settings.exists():
        raise VitrailError(f"{run_dir.path} has no model yet: `vitrail resume {run_dir.path}` finishes the run")
    return load_classifier(path) if kind_of(path) == "classifier" else load(path)


def _data(where: Path, model: Generator | Classifier, named: str | None) -> Dataset:
    """Return the given data, or the model's training data, at the model's size and with its run's split."""
    own = str(model.about.get("data", ""))
    settings = _settings(where, own)
    name = named or (settings.data if settings else own)
    if name == NODES:
        raise VitrailError(f"{where} was trained on the nodes' images; name other images with --data")
    if not name or name == GIVEN:
        raise VitrailError("the model does not say which data it was trained on; name some with --data")
    held_out = model.about.get("held_out", settings.test_fraction if settings else 0.2)
    try:
        return load_data(name, size=model.shape[1], test_fraction=held_out)
    except MissingFiles as e:
        remedy = (
            "" if named else "; start in the folder where the run was started, or name the data with --data folder:PATH"
        )
        raise VitrailError(f"{e}{remedy}") from e


def _settings(where: Path, data: str) -> Settings | None:
    """The settings of the run that a model belongs to: of its folder, if they speak of the same data."""
    run_dir = RunDir(where if where.is_dir() else where.parent)
    if not run_dir.settings.exists():
        return None
    settings = run_dir.stored_settings()
    return settings if where.is_dir() or public_name(settings.data) == data else None


def evaluate_clients(
    run: str | Path,
    *,
    families: Sequence[str] | None = None,
    report_progress: Callable[[str], None] = lambda _: None,
    stored: Path | None = None,
    **more: Any,
) -> tuple[Dataset, list[Column]]:
    """Evaluate the generator that each client of a run uses.

    Args:
        run: The run's folder.
        families: Metrics; only those in FAMILIES are computed.
        report_progress: Called with the name of each client.
        stored: A file of earlier results; those of the same model and options are read from it.
        **more: Options of `vitrail.metrics.evaluation.evaluate`.

    Returns:
        The data, and one column of results per client.

    Raises:
        VitrailError: If the run is not finished, or no metric is left.
    """
    run_dir = RunDir(Path(run))
    if not run_dir.settings.exists() or not run_dir.model.exists():
        raise VitrailError(f"{run}: --clients needs the folder of a finished run, with its clients/")
    chosen = [f for f in families if f in FAMILIES] if families else ["fd-vitrail"]
    if not chosen:
        raise VitrailError(
            f"--clients: use {' and '.join(FAMILIES)}, not {', '.join(families or [])}; name one of them"
        )
    s = run_dir.stored_settings()
    data = load_data(s.data, size=s.size, test_fraction=s.test_fraction)
    columns = []
    for name, domain in _clients(run_dir, s.partition).items():
        report_progress(name)
        file, options = private_file(run_dir.clients, name), {"families": chosen, **more}
        found = read_measures(stored, file, options) if stored else None
        if found is None:
            own = replace(data, test=transformed_test_images(data, domain, s.seed)) if domain else data
            found = evaluate(load_of_client(run, name), own, families=chosen, report_progress=report_progress, **more)
            found = with_note(found, not_held_out(data, run_dir.split))
        columns.append(Column(name, f"clients/{file.name}", file_digest(file), options, found))
    return data, columns


def _clients(run_dir: RunDir, partition: str) -> dict[str, str]:
    """The clients with private files, and their domains; empty: test images are used without a transform."""
    domains = parse_partition(partition).domains
    names = [unquote(p.stem) for p in sorted(run_dir.clients.glob("*.safetensors"))]
    if not names:
        raise VitrailError(
            f"{run_dir.clients} has no private files, so no client has a personal generator; remove --clients"
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
