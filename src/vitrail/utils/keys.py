"""Keys in files, and Ed25519 signatures over whole messages (RFC 8032, from `cryptography`).

A private key is a file of 64 hex digits that only its owner can read; it is created when it is first needed. The public
key, also 64 hex digits, may be shown to anyone. Error messages are sent to other parties, so they contain no path and
no byte of a private key.
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
from urllib.parse import quote

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.paths import data_home

SIGNATURE = 64  # bytes
_DIGITS = re.compile(rb"\s*([0-9a-fA-F]{64})\s*")
_LINE = re.compile(rb"([0-9a-fA-F]{64})\r?\n?")
_CREATE = "create one with `openssl rand -hex 32`, copy it to client and server, and `chmod 600` it"


@dataclass(frozen=True, repr=False)
class Key:
    """A private key; its representation shows the public key only.

    Args:
        secret: The 32 bytes of the private key.
    """

    secret: bytes

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.secret)

    @cached_property
    def public(self) -> bytes:
        """The public key: 32 bytes."""
        return self._private.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"Key(public={self.public.hex()})"

    def sign(self, *pieces: bytes) -> bytes:
        """Sign pieces; their order and lengths are part of what is signed."""
        return self._private.sign(_message(pieces))


def signed_by(public: bytes, signature: bytes, *pieces: bytes) -> bool:
    """Return whether the owner of a public key signed exactly these pieces.

    Args:
        public: The public key.
        signature: The signature; one of a wrong length is not valid.
        pieces: What was passed to `Key.sign`.

    Examples:
        >>> key = Key(bytes(32))
        >>> signed_by(key.public, key.sign(b"a", b"b"), b"a", b"b")
        True
        >>> signed_by(key.public, key.sign(b"ab", b""), b"a", b"b")
        False
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _message(pieces))
    except (InvalidSignature, ValueError):
        return False
    return True


def _message(pieces: tuple[bytes, ...]) -> bytes:
    """Return the digest that is signed: it differs for any two lists of pieces, and reads large ones once."""
    h = hashlib.blake2b(person=b"vitrail sign")
    for piece in pieces:
        h.update(len(piece).to_bytes(8, "little"))
        h.update(piece)
    return h.digest()


def load_or_create_key(path: Path) -> Key:
    """Read the private key in a file; create it if the file does not exist.

    Args:
        path: The file; a new one can be read by its owner only.

    Raises:
        VitrailError: If the file exists and `read_key` refuses it.
    """
    with contextlib.suppress(FileExistsError):
        return new_key(path)
    return read_key(path)


def new_key(path: Path) -> Key:
    """Create a private key in a new file.

    Args:
        path: The file; missing folders are created.

    Raises:
        FileExistsError: If the file exists; a key is never replaced.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    secret = os.urandom(32)
    part = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secret.hex().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(part, path)  # complete or not at all, and never over an existing file
    finally:
        part.unlink(missing_ok=True)
    return Key(secret)


def read_key(path: Path) -> Key:
    """Read the private key in a file.

    Args:
        path: The file.

    Raises:
        VitrailError: If the file is missing, is not 64 hex digits, or can be read by others than its owner.
    """
    return Key(read_secret(path, f"the signing key {path.name}"))


def read_secret(
    path: Path, what: str, where: str = "", remedy: str = "", pattern: re.Pattern[bytes] = _DIGITS
) -> bytes:
    """Read a secret of 32 bytes from a file of hex digits that only its owner can access.

    Args:
        path: The file.
        what: The file, as errors name it.
        where: Place of a file that cannot be read, for the error.
        remedy: End of the errors about a missing or malformed file.
        pattern: Pattern of the content, whose first group is the digits.

    Raises:
        VitrailError: If the file is missing or malformed, or others have any permission; only POSIX has these.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(200)
    except OSError as e:
        raise VitrailError(f"{what} cannot be read{where}: {e.strerror}{remedy}") from None
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise VitrailError(
            f"{what} is accessible to others than its owner (mode {stat.S_IMODE(mode):03o}); `chmod 600` it, or create "
            "a new one if others may have read it"
        )
    found = pattern.fullmatch(raw)
    if not found:
        raise VitrailError(f"{what} must contain exactly 64 hex digits{_other_key(raw)}{remedy}")
    return bytes.fromhex(found[1].decode())


def _other_key(raw: bytes) -> str:
    """Say which key of `vitrail certificates` this is, if it is one for another purpose."""
    if raw.startswith(b"-----BEGIN"):
        return "; this is a PEM file (a key for TLS or a SuperNode): signing keys are signing.key and node.key"
    if raw.startswith((b"ecdsa-", b"ssh-")):
        return "; this is the key of a SuperNode (folder nodes): signing keys are in the folder keys"
    return ""


def public_key(given: str) -> bytes:
    """Parse a public key.

    Args:
        given: 64 hex digits, or the name of a file that contains them.

    Raises:
        VitrailError: If it is neither.

    Examples:
        >>> public_key("ab" * 32) == bytes([0xAB] * 32)
        True
    """
    raw = given.encode(errors="replace")
    if not _DIGITS.fullmatch(raw):
        try:
            with Path(given).expanduser().open("rb") as file:
                raw = file.read(200)
        except (OSError, ValueError) as e:
            why = e.strerror if isinstance(e, OSError) else "not a file name"
            raise VitrailError(f"the public key is neither 64 hex digits nor a readable file: {why}") from None
    found = _DIGITS.fullmatch(raw)
    if not found:
        raise VitrailError(f"the file of the public key must contain exactly 64 hex digits{_other_key(raw)}")
    return bytes.fromhex(found[1].decode())


def split(carried: bytes) -> tuple[bytes, bytes]:
    """Split bytes into a message and the signature after it.

    Raises:
        Malformed: If they are shorter than a signature.

    Examples:
        >>> split(b"message" + bytes(64)) == (b"message", bytes(64))
        True
    """
    if len(carried) < SIGNATURE:
        raise Malformed(f"{len(carried)} bytes; expected a message and a signature of {SIGNATURE} bytes")
    return carried[:-SIGNATURE], carried[-SIGNATURE:]


def read_client_key(client: str) -> bytes:
    """Read the secret that a client and the server were given in a file: 32 random bytes as 64 hex digits.

    `(umask 077; openssl rand -hex 32 > client-0.key)` creates one. A client needs its own file, the server those of all
    clients.

    Args:
        client: The client's name.

    Returns:
        32 bytes.

    Raises:
        VitrailError: If the file is missing, is not 64 hex digits, or can be read by others than its owner.
    """
    name = f"{quote(client, safe=' ')}.key"  # without a path separator, whatever the client's name is
    where = " in the folder that VITRAIL_KEYS names (default: `keys` in VITRAIL_HOME)"
    folder = Path(os.environ.get("VITRAIL_KEYS") or data_home() / "keys").expanduser()
    return read_secret(folder / name, f"key_source=file: {name}", where, f"; {_CREATE}", _LINE)
