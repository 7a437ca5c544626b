"""A generator that grows twice from one secret seed: on its client as G_u, on the server as G_s.

Both sides run this code. The seed comes from a key that the two agree on (X25519), or from a file that both were given;
it is expanded by ChaCha20, so that all of its 256 bits count, and never travels; nor does G. What a generator has
become is named by a keyed digest (HMAC): whoever lacks the key learns nothing from it, and whoever has it sees whether
the other side has the same bits.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from vitrail.engines.secagg.primitives import agree, derive, key_stream, public
from vitrail.nets.flat import to_vector
from vitrail.privacy.noise import Source, gaussian
from vitrail.utils.key_file import read_key
from vitrail.utils.state import State
from vitrail.wire.codecs import Array

PURPOSE = b"vitrail psfedgan 1 "


@dataclass(frozen=True)
class Secret:
    """What one client and the server know, and nobody else."""

    root: bytes
    client: str

    def seed(self, generation: int) -> bytes:
        """The secret seed of G; each new beginning has its own."""
        return derive(self.root, b"generator %d " % generation + self.client.encode())

    def digest(self, *pieces: bytes) -> bytes:
        """A keyed digest of pieces of fixed lengths."""
        key = derive(self.root, b"digest " + self.client.encode())
        return hmac.digest(key, b"".join(pieces), "sha256")


def secret_between(own: bytes, client_key: bytes, server_key: bytes, client: str) -> Secret:
    """The secret of one client and the server, from one side's private key and both public ones."""
    other = server_key if public(own) == client_key else client_key
    return Secret(agree(own, other, PURPOSE + client_key + server_key), client)


def secret_given(client: str) -> Secret:
    """The secret of one client and the server, from a file that both were given."""
    return Secret(derive(read_key(client), PURPOSE + b"file " + client.encode()), client)


def stream(seed: bytes) -> Source:
    """As many bytes as are wanted from a seed, unpredictable without it."""
    cipher = key_stream(seed)
    return lambda n: cipher.update(bytes(n))


def initial(G: nn.Module, seed: bytes) -> nn.Module:
    """DCGAN's start from the secret seed: N(0, 0.02²), N(1, 0.02²) for BatchNorm's scale, N(0, 1) for embeddings."""
    source = stream(seed)
    with torch.no_grad():
        for m in G.modules():
            if isinstance(m, nn.ConvTranspose2d | nn.BatchNorm2d | nn.Embedding):
                drawn = gaussian(source, m.weight.numel(), 1.0 if isinstance(m, nn.Embedding) else 0.02)
                drawn += isinstance(m, nn.BatchNorm2d)
                m.weight.copy_(torch.from_numpy(drawn.astype(np.float32)).view_as(m.weight))
                if (bias := getattr(m, "bias", None)) is not None:
                    bias.zero_()
    return G


def begin(G: nn.Module, secret: Secret, generation: int) -> State:
    """A twin before its first step."""
    vector = to_vector(initial(G, secret.seed(generation)))
    return {"generation": generation, "steps": 0, "generator": vector, "adam": None}


def digest(twin: State, published: Array, secret: Secret) -> bytes:
    """The name of a twin: HMAC over how far it is, G, its Adam, and the D's that were published to get there.

    Without the D's, one wrong bit of them that leaves G as it is would be remembered by one side only.
    """
    pieces = [b"%d %d " % (twin["generation"], twin["steps"]), np.asarray(twin["generator"], "<f4").tobytes()]
    for _, averages in sorted((twin["adam"] or {}).items()):
        pieces += [np.asarray(t.cpu(), "<f4").tobytes() for _, t in sorted(averages.items())]
    return secret.digest(*pieces, np.asarray(published, "<f4").tobytes())
