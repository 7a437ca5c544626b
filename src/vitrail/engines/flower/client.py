"""The ClientApp: decodes a Flower message, passes it to the node, and encodes its answer.

Flower starts a process for every message, so imports here are paid for each time: the method and torch are imported
only for training.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from vitrail.engines.flower.descriptions import Description, RunSpec
from vitrail.engines.flower.messages import pack, unpack
from vitrail.engines.signing.client import DESCRIBE, KEEP, NONCE, TRAIN, description_request
from vitrail.utils.errors import Refused, VitrailError
from vitrail.utils.keys import SIGNATURE
from vitrail.wire.message import LARGEST

if TYPE_CHECKING:
    from vitrail.engines.client import Client


class NodeInterface(Protocol):
    """What the ClientApp needs of a node."""

    def verify(self, spec: str, signed: bytes, purpose: str) -> bytes:
        """Return the request in a signed message; raise Malformed if it is not the server's."""

    def sign(self, request: bytes, reply: bytes, purpose: str) -> bytes:
        """Return a reply, followed by its signature."""

    def describe(self, spec: RunSpec) -> Description:
        """Return the node's description for a run."""

    def client(self, spec: RunSpec) -> Client:
        """Return this node as a client of a run."""

    def keep(self, spec: RunSpec, model: bytes) -> bytes:
        """Store the final model of a run; return the node's statement on the run."""


def client_app(node_of: Callable[[Context], NodeInterface]) -> ClientApp:
    """Return a ClientApp.

    Args:
        node_of: Returns the node that answers, from Flower's context.
    """
    made = ClientApp()

    @made.query("describe")
    def describe(message: Message, context: Context) -> Message:
        try:
            node, (text, signed) = node_of(context), unpack(message, NONCE + SIGNATURE)
            nonce = node.verify(text, signed, DESCRIBE)
            description = node.describe(RunSpec.read(text)).text()
            raw = description.encode()
            signature = node.sign(description_request(nonce, text), raw, DESCRIBE)[len(raw) :]
            return Message(pack(description, signature), reply_to=message)
        except Exception as e:
            text = json.dumps({"name": str(context.node_config.get("name", "")), "refuses": _public_reason(e)})
        return Message(pack(text), reply_to=message)

    @made.train()
    def answer(message: Message, context: Context) -> Message:
        try:
            node, (text, signed) = node_of(context), unpack(message, LARGEST)
            request = node.verify(text, signed, TRAIN)
            client = node.client(RunSpec.read(text))
        except Exception as e:  # there is no client yet that could encode the reason in a message
            return Message(pack(_public_reason(e)), reply_to=message)
        from vitrail.utils.determinism import one_thread

        with one_thread():
            return Message(pack("", node.sign(request, client.answer(request), TRAIN)), reply_to=message)

    @made.query("keep")
    def keep(message: Message, context: Context) -> Message:
        try:
            node, (text, signed) = node_of(context), unpack(message, LARGEST)
            model = node.verify(text, signed, KEEP)
            statement = node.keep(RunSpec.read(text), model)
            return Message(pack("", node.sign(model, statement, KEEP)), reply_to=message)
        except Exception as e:
            return Message(pack(_public_reason(e)), reply_to=message)

    return made


def _public_reason(e: Exception) -> str:
    """What the server is sent of a failure: the category of an owner's refusal, the type of an unexpected error."""
    if isinstance(e, Refused):
        return e.public
    if isinstance(e, VitrailError):
        return str(e)
    print(traceback.format_exc(), file=sys.stderr)
    return f"{type(e).__name__}; see the node's own log"
