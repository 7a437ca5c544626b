"""Pictures of a run as part of the page: sample grids along the way, the stored model's, the partition."""

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
    """A PNG in words that a page can hold."""

    uri: str
    width: int
    height: int


@dataclass(frozen=True)
class Grid:
    """Pictures that the generator made at one time of the run."""

    when: str
    picture: ReportImage
    key: bool = False  # first, middle or last: what stands on paper, where nothing slides


def read_image(path: Path) -> ReportImage | None:
    """A PNG file, or None where there is none that can be shown."""
    try:
        data = path.read_bytes()
        width, height = struct.unpack(">II", data[16:24])
    except (OSError, struct.error):
        return None
    if not data.startswith(_PNG):
        return None
    return ReportImage("data:image/png;base64," + base64.b64encode(_smaller(data)).decode(), width, height)


def _smaller(png: bytes) -> bytes:
    """The same picture without the enlargement by whole pixels, which a browser does as well."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(png))
        image.load()
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
        return png  # not for us to judge: the browser shows what it can
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
    """A client's own grid, and in words what is in its columns."""

    client: str
    picture: ReportImage
    caption: str


def read_personal_grids(folder: Path) -> list[PersonalGrid]:
    """The grids of clients that have a style of their own; none where their private files are elsewhere."""
    found = []
    try:
        for row in json.loads((folder / "clients" / "grids.json").read_text()):
            columns = f"a label and a style in each column: {', '.join(row['labels'])}" if row["labels"] else (
                "a style in each column"
            )  # fmt: skip
            unseen = f"; this client never saw {', '.join(row['unseen'])}" if row["unseen"] else ""
            if picture := read_image(folder / "clients" / Path(row["file"]).name):
                found.append(PersonalGrid(str(row["client"]), picture, columns + unseen))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # no grids, or damaged ones: the page does without
    return found


def read_grids(folder: Path, most: int) -> tuple[list[Grid], int]:
    """The sample grids in order, the stored model's last, and how many of them were left out for the page's size."""
    files = sorted((int(m[1]), path) for path in folder.glob("samples/*.png") if (m := _ROUND.fullmatch(path.name)))
    shown = thinned(files, most)
    grids = [Grid(f"Round {n}", picture) for n, path in shown if (picture := read_image(path))]
    stored = read_image(folder / "samples.png")
    if stored and grids and grids[-1].picture == stored:
        grids[-1] = replace(grids[-1], when=f"{grids[-1].when}, the stored model")
    elif stored:
        grids.append(Grid("The stored model", stored))
    keys = {0, len(grids) // 2, len(grids) - 1}
    return [replace(g, key=i in keys) for i, g in enumerate(grids)], len(files) - len(shown)
