"""The secret of one client and the server: the seed of G_u and G_s, and keyed digests that compare them.

Both sides run this code. The secret comes from a key agreement (X25519) or from a file that both have. The seed of G is
derived from it and expanded by ChaCha20, so all of its 256 bits matter. Neither the seed nor G is ever sent; an HMAC of
G shows the other side, and nobody without the secret, whether both have the same bits.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from vitrail.nets.flat import to_vector
from vitrail.privacy.noise import Source, gaussian
from vitrail.utils.crypto import agree, derive, key_stream, public
from vitrail.utils.key_file import read_key
from vitrail.utils.state import State
from vitrail.wire.codecs import Array

PURPOSE = b"vitrail psfedgan 1 "


@dataclass(frozen=True)
class Secret:
    """A secret that one client and the server share."""

    root: bytes
    client: str

    def seed(self, generation: int) -> bytes:
        """Derive the secret seed key_i of G; each new start (generation) has another one."""
        return derive(self.root, b"generator %d " % generation + self.client.encode())

    def digest(self, *pieces: bytes) -> bytes:
        """Return the HMAC-SHA256 of pieces of fixed lengths."""
        key = derive(self.root, b"digest " + self.client.encode())
        return hmac.digest(key, b"".join(pieces), "sha256")


def agree_on_secret(private: bytes, client_key: bytes, server_key: bytes, client: str) -> Secret:
    """Derive the secret by X25519 from one side's private key and both public keys."""
    other = server_key if public(private) == client_key else client_key
    return Secret(agree(private, other, PURPOSE + client_key + server_key), client)


def secret_from_file(client: str) -> Secret:
    """Derive the secret from the client's key file, which both sides have."""
    return Secret(derive(read_key(client), PURPOSE + b"file " + client.encode()), client)


def _stream(seed: bytes) -> Source:
    """Return a source of bytes that cannot be predicted without the seed."""
    cipher = key_stream(seed)
    return lambda n: cipher.update(bytes(n))


def initialize(G: nn.Module, seed: bytes) -> nn.Module:
    """Initialize G as DCGAN does, from the seed: N(0, 0.02²); N(1, 0.02²) for BatchNorm; N(0, 1) for embeddings."""
    source = _stream(seed)
    with torch.no_grad():
        for m in G.modules():
            if isinstance(m, nn.ConvTranspose2d | nn.BatchNorm2d | nn.Embedding):
                drawn = gaussian(source, m.weight.numel(), 1.0 if isinstance(m, nn.Embedding) else 0.02)
                drawn += isinstance(m, nn.BatchNorm2d)
                m.weight.copy_(torch.from_numpy(drawn.astype(np.float32)).view_as(m.weight))
                if (bias := getattr(m, "bias", None)) is not None:
                    bias.zero_()
    return G


def initial_state(G: nn.Module, secret: Secret, generation: int) -> State:
    """Return the state of G_u, and of G_s, before the first step."""
    vector = to_vector(initialize(G, secret.seed(generation)))
    return {"generation": generation, "steps": 0, "generator": vector, "adam": None}


def digest(twin: State, discriminators: Array, secret: Secret) -> bytes:
    """Return the HMAC of G, its number of steps, its Adam, and the message's discriminators as decoded.

    The discriminators are included because the next message may be coded against them: a wrong bit that happens not to
    change G would otherwise stay in one side's state.
    """
    pieces = [b"%d %d " % (twin["generation"], twin["steps"]), np.asarray(twin["generator"], "<f4").tobytes()]
    for _, averages in sorted((twin["adam"] or {}).items()):
        pieces += [np.asarray(t.cpu(), "<f4").tobytes() for _, t in sorted(averages.items())]
    return secret.digest(*pieces, np.asarray(discriminators, "<f4").tobytes())
