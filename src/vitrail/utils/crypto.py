"""Key agreement, authenticated encryption and key streams, from the package `cryptography`.

X25519 (RFC 7748) with HKDF-SHA256, ChaCha20-Poly1305 and ChaCha20 (RFC 8439). Each key is derived for one use,
so the nonce of zeros is used once with it.
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
    """Return the public key of a private key; any 32 bytes are a private key."""
    return _loaded(private).public_key().public_bytes_raw()


def agree(private: bytes, other: bytes, purpose: bytes) -> bytes:
    """Derive the key that two parties share for one purpose.

    Args:
        private: Private key of one party.
        other: Public key of the other party.
        purpose: Use of the derived key; another purpose gives another key.

    Returns:
        A key of 32 bytes.

    Raises:
        Malformed: `other` is not a valid public key.

    Examples:
        >>> a, b = bytes(31) + b"a", bytes(31) + b"b"
        >>> agree(a, public(b), b"x") == agree(b, public(a), b"x") != agree(a, public(b), b"y")
        True
    """
    try:
        secret = _loaded(private).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:  # not 32 bytes, or a point for which the shared secret is public
        raise Malformed(f"{other[:4].hex()}... of {len(other)} bytes is not a public key") from None
    return derive(secret, purpose)


@lru_cache(maxsize=2)
def _loaded(private: bytes) -> X25519PrivateKey:
    """Load a private key once for many agreements: loading takes as long as an agreement."""
    return X25519PrivateKey.from_private_bytes(private)


def derive(secret: bytes, purpose: bytes) -> bytes:
    """Derive a key of 32 bytes for one purpose (HKDF-SHA256)."""
    return HKDF(SHA256(), 32, None, purpose).derive(secret)


def seal(key: bytes, text: bytes) -> bytes:
    """Encrypt and authenticate a text; each key may be used for one text only."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, text, None)


def unseal(key: bytes, box: bytes) -> bytes:
    """Decrypt a text.

    Raises:
        Malformed: The ciphertext was changed, or belongs to another key.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, box, None)
    except InvalidTag:
        raise Malformed(
            f"a ciphertext of {len(box)} bytes cannot be decrypted: it was changed or is for another client"
        ) from None


def key_stream(key: bytes) -> CipherContext:
    """Return a cipher whose `update(zeros)` returns the next bytes of the key's stream."""
    return Cipher(ChaCha20(key, bytes(16)), None).encryptor()
