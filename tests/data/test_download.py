"""Downloads, from a server on this machine."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitrail.data import load
from vitrail.data.download import DownloadError, download
from vitrail.data.lookup import find
from vitrail.data.official import FILES, Remote
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.paths import data_home

BODY = bytes(range(256)) * 4000
MD5 = hashlib.md5(BODY).hexdigest()


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/missing"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if self.path.startswith("/page") else "application/gzip")
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY[: len(BODY) // 3] if self.path.startswith("/short") else BODY)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def test_a_file_is_downloaded_with_progress_and_checksum(server: str, tmp_path: Path) -> None:
    shown: list[tuple[str, int, int]] = []
    path = download(Remote((f"{server}/a",), MD5), tmp_path / "x" / "a.gz", lambda *s: shown.append(s))
    assert path.read_bytes() == BODY
    assert shown[-1] == max(shown) == ("a.gz", len(BODY), len(BODY))
    assert [p.name for p in path.parent.iterdir()] == ["a.gz"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_second_address_is_tried_when_the_first_fails(server: str, tmp_path: Path) -> None:
    remote = Remote((f"{server}/missing", f"{server}/short", f"{server}/a"), MD5)
    assert download(remote, tmp_path / "a").read_bytes() == BODY


@pytest.mark.parametrize(
    ("path", "md5", "reason"),
    [
        ("/a", "0" * 32, f"expected md5:{'0' * 32} but got {MD5}"),
        ("/short", MD5, "341333 bytes read, 682667 more expected"),
        ("/missing", MD5, "Not Found"),
        ("/page", MD5, "web page instead of the file"),
    ],
)
def test_a_failed_download_is_explained_and_leaves_no_file(
    server: str, tmp_path: Path, path: str, md5: str, reason: str
) -> None:
    with pytest.raises(DownloadError, match=reason):
        download(Remote((server + path,), md5), tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_only_web_addresses_are_opened(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(BODY)
    with pytest.raises(DownloadError, match="not a web address"):
        download(Remote(((tmp_path / "secret").as_uri(),), MD5), tmp_path / "a")


def test_a_file_is_downloaded_once_and_found_afterwards(
    server: str, assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"mnist": {"a.gz": Remote((f"{server}/a",), MD5)}}
    monkeypatch.setattr("vitrail.data.lookup.FILES", table)
    first = find("mnist", "a.gz", tmp_path)
    assert first == tmp_path / "downloads" / "mnist" / "a.gz"
    table.clear()  # a second download would fail
    assert find("mnist", "a.gz", tmp_path) == first


@pytest.mark.parametrize(("path", "reason"), [("/a", "expected md5:0000"), ("/short", "682667 more expected")])
def test_a_dataset_whose_download_fails_is_refused_and_leaves_no_file(
    server: str, assets: Path, monkeypatch: pytest.MonkeyPatch, path: str, reason: str
) -> None:
    remote = Remote((server + path,), "0" * 32)
    monkeypatch.setattr("vitrail.data.lookup.FILES", {"svhn": dict.fromkeys(FILES["svhn"], remote)})
    with pytest.raises(VitrailError, match=reason) as error:
        load("svhn")
    assert "train_32x32.mat is missing" in str(error.value)
    assert not [p for p in data_home().rglob("*") if p.is_file()]


def test_a_downloaded_file_of_the_wrong_kind_is_refused_by_name(
    server: str, assets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = Remote((f"{server}/a",), MD5)
    monkeypatch.setattr("vitrail.data.lookup.FILES", {"svhn": dict.fromkeys(FILES["svhn"], remote)})
    with pytest.raises(Malformed, match=r"downloads/svhn/train_32x32\.mat: not a complete MATLAB file"):
        load("svhn")


def test_the_assets_folder_is_searched_before_downloads(assets: Path, tmp_path: Path) -> None:
    for folder in (assets / "mnist", tmp_path / "home" / "downloads" / "mnist"):
        folder.mkdir(parents=True)
        (folder / "a.gz").write_bytes(b"x")
    assert find("mnist", "a.gz", data_home()) == assets / "mnist" / "a.gz"


def test_the_error_for_a_missing_file_has_all_paths_and_both_remedies(assets: Path) -> None:
    name = "train-images-idx3-ubyte.gz"
    with pytest.raises(VitrailError) as error:
        find("mnist", name, data_home())
    text = str(error.value)
    for part in (name, str(assets / "mnist" / name), str(data_home() / "downloads" / "mnist" / name)):
        assert part in text
    assert "connect to the internet" in text
    assert "VITRAIL_ASSETS" in text
    assert "Connection refused" in text


def test_the_error_reports_that_the_assets_folder_is_not_set(assets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VITRAIL_ASSETS")
    with pytest.raises(VitrailError, match="VITRAIL_ASSETS is not set"):
        find("svhn", "train_32x32.mat", data_home())


def test_a_home_folder_that_cannot_be_written_is_an_error_with_a_remedy(server: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(VitrailError, match=r"cannot be written.*VITRAIL_HOME"):
        download(Remote((f"{server}/a",), MD5), tmp_path / "file" / "a")


def test_every_official_file_has_addresses_and_a_checksum() -> None:
    for files in FILES.values():
        for remote in files.values():
            assert remote.urls
            assert all(url.startswith("http") for url in remote.urls)
            assert len(bytes.fromhex(remote.md5)) == 16
