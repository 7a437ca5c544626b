"""Which node is which client: nodes come, describe themselves, go, and come back under another number."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace

from flwr.app import Message
from flwr.serverapp import Grid

from vitrail.engines.flower.description import Description
from vitrail.engines.flower.messages import DESCRIBE, packed, unpacked
from vitrail.engines.flower.run_spec import RunSpec
from vitrail.engines.signing.client import NONCE, asked_under
from vitrail.engines.signing.server import SigningServer
from vitrail.utils.errors import VitrailError, printable, reason_of
from vitrail.utils.keys import SIGNATURE

EVERY = 2.0  # seconds between two looks at who is there
GRACE = 30.0  # seconds that a client may be without a node before it counts as not connected
PAUSE = 10.0  # seconds before a node that could not describe itself is asked again; twice as many each time


class Roster:
    """The nodes of a run by the names of its clients."""

    def __init__(
        self,
        grid: Grid,
        terms: RunSpec,
        timeout: float,
        check: Callable[[], None] = lambda: None,
        proof: SigningServer | None = None,
    ) -> None:
        self.grid, self.terms, self.timeout, self.check = grid, terms, timeout, check
        self.proof = proof  # who signs what; None: in a simulation nobody does
        self.wanted: Collection[str] | None = None  # the clients of the run, once they are known
        self.found: dict[int, Description] = {}  # nodes that are there and have described themselves
        self.refused: dict[int, str] = {}  # nodes that take no part, and why
        self.asked: dict[str, tuple[int, bytes]] = {}  # messages that ask for a description: to which node, what
        self.failed: dict[int, tuple[int, float]] = {}  # nodes that could not say, how often, and when to ask again
        self.missed: dict[str, float] = {}  # clients without a node, and since when
        self.looked = 0.0

    def told(self) -> str:
        """What all messages say of the run."""
        return self.terms.text()

    def look(self) -> None:
        """See who is there now, ask newcomers what they are, and hear what was said."""
        self.check()
        if time.monotonic() - self.looked >= (EVERY if self.found and not self.asked else EVERY / 10):
            there = set(self.grid.get_node_ids())
            self.found = {node: d for node, d in self.found.items() if node in there}
            self.refused = {node: why for node, why in self.refused.items() if node in there}
            self.asked = {message: asked for message, asked in self.asked.items() if asked[0] in there}
            resting = {node for node, (_, until) in self.failed.items() if time.monotonic() < until}
            waiting = {node for node, _ in self.asked.values()}
            for node in sorted(there - set(self.found) - set(self.refused) - waiting - resting):
                nonce, terms = secrets.token_bytes(NONCE), self.terms.text()
                carried = self.proof.sign("", nonce, DESCRIBE) if self.proof else b""
                query = Message(packed(terms, carried), node, DESCRIBE, ttl=self.timeout)
                asked = node, asked_under(nonce, terms)
                self.asked |= {message: asked for message in self.grid.push_messages([query]) if message}
            self.looked = time.monotonic()
        if self.asked:
            for reply in self.grid.pull_messages(list(self.asked)):
                if (message := reply.metadata.reply_to_message_id) in self.asked:
                    self._hear(*self.asked.pop(message), reply)

    def _hear(self, node: int, asked: bytes, reply: Message) -> None:
        if reply.has_error():  # its machine may be too busy: asking at once would make it busier
            times = self.failed.get(node, (0, 0.0))[0]
            self.failed[node] = times + 1, time.monotonic() + PAUSE * 2**times
            return
        try:
            text, signature = unpacked(reply, SIGNATURE)
            found = Description.read(text)
            if self.proof:
                self.proof.proven(found.name, found.public, asked, text.encode(), signature, DESCRIBE)
            self.found[node] = found
        except Exception as e:  # whatever one node says, the run goes on without it
            self.refused[node] = reason_of(e)

    def node(self, client: str) -> int | None:
        """The node of a client, if it is there and holds what it should; of one node's two numbers the newest."""
        same = [node for node, d in self.found.items() if d.name == client and self._problem(d) is None]
        if not same:
            self.missed.setdefault(client, time.monotonic())
            return None
        self.missed.pop(client, None)
        first = self.found[same[0]].key
        return [node for node in same if self.found[node].key == first][-1]

    def lost(self, client: str) -> bool:
        """Whether not to wait for a client: it has had no node for too long, or its node refused."""
        if self.node(client) is not None:
            return False
        too_long = time.monotonic() - self.missed[client] > min(GRACE, self.timeout)
        return too_long or self.refusal(client) is not None

    def refusal(self, client: str) -> str | None:
        """Why a node of this name takes no part, in its own words; None: no node said so."""
        said = (why.removeprefix(f"{client}: ") for why in self.refused.values() if why.startswith(f"{client}: "))
        return next(said, None)

    def _problem(self, d: Description) -> str | None:
        t = self.terms
        if not t.shape:
            return None
        if d.shape != t.shape:
            return f"its pictures are {_sizes(d.shape)}, the others' are {_sizes(t.shape)}"
        classes = t.classes if t.settings.get("labels", "auto") == "auto" else d.classes
        if d.classes != classes:
            return f"its labels are {', '.join(d.classes) or 'none'}; the others' are {', '.join(classes) or 'none'}"
        return None

    def problems(self) -> list[str]:
        """Which nodes take no part, and why."""
        found = list(self.refused.values())
        for d in self.found.values():
            node = self.node(d.name)
            if why := self._problem(d):
                found.append(f"{d.name}: {why}")
            elif node is not None and self.found[node].key != d.key:
                found.append(f"{d.name}: another node has this name already")
            elif self.wanted is not None and d.name not in self.wanted:
                found.append(f"{d.name}: the run began without it")
        return sorted(map(printable, found))

    def gather(self, clients: int) -> list[str]:
        """Wait until so many nodes hold pictures of one kind; sets the terms' shape and classes to theirs."""
        end = time.monotonic() + self.timeout
        while True:
            self.look()
            kinds = Counter((d.shape, d.classes) for d in self.found.values())
            if kinds:
                (shape, classes), _ = kinds.most_common(1)[0]
                self.terms = replace(self.terms, shape=shape, classes=classes)
            names = sorted({d.name for d in self.found.values() if self.node(d.name) is not None})
            if len(names) >= clients and not self.asked:
                return names[:clients]
            if time.monotonic() > end:
                others = "; ".join(self.problems())
                raise VitrailError(
                    f"{len(names)} of {clients} nodes are there after {self.timeout:g} s ({', '.join(names) or 'none'})"
                    f"{f'; {others}' if others else ''}; start the others, or set clients={max(1, len(names))}"
                )
            time.sleep(0.1)

    def wait(self, names: Collection[str], seconds: float) -> None:
        """Wait for the nodes of these clients, but not for ever: who is missing is left out of its rounds."""
        end = time.monotonic() + seconds
        while True:
            self.look()
            if all(self.node(name) is not None for name in names) or time.monotonic() > end:
                return
            time.sleep(0.05)


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
