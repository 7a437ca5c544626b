"""The secret of one client and the server: the seed of G_u and G_s, and keyed digests that compare them.

Both sides run this code. The secret comes from a key agreement (X25519) or from a file that both have. The seed of G is
derived from it and expanded by ChaCha20, so all of its 256 bits matter. Neither the seed nor G is ever sent; an HMAC of
G lets the other side check that both have the same bits, and reveals nothing to anyone without the secret.

Lost and wrong messages: the server repeats the steps on G_s and compares HMACs. If they differ, it discards the reply
and excludes the client from the round. Each request names the last state that both sides agreed on. The client stores
that state until the next one is acknowledged and continues from it; a client without it restarts from the next secret
seed ("generation"), and so does the server. G is never sent, even then.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from vitrail.methods.base import ServerMessage
from vitrail.privacy.noise import gaussian
from vitrail.utils.crypto import agree, derive, key_stream, public
from vitrail.utils.errors import Malformed
from vitrail.utils.keys import read_client_key
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.codecs import Array

if TYPE_CHECKING:
    from vitrail.methods.psfedgan.algorithm import PsFedGan

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
    return Secret(derive(read_client_key(client), PURPOSE + b"file " + client.encode()), client)


def initialize(G: nn.Module, seed: bytes) -> nn.Module:
    """Initialize G as DCGAN does, from the seed: N(0, 0.02²); N(1, 0.02²) for BatchNorm; N(0, 1) for embeddings."""
    cipher = key_stream(seed)  # unpredictable without the seed
    with torch.no_grad():
        for m in G.modules():
            if isinstance(m, nn.ConvTranspose2d | nn.BatchNorm2d | nn.Embedding):
                std = 1.0 if isinstance(m, nn.Embedding) else 0.02
                drawn = gaussian(lambda n: cipher.update(bytes(n)), m.weight.numel(), std)
                drawn += isinstance(m, nn.BatchNorm2d)
                m.weight.copy_(torch.from_numpy(drawn.astype(np.float32)).view_as(m.weight))
                if (bias := getattr(m, "bias", None)) is not None:
                    bias.zero_()
    return G


def digest(twin: State, discriminators: Array, secret: Secret) -> bytes:
    """Return the HMAC of G, its number of steps, its Adam, and the message's discriminators as decoded.

    The discriminators are included because the next message may be coded against them: a wrong bit that happens not to
    change G would otherwise stay in one side's state.
    """
    pieces = [b"%d %d " % (twin["generation"], twin["steps"]), np.asarray(twin["generator"], "<f4").tobytes()]
    for _, averages in sorted((twin["adam"] or {}).items()):
        pieces += [np.asarray(t.cpu(), "<f4").tobytes() for _, t in sorted(averages.items())]
    return secret.digest(*pieces, np.asarray(discriminators, "<f4").tobytes())


def check_equal(digest: bytes, sent: bytes, steps: int, key_source: str) -> None:
    """Compare the digests of G_s and G_u.

    Raises:
        Malformed: If they differ.
    """
    if not hmac.compare_digest(digest, sent):
        raise Malformed(
            f"G_s differs from G_u after {steps} steps; both sides return to the last state they agreed on (if it "
            "happens again, the machines compute differently: use the same torch version and kind of processor"
            + ("; or the key files differ)" if key_source == "file" else ")")
        )


def last_agreed_state(
    run: PsFedGan, state: State, message: ServerMessage, secret: Secret, rng: Rng
) -> tuple[State, bool]:
    """Return the GAN to train from, which the server has too, and whether it is not this client's latest one."""
    agreed = message.parts["agreed"].tobytes() if "agreed" in message.parts else b""
    for which in ("now", "before"):
        if agreed and state[which] and hmac.compare_digest(state[which]["digest"], agreed):
            found, sent_back = state[which], which == "before"
            break
    else:
        generation = int(message.parts["generation"][0]) + bool(agreed)  # the agreed state is lost: the next seed
        start = run.initial_generator(secret, generation)
        found = {**start, "digest": b"", "architecture": ""}
        sent_back = bool(agreed) or state["now"] is not None
    if found["architecture"] != run.architecture:  # a new start, or the client changed its D_u
        found = {**found, **run.initial_discriminator(rng), "published": None}
    return found, sent_back
