"""Benchmark a method on a data set by the protocol of published private image generators.

For each ε and seed: train, generate images, train classifiers on them and test these on the real test set
(metrics/downstream.py); FID, precision, recall and coverage against the training set. Finished parts are not repeated.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.data import load as load_data
from vitrail.data.dataset import Dataset, Images
from vitrail.experiment import settings as config
from vitrail.experiment.callbacks import Callback
from vitrail.experiment.compare import changed_settings
from vitrail.experiment.plan import prepare
from vitrail.experiment.run_dir import RunDir
from vitrail.experiment.settings import Settings
from vitrail.experiment.train import resume, start_run
from vitrail.methods.registry import METHODS
from vitrail.metrics.distances import Distances
from vitrail.metrics.downstream import measures, train_on_generated
from vitrail.metrics.evaluation import check_fits
from vitrail.metrics.extractors import BATCH, features_of, load_inception_extractor
from vitrail.metrics.measure import Measure
from vitrail.metrics.results_io import file_digest, measure_from_tree, measure_to_tree
from vitrail.metrics.samples import KINDS, load_samples
from vitrail.models.model_file import Generator
from vitrail.models.model_file import load as load_model
from vitrail.nets.feature_moments import to_float
from vitrail.privacy.ledger import read as read_ledger
from vitrail.utils.atomic import write_atomically
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.version import __version__

SHOWN = ("fid", "precision", "recall", "coverage")  # of the measures by Inception-v3


@dataclass(frozen=True)
class Preset:
    """How much is generated and trained.

    Args:
        images: Generated images.
        fid_images: Largest number of training images, and of generated ones, for FID; 0: no FID.
        steps: Optimizer steps by classifier.
    """

    images: int
    fid_images: int
    steps: Mapping[str, int]


PRESETS: Mapping[str, Preset] = {
    "quick": Preset(2_000, 0, {"cnn": 200}),
    "cpu": Preset(20_000, 10_000, {"cnn": 2_000, "resnet": 1_500}),
    "full": Preset(60_000, 50_000, {"cnn": 5_000, "resnet": 10_000, "wideresnet": 20_000}),
}


@dataclass
class Result:
    """Results of one model, or of given images.

    Args:
        epsilon: The ε that was requested; None: without noise, or not known.
        seed: Seed of the training.
        measures: Accuracies, FID and the other measures.
        bytes_up: Bytes that one client sent, on average; None for given images.
        model_bytes: Size of the model file.
        cpu_seconds: Processor time of the training; None if it was resumed.
        public: The public data that the method's feature network was trained on; empty: none.
    """

    epsilon: float | None
    seed: int
    measures: list[Measure]
    bytes_up: float | None = None
    model_bytes: int | None = None
    cpu_seconds: float | None = None
    public: str = ""

    @property
    def given(self) -> bool:
        """Whether the images were given; their ε is not known."""
        return self.bytes_up is None

    @property
    def title(self) -> str:
        """Title of its columns: ε, "no noise" or "given images"."""
        return "given images" if self.given else "no noise" if self.epsilon is None else f"ε = {self.epsilon:g}"

    @property
    def name(self) -> str:
        """Name of its run."""
        return "given-images" if self.given else run_name(self.epsilon, self.seed)


@dataclass
class PublishedResult:
    """Published results of one method: percent accuracy and FID by data set and ε."""

    method: str
    public: bool = False
    accuracy: dict[str, dict[str, float]] = field(default_factory=dict)
    fid: dict[str, dict[str, float]] = field(default_factory=dict)


def published() -> tuple[list[PublishedResult], str]:
    """Return published results, and their source."""
    tree = tomllib.loads(files("vitrail.experiment").joinpath("published.toml").read_text("utf-8"))
    return [PublishedResult(**row) for row in tree["rows"]], tree["source"]


def benchmark(
    method: str,
    data: str,
    epsilons: Sequence[float | None],
    seeds: Sequence[int],
    out: Path,
    preset: str = "cpu",
    settings: Mapping[str, Any] | None = None,
    watch: Callable[[str], Callback] = lambda _: Callback(),
    report_progress: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Train and measure a method for each ε and seed; what is in `out` already is not repeated.

    Args:
        method: Name of a method.
        data: Data with a test set and labels, such as "mnist".
        epsilons: Values of ε; None: without noise (privacy=none).
        seeds: Seeds of the training.
        out: Folder of the benchmark.
        preset: One of PRESETS.
        settings: Other settings of the method.
        watch: Returns a callback that follows a run of this name.
        report_progress: Called with a line of text on progress.

    Raises:
        VitrailError: If a setting is wrong, the data has no labels, or the method trains no generator or cannot
            reach an ε.
    """
    own = {"method": method, "data": data, "eval_every": 0, "grids": 1, **(settings or {})}
    if taken := [name for name in ("out", "seed", "epsilon") if name in (settings or {})]:
        raise VitrailError(f"{taken[0]} is set by the benchmark; use --out, --seeds and --epsilon")
    runs = [(e, seed, _settings(own, e, seed, out)) for seed in seeds for e in epsilons]
    for _, seed, s in runs:  # before anything is trained
        _check(s, seed)
    _check_trainable([s for _, seed, s in runs if seed == seeds[0] and not RunDir(Path(s.out)).model.exists()])
    return [_one(s, e, preset, watch, report_progress) for e, seed, s in runs]


