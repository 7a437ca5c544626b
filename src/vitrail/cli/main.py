"""The verbs."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from vitrail.cli.deploy import certificates, supernode
from vitrail.cli.measure import compare, evaluate, report
from vitrail.cli.models import export, show
from vitrail.cli.personalise import adapt, probe, restyle, route
from vitrail.cli.privacy import audit, privacy

app = typer.Typer(
    name="vitrail",
    help="Train one image generator over data that may not be pooled.",
    epilog="First steps: `vitrail run prism`, then `vitrail sample runs/prism-mnist5k-1 -o grid.png`.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="settings to change, such as clients=10 rounds=20"),
]


def _version(asked: bool) -> None:
    if asked:
        from vitrail import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _all(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


@app.command()
def run(
    what: Annotated[
        str, typer.Argument(metavar="METHOD|FILE.toml", help="a method of `vitrail list`, or a settings file")
    ],
    overrides: Overrides = None,
) -> None:
    """Train a generator: METHOD is one of `vitrail list`, FILE.toml a settings file, KEY=VALUE changes a setting.

    `vitrail run prism` uses embedded digits and ten clients.

    `vitrail run fedgan data=mnist clients=6 partition=skew:0.7 sync=g seed=1 out=runs/skewed`

    `vitrail run prism data=folder:hospitals partition=folders` takes your own: hospitals/CLIENT/LABEL/*.png

    `vitrail run runs/skewed/settings.toml out=runs/again` repeats a run to the bit. `vitrail list METHOD` shows every
    setting with its default.
    """
    from vitrail.experiment import settings as config
    from vitrail.experiment.train import start_run

    settings = config.resolve(what, dict(map(config.parse_override, overrides or [])))
    _watched(lambda watch: start_run(settings, None, watch))


@app.command()
def resume(
    folder: Annotated[str, typer.Argument(help="the folder of an interrupted run")],
    workers: Annotated[int | None, typer.Option(min=1, help="processes that train clients")] = None,
) -> None:
    """Go on with the run in FOLDER after an interruption; its result has the bits of one that had none."""
    from vitrail.experiment.train import resume as go_on

    _watched(lambda watch: go_on(folder, workers=workers, callbacks=[watch]))


def _watched(work: Any) -> None:
    from vitrail.cli.progress import ProgressDisplay

    watch = ProgressDisplay()
    try:
        work(watch)
    except KeyboardInterrupt:
        watch.stop()
        typer.echo(
            f"\nInterrupted; every finished round is saved. Go on with: vitrail resume {watch.folder or 'FOLDER'}",
            err=True,
        )
        raise typer.Exit(130) from None
    finally:
        watch.stop()


@app.command()
def sample(
    model: Annotated[str, typer.Argument(help="a model file, or a run's folder")],
    n: Annotated[int, typer.Option("-n", "--number", min=1, max=1_000_000, help="how many pictures")] = 64,
    label: Annotated[str | None, typer.Option(help="a class's name or number; all in turn by default")] = None,
    seed: Annotated[int, typer.Option(min=0, help="the same seed gives the same pictures")] = 0,
    out: Annotated[
        str, typer.Option("-o", "--out", help="grid.png, or data.npz for arrays (images, labels)")
    ] = "grid.png",
    client: Annotated[
        str | None, typer.Option(help="this client's own generator: its name, of a run's folder, or its private file")
    ] = None,
    content_seed: Annotated[int | None, typer.Option(min=0, help="padpaf: one content for all pictures")] = None,
    style_seed: Annotated[int | None, typer.Option(min=0, help="padpaf: one style for all pictures")] = None,
) -> None:
    """Draw pictures from a trained generator: MODEL is a model file or a run's folder.

    `vitrail sample runs/x --client client-3 --content-seed 7` draws one content in many styles of that client.

    `vitrail sample models/ID.safetensors --client runs/ID/north.safetensors` does so on a node, from its two files.
    """
    from pathlib import Path

    from vitrail.experiment.personal import fixed, load_joined, load_personal
    from vitrail.models.model_file import load
    from vitrail.utils.errors import VitrailError

    if client is None:
        generator = load(model)
    else:
        generator = (load_joined if client.endswith(".safetensors") else load_personal)(model, client)
    if content_seed is not None or style_seed is not None:
        generator = fixed(generator, content_seed, style_seed)
    path = Path(out)
    asked: int | str | None = (
        int(label) if label is not None and label.isdigit() and label not in generator.classes else label
    )
    if path.suffix == ".npz":
        import numpy as np

        labels = generator.labels(n, asked)
        pixels = (generator.sample(n, asked, seed) * 255).round().byte().permute(0, 2, 3, 1).numpy()
        with path.open("wb") as f:
            if labels is None:
                np.savez_compressed(f, images=pixels)
            else:
                np.savez_compressed(f, images=pixels, labels=labels.numpy())
    elif path.suffix == ".png":
        generator.grid(path, n, asked, seed)
    else:
        raise VitrailError(f"-o {out}: give a name that ends in .png (a grid) or .npz (arrays)")
    typer.echo(f"{n} pictures in {out}")


for verb in (show, export, evaluate, report, compare, privacy, audit, probe, route, restyle, adapt, certificates):
    app.command()(verb)


app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(supernode)


@app.command("list")
def list_(
    method: Annotated[str | None, typer.Argument(help="a method, to see its settings")] = None,
) -> None:
    """Methods, data, partitions and metrics, one line each; or all settings of METHOD."""
    from rich.console import Console
    from rich.table import Table

    from vitrail.data import PARTITIONS, SOURCES
    from vitrail.methods import METHODS
    from vitrail.metrics.registry import METRICS

    console = Console(highlight=False)

    def show(title: str, rows: dict[str, str]) -> None:
        table = Table(
            title=title, title_justify="left", box=None, show_header=False, pad_edge=False, title_style="bold"
        )
        for name, text in rows.items():
            table.add_row(name.replace("[", r"\["), text.replace("[", r"\["))
        console.print(table)
        console.print()

    if method is None:
        show(
            "methods (vitrail list METHOD shows settings)",
            {name: METHODS.summary(name) for name in METHODS},
        )
        show("data=", {name: SOURCES.summary(name) for name in SOURCES})
        show("partition=", {name: PARTITIONS.summary(name) for name in PARTITIONS})
        show("vitrail evaluate --metrics", {name: METRICS.summary(name) for name in METRICS})
        return
    from vitrail.experiment.settings import settings_model

    model = settings_model(method)
    rows = {
        f"{f.alias or name}={f.get_default() if f.get_default() is not None else ''}": f.description or ""
        for name, f in model.model_fields.items()
        if name != "method"
    }
    show(f"settings of {method}", rows)


@app.command()
def partition(
    out: Annotated[str, typer.Argument(help="the picture to write, such as partition.png")],
    overrides: Overrides = None,
) -> None:
    """Draw who would hold which pictures into the picture OUT, without training: clients x classes.

    `vitrail partition p.png data=mnist clients=20 partition=dirichlet:0.1 seed=3`
    """
    from pathlib import Path

    from vitrail.data import draw_partition
    from vitrail.experiment import settings as config
    from vitrail.experiment.plan import prepare

    plan = prepare(config.resolve("prism", {"out": "-", **dict(map(config.parse_override, overrides or []))}))
    draw_partition(plan.partition, plan.data, Path(out))
    typer.echo(f"{len(plan.clients)} clients hold pictures, {len(plan.empty)} hold none: {out}")


def main() -> None:
    """The command line; a refusal is a message, never a traceback."""
    from vitrail.utils.errors import VitrailError, printable

    try:
        app()
    except VitrailError as e:  # it may quote a file, a node or a client
        typer.echo("\n".join(printable(line, None) for line in f"error: {e}".split("\n")), err=True)
        sys.exit(2)
    except OSError as e:
        typer.echo(f"error: {e.filename or 'a file'}: {e.strerror or e}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
