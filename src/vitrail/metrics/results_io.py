"""Files of evaluations: the measures of each model, how they were computed, and on which images."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitrail.data.dataset import Dataset
from vitrail.metrics.evaluation import split_validation
from vitrail.metrics.measure import Measure
from vitrail.utils.atomic import write_atomically
from vitrail.utils.version import __version__
from vitrail.wire.message import digest


@dataclass(frozen=True)
class Column:
    """The measures of one model.

    Args:
        name: The model, such as "stored model".
        file: Name of its file.
        digest: Hash of the file's content.
        options: Options of the evaluation.
        measures: The results.
    """

    name: str
    file: str
    digest: str
    options: dict[str, Any]
    measures: Sequence[Measure]


def file_digest(path: Path) -> str:
    """Return the hash of a file's content."""
    return digest(path.read_bytes()).hex()


def write_evaluation(path: Path, data: Dataset, columns: Sequence[Column]) -> None:
    """Write an evaluation; an earlier one of the same models on the same images is extended."""
    _, test = split_validation(data.test)
    about = {"data": data.name, "real": f"{len(test):,} test images", "content": test.digest()}
    new = [_column_to_tree(c) for c in columns]
    others: list[dict[str, Any]] = []
    earlier = _load(path)
    if earlier.get("content") == about["content"]:
        for old in earlier["columns"]:
            same = [c for c in new if c["name"] == old["name"]]
            file = path.parent / old["file"]
            if not same and file.is_file() and file_digest(file) == old["digest"]:
                others.append(old)
            elif same and same[0]["digest"] == old["digest"]:
                has = {(m["name"], m["extractor"]) for m in same[0]["measures"]}
                same[0]["measures"] += [m for m in old["measures"] if (m["name"], m["extractor"]) not in has]
    tree = {"vitrail": __version__, **about, "columns": new + others}
    write_atomically(path, (json.dumps(tree, indent=1) + "\n").encode())


def read_measures(path: Path, model: Path, options: dict[str, Any]) -> list[Measure] | None:
    """Return the measures of this model in a file, if computed with these options by this version; or None."""
    tree = _load(path)
    for column in tree.get("columns", []):
        stored = {"feature_network" if k == "ruler" else k: v for k, v in column["asked"].items()}  # its former name
        if (column["digest"], stored, tree["vitrail"]) == (file_digest(model), options, __version__):
            return [measure_from_tree(m) for m in column["measures"]]
    return None


def _load(path: Path) -> dict[str, Any]:
    """Read an evaluation; empty if the file is missing or damaged."""
    try:
        tree = json.loads(path.read_text())
        for c in tree["columns"]:
            _ = (c["name"], c["file"], c["digest"], c["asked"], [measure_from_tree(m) for m in c["measures"]])
        return dict(tree) if "content" in tree and "vitrail" in tree else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _column_to_tree(c: Column) -> dict[str, Any]:
    measures = [measure_to_tree(m) for m in c.measures]
    return {"name": c.name, "file": c.file, "digest": c.digest, "asked": c.options, "measures": measures}


def measure_to_tree(m: Measure) -> dict[str, Any]:
    """Return a measure as JSON can represent it: a missing interval is null."""
    return {k: None if k in ("low", "high") and math.isnan(v) else v for k, v in asdict(m).items()}


def measure_from_tree(m: dict[str, Any]) -> Measure:
    fields: dict[str, Any] = {k: math.nan if k in ("low", "high") and v is None else v for k, v in m.items()}
    return Measure(**fields)
