"""The verbs for what a run of PaDPaF is good for: probe, route, restyle, adapt."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Run = Annotated[str, typer.Argument(metavar="RUN", help="a padpaf run's folder, with its clients/")]
Pictures = Annotated[list[str] | None, typer.Argument(metavar="[PICTURES]...", help="picture files")]


def probe(
    run: Run,
    identity: Annotated[bool, typer.Option("--identity", help="CelebA: who is on a picture, top 1, 10 and 50")] = False,
    places: Annotated[int, typer.Option(min=1, help="labels: read φ at so many by so many places; 1: its mean")] = 1,
    out: Annotated[str | None, typer.Option("-o", "--out", help="figures as JSON, or drawn: probes.png")] = None,
) -> None:
    """How much a linear probe reads off features of content and of style, on held-out pictures: label and client.

    `vitrail probe runs/p` prints it beside the same of an untrained network and keeps it in runs/p/probes.json

    `vitrail probe runs/p --places 8` reads labels off features at 8x8 places, before their mean over a picture

    `vitrail probe runs/faces --identity` asks for the person; it needs CelebA's identity_CelebA.txt.
    """
    from functools import partial

    from vitrail.analysis.identity import probe_identities
    from vitrail.analysis.probes import probe_run

    if identity:
        _measured(run, probe_identities, out, "identities.json")
    else:
        _measured(run, partial(probe_run, places=places), out, f"probes-{places}.json" if places > 1 else "probes.json")


def route(
    run: Run,
    pictures: Pictures = None,
    by: Annotated[
        str, typer.Option(help="typical of a client's pictures, or scaled or plain, by D itself")
    ] = "typical",
    out: Annotated[str | None, typer.Option("-o", "--out", help="measuring: a picture of who gets whose")] = None,
) -> None:
    """Whose is a picture? It goes to the client whose style discriminator knows it best.

    `vitrail route runs/p new/*.png` names a client for each picture

    `vitrail route runs/p -o routes.png` says how often held-out pictures reach the client whose they are.
    """
    from pathlib import Path

    from rich.console import Console

    from vitrail.analysis.routing import BY, Router, draw_routes, measure_routing
    from vitrail.analysis.trained import open_run, read_pictures
    from vitrail.metrics.results_io import Column
    from vitrail.metrics.tables import show
    from vitrail.utils.errors import VitrailError, printable

    if by not in BY:
        raise VitrailError(f"--by {by}: there are {', '.join(BY)}")
    opened = open_run(run)
    router = Router.of(opened)
    if pictures:
        for name, client in zip(pictures, router.route(read_pictures(opened, pictures), by), strict=True):
            typer.echo(printable(f"{name}: {client}"))
        return
    measures, table = measure_routing(opened, router)
    show([Column("routing", "", "", {}, measures)], Console(highlight=False))
    if out:
        draw_routes(table, opened.views.names, Path(out))
        typer.echo(f"\nwho gets whose: {out}")


def restyle(
    run: Run,
    pictures: Pictures = None,
    to: Annotated[str | None, typer.Option(help="the client whose style they get; by default all, one a row")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="is content kept, and the client hidden?")] = False,
    steps: Annotated[int, typer.Option(min=1, help="steps in which maps from features to noise are learned")] = 2000,
    latent: Annotated[float, typer.Option(min=0, help="weight of the noise itself; 0: the paper's objective")] = 1.0,
    label: Annotated[str | None, typer.Option(help="what the pictures show, where the run has labels")] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the style")] = 0,
    out: Annotated[str, typer.Option("-o", "--out", help="the picture to write: before above, after below")] = (
        "restyled.png"
    ),
) -> None:
    """Draw the content of PICTURES in the style of another client (PaDPaF's Algorithm 2).

    `vitrail restyle runs/p seven.png --to invert -o inverted.png`

    `vitrail restyle runs/p -o all.png` takes held-out pictures, and draws them in the style of every client

    `vitrail restyle runs/p --to blur --measure` says how well a reference client, blur, hides whose pictures were.
    """
    from vitrail.analysis.restyling import restyle_run

    restyle_run(run, pictures or [], to, measure, (steps, latent, seed), label, out)


def adapt(
    run: Run,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="settings to change")] = None,
    to: Annotated[str, typer.Option(help="the new clients, as a partition by domains")] = "domains:new3",
    rounds: Annotated[int, typer.Option(min=1, help="how many rounds they get")] = 25,
    scratch: Annotated[bool, typer.Option(help="beside the same from nothing")] = True,
    out: Annotated[str, typer.Option("-o", "--out", help="the folder to write")] = "runs/adapted",
) -> None:
    """Go on with a trained RUN on new clients, and draw how near each comes to its own pictures, round by round.

    `vitrail adapt runs/p -o runs/new` writes adaptation.png, adaptation.json and two runs into runs/new. After an
    interruption the same command goes on where it stopped.
    """
    from pathlib import Path

    from vitrail.analysis.adaptation import adapt as go_on
    from vitrail.cli.progress import ProgressDisplay
    from vitrail.experiment import settings as config
    from vitrail.utils.errors import printable

    curves = go_on(
        run, to, rounds, Path(out), scratch=scratch, watch=ProgressDisplay(),
        overrides=dict(map(config.parse_override, overrides or [])),
    )  # fmt: skip
    for what, by_round in curves.items():
        for n, found in by_round.items():
            values = ", ".join(f"{printable(name)} {fd:.1f}" for name, fd in found.items())
            typer.echo(f"{what}, round {n}: {values}")
    typer.echo(f"drawn in {out}/adaptation.png")


def _measured(run: str, measure: Any, out: str | None, name: str) -> None:
    from pathlib import Path

    from rich.console import Console

    from vitrail.analysis.probes import draw_probes
    from vitrail.analysis.trained import keep, open_run
    from vitrail.metrics.tables import show

    console = Console(highlight=False)
    with Console(stderr=True).status("loading") as status:
        columns = measure(open_run(run), tell=status.update)
    show(columns, console)
    drawn = out is not None and out.endswith(".png")
    path = Path(out) if out and not drawn else Path(run) / name
    keep(path, columns)
    console.print(f"\nkept in {path}", markup=False)
    if drawn:
        draw_probes(columns, Path(str(out)))
        console.print(f"drawn in {out}", markup=False)
