"""Evaluations as files: what was measured of which model, how, against what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitrail import __version__
from vitrail.data.dataset import Dataset
from vitrail.metrics.evaluation import split_validation
from vitrail.metrics.measure import Measure
from vitrail.utils.atomic import write_atomically
from vitrail.wire.message import digest


@dataclass(frozen=True)
class Column:
    """The measures of one generator: what it is, its file and that file's digest, how it was measured."""

    name: str
    file: str
    digest: str
    asked: dict[str, Any]
    measures: Sequence[Measure]


def file_digest(path: Path) -> str:
    """A name for a file's content."""
    return digest(path.read_bytes()).hex()


def write(path: Path, data: Dataset, columns: Sequence[Column]) -> None:
    """Keep an evaluation; what an earlier one found of the same models on the same pictures stays beside it."""
    _, test = split_validation(data.test)
    about = {"data": data.name, "real": f"{len(test):,} test images", "content": test.digest()}
    new: list[dict[str, Any]] = [asdict(c) for c in columns]
    others: list[dict[str, Any]] = []
    earlier = _load(path)
    if earlier.get("content") == about["content"]:
        for old in earlier["columns"]:
            same = [c for c in new if c["name"] == old["name"]]
            if not same and _unchanged(path.parent / old["file"], old["digest"]):
                others.append(old)
            elif same and same[0]["digest"] == old["digest"]:
                has = {(m["name"], m["extractor"]) for m in same[0]["measures"]}
                same[0]["measures"] += [m for m in old["measures"] if (m["name"], m["extractor"]) not in has]
    tree = {"vitrail": __version__, **about, "columns": new + others}
    write_atomically(path, (json.dumps(tree, indent=1) + "\n").encode())


def read(path: Path, model: Path, asked: dict[str, Any]) -> list[Measure] | None:
    """The measures that a file holds of this model, measured just so by this version; or None."""
    tree = _load(path)
    for column in tree.get("columns", []):
        if (column["digest"], column["asked"], tree["vitrail"]) == (file_digest(model), asked, __version__):
            return [Measure(**m) for m in column["measures"]]
    return None


def _load(path: Path) -> dict[str, Any]:
    """A file of ours, or nothing."""
    try:
        tree = json.loads(path.read_text())
        for c in tree["columns"]:
            _ = (c["name"], c["file"], c["digest"], c["asked"], [Measure(**m) for m in c["measures"]])
        return dict(tree) if "content" in tree and "vitrail" in tree else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _unchanged(path: Path, before: str) -> bool:
    return path.is_file() and file_digest(path) == before
