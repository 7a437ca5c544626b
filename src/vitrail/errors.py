"""What goes wrong and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
