"""Number of channels and label names of a node's images, stored so that images are not decoded for each request."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.utils.atomic import file_lock, write_atomically


@dataclass(frozen=True)
class ImageFacts:
    """Facts for a node's description that require decoding images."""

    channels: int
    classes: tuple[str, ...]


def stored_facts(folder: Path, key: str, read: Callable[[], ImageFacts]) -> ImageFacts:
    """Return the facts stored in a folder under this key, or read and store them.

    Args:
        folder: The node's folder.
        key: Changes whenever the facts may have changed.
        read: Decodes the images; called by one process at a time, and only if the key differs from the stored one.
    """
    path = folder / "images.json"
    with file_lock(folder / ".images.lock"):
        try:
            known = json.loads(path.read_text())
            if known["key"] == key:
                return ImageFacts(int(known["channels"]), tuple(map(str, known["classes"])))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # missing or damaged: read again
        found = read()
        text = json.dumps({"key": key, "channels": found.channels, "classes": found.classes})
        write_atomically(path, text.encode(), 0o600)
        return found


def facts_key(data: str, *settings: Any) -> str:
    """Return a digest of the source, of these settings, and of every file's name, size and modification time.

    Args:
        data: Source of the images; files of official datasets never change, so they are not included.
        settings: Other values that the facts depend on.
    """
    from vitrail.data.sources.folder import image_files
    from vitrail.data.specs import parse_source

    source, files = parse_source(data), []
    if source.name in ("folder", "npz"):
        root = Path(source.argument).expanduser()
        for path in image_files(root) if root.is_dir() else [root]:
            found = path.stat()
            files.append((str(path), found.st_size, found.st_mtime_ns))
    return hashlib.sha256(json.dumps([data, settings, files]).encode()).hexdigest()
