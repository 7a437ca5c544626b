"""The verbs for stored models: show, export."""

from __future__ import annotations

from typing import Annotated

import typer

Stored = Annotated[str, typer.Argument(metavar="MODEL", help="a model file, or a run's folder")]


def show(
    model: Stored,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, for programs")] = False,
) -> None:
    """Say what is in a model file: network, mask, bytes of each part, how it was trained, privacy. Draws nothing.

    `vitrail show runs/x`

    `vitrail show runs/x/best.safetensors --json`
    """
    from vitrail.models.inspection import inspect_model

    found = inspect_model(model)
    if as_json:
        import json

        typer.echo(json.dumps(found, indent=2))
        return
    from rich.console import Console

    from vitrail.models.inspection import show_model

    show_model(found, Console(highlight=False))


def export(
    model: Stored,
    onnx: Annotated[str, typer.Option("--onnx", metavar="FILE.onnx", help="the file to write")],
) -> None:
    """Write a trained generator for use without torch: an ONNX file, compared with torch before it is kept.

    `vitrail export runs/x --onnx digits.onnx`

    Its inputs are `z` (noise) and, where there are classes, `label`; its output is `pictures` in [0, 1]. It needs
    `pip install "vitrail[onnx]"`; using the file needs onnxruntime and NumPy alone.
    """
    from vitrail.models.model_file import load
    from vitrail.models.onnx_export import check_installed, export_onnx, usage
    from vitrail.report.quantities import size

    check_installed()
    generator = load(model)
    done = export_onnx(generator, onnx)
    typer.echo(f"{done.path}: {done.bytes:,} bytes ({size(done.bytes)})")
    typer.echo(f"largest difference from torch's pictures in [0, 1]: {done.difference:.1e}")
    typer.echo(f"to use it without torch:\n\n{usage(generator, done.path)}")
