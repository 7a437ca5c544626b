"""Who sent these bytes: Ed25519 keys in files, and signatures over whole messages (RFC 8032, from `cryptography`).

A private key is a file of 64 hex digits, readable by its owner alone, made where it is first needed. Its public half,
64 hex digits too, may be shown to anybody. Texts of errors travel, so none has a path or a byte of a private key.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from vitrail.utils.errors import Malformed, VitrailError

SIGNATURE = 64  # bytes
_DIGITS = re.compile(rb"\s*([0-9a-fA-F]{64})\s*")


@dataclass(frozen=True, repr=False)
class Key:
    """A private key; whoever prints it sees its public half."""

    secret: bytes

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.secret)

    @cached_property
    def public(self) -> bytes:
        """The half that may be shown: 32 bytes."""
        return self._private.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"Key(public={self.public.hex()})"

    def sign(self, *pieces: bytes) -> bytes:
        """A signature over these pieces, in this order and of these lengths."""
        return self._private.sign(_whole(pieces))


def signed_by(public: bytes, signature: bytes, *pieces: bytes) -> bool:
    """Whether the holder of a public key signed exactly these pieces.

    >>> key = Key(bytes(32))
    >>> signed_by(key.public, key.sign(b"a", b"b"), b"a", b"b"), signed_by(key.public, key.sign(b"ab", b""), b"a", b"b")
    (True, False)
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _whole(pieces))
    except (InvalidSignature, ValueError):
        return False
    return True


def _whole(pieces: tuple[bytes, ...]) -> bytes:
    """What is signed: a digest in which no two lists of pieces are alike, so that large ones are read once."""
    h = hashlib.blake2b(person=b"vitrail sign")
    for piece in pieces:
        h.update(len(piece).to_bytes(8, "little"))
        h.update(piece)
    return h.digest()


def load_or_create_key(path: Path) -> Key:
    """The key in this file; where there is none, a new one is made and kept there for its owner alone."""
    with contextlib.suppress(FileExistsError):
        return new_key(path)
    return read_key(path)


def new_key(path: Path) -> Key:
    """A new key in a file of its own; one that is there already is never replaced."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    secret = os.urandom(32)
    part = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secret.hex().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(part, path)  # whole or not at all, and never over another
    finally:
        part.unlink(missing_ok=True)
    return Key(secret)


def read_key(path: Path) -> Key:
    """The private key in a file; one that is missing, broken or open to others is refused."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(200)
    except OSError as e:
        raise VitrailError(f"the signing key {path.name} cannot be read: {e.strerror}") from None
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise VitrailError(
            f"the signing key {path.name} is open to others than its owner (mode {stat.S_IMODE(mode):03o}); "
            "`chmod 600` it, or make a new one if somebody may have read it"
        )
    found = _DIGITS.fullmatch(raw)
    if not found:
        raise VitrailError(f"the signing key {path.name} does not hold 64 hex digits and nothing else")
    return Key(bytes.fromhex(found[1].decode()))


def public_key(given: str) -> bytes:
    """A public key as an owner writes it down: 64 hex digits, or the name of a file that holds them.

    >>> public_key("ab" * 32) == bytes([0xAB] * 32)
    True
    """
    found = _DIGITS.fullmatch(given.encode(errors="replace"))
    if not found:
        try:
            with Path(given).expanduser().open("rb") as file:
                raw = file.read(200)
        except (OSError, ValueError) as e:
            why = e.strerror if isinstance(e, OSError) else "not a name"
            raise VitrailError(f"the public key is neither 64 hex digits nor a file that can be read: {why}") from None
        found = _DIGITS.fullmatch(raw)
    if not found:
        raise VitrailError("the file of the public key does not hold 64 hex digits and nothing else")
    return bytes.fromhex(found[1].decode())


def split(carried: bytes) -> tuple[bytes, bytes]:
    """A message and the signature that follows it."""
    if len(carried) < SIGNATURE:
        raise Malformed(f"{len(carried)} bytes are not a message and its signature")
    return carried[:-SIGNATURE], carried[-SIGNATURE:]
