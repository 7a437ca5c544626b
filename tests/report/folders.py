"""Small artificial run folders for tests."""

import json

import torch
from PIL import Image

from vitrail.utils import state

SETTINGS = {
    "method": "prism",
    "data": "mnist5k",
    "clients": 2,
    "partition": "iid",
    "rounds": 3,
    "seed": 0,
    "out": "runs/x",
    "workers": "auto",
}


def row(number, *, clients=2, **more):
    """One line of metrics.jsonl."""
    names = [f"client-{i}" for i in range(clients)]
    return {
        "round": number,
        "seconds": 1.5,
        "requested": clients,
        "replied": clients,
        "excluded": {},
        "void": "",
        "bytes_up": 1000 * clients,
        "bytes_down": 4000 * clients,
        "up": dict.fromkeys(names, 1000),
        "down": dict.fromkeys(names, 4000),
        "floats_up": 32_000 * clients,
        "floats_down": 32_000 * clients,
        "loss": 100.0 / (number + 1),
    } | more


def evaluation(value=12.3):
    """An evaluation.json of one model."""
    measure = {"name": "fd", "value": value, "low": 11.0, "high": 13.6, "extractor": "vitrail-cifar"}
    more = {"n_real": 1000, "n_fake": 5000, "better": "lower", "note": "a remark"}
    columns = [{"name": "stored model", "file": "model.safetensors", "measures": [measure | more]}]
    return {"vitrail": "0.1.0", "data": "mnist5k", "real": "1000 held-out images", "columns": columns}


def write_image(path, shade):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (40, 32), shade).save(path)


def make_run(
    path, rows=None, *, settings=None, about=None, finished=True, grids=(1, 2, 3), partition=True, evaluated=None
):
    """Write the folder of a run."""
    path.mkdir(parents=True)
    lines = [f"{k} = {json.dumps(v)}" for k, v in (SETTINGS | (settings or {})).items()]
    path.joinpath("settings.toml").write_text(
        "# A run of vitrail 0.1.0; `vitrail run` repeats it.\n" + "\n".join(lines)
    )
    rows = [row(n) for n in range(3)] if rows is None else rows
    path.joinpath("metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    for n in grids:
        write_image(path / "samples" / f"round-{n:04d}.png", 20 * n)
    if partition:
        write_image(path / "partition.png", 255)
    if finished:
        description = {"vitrail": "0.1.0", "privacy": "not private: nothing was noised", **(about or {})}
        tree = {"format": 1, "kind": "masked", "names": ["0"], "about": description, "model": {"mask": torch.zeros(8)}}
        state.save(path / "model.safetensors", tree)
        write_image(path / "samples.png", 20 * grids[-1] if grids else 9)
    if evaluated:
        path.joinpath("evaluation.json").write_text(json.dumps(evaluated))
    return path
