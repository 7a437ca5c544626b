"""The model file: safetensors without executable content; the same seed gives the same images after loading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitrail.models.classifier import Classifier
from vitrail.models.generator import Generator
from vitrail.models.kinds import kind_named
from vitrail.models.limits import images_per_pass
from vitrail.models.model import Model
from vitrail.models.validation import UNFIT, check_model, unfit
from vitrail.utils import state as store
from vitrail.utils.errors import Malformed, VitrailError

__all__ = [
    "Classifier",
    "Generator",
    "check_file",
    "kind_of",
    "load",
    "load_any",
    "load_classifier",
    "open_classifier",
    "open_model",
    "save_model",
]

FORMAT = 2
PARTS = {"kind", "names", "about", "model"}
MODEL, CLASSIFIER = "model.safetensors", "classifier.safetensors"  # in a run's folder


def save_model(path: Path, model: Model, classes: Sequence[str], about: dict[str, Any]) -> None:
    """Write a model file.

    Args:
        path: The file; it is replaced atomically.
        model: The model.
        classes: Names of the classes.
        about: Facts about the model that readers should know, such as its data and its privacy.
    """
    tree = {"format": FORMAT, "kind": model.kind, "names": list(classes), "about": about, "model": model.tree}
    store.save(path, tree)


def open_model(model: Model, classes: Sequence[str], about: dict[str, Any] | None = None) -> Generator:
    """Return the generator of a model, with the bits that it would have after writing and loading a file.

    Args:
        model: The model, for example one that a method exported.
        classes: Names of the classes.
        about: Facts about the model.

    Raises:
        Malformed: If the model is of an unknown kind, is a classifier, or does not fit together.
    """
    kind = kind_named(model.kind)
    if not kind.makes_images:
        raise Malformed("this is a classifier, which generates no images; vitrail.load_classifier reads it")
    stored = check_model(model, classes)
    try:
        net: Any = kind.build(model.tree)
        shape, n = tuple(model.tree["shape"]), model.tree["classes"]
        part, stored = kind.largest_part(net, stored)
        per_pass = images_per_pass(part, shape[1], n, stored)
        return Generator(net, net.z, shape, tuple(classes[:n]), about or {}, per_pass, model.kind)
    except UNFIT as e:
        raise unfit(e) from e


def open_classifier(model: Model, classes: Sequence[str], about: dict[str, Any] | None = None) -> Classifier:
    """Return the classifier of a model; as `open_model`, for kinds that generate no images."""
    kind = kind_named(model.kind)
    if kind.makes_images:
        raise Malformed(f"a model of kind {model.kind!r} is not a classifier; vitrail.load reads it")
    check_model(model, classes)
    try:
        shape, n = tuple(model.tree["shape"]), model.tree["classes"]
        return Classifier(kind.build(model.tree), shape, tuple(classes[:n]), about or {})
    except UNFIT as e:
        raise unfit(e) from e


def check_file(raw: bytes) -> tuple[Model, int]:
    """Check the bytes of a model file without building its network.

    Returns:
        The model and the bytes of its tensors.

    Raises:
        Malformed: If the bytes are not a model file or its parts do not fit together.
    """
    tree = store.loads(raw, "the model")
    if not _is_model(tree):
        raise Malformed(f"the file is not a vitrail model of format {FORMAT}")
    model = Model(tree["kind"], tree["model"])
    return model, check_model(model, tree["names"])


def load(path: str | Path, change: Callable[[Model], Model] | None = None) -> Generator:
    """Load a generator.

    Args:
        path: A model file or a run's folder.
        change: Applied to the model, once it was checked, before its network is built.

    Raises:
        VitrailError: If there is no such file.
        Malformed: If the file is not a generator's, or is damaged.
    """
    path, tree = _read(Path(path), MODEL)
    try:
        model = Model(tree["kind"], tree["model"])
        if change is not None:
            check_model(model, tree["names"])
        return open_model(change(model) if change else model, tree["names"], tree["about"])
    except Malformed as e:
        raise Malformed(f"{path}: {e}") from e


def load_classifier(path: str | Path) -> Classifier:
    """Load a classifier.

    Args:
        path: A model file or a run's folder; a run may have a classifier in addition to its generator.

    Raises:
        VitrailError: If there is no such file.
        Malformed: If the file is not a classifier's, or is damaged.
    """
    path = Path(path)
    path, tree = _read(path, CLASSIFIER if (path / CLASSIFIER).exists() else MODEL)
    try:
        return open_classifier(Model(tree["kind"], tree["model"]), tree["names"], tree["about"])
    except Malformed as e:
        raise Malformed(f"{path}: {e}") from e


def load_any(path: str | Path) -> Generator | Classifier:
    """Load a model file, or the model of a run's folder, whichever of the two it is."""
    path, tree = _read(Path(path), MODEL)
    try:
        makes_images = kind_named(tree["kind"]).makes_images
    except Malformed as e:
        raise Malformed(f"{path}: {e}") from e
    return load(path) if makes_images else load_classifier(path)


def kind_of(path: Path) -> str:
    """Return the kind of a model file."""
    return str(_read(path, MODEL)[1]["kind"])


def _read(path: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """Read a model file, or the file of this name in a run's folder."""
    if path.is_dir():
        path = path / name
    if not path.exists():
        raise VitrailError(f"there is no model at {path}; give a run's folder or its {name}")
    tree = store.load(path)
    if not _is_model(tree):
        raise Malformed(f"{path} is not a vitrail model of format {FORMAT}")
    return path, tree


def _is_model(tree: Any) -> bool:
    return isinstance(tree, dict) and tree.get("format") == FORMAT and tree.keys() >= PARTS
