"""Commands for runs that separate content and style: probe, route, restyle, adapt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from vitrail.cli.settings_arguments import parse_overrides
from vitrail.utils.errors import VitrailError, printable

Run = Annotated[
    str, Argument(metavar="RUN", help="Folder of a run that separates content and style, with its clients/.")
]
ImageFiles = Annotated[list[str] | None, Argument(metavar="[IMAGES]...", help="Image files.")]


def probe(
    run: Run,
    identity: Annotated[
        bool, Option("--identity", help="Probe the identity of the person instead (CelebA): top 1, 10 and 50.")
    ] = False,
    positions: Annotated[
        int, Option(min=1, help="Fit label probes on N x N positions of the feature map; 1: on its mean.")
    ] = 1,
    out: Annotated[str | None, Option("-o", "--out", help="JSON file for results, or PNG file for a chart.")] = None,
) -> None:
    """Measure how well linear probes predict label and client from content and style features.

    `vitrail probe runs/p` prints accuracies on held-out images, also for untrained networks, and writes
    runs/p/probes.json

    `vitrail probe runs/p --positions 8` fits label probes on 8x8 positions of the feature map instead of its mean

    `vitrail probe runs/faces --identity` predicts the person; it needs CelebA's identity_CelebA.txt.
    """
    from functools import partial

    from vitrail.analysis.probes import probe_identities, probe_run

    if identity:
        _measure(run, probe_identities, out, "identities.json")
    else:
        name = f"probes-{positions}.json" if positions > 1 else "probes.json"
        _measure(run, partial(probe_run, positions=positions), out, name)


def route(
    run: Run,
    images: ImageFiles = None,
    by: Annotated[
        str, Option(help="Kind of confidence: typical (feature distance), scaled or plain (output of D).")
    ] = "typical",
    out: Annotated[str | None, Option("-o", "--out", help="Without IMAGES: PNG file for the confusion matrix.")] = None,
) -> None:
    """Assign images to the client whose style discriminator is most confident.

    `vitrail route runs/p new/*.png` prints one client per image

    `vitrail route runs/p -o routes.png` prints how often held-out images are routed to their own client.
    """
    from vitrail.analysis.routing import BY, Router, draw_routes, measure_routing
    from vitrail.analysis.trained import load_run, read_images
    from vitrail.metrics.results_io import Column
    from vitrail.report.evaluation import print_measures
    from vitrail.utils.console import Console

    if by not in BY:
        raise VitrailError(f"--by {by}: unknown kind of confidence; give one of {', '.join(BY)}")
    loaded = load_run(run)
    router = Router.of(loaded)
    if images:
        for name, client in zip(images, router.route(read_images(loaded, images), by), strict=True):
            typer.echo(printable(f"{name}: {client}"))
        return
    measures, table = measure_routing(loaded, router)
    print_measures([Column("routing", "", "", {}, measures)], Console())
    if out:
        draw_routes(table, loaded.views.names, Path(out))
        typer.echo(f"\nwrote confusion matrix: {out}")


def restyle(
    run: Run,
    images: ImageFiles = None,
    to: Annotated[str | None, Option(help="Client whose style is used; default: all, one row each.")] = None,
    measure: Annotated[
        bool, Option("--measure", help="Measure whether content is preserved and the client hidden.")
    ] = False,
    steps: Annotated[int, Option(min=1, help="Training steps of the maps from features to latents.")] = 2000,
    latent: Annotated[float, Option(min=0, help="Weight of the latents' error; 0: the paper's objective.")] = 1.0,
    label: Annotated[str | None, Option(help="Label of the images, if the run has labels.")] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the style.")] = 0,
    out: Annotated[
        str, Option("-o", "--out", help="PNG file to write: original images above, re-styled ones below.")
    ] = "restyled.png",
) -> None:
    """Generate the content of IMAGES in the style of another client (PaDPaF, Algorithm 2).

    `vitrail restyle runs/p seven.png --to invert -o inverted.png`

    `vitrail restyle runs/p -o all.png` uses held-out images and the styles of all clients

    `vitrail restyle runs/p --to blur --measure` measures how well the style of client blur hides whose images they are.
    """
    from vitrail.analysis.restyling import restyle_run

    restyle_run(run, images or [], to, measure, (steps, latent, seed), label, out)


def adapt(
    run: Run,
    overrides: Annotated[list[str] | None, Argument(metavar="[KEY=VALUE]...", help="Settings to change.")] = None,
    to: Annotated[str, Option(help="New clients, as a partition by domains.")] = "domains:new3",
    rounds: Annotated[int, Option(min=1, help="Rounds of training on the new clients.")] = 25,
    scratch: Annotated[bool, Option(help="Also train the same from scratch, for comparison.")] = True,
    out: Annotated[str, Option("-o", "--out", help="Folder to write.")] = "runs/adapted",
) -> None:
    """Continue a trained RUN on new clients and plot each client's Fréchet distance by round.

    `vitrail adapt runs/p -o runs/new` writes adaptation.png, adaptation.json and two runs into runs/new. After an
    interruption, the same command continues.
    """
    from vitrail.analysis.adaptation import adapt as run_adaptation
    from vitrail.cli.progress import ProgressDisplay

    curves = run_adaptation(
        run, to, rounds, Path(out), scratch=scratch, watch=ProgressDisplay(),
        overrides=parse_overrides(overrides),
    )  # fmt: skip
    for start, by_round in curves.items():
        for n, found in by_round.items():
            values = ", ".join(f"{printable(name)} {fd:.1f}" for name, fd in found.items())
            typer.echo(f"{start}, round {n}: {values}")
    typer.echo(f"wrote chart: {out}/adaptation.png")


def _measure(run: str, measure: Any, out: str | None, name: str) -> None:
    from vitrail.analysis.probes import draw_probes
    from vitrail.analysis.trained import load_run, save_measures
    from vitrail.report.evaluation import print_measures
    from vitrail.utils.console import Console, show_status

    console = Console()
    with show_status() as report_progress:
        columns = measure(load_run(run), progress=report_progress)
    print_measures(columns, console)
    chart = out is not None and out.endswith(".png")
    path = Path(out) if out and not chart else Path(run) / name
    save_measures(path, columns)
    console.print(f"\nwrote {path}", markup=False)
    if chart:
        draw_probes(columns, Path(str(out)))
        console.print(f"wrote {out}", markup=False)
