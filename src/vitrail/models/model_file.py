"""The model file: safetensors without executable content; the same seed gives the same images after loading."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from vitrail.models.classifier import Classifier
from vitrail.models.generator import Generator
from vitrail.models.kinds import kind_named
from vitrail.models.limits import check_integer, images_per_pass, shown
from vitrail.models.model import Model
from vitrail.utils import state as store
from vitrail.utils.errors import Malformed, VitrailError

__all__ = [
    "Classifier", "Generator", "check_file", "check_model", "kind_of", "load", "load_any", "load_classifier",
    "open_classifier", "open_model", "save_model",
]  # fmt: skip

T = TypeVar("T")
FORMAT = 2
PARTS = {"kind", "names", "about", "model"}
MODEL, CLASSIFIER = "model.safetensors", "classifier.safetensors"  # in a run's folder
LONGEST_NAME = 1024  # characters of a class name
LARGEST_SIDE = 128  # pixels; the largest value of the setting `size`


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
    with fitting():
        net: Any = kind.build(model.tree)
        shape, n = tuple(model.tree["shape"]), model.tree["classes"]
        part, stored = kind.largest_part(net, stored)
        per_pass = images_per_pass(part, shape[1], n, stored)
        return Generator(net, net.z, shape, tuple(classes[:n]), about or {}, per_pass, model.kind)


def open_classifier(model: Model, classes: Sequence[str], about: dict[str, Any] | None = None) -> Classifier:
    """Return the classifier of a model; as `open_model`, for kinds that generate no images."""
    kind = kind_named(model.kind)
    if kind.makes_images:
        raise Malformed(f"a model of kind {model.kind!r} is not a classifier; vitrail.load reads it")
    check_model(model, classes)
    with fitting():
        shape, n = tuple(model.tree["shape"]), model.tree["classes"]
        return Classifier(kind.build(model.tree), shape, tuple(classes[:n]), about or {})


def check_model(model: Model, names: Sequence[str]) -> int:
    """Check that a model's parts fit together and need no more memory than its file justifies.

    Args:
        model: The model as it was read from a file.
        names: The names of its classes.

    Returns:
        The bytes of the tensors that the model consists of.

    Raises:
        Malformed: If a field is missing, has another type or is out of range; a name is not a short string; a tensor
            does not fit the network; or the network is too large for its coded mask or scores.

    Examples:
        >>> check_model(Model("dcgan", {"shape": [1, 999, 999], "classes": 0}), [])
        Traceback (most recent call last):
        vitrail.utils.errors.Malformed: its model does not fit together (Malformed: shape = [1, 999, 999]; ...
    """
    kind, tree = kind_named(model.kind), model.tree
    with fitting(), torch.device("meta"):
        if not isinstance(tree, dict):
            raise Malformed("it has no table of fields")
        _check_shape(tree["shape"])
        _check_names(names)
        if check_integer(tree, "classes") > len(names):
            raise Malformed(f"it has {tree['classes']} classes and {len(names)} class names")
        return kind.check(tree)


@contextmanager
def fitting() -> Iterator[None]:
    """Turn the exceptions of a model whose parts do not fit together into Malformed."""
    try:
        yield
    except (VitrailError, LookupError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as e:
        raise Malformed(f"its model does not fit together ({type(e).__name__}: {e})") from e


def _check_shape(shape: Any) -> None:
    integers = isinstance(shape, list | tuple) and len(shape) == 3 and all(type(n) is int for n in shape)
    if not integers or not (1 <= shape[0] <= 4 and 1 <= shape[1] == shape[2] <= LARGEST_SIDE):
        raise Malformed(
            f"shape = {shown(shape)}; expected 1 to 4 channels and equal sides of at most {LARGEST_SIDE} pixels"
        )


def _check_names(names: Any) -> None:
    if not isinstance(names, list | tuple):
        raise Malformed(f"its class names are {shown(names)}; expected a list of strings")
    for name in names:
        if not isinstance(name, str) or len(name) > LONGEST_NAME:
            raise Malformed(f"a class name is {shown(name)}; expected a string of at most {LONGEST_NAME} characters")


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

    Returns:
        The generator, in evaluation mode.

    Raises:
        VitrailError: If there is no such file.
        Malformed: If the file is not a generator's, or is damaged.

    Examples:
        >>> import tempfile, vitrail
        >>> run = vitrail.train("prism", data="digits", size=8, clients=2, rounds=1, local_steps=1, workers=1,
        ...                     eval_every=0, out=tempfile.mkdtemp())
        >>> vitrail.load(run.folder).sample(4, label=3).shape
        torch.Size([4, 1, 8, 8])
    """

    def build(model: Model, names: Sequence[str], about: dict[str, Any]) -> Generator:
        if change is not None:
            check_model(model, names)
        return open_model(change(model) if change else model, names, about)

    return _load(Path(path), MODEL, build)


def load_classifier(path: str | Path) -> Classifier:
    """Load a classifier.

    Args:
        path: A model file or a run's folder; a run may have a classifier in addition to its generator.

    Returns:
        The classifier, in evaluation mode.

    Raises:
        VitrailError: If there is no such file.
        Malformed: If the file is not a classifier's, or is damaged.

    Examples:
        >>> import tempfile, vitrail
        >>> run = vitrail.train("fedavg", data="digits", size=8, clients=2, rounds=1, local_steps=1, workers=1,
        ...                     eval_every=0, out=tempfile.mkdtemp())
        >>> vitrail.load_classifier(run.folder).classify(torch.rand(4, 1, 8, 8)).shape
        torch.Size([4])
    """
    path = Path(path)
    return _load(path, CLASSIFIER if (path / CLASSIFIER).exists() else MODEL, open_classifier)


def load_any(path: str | Path) -> Generator | Classifier:
    """Load a model file, or the model of a run's folder, whichever of the two it is."""

    def build(model: Model, names: Sequence[str], about: dict[str, Any]) -> Generator | Classifier:
        return (open_model if kind_named(model.kind).makes_images else open_classifier)(model, names, about)

    return _load(Path(path), MODEL, build)


def kind_of(path: Path) -> str:
    """Return the kind of a model file."""
    return str(_read(path, MODEL)[1]["kind"])


def _load(path: Path, name: str, build: Callable[[Model, Sequence[str], dict[str, Any]], T]) -> T:
    """Open the model of a file, or of the file of this name in a run's folder."""
    path, tree = _read(path, name)
    try:
        return build(Model(tree["kind"], tree["model"]), tree["names"], tree["about"])
    except Malformed as e:
        raise Malformed(f"{path}: {e}") from e


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
