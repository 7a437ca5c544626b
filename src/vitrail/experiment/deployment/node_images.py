"""Images of a node, as its owner's config and the settings of a run select them."""

from __future__ import annotations

import hashlib
import json
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from vitrail.experiment.deployment.node_config import NodeConfig
from vitrail.utils.atomic import file_lock, write_atomically
from vitrail.utils.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.data.dataset import Dataset, Images
    from vitrail.experiment.settings import Settings

T = TypeVar("T")


def image_format(config: NodeConfig, s: Settings) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return shape and label names of the images in a run; images are decoded once until a file changes."""
    from vitrail.data.loading import image_side

    own = (config.classes, config.partition, config.partition_id, config.num_partitions)
    channels, classes = _facts(config, s, _without_details(lambda: _facts_key(config.data, *own)))
    side = image_side(config.data, s.size)
    return (channels, side, side), classes if s.labels == "auto" else ()


def _facts(config: NodeConfig, s: Settings, key: str) -> tuple[int, tuple[str, ...]]:
    """Return number of channels and label names, stored in the node's folder; decode images if `key` has changed."""
    path = config.path / "images.json"
    with file_lock(config.path / ".images.lock"):
        with suppress(OSError, ValueError, KeyError, TypeError):  # missing or damaged: read again
            known = json.loads(path.read_text())
            if known["key"] == key:
                return int(known["channels"]), tuple(map(str, known["classes"]))
        data = node_images(config, s.model_copy(update={"labels": "auto"}))
        facts = {"key": key, "channels": data.shape[0], "classes": data.classes}
        write_atomically(path, json.dumps(facts).encode(), 0o600)
        return data.shape[0], data.classes


def _facts_key(data: str, *settings: Any) -> str:
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


def node_images(config: NodeConfig, s: Settings) -> Dataset:
    """Return the images of a node.

    Args:
        config: The owner's config.
        s: Settings of the run.

    Raises:
        VitrailError: The images cannot be read. The reason is printed here and not part of the text, because it may
            contain a path.
    """
    return _without_details(lambda: _load(config, s))


def _without_details(read: Callable[[], T]) -> T:
    try:
        return read()
    except (VitrailError, OSError):
        print(traceback.format_exc(), file=sys.stderr)
        raise VitrailError("its images cannot be read; see its own log") from None


def _load(config: NodeConfig, s: Settings) -> Dataset:
    from vitrail.data.loading import load

    # A node evaluates nothing, so it trains on all its images; a part for trials is that of a simulated client.
    data = load(config.data, size=s.size, test_fraction=s.test_fraction if config.partition else 0.0)
    if config.classes:
        data = _renumber_labels(data, tuple(word.strip() for word in config.classes.split(",")))
    if not config.partition:
        return data if s.labels == "auto" else data.without_labels()
    from vitrail.experiment.partitioning import partition_from_settings

    own = {"data": config.data, "partition": config.partition, "clients": config.num_partitions}
    data, shares, _ = partition_from_settings(s.model_copy(update=own), data)
    return replace(data, train=data.train.take(shares.indices[config.partition_id]))


def _renumber_labels(data: Dataset, classes: tuple[str, ...]) -> Dataset:
    """The same images with labels numbered in the order of these names."""
    unknown = sorted(set(data.classes) - set(classes))
    if unknown or len(set(classes)) < len(classes):
        raise VitrailError(f"classes={','.join(classes)}: must name every label once, also {', '.join(unknown)}")
    number = np.array([classes.index(name) for name in data.classes], np.int64)

    def renumber(images: Images) -> Images:
        return images if images.labels is None else replace(images, labels=number[images.labels])

    return replace(data, train=renumber(data.train), test=renumber(data.test), classes=classes)
