"""Nodes by client: nodes connect, describe themselves, disconnect, and return under another id."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from flwr.app import Message
from flwr.serverapp import Grid

from vitrail.engines.flower.descriptions import Description, RunSpec
from vitrail.engines.flower.messages import pack, unpack
from vitrail.engines.signing.client import DESCRIBE, NONCE, description_request
from vitrail.engines.signing.server import SigningServer
from vitrail.utils.errors import VitrailError, printable, reason_of
from vitrail.utils.keys import SIGNATURE

INTERVAL = 2.0  # seconds between two updates of the connected nodes
GRACE = 30.0  # seconds that a client may be without a node before it counts as not connected
RETRY_DELAY = 10.0  # seconds before a node that failed to describe itself is queried again; doubled each time


@dataclass
class Roster:
    """The nodes of a run by the names of its clients.

    Args:
        grid: Flower's connection to the nodes.
        spec: Specification of the run.
        timeout: Seconds in which a node must reply.
        check: Called at each update; raises if waiting is useless.
        signing: Signs queries and verifies descriptions; None: in a simulation.
    """

    grid: Grid
    spec: RunSpec
    timeout: float
    check: Callable[[], None] = lambda: None
    signing: SigningServer | None = None

    def __post_init__(self) -> None:
        self.expected: Collection[str] | None = None  # the clients of the run, once they are known
        self.found: dict[int, Description] = {}  # connected nodes that have described themselves
        self.refused: dict[int, str] = {}  # nodes that take no part, with the reason
        self.queries: dict[str, tuple[int, bytes]] = {}  # by message: the node, and what its signature must cover
        self.failed: dict[int, tuple[int, float]] = {}  # failed queries: how many, and when to query again
        self.missing_since: dict[str, float] = {}  # clients without a node
        self.updated = 0.0

    def spec_text(self) -> str:
        """Return the specification that all messages have."""
        return self.spec.text()

    def update(self) -> None:
        """Update the connected nodes, query new ones, and read descriptions that have arrived."""
        self.check()
        if time.monotonic() - self.updated >= (INTERVAL if self.found and not self.queries else INTERVAL / 10):
            connected = set(self.grid.get_node_ids())
            self.found = {node: d for node, d in self.found.items() if node in connected}
            self.refused = {node: why for node, why in self.refused.items() if node in connected}
            self.queries = {message: query for message, query in self.queries.items() if query[0] in connected}
            resting = {node for node, (_, until) in self.failed.items() if time.monotonic() < until}
            queried = {node for node, _ in self.queries.values()}
            for node in sorted(connected - set(self.found) - set(self.refused) - queried - resting):
                self._query(node)
            self.updated = time.monotonic()
        if self.queries:
            for reply in self.grid.pull_messages(list(self.queries)):
                if (message := reply.metadata.reply_to_message_id) in self.queries:
                    self._read(*self.queries.pop(message), reply)

    def _query(self, node: int) -> None:
        nonce, text = secrets.token_bytes(NONCE), self.spec.text()
        signed = self.signing.sign("", nonce, DESCRIBE) if self.signing else b""
        message = Message(pack(text, signed), node, DESCRIBE, ttl=self.timeout)
        query = node, description_request(nonce, text)
        self.queries |= {pushed: query for pushed in self.grid.push_messages([message]) if pushed}

    def _read(self, node: int, request: bytes, reply: Message) -> None:
        if reply.has_error():  # its machine may be overloaded: wait before the next query
            times = self.failed.get(node, (0, 0.0))[0]
            self.failed[node] = times + 1, time.monotonic() + RETRY_DELAY * 2**times
            return
        try:
            text, signature = unpack(reply, SIGNATURE)
            found = Description.read(text)
            if self.signing:
                self.signing.verify_description(found.name, found.public, request, text.encode(), signature, DESCRIBE)
            self.found[node] = found
        except Exception as e:  # one node's description must not stop the run
            self.refused[node] = reason_of(e)

    def node(self, client: str) -> int | None:
        """Return the connected node of a client; the newest if it is connected twice; None: there is none."""
        same = [node for node, d in self.found.items() if d.name == client and self._problem(d) is None]
        if not same:
            self.missing_since.setdefault(client, time.monotonic())
            return None
        self.missing_since.pop(client, None)
        first = self.found[same[0]].key
        return [node for node in same if self.found[node].key == first][-1]

    def lost(self, client: str) -> bool:
        """Whether not to wait for a client: it has had no node for too long, or its node refused."""
        if self.node(client) is not None:
            return False
        too_long = time.monotonic() - self.missing_since[client] > min(GRACE, self.timeout)
        return too_long or self.refusal(client) is not None

    def refusal(self, client: str) -> str | None:
        """Return the reason why a client's node refuses to take part; None: it does not refuse."""
        reasons = (why.removeprefix(f"{client}: ") for why in self.refused.values() if why.startswith(f"{client}: "))
        return next(reasons, None)

    def _problem(self, d: Description) -> str | None:
        spec = self.spec
        if not spec.shape:
            return None
        if d.shape != spec.shape:
            return f"its images are {_sizes(d.shape)}, those of the run {_sizes(spec.shape)}"
        classes = spec.classes if spec.settings.get("labels", "auto") == "auto" else d.classes
        if d.classes != classes:
            return f"its labels are {', '.join(d.classes) or 'none'}; those of the run {', '.join(classes) or 'none'}"
        return None

    def problems(self) -> list[str]:
        """Return the nodes that take no part, with the reasons."""
        found = list(self.refused.values())
        for d in self.found.values():
            node = self.node(d.name)
            if why := self._problem(d):
                found.append(f"{d.name}: {why}")
            elif node is not None and self.found[node].key != d.key:
                found.append(f"{d.name}: another node already has this name")
            elif self.expected is not None and d.name not in self.expected:
                found.append(f"{d.name}: the run started without it")
        return sorted(map(printable, found))

    def gather(self, clients: int) -> list[str]:
        """Wait for nodes with images of one format; set the shape and classes of the specification to theirs.

        Args:
            clients: Number of nodes.

        Returns:
            Names of the nodes.

        Raises:
            VitrailError: There are too few nodes after the timeout.
        """
        end = time.monotonic() + self.timeout
        while True:
            self.update()
            formats = Counter((d.shape, d.classes) for d in self.found.values())
            if formats:
                (shape, classes), _ = formats.most_common(1)[0]
                self.spec = replace(self.spec, shape=shape, classes=classes)
            names = sorted({d.name for d in self.found.values() if self.node(d.name) is not None})
            if len(names) >= clients and not self.queries:
                return names[:clients]
            if time.monotonic() > end:
                refused = self.problems()
                nodes = "1 is" if len(refused) == 1 else f"{len(refused)} are"
                why = f"{nodes} connected and refused: {'; '.join(refused)}" if refused else "start the others"
                raise VitrailError(
                    f"{len(names)} of {clients} nodes take part after {self.timeout:g} s "
                    f"({', '.join(names) or 'none'}); {why}" + (f"; or set clients={len(names)}" if names else "")
                )
            time.sleep(0.1)

    def wait(self, names: Collection[str], seconds: float) -> None:
        """Wait for the nodes of these clients, at most this long; clients without a node are excluded from rounds."""
        end = time.monotonic() + seconds
        while True:
            self.update()
            if all(self.node(name) is not None for name in names) or time.monotonic() > end:
                return
            time.sleep(0.05)


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
