"""Texts that server and node exchange before a run, as JSON: the run's specification, and a node's description."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from vitrail.utils.errors import Malformed, VitrailError, printable

MAX_CLASSES = 10_000
SHAPES = (range(1, 5), range(1, 4097), range(1, 4097))  # channels, height, width, as in data/resize.py


@dataclass(frozen=True)
class RunSpec:
    """A run as a node sees it; before all nodes are known, only the settings are set.

    Args:
        settings: Settings of the run that all parties share.
        id: Id of the run, in hexadecimal.
        shape: Channels, height and width of the images.
        classes: Names of the labels; empty: unlabelled.
        clients: Number of clients.
    """

    settings: dict[str, Any]
    id: str = ""
    shape: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
    clients: int = 0

    def text(self) -> str:
        """Encode as JSON; signatures of requests cover this text."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def read(text: str) -> RunSpec:
        """Decode the JSON text of a specification.

        Raises:
            Malformed: The text is not a specification.
        """
        try:
            found = json.loads(text)
            shape, classes = tuple(map(int, found["shape"])), tuple(map(str, found["classes"]))
            run = bytes.fromhex(found["id"]).hex()
            return RunSpec(dict(found["settings"]), run, shape, classes, int(found["clients"]))
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise Malformed(f"the specification of the run cannot be read: {type(e).__name__}") from None


@dataclass(frozen=True)
class Description:
    """A node and the format of its images.

    Args:
        name: Name of the node.
        key: Its public key in hexadecimal; distinguishes a restarted node from another one of the same name.
        shape: Channels, height and width of its images.
        classes: Names of its labels.
        images: Largest number of its images, as its owner declares; 0: not declared.
    """

    name: str
    key: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    images: int = 0

    def text(self) -> str:
        """Encode as JSON."""
        return json.dumps(asdict(self))

    @property
    def public(self) -> bytes:
        """The public key as bytes."""
        return bytes.fromhex(self.key)

    @staticmethod
    def read(text: str) -> Description:
        """Read a description that a node sent.

        Args:
            text: Text from a node; it may be anything.

        Returns:
            The description, with all fields checked.

        Raises:
            VitrailError: The node refuses to take part, with its reason, or the text is not a description.
        """
        try:
            found = json.loads(text)
            if "refuses" in found:
                name, reason = printable(str(found.get("name", "")), 60), printable(str(found["refuses"]))
                raise VitrailError(f"{name}: {reason}".removeprefix(": "))
            name, key, shape, classes, images = (found[f] for f in ("name", "key", "shape", "classes", "images"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            raise Malformed(f"its description cannot be read: {type(e).__name__}") from None
        if not _is_name(name):
            raise Malformed("its name is not 1 to 255 bytes of printable text")
        if not (isinstance(key, str) and re.fullmatch("[0-9a-f]{64}", key)):
            raise Malformed(f"{name}: its key is not 64 hexadecimal digits")
        if not (isinstance(shape, list) and len(shape) == 3 and all(map(_is_int_in, shape, SHAPES))):
            raise Malformed(f"{name}: its images have an impossible shape")
        if not (isinstance(classes, list) and len(classes) <= MAX_CLASSES and all(map(_is_name, classes))):
            raise Malformed(f"{name}: its labels are not at most {MAX_CLASSES:,} names of 1 to 255 printable bytes")
        if len(set(classes)) < len(classes):
            raise Malformed(f"{name}: two of its labels have the same name")
        if not _is_int_in(images, range(10**9)):
            raise Malformed(f"{name}: it declares an impossible number of images")
        return Description(name, key, tuple(shape), tuple(classes), images)


def _is_name(text: object) -> bool:
    return isinstance(text, str) and text == printable(text, 256) and 1 <= len(text.encode()) <= 255


def _is_int_in(n: object, bounds: range) -> bool:
    return type(n) is int and n in bounds
