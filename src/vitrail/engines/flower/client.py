"""The ClientApp: a message's bytes to the client, its answer's bytes back.

Flower starts a process for every message, so what is imported here is paid for every time: a method, and torch, only
where one is to be trained.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from vitrail.engines.flower.messages import DESCRIBE, KEEP, TRAIN, packed, unpacked
from vitrail.engines.flower.node import Node, NodeInterface
from vitrail.engines.flower.run_spec import RunSpec
from vitrail.engines.signing.client import NONCE, asked_under
from vitrail.utils.errors import Refused, VitrailError
from vitrail.utils.keys import SIGNATURE
from vitrail.wire.message import LARGEST


def client_app(party: Callable[[Context], NodeInterface]) -> ClientApp:
    """An app that answers for whoever is at a node."""
    made = ClientApp()

    @made.query("describe")
    def describe(message: Message, context: Context) -> Message:
        try:
            who, (text, carried) = party(context), unpacked(message, NONCE + SIGNATURE)
            nonce = who.opened(text, carried, DESCRIBE)
            says = who.describe(RunSpec.read(text)).text()
            signature = who.closed(asked_under(nonce, text), says.encode(), DESCRIBE)[len(says.encode()) :]
            return Message(packed(says, signature), reply_to=message)
        except Exception as e:
            text = json.dumps({"name": str(context.node_config.get("name", "")), "refuses": _said(e)})
        return Message(packed(text), reply_to=message)

    @made.train()
    def answer(message: Message, context: Context) -> Message:
        try:
            who, (text, carried) = party(context), unpacked(message, LARGEST)
            request = who.opened(text, carried, TRAIN)
            client = who.client(RunSpec.read(text))
        except Exception as e:  # before there is a client, why in words: later it says so in a message of its own
            return Message(packed(_said(e)), reply_to=message)
        from vitrail.utils.determinism import one_thread

        with one_thread():
            return Message(packed("", who.closed(request, client.answer(request), TRAIN)), reply_to=message)

    @made.query("keep")
    def keep(message: Message, context: Context) -> Message:
        try:
            who, (text, carried) = party(context), unpacked(message, LARGEST)
            model = who.opened(text, carried, KEEP)
            statement = who.keep(RunSpec.read(text), model)
            return Message(packed("", who.closed(model, statement, KEEP)), reply_to=message)
        except Exception as e:
            return Message(packed(_said(e)), reply_to=message)

    return made


def _said(e: Exception) -> str:
    """What the server may know of a failure: of an owner's refusal its category, of an accident only its kind."""
    if isinstance(e, Refused):
        return e.public
    if isinstance(e, VitrailError):
        return str(e)
    print(traceback.format_exc(), file=sys.stderr)
    return f"{type(e).__name__}; the node's own log says more"


def _node(context: Context) -> Node:
    try:
        return Node.of(context.node_config)
    except VitrailError as e:  # what is wrong with it may tell of the policy
        print(f"the node config is refused: {e}", file=sys.stderr)
        raise Refused(str(e), "its node config is wrong; the node's own log says how") from e


app = client_app(_node)
