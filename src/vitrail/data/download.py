"""Fetching a file whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from vitrail.data.official import Remote
from vitrail.data.progress import Progress, shown
from vitrail.utils.errors import VitrailError

TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 1 << 18


class DownloadError(VitrailError):
    """An address, or all of them, did not give the file."""


@contextlib.contextmanager
def into_place(target: Path) -> Iterator[IO[bytes]]:
    """A file to write, which takes its name only when it is complete; otherwise nothing of it stays."""
    part = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own, because another run may be making the same file.
        handle, part = tempfile.mkstemp(prefix=target.name + ".", suffix=".part", dir=target.parent)
        with os.fdopen(handle, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.chmod(part, 0o644)  # mkstemp's are for the user alone
        os.replace(part, target)
    except BaseException as error:
        if part is not None:
            with contextlib.suppress(OSError):
                os.unlink(part)
        if isinstance(error, OSError) and error.errno is not None:  # the system's, and no decoder's
            raise VitrailError(
                f"{target}: cannot be written ({error.strerror}); make room or give permission, "
                "or set VITRAIL_HOME to another folder"
            ) from error
        raise


def download(remote: Remote, target: Path, progress: Progress | None = None) -> Path:
    """Fetch a file from the first of its addresses that gives it with the right checksum."""
    failures = []
    for url in remote.urls:
        try:
            with shown(progress) as show, into_place(target) as out:
                digest = hashlib.md5(usedforsecurity=False)
                done = 0
                for chunk, total in _chunks(url):
                    out.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    show(target.name, done, total)
                if digest.hexdigest() != remote.md5:
                    raise DownloadError(f"{url} gave a file with MD5 {digest.hexdigest()} instead of {remote.md5}")
            return target
        except DownloadError as failure:
            failures.append(str(failure))
    raise DownloadError("; ".join(failures))


def _chunks(url: str) -> Iterator[tuple[bytes, int]]:
    """The bytes at an address, piece by piece, each with the size of the whole."""
    if not url.startswith(("https://", "http://")):
        raise DownloadError(f"{url} is not a web address")
    request = urllib.request.Request(url, headers={"User-Agent": "vitrail"})  # noqa: S310, checked above
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
            if answer.headers.get_content_type() == "text/html":  # such as "too many downloads, try later"
                raise DownloadError(f"{url} answered with a web page instead of the file")
            total, done = int(answer.headers.get("Content-Length") or 0), 0
            while chunk := answer.read(_CHUNK):
                done += len(chunk)
                yield chunk, total
    except (
        OSError,
        http.client.HTTPException,
        ValueError,
    ) as error:  # URLError and TimeoutError are OSErrors
        raise DownloadError(f"{url} failed ({getattr(error, 'reason', None) or error})") from error
    if done < total:
        raise DownloadError(f"{url} broke off after {done:,} of {total:,} bytes")
