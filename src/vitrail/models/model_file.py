"""The model file: safetensors, nothing executable, the same pictures for the same seed after loading."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.methods.base import Model
from vitrail.models.image_grid import write_grid
from vitrail.models.limits import SAMPLE_BATCH, STATISTICS_BATCH, check_model, images_per_pass, seeded_network
from vitrail.utils import state as store
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng

FORMAT = 2
PARTS = {"kind", "names", "about", "model"}
BATCH = SAMPLE_BATCH
MODEL = "model.safetensors"  # in a run's folder
UNFIT = (VitrailError, KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError, OverflowError)


@dataclass(frozen=True)
class Generator:
    """A trained generator.

    `sample` draws pictures in [0, 1]; the same seed gives the same pictures.
    """

    net: nn.Module
    z: int
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    about: dict[str, Any]
    per_pass: int = BATCH  # images that the network computes at once; fewer for a network that is large for its file

    def labels(self, n: int, label: int | str | Sequence[int] | Tensor | None = None) -> Tensor | None:
        """Labels for n pictures: one for all, a list of them, or all classes in turn."""
        if not self.classes:
            if label is not None:
                raise VitrailError("this generator was trained without labels; leave the label out")
            return None
        if label is None:
            return torch.arange(n) % len(self.classes)
        if isinstance(label, str):
            if label not in self.classes:
                raise VitrailError(f"label {label!r} is not known; this generator has {', '.join(self.classes)}")
            label = self.classes.index(label)
        y = torch.as_tensor(label, dtype=torch.int64).expand(n) if np.ndim(label) == 0 else torch.as_tensor(label)
        if y.shape != (n,) or not ((y >= 0) & (y < len(self.classes))).all():
            known = f"0 to {len(self.classes) - 1}: {', '.join(self.classes)}"
            raise VitrailError(f"label {label!r} is not known, or not one for each of {n} pictures; there are {known}")
        return y

    @property
    def page(self) -> int:
        """How many pictures make a good page: eight of each class, or 64."""
        return 8 * len(self.classes) if 0 < len(self.classes) <= 20 else 64

    def sample(self, n: int = 64, label: int | str | Sequence[int] | Tensor | None = None, seed: int = 0) -> Tensor:
        """n pictures, float32 (n, channels, height, width) in [0, 1]."""
        batches = [x for x, _ in self.batches(n, label, seed)]
        return torch.cat(batches) if batches else torch.empty(0, *self.shape)

    def batches(
        self, n: int, label: int | str | Sequence[int] | Tensor | None = None, seed: int = 0
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The pictures of `sample` and their labels, a batch at a time: memory does not grow with their number."""
        y = self.labels(n, label)
        draw = Rng((seed,)).child("sample").torch()
        for at in range(0, n, BATCH):
            z = torch.randn(min(BATCH, n - at), self.z, generator=draw)
            labels = None if y is None else y[at : at + BATCH]
            with torch.no_grad():
                x = self._images(z, labels)
            yield x.add_(1).div_(2).clamp_(0, 1), labels

    def _images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """The images of one batch, in equal parts of at most `per_pass` images; an ensemble has one mask for all."""
        from vitrail.nets.masked import Ensemble

        parts = -(-len(z) // self.per_pass)
        if parts == 1:
            return cast(Tensor, self.net(z, labels))
        net = self.net.for_batch(z) if isinstance(self.net, Ensemble) else self.net
        ys = [None] * parts if labels is None else labels.tensor_split(parts)
        return torch.cat([net(part, y) for part, y in zip(z.tensor_split(parts), ys, strict=True)])

    def grid(
        self, path: str | Path, n: int = 64, label: int | str | Sequence[int] | None = None, seed: int = 0
    ) -> None:
        """Write a PNG of n pictures; with labels, a column for each class."""
        columns = len(self.classes) if self.classes and label is None else 0
        write_grid(Path(path), self.sample(n, label, seed), columns)


def _masked(tree: dict[str, Any]) -> Any:
    """seed + mask: the frozen weights are drawn again, BatchNorm's statistics come from noise."""
    from vitrail.nets.masked import Masked, recalibrate
    from vitrail.nets.supermask import decode_mask

    masked = Masked(seeded_network(tree), tree["seed"])
    net = masked.fix(torch.from_numpy(decode_mask(masked, tree["mask"]).astype(np.float32)))
    return recalibrate(net, _noise(tree, masked.z))


def _noise(tree: dict[str, Any], width: int) -> list[tuple[Tensor, ...]]:
    """Inputs from which BatchNorm's statistics are computed: the same for everybody who has the seed."""
    draw = Rng((tree["seed"],)).child("batch statistics").torch()
    batches: list[tuple[Tensor, ...]] = []
    for _ in range(8):
        z = torch.randn(STATISTICS_BATCH, width, generator=draw)
        y = torch.randint(tree["classes"], (STATISTICS_BATCH,), generator=draw) if tree["classes"] else None
        batches.append((z,) if y is None else (z, y))
    return batches


def _ensemble(tree: dict[str, Any]) -> Any:
    """seed + scores: a new mask M ~ Bern(θ) for every batch."""
    from vitrail.nets.masked import Ensemble
    from vitrail.wire import scores
    from vitrail.wire.entropy import decode_values

    net = seeded_network(tree)
    s = decode_values(tree["scores"], sum(p.numel() for p in net.parameters()))
    theta = torch.from_numpy(scores.theta(s).astype(np.float32))
    return Ensemble(net, tree["seed"], theta, _noise(tree, net.z))


def _dense(tree: dict[str, Any]) -> Any:
    """Ordinary weights of a DCGAN."""
    from vitrail.nets.dcgan import DcganGenerator as DcGan

    net = DcGan(tuple(tree["shape"]), tree["classes"], tree["width"], tree["z"])
    net.load_state_dict({k: v.float() for k, v in tree["weights"].items()})
    return net.eval()


def _mixture(tree: dict[str, Any]) -> Any:
    """Several DCGANs; a label comes from one that knows it, chosen by the noise."""
    from vitrail.nets.mixture import Mixture, knows

    parts = [_dense({**tree, "weights": weights}) for weights in tree["parts"]]
    return Mixture(parts, tree["z"], knows(tree["labels"], tree["classes"])).eval()


def _styled(tree: dict[str, Any]) -> Any:
    """PaDPaF's content with a client's style, or with none; BatchNorm's statistics come from noise."""
    from vitrail.nets.content_style import ContentStyleGenerator as Styled
    from vitrail.nets.content_style import parts_of
    from vitrail.nets.masked import recalibrate

    with torch.device("meta"):  # a model without a style does not store what its style would take
        content, style = parts_of(tree)
    content.to_empty(device="cpu").load_state_dict(tree["content"])
    if "style" in tree:
        style.to_empty(device="cpu").load_state_dict(tree["style"])
    net = Styled(content, style if "style" in tree else None)
    return recalibrate(net, _noise({**tree, "seed": 0}, net.z))


READERS = {"masked": _masked, "ensemble": _ensemble, "dcgan": _dense, "mixture": _mixture, "padpaf": _styled}


def save_model(path: Path, model: Model, classes: Sequence[str], about: dict[str, Any]) -> None:
    """Write a model; `about` is what a person should know of it."""
    tree = {"format": FORMAT, "kind": model.kind, "names": list(classes), "about": about, "model": model.tree}
    store.save(path, tree)


def open_model(model: Model, classes: Sequence[str], about: dict[str, Any] | None = None) -> Generator:
    """A generator from what a method produced, exactly as it would be after a trip through a file."""
    if model.kind == "classifier":
        raise Malformed("this is a classifier, which makes no pictures; vitrail.load_classifier reads it")
    if not isinstance(model.kind, str) or model.kind not in READERS:
        raise Malformed(f"a model of kind {model.kind!r}; known are {', '.join(READERS)}: is this version too old?")
    stored = _check(model, classes)
    try:
        net = READERS[model.kind](model.tree)
        shape, n = tuple(model.tree["shape"]), model.tree["classes"]
        per_pass = images_per_pass(net, shape[1], n, stored)
        return Generator(net, net.z, shape, tuple(classes[:n]), about or {}, per_pass)
    except UNFIT as e:
        raise Malformed(f"its model does not fit together ({type(e).__name__}: {e})") from e


def _check(model: Model, classes: Sequence[str]) -> int:
    """Check a model before memory is allocated for it; returns the bytes of its tensors."""
    try:
        return check_model(model, classes)
    except UNFIT as e:
        raise Malformed(f"its model does not fit together ({type(e).__name__}: {e})") from e


def check_file(raw: bytes) -> tuple[Model, int]:
    """The model in the bytes of a file, checked but not built, and the bytes of its tensors."""
    tree = store.loads(raw, "the model")
    if not _is_model(tree) or not isinstance(tree["kind"], str) or tree["kind"] not in (*READERS, "classifier"):
        raise Malformed(f"the file is not a vitrail model of format {FORMAT}")
    model = Model(tree["kind"], tree["model"])
    return model, _check(model, tree["names"])


def load(path: str | Path, change: Callable[[Model], Model] | None = None) -> Generator:
    """Load a generator from a model file, or from a run's folder; `change` is made before it is opened."""
    path, tree = _read(Path(path), MODEL)
    try:
        model = Model(tree["kind"], tree["model"])
        if change is not None and isinstance(model.kind, str) and model.kind in READERS:
            _check(model, tree["names"])
        return open_model(change(model) if change else model, tree["names"], tree["about"])
    except Malformed as e:
        raise Malformed(f"{path}: {e}") from e


@dataclass(frozen=True)
class Classifier:
    """A trained classifier of pictures in [0, 1]."""

    net: nn.Module
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    about: dict[str, Any]

    @torch.no_grad()
    def logits(self, pictures: Tensor) -> Tensor:
        """A number for each picture and class."""
        if tuple(pictures.shape[1:]) != self.shape:
            raise VitrailError(f"pictures of {tuple(pictures.shape[1:])}; this classifier takes {self.shape} in [0, 1]")
        parts = [self.net(x * 2 - 1) for x in pictures.split(BATCH)]
        return torch.cat(parts) if parts else torch.empty(0, len(self.classes))

    def classify(self, pictures: Tensor) -> Tensor:
        """The most likely class of each picture, as a number."""
        return self.logits(pictures).argmax(1)


def open_classifier(model: Model, classes: Sequence[str], about: dict[str, Any] | None = None) -> Classifier:
    """A classifier from what a method produced, exactly as it would be after a trip through a file."""
    from vitrail.nets.classifier import classifier

    if model.kind != "classifier":
        raise Malformed(f"a model of kind {model.kind!r} is no classifier")
    _check(model, classes)
    try:
        shape = tuple(model.tree["shape"])
        net = classifier(shape[0], model.tree["classes"], model.tree.get("norm", "batch"))
        net.load_state_dict(model.tree["weights"])
        return Classifier(net.eval(), shape, tuple(classes[: model.tree["classes"]]), about or {})
    except UNFIT as e:
        raise Malformed(f"its model does not fit together ({type(e).__name__}: {e})") from e


def load_classifier(path: str | Path) -> Classifier:
    """Load a classifier from a model file, or from a run's folder: beside its generator, or all that it made."""
    path = Path(path)
    path, tree = _read(path, "classifier.safetensors" if (path / "classifier.safetensors").exists() else MODEL)
    try:
        return open_classifier(Model(tree["kind"], tree["model"]), tree["names"], tree["about"])
    except Malformed as e:
        raise Malformed(f"{path}: {e}") from e


def kind_of(path: Path) -> str:
    """What a model file holds."""
    return str(_read(path, MODEL)[1]["kind"])


def _read(path: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """A model file's content; of a run's folder, that of the file with this name."""
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
