"""Number of channels and label names of a node's images, stored so that these are decoded once, not for each asker."""

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
    """What a description needs that only the images themselves tell."""

    channels: int
    classes: tuple[str, ...]


def stored_facts(place: Path, key: str, read: Callable[[], ImageFacts]) -> ImageFacts:
    """Return the facts stored in a folder under this key, or read and store them.

    Args:
        place: the node's folder.
        key: changes whenever the facts may have changed.
        read: decodes the images; called by one process at a time, and not at all where the key is the stored one.
    """
    path = place / "images.json"
    with file_lock(place / ".images.lock"):
        try:
            known = json.loads(path.read_text())
            if known["key"] == key:
                return ImageFacts(int(known["channels"]), tuple(map(str, known["classes"])))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not there yet, or damaged: read again
        found = read()
        text = json.dumps({"key": key, "channels": found.channels, "classes": found.classes})
        write_atomically(path, text.encode(), 0o600)
        return found


def facts_key(data: str, *settings: Any) -> str:
    """A digest of where the images are, of these settings, and of every file's name, size and time of change.

    Args:
        data: as in a node config; official data sets never change, so their files are not looked at.
        settings: what else the facts depend on.
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
