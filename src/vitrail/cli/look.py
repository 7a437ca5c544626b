"""Commands that show results: sample, show, report, export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from vitrail.utils.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.models.model_file import Generator

Stored = Annotated[str, Argument(metavar="RUN|MODEL", help="A run's folder or a model file.")]


def sample(
    model: Stored,
    n: Annotated[int, Option("-n", "--number", min=1, max=1_000_000, help="Number of images.")] = 64,
    label: Annotated[str | None, Option(help="Name or number of a class; by default all classes in turn.")] = None,
    seed: Annotated[int, Option(min=0, help="The same seed gives the same images.")] = 0,
    out: Annotated[
        str,
        Option(
            "-o",
            "--out",
            help="A grid (`grid.png`) or arrays `images`, `labels` and `classes`, the labels' names (`data.npz`).",
        ),
    ] = "grid.png",
    client: Annotated[
        str | None, Option(help="Use this client's own generator: its name in a run, or its private file.")
    ] = None,
    content_seed: Annotated[
        int | None, Option(min=0, help="Models with content and style: one content for all images.")
    ] = None,
    style_seed: Annotated[
        int | None, Option(min=0, help="Models with content and style: one style for all images.")
    ] = None,
) -> None:
    """Generate images with a trained model.

    `vitrail sample runs/x -n 100 -o grid.png`

    `vitrail sample runs/x --client client-3 --content-seed 7` shows one content in many styles of that client.

    `vitrail sample models/ID.safetensors --client runs/ID/north.safetensors` does so on a node, from its two files.
    """
    from vitrail.experiment.personal import fixed, load_joined, load_personal
    from vitrail.models.model_file import load

    if client is None:
        generator = load(model)
    else:
        generator = (load_joined if client.endswith(".safetensors") else load_personal)(model, client)
    if content_seed is not None or style_seed is not None:
        generator = fixed(generator, content_seed, style_seed)
    path, wanted = Path(out), _label(label, generator)
    if not generator.sample(1).isfinite().all():
        raise VitrailError(f"{model} generates pixels that are not finite: its training diverged; train it again")
    if path.suffix == ".npz":
        _write_arrays(path, generator, n, wanted, seed)
    elif path.suffix == ".png":
        generator.grid(path, n, wanted, seed)
    else:
        raise VitrailError(f"-o {out}: give a name that ends in .png (a grid) or .npz (arrays)")
    typer.echo(f"{n} images in {out}")


def _label(text: str | None, generator: Generator) -> int | str | None:
    """Return a class's number where the text is one and no class has it as its name."""
    return int(text) if text is not None and text.isdigit() and text not in generator.classes else text


def _write_arrays(path: Path, generator: Generator, n: int, label: int | str | None, seed: int) -> None:
    import numpy as np

    labels = generator.labels(n, label)
    arrays: dict[str, Any] = {
        "images": (generator.sample(n, label, seed) * 255).round().byte().permute(0, 2, 3, 1).numpy()
    }
    if labels is not None:
        arrays["labels"] = labels.numpy()
        arrays["classes"] = np.array(generator.classes, np.str_)
    with path.open("wb") as f:
        np.savez_compressed(f, **arrays)


def show(model: Stored, as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False) -> None:
    """Describe a model file: network, size of each part, training, privacy.

    `vitrail show runs/x`

    `vitrail show runs/x/best.safetensors --json`
    """
    from vitrail.models.inspection import inspect_model, show_model

    found = inspect_model(model)
    if as_json:
        import json

        typer.echo(json.dumps(found, indent=2))
        return
    from vitrail.utils.console import Console

    show_model(found, Console())


def report(
    runs: Annotated[list[str], Argument(metavar="RUN...", help="Folders of one or more runs.")],
    out: Annotated[str | None, Option("-o", "--out", help="Page to write; by default RUN/report.html.")] = None,
    title: Annotated[str, Option(help="Title of the page.")] = "",
    public: Annotated[
        bool, Option("--public", help="Omit images from clients' personal models, to share the page.")
    ] = False,
) -> None:
    """Write a self-contained HTML page about one run, or comparing several.

    `vitrail report runs/x` writes runs/x/report.html

    `vitrail report runs/x runs/y -o both.html` compares them by rounds, bytes and seconds.
    """
    from vitrail.experiment.run_dir import RunDir
    from vitrail.report import write_report

    path = Path(out) if out else RunDir(Path(runs[0])).report if len(runs) == 1 else Path("report.html")
    write_report([Path(r) for r in runs], path, title, private=not public)
    typer.echo(f"report: {path}")


def export(
    model: Stored, onnx: Annotated[str, Option("--onnx", metavar="FILE.onnx", help="ONNX file to write.")]
) -> None:
    """Export a generator to ONNX, for use without torch; the file is compared with torch's images first.

    `vitrail export runs/x --onnx digits.onnx`

    Inputs: `z` (noise) and, for models with classes, `label`. Output: `images`, in [0, 1]. Needs
    `pip install "vitrail[onnx]"`; using the file needs only onnxruntime and NumPy.
    """
    from vitrail.models.model_file import load
    from vitrail.models.onnx_export import check_installed, export_onnx, usage
    from vitrail.utils.quantities import size

    check_installed()
    generator = load(model)
    done = export_onnx(generator, onnx)
    typer.echo(f"{done.path}: {done.bytes:,} bytes ({size(done.bytes)})")
    typer.echo(f"largest difference from torch's images in [0, 1]: {done.difference:.1e}")
    typer.echo(f"to use it without torch:\n\n{usage(generator, done.path)}")
