"""On the path of one node's processes, this makes its client lie: each round in another way."""

import sys
from pathlib import Path

if any("flwr-clientapp" in word for word in sys.orig_argv):
    from dataclasses import replace

    import numpy as np

    from vitrail.engines.client import Client
    from vitrail.wire.message import Kind, decode, encode, make_part

    honest = Client.answer

    def floats(parts, change):
        """Parts of floats changed, and the others as they are."""
        return tuple(change(p) if p.codec == "float32" else p for p in parts)

    def another_shape(part):
        return make_part(part.name, part.codec, np.resize(part.array(), part.array().size + 1))

    def not_a_number(part):
        return replace(part, payload=np.full(part.shape, np.nan, np.float32).tobytes())

    def lie(self, request):
        reply = honest(self, request)
        message = decode(reply)
        if message.header.kind is not Kind.REPLY:
            return reply
        first = Path(self.folder) / "first.bin"
        if not first.exists():
            first.write_bytes(reply)
        match message.header.round:
            case 0:
                return b"garbage" * 10
            case 1:
                return encode(replace(message, parts=floats(message.parts, another_shape)))
            case 2:
                return encode(replace(message, parts=floats(message.parts, not_a_number)))
            case 3:
                return reply + bytes(2**25)
            case _:
                return first.read_bytes()

    Client.answer = lie
