"""Finding the official files: in VITRAIL_ASSETS, among earlier downloads, or on the internet."""

from __future__ import annotations

import os
import shutil
import tarfile
import zlib
from pathlib import Path

from vitrail.data.download import DownloadError, download, into_place
from vitrail.data.official import FILES
from vitrail.data.progress import Progress
from vitrail.utils.errors import Malformed, VitrailError

ASSETS = "VITRAIL_ASSETS"


def find(
    source: str,
    name: str,
    home: Path,
    progress: Progress | None = None,
    *,
    packed_in: str = "",
    hint: str = "",
) -> Path:
    """The path of an official file, which is downloaded (and unpacked) when it is nowhere."""
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
    """The path of a file that is here already."""
    return next((place for place in _places(source, name, home) if place.is_file()), None)


def _places(source: str, name: str, home: Path) -> list[Path]:
    assets = os.environ.get(ASSETS)
    first = [Path(assets).expanduser() / source / name] if assets else []
    return [*first, home / "downloads" / source / name]


def _missing(source: str, name: str, packed_in: str, home: Path, failure: str) -> str:
    """Which file, where it was looked for, and what can be done."""
    wanted = [n for n in (name, packed_in) if n]
    looked = "; ".join(str(place) for n in wanted for place in _places(source, n, home))
    if os.environ.get(ASSETS):
        unset, remedy = "", f"into {source} in the folder that {ASSETS} names"
    else:
        unset = f" ({ASSETS} is not set)"
        remedy = f"into a folder {source} and set {ASSETS} to the folder that holds it"
    return (
        f"data={source}: the file {name} is missing.\n"
        f"  Looked for{unset}: {looked}.\n"
        f"  Remedies: connect to the internet and run again; or put {' or '.join(wanted)} {remedy}.\n"
        f"  The download: {failure}"
    ).rstrip()


def _unpack(archive: Path, name: str, folder: Path) -> Path:
    """Copy a file, and its siblings of the same kind, out of a tar; its paths and modes are not obeyed."""
    kind = Path(name).suffix
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                inside = Path(member.name).name
                if member.isreg() and inside.endswith(kind) and (stream := tar.extractfile(member)):
                    with into_place(folder / inside) as out:
                        shutil.copyfileobj(stream, out, 1 << 20)
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise Malformed(f"{archive}: cannot be unpacked ({error})") from error
    if not (folder / name).is_file():
        raise Malformed(f"{archive}: holds no file {name}")
    return folder / name
