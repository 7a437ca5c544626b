"""The ClientApp: a message's bytes to the client, its answer's bytes back."""

from __future__ import annotations

import json
from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from vitrail.engines.flower.carry import DESCRIBE, KEEP, TRAIN, packed, unpacked
from vitrail.engines.flower.node import Node, Party
from vitrail.engines.flower.terms import Terms
from vitrail.errors import VitrailError
from vitrail.privacy.signing import SIGNATURE
from vitrail.wire.message import LARGEST


def client_app(party: Callable[[Context], Party]) -> ClientApp:
    """An app that answers for whoever is at a node."""
    made = ClientApp()

    @made.query("describe")
    def describe(message: Message, context: Context) -> Message:
        try:
            who, (text, carried) = party(context), unpacked(message, SIGNATURE)
            request, says = who.opened(text, carried, DESCRIBE), who.describe(Terms.read(text)).text()
            signature = who.closed(request, says.encode(), DESCRIBE)[len(says.encode()) :]
            return Message(packed(says, signature), reply_to=message)
        except VitrailError as e:
            text = json.dumps({"name": str(context.node_config.get("name", "")), "refuses": str(e)})
        return Message(packed(text), reply_to=message)

    @made.train()
    def answer(message: Message, context: Context) -> Message:
        from vitrail.determinism import one_thread

        try:
            who, (text, carried) = party(context), unpacked(message, LARGEST)
            request = who.opened(text, carried, TRAIN)
            with one_thread():
                reply = who.client(Terms.read(text)).answer(request)
            return Message(packed("", who.closed(request, reply, TRAIN)), reply_to=message)
        except VitrailError as e:  # before there is a client: it says why in words, where a client would in bytes
            return Message(packed(str(e)), reply_to=message)

    @made.query("keep")
    def keep(message: Message, context: Context) -> Message:
        try:
            who, (text, carried) = party(context), unpacked(message, LARGEST)
            model = who.opened(text, carried, KEEP)
            who.keep(Terms.read(text), model)
            return Message(packed("", who.closed(model, b"", KEEP)), reply_to=message)
        except VitrailError as e:
            return Message(packed(str(e)), reply_to=message)

    return made


def _node(context: Context) -> Node:
    return Node.of(context.node_config)


app = client_app(_node)
