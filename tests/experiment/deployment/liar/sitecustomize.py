"""On the path of one node's processes, this makes its client lie, differently in each round."""

import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path


class When(MetaPathFinder):
    """Calls `then(module)` once a module has been loaded; loading it early would make Flower give up the process."""

    def __init__(self, name, then):
        self.name, self.then = name, then

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            self.then(module)

        spec.loader.exec_module = exec_module
        return spec


def teach(module):
    """Replace the honest client by a lying one."""
    from dataclasses import replace

    import numpy as np

    from vitrail.wire.message import Kind, decode, encode, make_part

    honest = module.Client.answer

    def floats(parts, change):
        """Change parts of floats."""
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

    module.Client.answer = lie


if any("flwr-clientapp" in word for word in sys.orig_argv):
    sys.meta_path.insert(0, When("vitrail.engines.client", teach))
