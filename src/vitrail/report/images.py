"""Images of a run, embedded in the page: sample grids by round, clients' personal grids, the partition."""

from __future__ import annotations

import base64
import io
import json
import re
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from vitrail.report.rounds import thinned

_PNG = b"\x89PNG\r\n\x1a\n"
_ROUND = re.compile(r"round-(\d+)\.png")


@dataclass(frozen=True)
class ReportImage:
    """A PNG image as a data URI, with the size at which it is shown."""

    uri: str
    width: int
    height: int


@dataclass(frozen=True)
class Grid:
    """Generated images of one round, or of the stored model."""

    when: str
    image: ReportImage
    key: bool = False  # first, middle or last: printed, where there is no slider


def read_image(path: Path) -> ReportImage | None:
    """Read a PNG file; None if there is none that can be shown."""
    try:
        data = path.read_bytes()
        width, height = struct.unpack(">II", data[16:24])
    except (OSError, struct.error):
        return None
    if not data.startswith(_PNG):
        return None
    return ReportImage("data:image/png;base64," + base64.b64encode(_shrink(data)).decode(), width, height)


def _shrink(png: bytes) -> bytes:
    """Undo an enlargement by an integer factor, which the browser repeats."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(png))
        image.load()
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
        return png  # the browser shows what it can
    for times in (8, 4, 2):
        size = image.width // times, image.height // times
        small = image.resize(size, Image.Resampling.NEAREST) if min(size) and image.width % times == 0 else image
        if small.size != image.size and small.resize(image.size, Image.Resampling.NEAREST).tobytes() == image.tobytes():
            out = io.BytesIO()
            small.save(out, "PNG", optimize=True)
            return out.getvalue()
    return png


@dataclass(frozen=True)
class PersonalGrid:
    """A grid of one client's generator, with a description of its columns."""

    client: str
    image: ReportImage
    caption: str


def read_personal_grids(folder: Path) -> list[PersonalGrid]:
    """Read the grids of clients with personal generators; none if their private files are elsewhere."""
    found = []
    try:
        for row in json.loads((folder / "clients" / "grids.json").read_text()):
            labels = ", ".join(row["labels"])
            columns = f"one label and style per column: {labels}" if labels else "one style per column"
            unseen = f"; this client has no images of {', '.join(row['unseen'])}" if row["unseen"] else ""
            if image := read_image(folder / "clients" / Path(row["file"]).name):
                found.append(PersonalGrid(str(row["client"]), image, columns + unseen))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # no grids, or damaged ones: the page omits them
    return found


def read_grids(folder: Path, most: int) -> tuple[list[Grid], int]:
    """Read sample grids.

    Returns:
        At most `most` grids in order and that of the stored model; and the number of omitted grids.
    """
    files = sorted((int(m[1]), path) for path in folder.glob("samples/*.png") if (m := _ROUND.fullmatch(path.name)))
    shown = thinned(files, most)
    grids = [Grid(f"Round {n}", image) for n, path in shown if (image := read_image(path))]
    stored = read_image(folder / "samples.png")
    if stored and grids and grids[-1].image == stored:
        grids[-1] = replace(grids[-1], when=f"{grids[-1].when}, stored model")
    elif stored:
        grids.append(Grid("Stored model", stored))
    keys = {0, len(grids) // 2, len(grids) - 1}
    return [replace(g, key=i in keys) for i, g in enumerate(grids)], len(files) - len(shown)
