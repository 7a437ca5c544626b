"""What a node says of itself before a run, and the checks that it passes before anything else of it is known."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from vitrail.utils.errors import Malformed, VitrailError, printable

MOST_CLASSES = 10_000
SHAPES = (range(1, 5), range(1, 4097), range(1, 4097))  # channels, height, width: as data/resize.py allows


@dataclass(frozen=True)
class Description:
    """What a node says of itself: who it is, and what images it has; not where, and how many only if its owner says."""

    name: str
    key: str  # its public key; tells a node that was restarted from another one of the same name
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    images: int = 0  # the most that it has, as its owner declares; 0: not declared

    def text(self) -> str:
        """As it travels."""
        return json.dumps(asdict(self))

    @property
    def public(self) -> bytes:
        """The key that it signs with."""
        return bytes.fromhex(self.key)

    @staticmethod
    def read(text: str) -> Description:
        """Read a description that a node sent.

        Args:
            text: What came; nothing is known of it.

        Returns:
            The description: name, key, shape and classes have been checked.

        Raises:
            VitrailError: The node refuses to take part, in its own words, or the text is no description.
        """
        try:
            found = json.loads(text)
            if "refuses" in found:
                who, why = printable(str(found.get("name", "")), 60), printable(str(found["refuses"]))
                raise VitrailError(f"{who}: {why}".removeprefix(": "))
            name, key, shape, classes = (found[field] for field in ("name", "key", "shape", "classes"))
            images = found.get("images", 0)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            raise Malformed(f"its description cannot be read: {type(e).__name__}") from None
        if not _is_name(name):
            raise Malformed("its name is not 1 to 255 bytes of printable text")
        if not (isinstance(key, str) and re.fullmatch("[0-9a-f]{64}", key)):
            raise Malformed(f"{name}: its key is not 64 hexadecimal digits")
        if not (isinstance(shape, list) and len(shape) == 3 and all(map(_in, shape, SHAPES))):
            raise Malformed(f"{name}: its pictures have an impossible shape")
        if not (isinstance(classes, list) and len(classes) <= MOST_CLASSES and all(map(_is_name, classes))):
            raise Malformed(f"{name}: its labels are not at most {MOST_CLASSES:,} names of 1 to 255 printable bytes")
        if len(set(classes)) < len(classes):
            raise Malformed(f"{name}: two of its labels have the same name")
        if not _in(images, range(10**9)):
            raise Malformed(f"{name}: it declares an impossible number of images")
        return Description(name, key, tuple(shape), tuple(classes), images)


def _is_name(text: object) -> bool:
    return isinstance(text, str) and text == printable(text, 256) and 1 <= len(text.encode()) <= 255


def _in(n: object, bounds: range) -> bool:
    return type(n) is int and n in bounds
