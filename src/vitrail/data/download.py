"""Download of files with checksums: a file appears under its name only when it is complete and correct."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.data.official import Remote
from vitrail.data.progress import Progress, show_progress
from vitrail.utils.atomic import replace_atomically
from vitrail.utils.errors import VitrailError

if TYPE_CHECKING:
    from requests import Response

TIMEOUT = 30.0  # seconds without a byte


class DownloadError(VitrailError):
    """No address returned the file."""


def download(remote: Remote, target: Path, progress: Progress | None = None) -> Path:
    """Download a file from the first of its addresses that returns it with the right checksum.

    Args:
        remote: Addresses and checksum of the file.
        target: Path of the file to write; its folder is created.
        progress: Function that shows the progress; by default, a bar on the terminal.

    Returns:
        The path of the file.

    Raises:
        DownloadError: If no address returned the file; the text has the reason for each.
        VitrailError: If the file cannot be written.
    """
    import pooch
    from requests import RequestException

    pooch.get_logger().setLevel("WARNING")
    failures = []
    for url in remote.urls:
        if not url.startswith(("https://", "http://")):
            failures.append(f"{url} is not a web address")
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with show_progress(progress) as show, replace_atomically(target) as part:
                fetch = pooch.HTTPDownloader(
                    progressbar=_Bar(target.name, show),
                    chunk_size=1 << 18,
                    timeout=TIMEOUT,
                    headers={"User-Agent": "vitrail"},
                    hooks={"response": _refuse_web_page},
                )
                pooch.retrieve(url, f"md5:{remote.md5}", part.name, part.parent, downloader=fetch)
            return target
        except (RequestException, ValueError) as error:  # ValueError: another checksum
            failures.append(f"{url} failed ({error})")
        except (OSError, VitrailError) as error:
            raise VitrailError(f"{target} cannot be written ({error}); set VITRAIL_HOME to another folder") from error
    raise DownloadError("; ".join(failures))


def _refuse_web_page(response: Response, *_: Any, **__: Any) -> None:
    """Refuse an HTML answer, such as "too many downloads, try later"."""
    if response.ok and not response.is_redirect and "text/html" in response.headers.get("Content-Type", ""):
        raise ValueError("the server returned a web page instead of the file")


@dataclass
class _Bar:
    """The interface of a tqdm bar, as pooch expects it."""

    name: str
    show: Progress
    total: int = 0  # set by pooch
    done: int = 0

    def update(self, nbytes: int) -> None:
        self.done += nbytes
        self.show(self.name, min(self.done, self.total or self.done), self.total)  # pooch counts full chunks

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        """Nothing to close."""
