"""A generator as an ONNX file: noise and labels in, pictures out, and no torch where it is used."""

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

from vitrail import __version__
from vitrail.models.inspection import plain
from vitrail.models.model_file import Generator
from vitrail.nets.masked import Ensemble
from vitrail.nets.mixture import Mixture
from vitrail.utils.atomic import replacing
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng

TOLERANCE = 1e-4  # of a picture in [0, 1]: a fortieth of the step between two bytes
CHECKED = (1, 10)  # pictures in the batches by which a file is compared with torch


@dataclass(frozen=True)
class Exported:
    """What was written, and how far its pictures are from torch's."""

    path: Path
    bytes: int
    difference: float


def check_installed() -> None:
    """Refuse early where the extra is missing."""
    for name in ("onnx", "onnxruntime", "onnxscript"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise VitrailError(f'export: {name} is not installed; `pip install "vitrail[onnx]"` does it') from None


class _Pictures(nn.Module):
    """What `Generator.sample` does with its noise and labels."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, z: Tensor, label: Tensor | None = None) -> Tensor:
        x: Tensor = self.net(z, label)
        return x.add(1).div(2).clamp(0, 1)


def export_onnx(generator: Generator, path: str | Path) -> Exported:
    """Write a generator to an ONNX file, which takes its place only when it gives the pictures that torch gives."""
    path = Path(path)
    if path.suffix != ".onnx":
        raise VitrailError(f"{path}: give a name that ends in .onnx")
    if isinstance(generator.net, Ensemble):
        raise VitrailError(
            "an ensemble draws a new mask for every batch, and an ONNX file holds one network; "
            "export the run's model.safetensors, which is one mask"
        )
    if isinstance(generator.net, Mixture):
        raise VitrailError(
            "a mixture picks one of several generators for each picture, and an ONNX file holds one network; "
            "export a single generator instead"
        )
    check_installed()
    import onnx

    pictures = _Pictures(generator.net).eval()
    with replacing(path, 0o644) as part:
        try:
            proto = _traced(pictures, generator)
            _forget_origin(proto)
            _store_signs(proto.graph)
            proto.producer_name, proto.producer_version = "vitrail", __version__
            onnx.helper.set_model_props(proto, {"vitrail": json.dumps(_facts(generator))})
            part.write_bytes(proto.SerializeToString())
            onnx.checker.check_model(str(part), full_check=True)
            difference = max(_difference(part, pictures, generator, n) for n in CHECKED)
            problem = f"its pictures differ from torch's by up to {difference:.2g}, more than {TOLERANCE:g}"
        except OSError:
            raise
        except Exception as e:  # of three libraries, each with errors of its own
            difference, problem = math.nan, f"{type(e).__name__}: {e}"
        if not difference <= TOLERANCE:  # so that NaN is refused, too
            raise VitrailError(f"{path} was not written, for it would not work ({problem}); please report this")
    return Exported(path, path.stat().st_size, difference)


def usage(generator: Generator, path: Path) -> str:
    """Three lines of Python that draw pictures from the file."""
    label = f', "label": np.arange(8) % {len(generator.classes)}' if generator.classes else ""
    return (
        "import numpy as np, onnxruntime\n"
        f"net = onnxruntime.InferenceSession({json.dumps(str(path))})\n"
        f'(pictures,) = net.run(None, {{"z": np.random.randn(8, {generator.z}).astype("float32"){label}}})'
    )


def _inputs(generator: Generator, n: int) -> dict[str, Tensor]:
    draw = Rng((n,)).child("export").torch()
    inputs = {"z": torch.randn(n, generator.z, generator=draw)}
    if generator.classes:
        inputs["label"] = torch.randint(len(generator.classes), (n,), generator=draw)
    return inputs


def _traced(pictures: nn.Module, generator: Generator) -> Any:
    """The graph as torch's exporter makes it, for batches of any size."""
    inputs = _inputs(generator, 2)  # a batch of one would be taken for a constant
    n = torch.export.Dim("n")
    with _quiet():
        program: Any = torch.onnx.export(
            pictures,
            kwargs=inputs,
            dynamo=True,
            verbose=False,
            input_names=list(inputs),
            output_names=["pictures"],
            dynamic_shapes={name: {0: n} for name in inputs},
        )
    return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter talks of packages that it does not need, and of its own deprecations."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


def _forget_origin(proto: Any) -> None:
    """Take out stack traces with this machine's paths; the file is for others."""
    graph = proto.graph
    del graph.value_info[:]
    for item in (proto, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        item.ClearField("metadata_props")
        item.ClearField("doc_string")


def _store_signs(graph: Any) -> None:
    """Weights of {-a, 0, +a} become one byte each and a, without loss: a quarter of float32."""
    from onnx import helper, numpy_helper

    kept, nodes = [], []
    for tensor in graph.initializer:
        weights = numpy_helper.to_array(tensor)
        if (found := _magnitudes(weights)) is None:
            kept.append(tensor)
            continue
        a, axis = found
        signs, scale = f"{tensor.name}.signs", f"{tensor.name}.a"
        kept.append(numpy_helper.from_array(np.sign(weights).astype(np.int8), signs))
        kept.append(numpy_helper.from_array(a, scale))
        nodes.append(helper.make_node("DequantizeLinear", [signs, scale], [tensor.name], tensor.name, axis=axis))
    del graph.initializer[:]
    graph.initializer.extend(kept)
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *rest])  # in the order of their use


def _magnitudes(weights: NDArray[Any]) -> tuple[NDArray[np.float32], int] | None:
    """The a of a layer, or of each of its channels where the exporter has joined a BatchNorm to it; else nothing."""
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


def _facts(generator: Generator) -> dict[str, Any]:
    """What a person should know of the file."""
    facts = {"classes": list(map(str, generator.classes)), "z": generator.z, "shape": list(generator.shape)}
    return {"vitrail": __version__, **facts, "about": plain(generator.about)}


def _difference(path: Path, pictures: nn.Module, generator: Generator, n: int) -> float:
    """How far a batch of the file's pictures is from torch's, at most."""
    import onnxruntime

    inputs = _inputs(generator, n)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (made,) = session.run(["pictures"], {name: x.numpy() for name, x in inputs.items()})
    with torch.no_grad():
        expected = pictures(**inputs).numpy()
    if made.shape != expected.shape:
        raise ValueError(f"pictures of {made.shape} in place of {expected.shape}")
    return float(np.abs(made - expected).max())
