"""One client asked once, through what every engine runs: bytes in, bytes out, nothing but declared parts leave."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vitrail.data.dataset import Images
from vitrail.engines.client import Client
from vitrail.engines.replies import Failure, read_reply
from vitrail.methods.base import Method
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.codecs import Array
from vitrail.wire.message import Header, Kind, Message, encode, make_part

RUN = b"an audit's a run"


@dataclass(frozen=True)
class Answer:
    """What the server read, and what the client kept to itself: an auditor sees both."""

    parts: Mapping[str, Array]
    kept: State


def ask(method: Method, server: State, name: str, pictures: Images, rng: Rng, begun: State | None = None) -> Answer:
    """Ask a client for its first answer: a new one, or one that an auditor let begin with this state."""
    # an auditor's client may have any number of images
    method = replace(method, task=replace(method.task, images=0))  # type: ignore[type-var]
    opened, _ = method.start_round(server, [name], rng.child("server", name))
    told = method.broadcast(opened, name, True)
    parts = tuple(make_part(part, codec, array) for part, (codec, array) in told.parts.items())
    request = encode(Message(Header(Kind.REQUEST, RUN, 0, "server"), parts))
    with tempfile.TemporaryDirectory(prefix="vitrail-audit-") as folder:
        client = Client(name, method, RUN, rng, lambda: pictures, Path(folder))
        if begun is not None:
            client.begin(begun)
        reply = read_reply(client.answer(request), RUN, 0, name, method.reply_spec(), opened)
        if isinstance(reply, Failure | Kind):
            raise VitrailError(f"a client that was to be attacked did not answer: {reply}")
        kept = client.private()
    return Answer({taken.part.name: taken.array for taken in reply}, kept["state"] if kept else {})
