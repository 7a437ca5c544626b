"""What goes wrong and what to do about it."""

from __future__ import annotations

import difflib
import logging
import traceback
import unicodedata
from collections.abc import Iterable

_LOG = logging.getLogger("vitrail")


class VitrailError(Exception):
    """A refusal that says what was given, what was expected and what to do."""


class Malformed(VitrailError):
    """Bytes or a file that are not what they claim to be; nothing of them was used."""


class Refused(VitrailError):
    """A refusal by a client's owner: the text is for the owner, `public` is all that a server is sent.

    Args:
        reason: why, with numbers and the remedy.
        public: a fixed category without any of that.
    """

    def __init__(self, reason: str, public: str) -> None:
        super().__init__(reason)
        self.public = public


def printable(text: str, most: int | None = 500) -> str:
    """Make text of another party safe to print: one line without control characters.

    Control, format (such as bidirectional overrides) and surrogate characters are replaced, and so are line breaks.
    Text that goes to rich must also be escaped (`rich.markup.escape`).

    Args:
        text: Any text.
        most: Largest number of characters returned; None: all.

    Returns:
        The text on one line.

    >>> printable("\\x1b[2Jnorth\\r\\nsouth")
    '�[2Jnorth  south'
    """
    return "".join(map(_shown, text[:most]))


def _shown(c: str) -> str:
    if c.isprintable() or unicodedata.category(c) == "Zs":
        return c
    return " " if c.isspace() else "�"


def reason_of(e: Exception) -> str:
    """Describe an exception that was caused by another party's message.

    Args:
        e: The exception, within its `except` block.

    Returns:
        The text of a VitrailError; the type's name of any other exception, whose traceback is logged.
    """
    if isinstance(e, VitrailError):
        return printable(str(e))
    _LOG.warning("%s", "\n".join(printable(line) for line in traceback.format_exc().splitlines()))
    return type(e).__name__


def nearest(word: str, known: Iterable[str]) -> str:
    """A half-sentence that names the nearest known word, or all of them when none is near.

    >>> nearest("minst", ["mnist", "svhn"])
    'did you mean mnist?'
    >>> nearest("x", ["mnist", "svhn"])
    'known are mnist, svhn'
    """
    known = list(known)
    lower = {k.lower(): k for k in known}
    close = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.5)
    return f"did you mean {lower[close[0]]}?" if close else f"known are {', '.join(known)}"
