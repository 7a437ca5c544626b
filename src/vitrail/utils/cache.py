"""Cache of values that are expensive to compute and never change, in files of the user's data folder."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.paths import data_home
from vitrail.utils.state import State, load, save


def cached(kind: str, key: str, compute: Callable[[], State]) -> State:
    """Return a cached value, or compute and store it.

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
    name = blake2b(len(raw).to_bytes(8, "little") + raw, digest_size=16).hexdigest()
    path = data_home() / "cache" / kind / f"{name}.safetensors"
    try:
        found: State = load(path)
        return found
    except (FileNotFoundError, Malformed):
        value = compute()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        save(path, value, private=True)
    except (OSError, VitrailError):
        pass
    return value
