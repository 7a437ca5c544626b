"""Description of a run that nodes are sent: its settings without those of the server alone, and the shared task."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from vitrail.utils.errors import Malformed


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
