"""Lookup of official files: in the folder VITRAIL_ASSETS, among earlier downloads, or on the internet."""

from __future__ import annotations

import os
import shutil
import tarfile
import zlib
from pathlib import Path

from vitrail.data.download import DownloadError, download
from vitrail.data.official import FILES
from vitrail.data.progress import Progress
from vitrail.utils.atomic import replace_atomically
from vitrail.utils.errors import Malformed, VitrailError

ASSETS = "VITRAIL_ASSETS"


def find(
    source: str, name: str, home: Path, progress: Progress | None = None, *, packed_in: str = "", hint: str = ""
) -> Path:
    """Return the path of an official file; download (and unpack) it if it is missing.

    Args:
        source: Name of the source, such as `mnist`; also the name of the sub-folder.
        name: Name of the file.
        home: Folder for downloads.
        progress: Function that shows the progress; by default, a bar on the terminal.
        packed_in: Name of the archive that contains the file, if it is not published on its own.
        hint: Another remedy for the error message.

    Raises:
        VitrailError: If the file is missing and cannot be downloaded.
        Malformed: If the archive is damaged or does not contain the file.
    """
    found = present(source, name, home)
    if found is not None:
        return found
    downloads, fetched = home / "downloads" / source, packed_in or name
    try:
        path = present(source, fetched, home) or download(FILES[source][fetched], downloads / fetched, progress)
    except DownloadError as failure:
        raise VitrailError(_missing(source, name, packed_in, home, f"{failure}.\n  {hint}")) from failure
    return _unpack(path, name, downloads) if packed_in else path


def present(source: str, name: str, home: Path) -> Path | None:
    """Return the path of a file that is already on this machine, or None."""
    return next((path for path in _candidates(source, name, home) if path.is_file()), None)


def _candidates(source: str, name: str, home: Path) -> list[Path]:
    assets = os.environ.get(ASSETS)
    first = [Path(assets).expanduser() / source / name] if assets else []
    return [*first, home / "downloads" / source / name]


def _missing(source: str, name: str, packed_in: str, home: Path, failure: str) -> str:
    """Return an error message: the missing file, where it was expected, and the remedies."""
    wanted = [n for n in (name, packed_in) if n]
    looked = "; ".join(str(path) for n in wanted for path in _candidates(source, n, home))
    if os.environ.get(ASSETS):
        unset, remedy = "", f"into the sub-folder {source} of the folder {ASSETS}"
    else:
        unset = f" ({ASSETS} is not set)"
        remedy = f"into a folder {source} and set {ASSETS} to its parent folder"
    return (
        f"data={source}: the file {name} is missing.\n"
        f"  Looked for{unset}: {looked}.\n"
        f"  Remedies: connect to the internet and run again; or put {' or '.join(wanted)} {remedy}.\n"
        f"  The download: {failure}"
    ).rstrip()


def _unpack(archive: Path, name: str, folder: Path) -> Path:
    """Copy a file and all others with its suffix out of a tar archive; paths and modes in it are ignored."""
    suffix = Path(name).suffix
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                inside = Path(member.name).name
                if member.isreg() and inside.endswith(suffix) and (stream := tar.extractfile(member)):
                    with replace_atomically(folder / inside) as part, part.open("wb") as out:
                        shutil.copyfileobj(stream, out, 1 << 20)
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise Malformed(f"{archive}: cannot be unpacked ({error})") from error
    if not (folder / name).is_file():
        raise Malformed(f"{archive}: does not contain the file {name}")
    return folder / name
