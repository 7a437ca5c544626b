"""Certificates and keys for a trial: each party gets its own, private ones are private, no file is replaced."""

import datetime as dt
import ipaddress
import ssl
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from vitrail.engines.flower.certificates import make_certificates
from vitrail.utils.errors import VitrailError
from vitrail.utils.keys import public_key, read_key


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trial") / "keys"
    make_certificates(folder, ["north", "south"], ["fl.example.org", "10.0.0.7"], days=30)
    return folder


def test_private_files_are_protected_and_the_authority_key_is_deleted(made):
    private = {p.relative_to(made).as_posix() for p in made.rglob("*") if p.is_file() and b"PRIVATE" in p.read_bytes()}
    assert private == {"superlink/server.key", "north/supernode.key", "south/supernode.key"}
    signing = {f"{who}.key" for who in ("superlink/signing", "north/node", "south/node")}
    for name in private | signing:
        assert stat.S_IMODE((made / name).stat().st_mode) == 0o600, name
    for folder in (made, *(p for p in made.rglob("*") if p.is_dir())):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    assert not list(made.parent.glob(".*")), "no temporary file is left next to it"


def test_the_server_certificate_is_valid_for_its_names_only(made):
    """By a TLS handshake in memory, with Python's verifier."""
    for host, passes in (
        ("127.0.0.1", True),
        ("localhost", True),
        ("fl.example.org", True),
        ("10.0.0.7", True),
        ("example.org", False),
        ("10.0.0.8", False),
    ):
        assert _handshake(made, made / "north" / "ca.crt", host) == passes, host
    others = made.parent / "others"
    make_certificates(others, ["north"])
    assert not _handshake(made, others / "north" / "ca.crt", "localhost"), "of another authority"


def _handshake(server, ca, host):
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(server / "superlink" / "server.crt", server / "superlink" / "server.key")
    here = ssl.create_default_context(cafile=str(ca))
    here.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = here.wrap_bio(down, up, server_hostname=host)
    answers = there.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for side in (client, answers):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return True


def test_each_node_has_its_key_pairs_and_the_server_the_public_keys(made):
    seen = set()
    for name in ("north", "south"):
        private = load_ssh_private_key((made / name / "supernode.key").read_bytes(), None)
        assert isinstance(private.curve, ec.SECP384R1)
        registered = load_ssh_public_key((made / "superlink" / "nodes" / f"{name}.pub").read_bytes())
        assert registered.public_numbers() == private.public_key().public_numbers()
        signs = read_key(made / name / "node.key")
        assert public_key(str(made / "superlink" / "keys" / f"{name}.pub")) == signs.public
        assert all(public_key(str(made / n / "peers" / f"{name}.pub")) == signs.public for n in ("north", "south"))
        assert public_key(str(made / name / "server.pub")) == read_key(made / "superlink" / "signing.key").public
        seen |= {registered.public_numbers().x, signs.public}
    assert len(seen) == 4


def test_certificates_expire_after_the_given_days(made):
    found = x509.load_pem_x509_certificate((made / "superlink" / "server.crt").read_bytes())
    left = found.not_valid_after_utc - dt.datetime.now(dt.UTC)
    assert dt.timedelta(days=29) < left <= dt.timedelta(days=30)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address(a) for a in ("127.0.0.1", "10.0.0.7")]


def test_an_existing_folder_is_not_replaced(made):
    before = {p: p.read_bytes() for p in made.rglob("*") if p.is_file()}
    with pytest.raises(VitrailError, match="never replaced"):
        make_certificates(made, ["north"])
    assert before == {p: p.read_bytes() for p in made.rglob("*") if p.is_file()}


@pytest.mark.parametrize("nodes", [[], ["a", "a"], ["superlink"], ["../x"], ["a/b"], [""], [".hidden"]])
def test_unsafe_node_names_are_refused(tmp_path, nodes):
    with pytest.raises(VitrailError):
        make_certificates(tmp_path / "keys", nodes)
    assert not list(tmp_path.iterdir())


def test_an_invalid_host_leaves_no_files(tmp_path):
    with pytest.raises(VitrailError, match="give an IP address"):
        make_certificates(tmp_path / "keys", ["a"], ["no host"])
    assert not list(tmp_path.iterdir())
