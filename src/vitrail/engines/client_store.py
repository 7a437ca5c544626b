"""A client's private file: its state and the answers of its last round, stored together or not at all."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from vitrail.utils import state as store
from vitrail.utils.atomic import file_lock, write_atomically
from vitrail.utils.errors import VitrailError
from vitrail.utils.paths import private_file
from vitrail.utils.state import State
from vitrail.wire.message import NO_BASE


@dataclass(frozen=True)
class ClientStore:
    """The private file of one client in one run.

    Keys of the stored tree: `run`, `round`, `state` (the method's), `holds` (name of the state that the server may
    build on), `trained`, `answered` (requests and replies of this round), `begun` (the request in progress), `given`
    and `failed` (numbers of answers computed from images), `secrets` (secure aggregation).
    """

    folder: Path
    name: str
    run: bytes

    @property
    def path(self) -> Path:
        """The file."""
        return private_file(self.folder, self.name)

    def load(self) -> State | None:
        """Return the stored tree, or None before the first round.

        Raises:
            VitrailError: The file belongs to another run.
        """
        try:
            stored: State = store.load(self.path)
        except FileNotFoundError:
            return None
        if stored.get("run") != self.run:
            raise VitrailError(f"{self.path.name} belongs to another run; move it away or use another folder")
        return stored

    def save(self, tree: State) -> None:
        """Replace the stored tree; only the owner can read the file."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        store.save(self.path, tree, private=True)

    def save_initial(self, state: State) -> None:
        """Store a state of the method as that of a client which has not answered yet."""
        self.save({"run": self.run, "holds": NO_BASE, "trained": False, "round": -1, "answered": [], "state": state})

    def save_error(self, text: str) -> None:
        """Store the traceback of an error for the owner."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self.path.with_suffix(".error.txt"), text.encode(), 0o600)

    def lock(self) -> AbstractContextManager[None]:
        """Wait until no other process answers for this client."""
        return file_lock(self.folder / ".lock")
