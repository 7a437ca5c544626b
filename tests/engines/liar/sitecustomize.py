"""On the path of one node's processes, this makes its client lie: each round in another way."""

import sys
from pathlib import Path

if any("flwr-clientapp" in word for word in sys.orig_argv):
    from dataclasses import replace

    import numpy as np

    from vitrail.engines.client import Client
    from vitrail.wire.message import Kind, decode, encode, make_part

    honest = Client.answer

    def another_shape(parts):
        return tuple(make_part(p.name, p.codec, np.resize(p.array(), p.array().size + 1)) for p in parts)

    def not_a_number(parts):
        return tuple(make_part(p.name, "float32", np.full(p.shape, np.nan, np.float32)) for p in parts)

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
                return encode(replace(message, parts=another_shape(message.parts)))
            case 2:
                return encode(replace(message, parts=not_a_number(message.parts)))
            case 3:
                return reply + bytes(2**25)
            case _:
                return first.read_bytes()

    Client.answer = lie
