"""`vitrail.evaluate` and `vitrail.compare`: the two commands as functions that return plain objects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitrail.data.dataset import Dataset
from vitrail.experiment.callbacks import Callback, build_callbacks
from vitrail.experiment.compare import Entry, EvalConfig, entries
from vitrail.experiment.compare import compare as run_comparison
from vitrail.experiment.evaluate import evaluate_stored
from vitrail.experiment.plugins import describe_method, name_classes
from vitrail.experiment.run_dir import Run
from vitrail.methods.base import BaseMethod
from vitrail.metrics.evaluation import check_metrics
from vitrail.metrics.measure import Measure
from vitrail.metrics.registry import Metric
from vitrail.utils.errors import VitrailError


def evaluate(
    run: Run | str | Path,
    *,
    metrics: Sequence[str | type[Metric]] | None = None,
    n: int = 2000,
    data: Dataset | str | None = None,
) -> list[Measure]:
    """Evaluate a run's stored model on test images.

    Args:
        run: A finished run, its folder, or a model file.
        metrics: Names of metrics (`vitrail list`), or classes; default: those that suit the model.
        n: Number of images to generate.
        data: Data to evaluate on; default: the test images of the data that the model was trained on.

    Returns:
        One object per metric, with `name`, `value`, and the bounds `low` and `high` of its 95% interval.

    Raises:
        VitrailError: If there is no model, or the data does not fit it.

    Examples:
        >>> import tempfile, vitrail
        >>> run = vitrail.train("prism", data="digits", size=8, clients=2, rounds=1, local_steps=1, workers=1,
        ...                     eval_every=0, out=tempfile.mkdtemp())
        >>> measures = vitrail.evaluate(run, metrics=["pixels"], n=50)
        >>> [m.name for m in measures]
        ['ssim', 'nmse']
    """
    where = run.folder if isinstance(run, Run) else run
    _, columns = evaluate_stored(where, data, families=metrics, n=n)
    return list(columns[0].measures)


def compare(
    methods: Sequence[str | type[BaseMethod]],
    *,
    out: str | Path,
    seeds: Sequence[int] = (0,),
    metrics: Sequence[str | type[Metric]] | None = None,
    n: int = 2000,
    callbacks: Sequence[Callback | str] = (),
    **settings: Any,
) -> list[Entry]:
    """Train and evaluate several methods on the same data and seeds.

    Runs that are already in `out` are not repeated, and interrupted ones are continued.

    Args:
        methods: Names of methods, classes that derive from `vitrail.BaseMethod`, or settings files; each `[[runs]]` of
            a file is one entry.
        out: Folder of the comparison.
        seeds: One run per method and seed.
        metrics: Names of metrics, or classes; default: those of `vitrail compare`.
        n: Number of images to generate for each model.
        callbacks: Objects that follow every run, or names of registered callbacks.
        **settings: Settings of all runs, such as clients=4; a class where `vitrail.train` accepts one.

    Returns:
        One entry per method: its `name`, and per seed the folder in `runs` and the measures in `found`; `failed` has
        the errors.

    Raises:
        VitrailError: If a setting is wrong, or a folder in `out` has a run with other settings. An error of one run
            is in `failed`, and the other runs continue.

    Examples:
        >>> import tempfile, vitrail
        >>> found = vitrail.compare(["mdgan"], out=tempfile.mkdtemp(), metrics=["pixels"], n=20,
        ...                         data="digits", size=8, clients=2, rounds=1, workers=1, eval_every=0)
        >>> [(entry.name, len(entry.runs), entry.failed) for entry in found]
        [('mdgan', 1, [])]
    """
    if given := [m for m in methods if isinstance(m, BaseMethod)]:
        raise VitrailError(f"{type(given[0]).__name__}(...) is an object; give its class, and settings by name")
    names = [describe_method(m)[0] for m in methods]
    found = entries(names, name_classes(names, settings))
    config = EvalConfig(n=n) if metrics is None else EvalConfig(n=n, families=tuple(check_metrics(metrics)))
    run_comparison(found, seeds, Path(out), config, lambda *_: build_callbacks(callbacks))
    return found