def _settings(own: Mapping[str, Any], epsilon: float | None, seed: int, out: Path) -> Settings:
    noise = _noise(str(own["method"]), epsilon)
    return config.resolve(own, {**noise, "seed": seed, "out": str(out / run_name(epsilon, seed))})


def _noise(method: str, epsilon: float | None) -> dict[str, Any]:
    """Return the settings of a method that give this ε."""
    known = config.settings_model(method).model_fields if method in METHODS else {"privacy": None, "epsilon": None}
    if epsilon is not None and "epsilon" not in known:
        raise VitrailError(f"{method} has no privacy mechanism; use --epsilon none")
    return {"privacy": "none"} if epsilon is None and "privacy" in known else {"epsilon": epsilon} if epsilon else {}


def _check(s: Settings, seed: int) -> None:
    """Refuse a folder that was run with other settings."""
    folder = RunDir(Path(s.out))
    if folder.settings.exists() and (other := changed_settings(s, seed, folder)):
        raise VitrailError(f"{s.out} was run with another {', '.join(other)}; give another --out, or remove it")


def _check_trainable(settings: Sequence[Settings]) -> None:
    """Refuse runs that could not be trained or measured, before the first of them is trained."""
    if not settings:
        return
    first = settings[0]
    data = load_data(first.data, size=first.size, test_fraction=first.test_fraction)
    for s in settings:
        plan = prepare(s, data)
        _ = plan.method.mechanism  # fails if the settings add no noise, or ε is too small
        if len(plan.data.classes) < 2:
            raise VitrailError(f"data={s.data}, labels={s.labels}: the benchmark needs labels of two classes or more")
        if "generator" not in plan.method.export_models(plan.init_server()):
            raise VitrailError(f"{s.method} trains no generator, which the benchmark measures; choose another --method")


def run_name(epsilon: float | None, seed: int) -> str:
    """Return the name of a run's folder.

    Examples:
        >>> run_name(1.0, 0), run_name(None, 2)
        ('epsilon-1-seed-0', 'no-noise-seed-2')
    """
    return f"{'no-noise' if epsilon is None else f'epsilon-{epsilon:g}'}-seed-{seed}"


