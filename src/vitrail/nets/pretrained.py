"""Pretrained weights: finding or downloading their file, reading it, and checking its tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from vitrail.data.lookup import ASSETS
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.wire.message import digest

AGAIN = "Delete the file and download it again, or install the package again."


def find_weights(setting: str, names: Sequence[str], url: str, home: Path) -> Path:
    """Find the file of a network's weights: in VITRAIL_ASSETS, among earlier downloads, or by downloading it now.

    Args:
        setting: The setting that needs the weights; errors begin with it.
        names: Other file names that are accepted in VITRAIL_ASSETS.
        url: The address. It ends in the official name, whose stem ends in the first digits of the file's SHA-256.
        home: Folder for downloads.

    Raises:
        VitrailError: If the file is not found and cannot be downloaded.
    """
    official = url.rpartition("/")[2]
    assets = os.environ.get(ASSETS)
    target = home / "downloads" / "weights" / official
    given = Path(assets).expanduser() / "weights" if assets else None
    paths = [*(given / name for name in (*names, official)), target] if given else [target]
    if found := next(filter(Path.is_file, paths), None):
        return found
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(target), hash_prefix=Path(official).stem.rpartition("-")[2])
    except (OSError, RuntimeError, HTTPException) as problem:  # no network or space; wrong checksum; interrupted
        raise VitrailError(
            f"{setting}: the file {official} is missing.\n"
            f"  Looked for{'' if assets else f' ({ASSETS} is not set)'}: {'; '.join(map(str, paths))}.\n"
            f"  Download: {url} failed ({problem}).\n"
            f"  Remedies: connect to the internet and run again; or put {official} into the folder "
            f"{given or f'weights of any folder and set {ASSETS} to that folder'}."
        ) from problem
    return target


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a .safetensors or .pth file; no code of the file is run."""
    safe = path.suffix == ".safetensors"
    try:
        tensors = load_file(path) if safe else torch.load(path, "cpu", weights_only=True)
    except (SafetensorError, UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as problem:
        raise Malformed(f"{path}: its weights cannot be read ({problem}). {AGAIN}") from problem
    if not isinstance(tensors, dict):
        raise Malformed(f"{path}: contains a {type(tensors).__name__}; expected named tensors. {AGAIN}")
    return {key: t for key, t in tensors.items() if isinstance(t, Tensor)}


def take(tensors: Mapping[str, Tensor], key: str, shape: Sequence[int], path: Path) -> Tensor:
    """Return the tensor of this name if it has this shape and is finite; `path` is for the error."""
    given = tensors.get(key)
    if given is None or given.shape != tuple(shape) or not given.isfinite().all():
        found = "is missing" if given is None else f"is {tuple(given.shape)}, {given.dtype}"
        raise Malformed(f"{path}: {key} {found}; expected {tuple(shape)}, all finite. {AGAIN}")
    return given


def weights_digest(net: nn.Module) -> str:
    """Return a hash of a network's weights."""
    return digest(*(t.detach().cpu().numpy().tobytes() for t in net.state_dict().values())).hex()
