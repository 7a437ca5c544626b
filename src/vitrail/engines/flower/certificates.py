"""Certificates and keys for a trial with Flower, one folder per party.

The key of the certificate authority is deleted after signing: no other server can be made that these nodes trust. A
permanent deployment should use the parties' own authority, and create each private key where it is used.
"""

# FOLDER/superlink/  ca.crt server.crt server.key            TLS of the SuperLink
#                    signing.key signing.pub                 signing key of the server
#                    nodes/NAME.pub                          node keys to register with the SuperLink
#                    keys/NAME.pub                           keys that nodes sign their replies with
# FOLDER/NAME/       ca.crt supernode.key supernode.pub      authentication of the node at the SuperLink
#                    server.pub                              key of its server: server-key
#                    node.key node.pub                       signing key of the node
#                    peers/NAME.pub                          keys of all nodes: peer-keys

from __future__ import annotations

import datetime as dt
import ipaddress
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vitrail.utils.errors import VitrailError
from vitrail.utils.keys import new_key

HOSTS = ("localhost", "127.0.0.1")
SERVER = "superlink"
_Key = ec.EllipticCurvePrivateKey
_Extensions = list[tuple[x509.ExtensionType, bool]]  # each with whether it is critical


def make_certificates(folder: Path, nodes: Sequence[str], hosts: Sequence[str] = (), days: int = 90) -> None:
    """Create certificates and keys for a SuperLink and its nodes.

    Args:
        folder: A new folder; it appears complete or not at all.
        nodes: Names of the nodes.
        hosts: Names and addresses of the SuperLink, in addition to localhost.
        days: How long certificates are valid.

    Raises:
        VitrailError: The folder exists or cannot be written, or a name is invalid.
    """
    _check(nodes)
    if folder.exists():
        raise VitrailError(f"{folder} already exists, and keys are never replaced; name a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))  # readable by its owner alone
    try:
        _fill(made, nodes, [*HOSTS, *hosts], dt.timedelta(days=days))
        made.rename(folder)
    except OSError as e:
        raise VitrailError(f"cannot write {folder}: {e.strerror}") from e
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _check(nodes: Sequence[str]) -> None:
    for name in nodes:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,63}", name) or name == SERVER:
            raise VitrailError(
                f"node {name!r}: a name of letters, digits, dots, dashes and blanks is expected, other than {SERVER}"
            )
    if not nodes or len(set(nodes)) != len(nodes):
        raise VitrailError("name at least one node, each once: --nodes north,south,west")


def _fill(folder: Path, nodes: Sequence[str], hosts: Sequence[str], valid: dt.timedelta) -> None:
    server = folder / SERVER
    for place in (server, server / "nodes", server / "keys"):
        place.mkdir(mode=0o700)
    authority, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # only signs certificates
    of_authority: _Extensions = [(x509.BasicConstraints(ca=True, path_length=0), True), (usage, True)]
    ca = _certificate("authority", authority, authority, valid, of_authority)
    (server / "ca.crt").write_bytes(ca)
    of_server: _Extensions = [
        (x509.SubjectAlternativeName([_host(h) for h in dict.fromkeys(hosts)]), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.KeyUsage(True, False, False, False, False, False, False, False, False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
    ]
    (server / "server.crt").write_bytes(_certificate("server", key, authority, valid, of_server))
    _private(server / "server.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    signs = new_key(server / "signing.key").public.hex() + "\n"
    (server / "signing.pub").write_text(signs)
    for name in nodes:
        place = folder / name
        place.mkdir(mode=0o700)
        (place / "ca.crt").write_bytes(ca)
        (place / "server.pub").write_text(signs)
        own = ec.generate_private_key(ec.SECP384R1())
        _private(place / "supernode.key", own.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        public = own.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
        answers = new_key(place / "node.key").public.hex() + "\n"
        for path in (place / "supernode.pub", server / "nodes" / f"{name}.pub"):
            path.write_bytes(public)
        for path in (place / "node.pub", server / "keys" / f"{name}.pub"):
            path.write_text(answers)
    for name in nodes:
        shutil.copytree(server / "keys", folder / name / "peers")


def _private(path: Path, data: bytes) -> None:
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(data)


def _certificate(role: str, key: _Key, authority: _Key, valid: dt.timedelta, extensions: _Extensions) -> bytes:
    """Return a certificate that the authority signs, in PEM."""
    now, public = dt.datetime.now(dt.UTC), key.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"vitrail trial {role}")]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "vitrail trial authority")]))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + valid)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(authority, SHA384()).public_bytes(Encoding.PEM)


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if not re.fullmatch(r"[A-Za-z0-9*]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", name):
            raise VitrailError(f"host {name!r}: give an IP address or a name such as fl.example.org") from None
        return x509.DNSName(name)