def _one(
    s: Settings,
    epsilon: float | None,
    preset: str,
    watch: Callable[[str], Callback],
    report_progress: Callable[[str], None],
) -> Result:
    """Train and measure one model, or what is missing of it."""
    folder = RunDir(Path(s.out))
    file, start_seconds, resumed = folder.path.with_suffix(".json"), _cpu_seconds(), folder.settings.exists()
    if not folder.model.exists():
        follow = watch(folder.path.name)
        _ = resume(folder.path, callbacks=[follow]) if resumed else start_run(s, None, follow)
    claim = [entry for entry in read_ledger(folder.ledger) if "says" in entry][-1]
    if epsilon is not None and not (claim["private"] and claim["epsilon"] <= 1.001 * epsilon):
        stated = f"the ledger states: {claim['says']}"
        raise VitrailError(f"{s.out}: ε = {epsilon:g} is not proven; {stated}. Change privacy=")
    key = {"model": file_digest(folder.model), "preset": preset, "vitrail": __version__}
    tree = _read(file)
    if tree.get("model") != key["model"]:
        tree = {"cpu_seconds": None if resumed else _cpu_seconds() - start_seconds}
        _write(file, {"model": key["model"], **tree})  # the time, in case measuring is interrupted
    generator = load_model(folder.model)
    if {**tree, **key} != tree:
        real = load_data(s.data, size=s.size, test_fraction=s.test_fraction)
        check_fits(generator, real)
        found = measure_images(_images_of(generator, PRESETS[preset].images), real, preset, report_progress)
        tree |= {**key, "measures": [measure_to_tree(m) for m in found]}
        _write(file, tree)
    rows = folder.rows()
    clients = {client for row in rows for client in row["up"]}
    return Result(
        epsilon,
        s.seed,
        [measure_from_tree(m) for m in tree["measures"]],
        sum(row["bytes_up"] for row in rows) / max(1, len(clients)),
        folder.model.stat().st_size,
        tree["cpu_seconds"],
        ", ".join(map(str, generator.about.get("trained_against", ()))),
    )


def benchmark_images(
    spec: str,
    data: str,
    preset: str = "cpu",
    report_progress: Callable[[str], None] = lambda _: None,
    size: int | None = None,
) -> Result:
    """Measure labelled images that were generated elsewhere.

    Args:
        spec: `npz:FILE`, `folder:PATH` or `hf:NAME`; images are resized to the size of the data.
        data: The data that they imitate.
        preset: One of PRESETS.
        report_progress: Called with a line of text on progress.
        size: Width and height in pixels; default: those of the data.

    Raises:
        VitrailError: If the images have no labels or other classes than the data.
    """
    if not spec.startswith(KINDS):
        raise VitrailError(f"--images {spec}: write npz:{spec if spec.endswith('.npz') else 'FILE'} or folder:PATH")
    real = load_data(data, size=size)
    given = load_samples(spec, real)
    check_fits(given, real)
    order = Rng((0,)).child("samples").numpy().permutation(len(given.images))[: PRESETS[preset].images]
    return Result(None, 0, measure_images(given.images.take(order), real, preset, report_progress))


def _images_of(generator: Generator, n: int) -> Images:
    """Return n generated images as bytes, of all classes in turn."""
    parts = [(x.mul(255).round().byte().numpy(), y) for x, y in generator.batches(n)]
    labels = [y for _, y in parts if y is not None]
    return Images(np.concatenate([x for x, _ in parts]), torch.cat(labels).numpy() if labels else None)


def measure_images(
    generated: Images, real: Dataset, preset: str, report_progress: Callable[[str], None]
) -> list[Measure]:
    """Return accuracies of classifiers trained on generated images, then distances to the training images.

    Args:
        generated: Labelled generated images.
        real: The real data; its whole test set is used.
        preset: One of PRESETS.
        report_progress: Called with a line of text on progress.
    """
    p = PRESETS[preset]
    trained = train_on_generated(generated, real.test, len(real.classes), p.steps, report_progress=report_progress)
    found = measures(trained, len(generated))
    n = min(p.fid_images, len(generated), len(real.train))
    if n:
        with one_thread(), torch.no_grad():
            inception = load_inception_extractor()
            order = Rng((0,)).child("fid").numpy().permutation(len(real.train))[:n]
            report_progress(f"features of {n:,} training images by Inception-v3, once")
            distances = Distances(
                inception, features_of(inception, real.train.take(np.sort(order))), "fid", probes=False
            )
            for at in range(0, n, BATCH):
                distances.update(to_float(generated.pixels[at : min(at + BATCH, n)]), None)
                report_progress(f"features of generated images by Inception-v3: {min(at + BATCH, n):,} of {n:,}")
            found += [m for m in distances.compute() if m.name in SHOWN]
    return found


def _cpu_seconds() -> float:
    """Return the processor time of this process and of the worker processes that have ended."""
    return sum(os.times()[:4])


def _read(file: Path) -> dict[str, Any]:
    try:
        tree = json.loads(file.read_text())
        return tree if isinstance(tree, dict) else {}
    except (OSError, ValueError):
        return {}


def _write(file: Path, tree: Mapping[str, Any]) -> None:
    write_atomically(file, (json.dumps(tree, indent=1) + "\n").encode())
