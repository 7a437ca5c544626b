"""Exceptions, and safe printing of text from other parties."""

from __future__ import annotations

import difflib
import logging
import traceback
import unicodedata
from collections.abc import Iterable
from pathlib import Path

SIMILAR = 0.6  # similarity from which a known word is suggested for an unknown one
_LOG = logging.getLogger("vitrail")


class VitrailError(Exception):
    """Base of all errors that a user can fix: the text has what was given, what was expected and what to do."""


class MissingFiles(VitrailError):
    """A file or folder of images that is not where it was named.

    Args:
        what: What was given and is missing.
        path: Where it was expected.
        remedy: What to give.
    """

    def __init__(self, what: str, path: Path, remedy: str) -> None:
        looked = "" if path.is_absolute() else f" (looked in {Path.cwd()})"
        super().__init__(f"{what} {path}{looked}; {remedy}")


class Malformed(VitrailError):
    """Invalid bytes or an invalid file; no part of the content was used."""


class Refused(VitrailError):
    """A refusal by a client's owner: the text is for the owner, only `public` is sent to the server.

    Args:
        reason: The reason with numbers and the remedy.
        public: A fixed category without details.
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
        most: Maximum number of characters returned; None: all.

    Returns:
        The text on one line.

    Examples:
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
        The text of a VitrailError. For any other exception, the name of its type; the traceback is logged.
    """
    if isinstance(e, VitrailError):
        return printable(str(e))
    _LOG.warning("%s", "\n".join(printable(line) for line in traceback.format_exc().splitlines()))
    return type(e).__name__


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggest the known word that is most similar to a given one, for the end of an error message.

    Args:
        word: The unknown word.
        known: All known words.

    Returns:
        A clause with the most similar word, or with all known words if none is similar.

    Examples:
        >>> nearest("minst", ["mnist", "svhn"])
        'did you mean mnist?'
        >>> nearest("gaussian", ["mnist", "svhn"])
        'known are mnist, svhn'
    """
    known = list(known)
    lower = {k.lower(): k for k in known}
    close = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=SIMILAR)
    return f"did you mean {lower[close[0]]}?" if close else f"known are {', '.join(known)}"
