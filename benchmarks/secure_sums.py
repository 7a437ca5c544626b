"""CPU seconds and bytes of one client in one round of secure aggregation among n clients.

    python benchmarks/secure_sums.py --clients 10 100 200 1000

One client runs the code of engines/secagg/client.py, without files and training. The others are simulated: they
advertise keys, encrypt letters and sign, as far as this client needs them. It sends `--numbers` sums of float32.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitrail.engines.secagg import client as secagg_client
from vitrail.engines.secagg import messages
from vitrail.engines.secagg import shares as secagg
from vitrail.engines.secagg.shares import SHARE, AdvertisedKeys, Group
from vitrail.methods.base import PartSpec, Task
from vitrail.utils import crypto
from vitrail.utils.keys import Key
from vitrail.utils.state import State
from vitrail.wire.message import Header, Kind, Message, Part, decode, encode, make_part

RUN = bytes(16)


@dataclass(frozen=True)
class Other:
    """Another client's secrets."""

    name: str
    letters: bytes
    masks: bytes
    seed: bytes
    key: Key

    @property
    def advertised(self) -> AdvertisedKeys:
        """Its public keys."""
        return AdvertisedKeys.make(RUN, 0, self.name, self.letters, self.masks, self.seed, self.key)


def round_of(clients: int, numbers: int) -> tuple[list[float], int, int]:
    """Return the seconds of each exchange, and the bytes down and up of all."""
    group = Group(RUN, 0, tuple(f"client-{k}" for k in range(clients)), clients // 2 + 1)
    task = Task((1, 8, 8), 0, 1, clients, secagg_threshold=group.threshold, noise_source="os")
    declared = {"sums": PartSpec("sum", "float32", numbers, limit=1000.0)}
    client = secagg_client.SecAggClient("client-0", RUN, 0, task, declared)
    new = os.urandom
    others = [Other(name, new(32), new(32), new(32), Key(new(32))) for name in group.names[1:]]
    seconds, down, up = [], 0, 0
    secrets: State = {}

    def send(exchange: int, parts: Sequence[Part]) -> bytes:
        nonlocal secrets, down, up
        request = encode(Message(Header(Kind.REQUEST, RUN, 0, "server", exchange), tuple(parts)))
        began, message = time.process_time(), decode(request)
        made: tuple[Part, ...] = ()
        if exchange == messages.MASK:
            secrets = secagg_client.read_letters(client, message, secrets)
            made = (make_part("sums", "float32", np.zeros(numbers, np.float32)),)
        secrets, sent = secagg_client.step(client, message, secrets, made, os.urandom)
        reply = encode(Message(Header(Kind.REPLY, RUN, 0, "client-0", exchange), sent))
        seconds.append(time.process_time() - began)
        down, up = down + len(request), up + len(reply)
        return sent[0].payload

    own = send(0, ())
    keys = own + b"".join(other.advertised.pack() for other in others)
    who = messages.bytes_part(messages.WHO, messages.write_names(list(group.names)))
    send(1, (who, messages.bytes_part(messages.KEYS, keys)))
    to = AdvertisedKeys.read(own).letters
    letters = b"".join(
        crypto.seal(crypto.agree(other.letters, to, secagg.letter(group, j, 0)), bytes(2 * SHARE))
        for j, other in enumerate(others, 1)
    )
    everyone = [True] * clients
    send(2, (messages.bits_part(messages.FROM, everyone), messages.bytes_part(messages.LETTERS, letters)))
    signature = send(3, (messages.bits_part(messages.ALIVE, everyone),))
    view = secagg.view(group, keys, everyone)
    signers = others[: group.threshold - 1]
    signatures = signature + b"".join(other.key.sign(*view) for other in signers)
    signed = [k < group.threshold for k in range(clients)]
    send(4, (messages.bits_part(messages.FROM, signed), messages.bytes_part(messages.SIGNATURES, signatures)))
    return seconds, down, up


def main() -> None:
    """Print one line for each number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 200, 1000])
    parser.add_argument("--numbers", type=int, default=100_000)
    given = parser.parse_args()
    print("clients  seconds (advertise share mask confirm open)    bytes down    bytes up")
    for n in given.clients:
        seconds, down, up = round_of(n, given.numbers)
        each = " ".join(f"{s:.3f}" for s in seconds)
        print(f"{n:7}  {sum(seconds):7.3f} ({each}) {down:13,} {up:11,}")


if __name__ == "__main__":
    main()
