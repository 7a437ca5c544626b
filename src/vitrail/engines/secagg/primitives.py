"""Key agreement, sealing and key streams, from the package `cryptography`; secagg.py says what they are for.

X25519 (RFC 7748) with HKDF-SHA256, ChaCha20-Poly1305 and ChaCha20 (RFC 8439). A key is derived for one use, so a
nonce of zeros is never used twice with it.
"""

from __future__ import annotations

from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from vitrail.utils.errors import Malformed

_NONCE = bytes(12)


def public(private: bytes) -> bytes:
    """The public half of a private key; any 32 bytes are one."""
    return _loaded(private).public_key().public_bytes_raw()


def agree(private: bytes, other: bytes, purpose: bytes) -> bytes:
    """The key that the holder of `private` shares with the holder of the public key `other`, for one purpose."""
    try:
        secret = _loaded(private).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:  # not 32 bytes, or a point that would make the secret known to all
        raise Malformed(f"{other[:4].hex()}... of {len(other)} bytes is no public key") from None
    return derive(secret, purpose)


@lru_cache(maxsize=2)
def _loaded(private: bytes) -> X25519PrivateKey:
    """A key that agrees with many others, read once: reading takes as long as agreeing."""
    return X25519PrivateKey.from_private_bytes(private)


def derive(secret: bytes, purpose: bytes) -> bytes:
    """A key of 32 bytes for one purpose."""
    return HKDF(SHA256(), 32, None, purpose).derive(secret)


def seal(key: bytes, text: bytes) -> bytes:
    """Encrypt so that a change shows; the key is for this text alone."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, text, None)


def unseal(key: bytes, box: bytes) -> bytes:
    """What was sealed, or a refusal."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, box, None)
    except InvalidTag:
        raise Malformed(f"a box of {len(box)} bytes does not open: it was changed or is for somebody else") from None


def key_stream(key: bytes) -> CipherContext:
    """`update(zeros)` gives the next bytes of the key's stream."""
    return Cipher(ChaCha20(key, bytes(16)), None).encryptor()
