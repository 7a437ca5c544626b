"""Trees of arrays and plain values as safetensors files, which are replaced atomically."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError

from vitrail.utils.atomic import replace_atomically
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.paths import data_home

Tree = Any  # dict (text keys) | list | tuple | tensor | ndarray | bytes | text | number | bool | None
State = dict[str, Tree]
_TREE = "vitrail"  # metadata key of the JSON text


def pack(tree: Tree) -> tuple[dict[str, torch.Tensor], str]:
    """Split a tree into tensors and a JSON text that has the position of each.

    Args:
        tree: Dictionaries with text keys, lists and tuples of tensors, NumPy arrays, bytes, text, finite numbers,
            booleans and None.

    Returns:
        The tensors by name, and the JSON text.

    Raises:
        VitrailError: If the tree contains anything else.
    """
    tensors: dict[str, torch.Tensor] = {}
    seen: set[int] = set()

    def add(kind: str, tensor: torch.Tensor) -> dict[str, str]:
        name, tensor = str(len(tensors)), tensor.detach().to("cpu").contiguous()
        if tensor.data_ptr() in seen:
            tensor = tensor.clone()  # the file format does not allow one array under two names
        seen.add(tensor.data_ptr())
        tensors[name] = tensor
        return {kind: name}

    def walk(node: Tree, path: str) -> Tree:
        if isinstance(node, torch.Tensor):
            return add("tensor", node)
        if isinstance(node, np.ndarray):
            return add("array", torch.from_numpy(np.require(node, requirements=["C", "W"])))
        if isinstance(node, bytes):
            return add("bytes", torch.from_numpy(np.frombuffer(node, np.uint8).copy()))
        if isinstance(node, dict):
            return {"dict": [[k, walk(v, f"{path}/{k}" if path else str(k))] for k, v in node.items()]}
        if isinstance(node, list | tuple):
            return {type(node).__name__: [walk(v, f"{path}/{i}") for i, v in enumerate(node)]}
        if node is None or isinstance(node, str | bool | int) or (isinstance(node, float) and math.isfinite(node)):
            return node
        raise VitrailError(
            f"state at {path!r} is {node!r} ({type(node).__name__}); only arrays and plain finite values can be saved"
        )

    return tensors, json.dumps(walk(tree, ""))


def unpack(tensors: dict[str, torch.Tensor], skeleton: str) -> Tree:
    """Rebuild a tree from the output of `pack`.

    Args:
        tensors: The tensors by name; each may occur once in the tree.
        skeleton: The JSON text.

    Raises:
        ValueError: If the text is not an output of `pack`. Other exceptions are possible; `loads` handles them.
    """
    unused = dict(tensors)

    def walk(node: Tree) -> Tree:
        if isinstance(node, list):
            raise ValueError("a list without its kind")
        if not isinstance(node, dict):
            return node
        ((kind, value),) = node.items()
        if kind in ("tensor", "array", "bytes") and value in tensors and value not in unused:
            raise ValueError(f"tensor {value!r} is used twice")
        match kind:
            case "tensor":
                return unused.pop(value)
            case "array":
                return unused.pop(value).numpy()
            case "bytes":
                return unused.pop(value).numpy().tobytes()
            case "dict":
                return {k: walk(v) for k, v in value}
            case "list":
                return [walk(v) for v in value]
            case "tuple":
                return tuple(walk(v) for v in value)
        raise ValueError(kind)

    return walk(json.loads(skeleton))


def tree_digest(tree: Tree) -> str:
    """Return a hash of the values of a tree; it is the same before saving and after loading.

    Examples:
        >>> tree_digest({"a": np.zeros(2)}) == tree_digest({"a": np.zeros(2)}) != tree_digest({"a": np.ones(2)})
        True
    """
    tensors, skeleton = pack(tree)
    h = hashlib.blake2b(skeleton.encode(), digest_size=32)
    for name, tensor in tensors.items():
        h.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        h.update(tensor.flatten().view(torch.uint8).numpy().data)
    return h.hexdigest()


def finite(tree: Tree) -> bool:
    """Return whether all numbers of a tree are finite.

    Examples:
        >>> finite({"a": [1.0, np.zeros(2)]}), finite({"a": [1.0, np.array(np.nan)]})
        (True, False)
    """
    if isinstance(tree, dict):
        return all(map(finite, tree.values()))
    if isinstance(tree, list | tuple):
        return all(map(finite, tree))
    if isinstance(tree, torch.Tensor):
        return bool(torch.isfinite(tree).all())
    if isinstance(tree, np.ndarray):
        return tree.dtype.kind != "f" or bool(np.isfinite(tree).all())
    return not isinstance(tree, float) or math.isfinite(tree)


def save(path: Path, tree: Tree, *, private: bool = False) -> None:
    """Write a tree to a file, atomically.

    Args:
        path: The file; its folder must exist.
        tree: See `pack`.
        private: Whether only the owner may read the file.

    Raises:
        VitrailError: If the tree has values that cannot be saved, or the file cannot be written.

    Examples:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "state.safetensors"
        >>> save(path, {"round": 3, "w": np.ones(2, np.float32)})
        >>> load(path)
        {'round': 3, 'w': array([1., 1.], dtype=float32)}
    """
    tensors, skeleton = pack(tree)
    with replace_atomically(path, 0o600 if private else 0o644) as part:
        # Only one key of metadata: the library writes several in arbitrary order.
        safetensors.torch.save_file(tensors, part, {_TREE: skeleton})


def load(path: Path) -> Tree:
    """Read a tree from a file that `save` wrote.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If there is no such file.
        Malformed: If the file is damaged or of another format.
    """
    try:
        # From bytes: the library's file reader calls Python code, where Ctrl-C is reported as a damaged file.
        raw = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as e:
        raise Malformed(f"{path} is damaged or not a vitrail file ({type(e).__name__}: {e})") from e
    return loads(raw, str(path))


def loads(raw: bytes, name: str) -> Tree:
    """Read a tree from the bytes of a file.

    Args:
        raw: The content of the file.
        name: The file's name in error messages.

    Raises:
        Malformed: If the bytes are damaged or of another format.
    """
    try:
        tensors = safetensors.torch.load(raw)
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        return unpack(tensors, header["__metadata__"][_TREE])
    except (SafetensorError, KeyError, ValueError, TypeError, RecursionError, AssertionError) as e:
        raise Malformed(f"{name} is damaged or not a vitrail file ({type(e).__name__}: {e})") from e


def cached(kind: str, key: str, compute: Callable[[], State]) -> State:
    """Return a value that never changes from a file in the user's data folder, or compute and store it.

    The file is readable by its owner only, because values may be derived from private images. If it cannot be written,
    the value is computed again next time.

    Args:
        kind: Sub-folder of the cache.
        key: Text that identifies the value among its kind, such as a digest of all inputs.
        compute: Function that computes the value.

    Returns:
        The value: a dictionary of arrays and plain values.
    """
    raw = key.encode()
    name = hashlib.blake2b(len(raw).to_bytes(8, "little") + raw, digest_size=16).hexdigest()
    path = data_home() / "cache" / kind / f"{name}.safetensors"
    try:
        return load(path)
    except (FileNotFoundError, Malformed):
        value = compute()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        save(path, value, private=True)
    except (OSError, VitrailError):
        pass
    return value
