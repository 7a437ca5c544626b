"""Export of a generator to an ONNX file: noise and labels in, images out; using it needs no torch."""

from __future__ import annotations

import importlib
import json
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.models.generator import Generator
from vitrail.models.inspection import plain
from vitrail.models.kinds import kind_named
from vitrail.utils.atomic import replace_atomically
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.version import __version__

TOLERANCE = 1e-4  # for images in [0, 1]: a fortieth of the step between two bytes
CHECKED = (1, 10)  # sizes of the batches by which a file is compared with torch


@dataclass(frozen=True)
class Exported:
    """An exported file.

    Args:
        path: The file.
        bytes: Its size.
        difference: Largest difference of a pixel in [0, 1] from torch's images.
    """

    path: Path
    bytes: int
    difference: float


def check_installed() -> None:
    """Raise VitrailError if the extra `onnx` is not installed."""
    for name in ("onnx", "onnxruntime", "onnxscript"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise VitrailError(f'export: {name} is not installed; run `pip install "vitrail[onnx]"`') from None


class _Images(nn.Module):
    """Noise and labels to images in [0, 1], as in `Generator.sample`."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, z: Tensor, label: Tensor | None = None) -> Tensor:
        return self.net(z, label).add(1).div(2).clamp(0, 1)


def export_onnx(generator: Generator, path: str | Path) -> Exported:
    """Write a generator to an ONNX file; the file is written only if its images are those of torch.

    Args:
        generator: A generator, for example of `vitrail.load`.
        path: The file to write; its name ends in .onnx.

    Returns:
        The file, its size and the largest difference from torch's images.

    Raises:
        VitrailError: If the model kind has no ONNX form, the extra `onnx` is missing or the file would be wrong.
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise VitrailError(f"{path}: give a name that ends in .onnx")
    if generator.kind and (refusal := kind_named(generator.kind).onnx_refusal):
        raise VitrailError(refusal)
    check_installed()
    import onnx

    images = _Images(generator.net).eval()
    with replace_atomically(path, 0o644) as part:
        try:
            proto = _traced(images, generator)
            _forget_origin(proto)
            _store_signs(proto.graph)
            proto.producer_name, proto.producer_version = "vitrail", __version__
            classes, shape = list(map(str, generator.classes)), list(generator.shape)
            facts = {"vitrail": __version__, "classes": classes, "z": generator.z, "shape": shape}
            facts["about"] = plain(generator.about)
            onnx.helper.set_model_props(proto, {"vitrail": json.dumps(facts)})
            part.write_bytes(proto.SerializeToString())
            onnx.checker.check_model(str(part), full_check=True)
            difference = max(_difference(part, images, generator, n) for n in CHECKED)
            problem = f"its images differ from torch's by up to {difference:.2g}, more than {TOLERANCE:g}"
        except OSError:
            raise
        except Exception as e:  # three libraries, each with its own exceptions
            difference, problem = math.nan, f"{type(e).__name__}: {e}"
        if not difference <= TOLERANCE:  # NaN is refused, too
            raise VitrailError(f"{path} was not written because it would not work ({problem}); please report this")
    return Exported(path, path.stat().st_size, difference)


def usage(generator: Generator, path: Path) -> str:
    """Return three lines of Python that generate images with the file."""
    label = f', "label": np.arange(8) % {len(generator.classes)}' if generator.classes else ""
    return (
        "import numpy as np, onnxruntime\n"
        f"net = onnxruntime.InferenceSession({json.dumps(str(path))})\n"
        f'(images,) = net.run(None, {{"z": np.random.randn(8, {generator.z}).astype("float32"){label}}})'
    )


def _inputs(generator: Generator, n: int) -> dict[str, Tensor]:
    draw = Rng((n,)).child("export").torch()
    inputs = {"z": torch.randn(n, generator.z, generator=draw)}
    if generator.classes:
        inputs["label"] = torch.randint(len(generator.classes), (n,), generator=draw)
    return inputs


def _traced(images: nn.Module, generator: Generator) -> Any:
    """Return the graph of torch's exporter, for batches of any size."""
    inputs = _inputs(generator, 2)  # the exporter would take a batch of one for a constant
    n = torch.export.Dim("n")
    with _quiet():
        program: Any = torch.onnx.export(
            images,
            kwargs=inputs,
            dynamo=True,
            verbose=False,
            input_names=list(inputs),
            output_names=["images"],
            dynamic_shapes={name: {0: n} for name in inputs},
        )
    return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter, which warns of packages that it does not need and of its own deprecations."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


def _forget_origin(proto: Any) -> None:
    """Remove stack traces, which contain local paths; the file is for others."""
    graph = proto.graph
    del graph.value_info[:]
    for item in (proto, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        item.ClearField("metadata_props")
        item.ClearField("doc_string")


def _store_signs(graph: Any) -> None:
    """Store weights of {-a, 0, +a} as one byte each and a, without loss: a quarter of float32."""
    from onnx import helper, numpy_helper

    stored, nodes = [], []
    for tensor in graph.initializer:
        weights = numpy_helper.to_array(tensor)
        if (found := _magnitudes(weights)) is None:
            stored.append(tensor)
            continue
        a, axis = found
        signs, scale = f"{tensor.name}.signs", f"{tensor.name}.a"
        stored.append(numpy_helper.from_array(np.sign(weights).astype(np.int8), signs))
        stored.append(numpy_helper.from_array(a, scale))
        nodes.append(helper.make_node("DequantizeLinear", [signs, scale], [tensor.name], tensor.name, axis=axis))
    del graph.initializer[:]
    graph.initializer.extend(stored)
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *rest])  # in the order of their use


def _magnitudes(weights: NDArray[Any]) -> tuple[NDArray[np.float32], int] | None:
    """Return the a of a layer, or of each channel where the exporter folded a BatchNorm into it, and its axis."""
    if weights.dtype != np.float32 or weights.ndim < 2:
        return None
    size = np.abs(weights)
    for axis in (None, 0, 1):
        others = None if axis is None else tuple(i for i in range(weights.ndim) if i != axis)
        a = size.max(axis=others, keepdims=True)
        if 4 * a.size + weights.size < weights.nbytes and ((size == 0) | (size == a)).all():
            a = np.where(a == 0, np.float32(1), a)
            return (a.reshape(()), 1) if axis is None else (a.reshape(-1), axis)
    return None


def _difference(path: Path, images: nn.Module, generator: Generator, n: int) -> float:
    """Return the largest difference between a batch of the file's images and torch's."""
    import onnxruntime

    inputs = _inputs(generator, n)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (made,) = session.run(["images"], {name: x.numpy() for name, x in inputs.items()})
    with torch.no_grad():
        expected = images(**inputs).numpy()
    if made.shape != expected.shape:
        raise ValueError(f"images of {made.shape} instead of {expected.shape}")
    return float(np.abs(made - expected).max())
