"""One request to one client, through the code that every engine runs: only declared parts leave."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
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


def request_reply(
    method: Method, server: State, name: str, images: Images, rng: Rng, start: State | None = None
) -> tuple[Mapping[str, Array], State]:
    """Request the first reply of a client.

    Args:
        method: The run's method.
        server: The server's state.
        name: The client's name.
        images: The client's images; any number is accepted.
        rng: Randomness of the round.
        start: The client's private state before the request; None: that of a new client.

    Returns:
        The reply's parts by name, as the server read them; and the client's private state afterwards.

    Raises:
        VitrailError: The client did not reply.
    """
    method = replace(method, task=replace(method.task, images=0))
    started, _ = method.start_round(server, [name], rng.child("server", name))
    sent = method.broadcast(started, name, True)
    parts = tuple(make_part(part, codec, array) for part, (codec, array) in sent.parts.items())
    request = encode(Message(Header(Kind.REQUEST, RUN, 0, "server"), parts))
    with tempfile.TemporaryDirectory(prefix="vitrail-audit-") as folder:
        client = Client(name, method, RUN, rng, lambda: images, Path(folder))
        if start is not None:
            client.store.save_initial(start)
        reply = read_reply(client.answer(request), RUN, 0, name, method.reply_spec(), started)
        if isinstance(reply, Failure | Kind):
            raise VitrailError(f"the attacked client did not reply: {reply}")
        private = client.store.load()
    return {taken.part.name: taken.array for taken in reply}, private["state"] if private else {}
