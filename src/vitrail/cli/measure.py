"""The verbs that measure: evaluate, report, compare."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def evaluate(
    model: Annotated[
        str, typer.Argument(metavar="RUN|MODEL|PICTURES", help="a run's folder, a model file, or npz:FILE")
    ],
    data: Annotated[str | None, typer.Option(help="data to measure against; by default what it was trained on")] = None,
    n: Annotated[int, typer.Option("-n", "--number", min=10, max=1_000_000, help="how many pictures to make")] = 5000,
    metrics: Annotated[
        str | None, typer.Option(help="families, by commas; by default all but fid: see `vitrail list`")
    ] = None,
    fid_n: Annotated[int, typer.Option(min=10, help="pictures, real and made, for fid")] = 2000,
    best: Annotated[bool, typer.Option("--best", help="also the best measured round of the run")] = False,
    ensemble: Annotated[
        bool, typer.Option("--ensemble", help="also a new mask for every batch, as papers sample (prism)")
    ] = False,
    clients: Annotated[
        bool, typer.Option("--clients", help="each client's own generator, on held-out pictures of its domain")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="of the noise")] = 0,
    out: Annotated[str | None, typer.Option("-o", "--out", help="write the figures here as JSON")] = None,
) -> None:
    """Measure the stored model of a RUN's folder, a MODEL file, or given PICTURES, on held-out pictures.

    `vitrail evaluate runs/x` prints all families but fid and keeps them in runs/x/evaluation.json

    `vitrail evaluate runs/x --metrics fid,oracle --fid-n 2000`

    `vitrail evaluate model.safetensors --data mnist -n 10000`

    `vitrail evaluate npz:samples.npz --data mnist` measures pictures made elsewhere; folder:PATH does, too.

    `vitrail evaluate runs/x --clients -n 2000` prints a line a client and keeps them in runs/x/clients.json

    No network that a model was trained against measures it. Pictures that chose the best round judge nothing.
    """
    from pathlib import Path

    from rich.console import Console

    from vitrail.experiment.evaluate import evaluate_stored
    from vitrail.experiment.evaluate_clients import evaluate_clients
    from vitrail.experiment.run_dir import RunDir
    from vitrail.metrics.results_io import write
    from vitrail.metrics.samples import KINDS, evaluate_samples
    from vitrail.metrics.tables import show
    from vitrail.report import write_report
    from vitrail.report.clients import show_clients
    from vitrail.utils.errors import VitrailError

    console, place = Console(highlight=False), RunDir(Path(model))
    chosen = [name.strip() for name in metrics.split(",")] if metrics else None
    with Console(stderr=True).status("loading") as status:
        how: dict[str, Any] = {"families": chosen, "n": n, "fid_n": fid_n, "seed": seed, "tell": status.update}
        if clients:
            if data is not None or best or ensemble:
                raise VitrailError("--clients measures a run's clients on its own data; leave the other options out")
            found, columns = evaluate_clients(model, **how)
        elif model.startswith(KINDS):
            if data is None or best or ensemble:
                raise VitrailError(f"{model}: name the real pictures with --data; --best and --ensemble are for runs")
            found, columns = evaluate_samples(model, data, **how)
        else:
            found, columns = evaluate_stored(model, data, best=best, ensemble=ensemble, **how)
    console.print(f"{model} against test images of {found.name}\n", markup=False)
    if clients:
        show_clients(columns, console)
        write(Path(out) if out else place.by_client, found, columns)
        console.print(f"\nkept in {out or place.by_client}", markup=False)
        return
    show(columns, console)
    own = place.settings.exists() and data is None  # what was measured on other data is not the run's own evaluation
    if out or own:
        write(Path(out) if out else place.evaluation, found, columns)
    if own and not out:
        write_report([place.path], place.report)
        console.print(f"\nkept in {place.evaluation} and {place.report}", markup=False)


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="folders of runs")],
    out: Annotated[str | None, typer.Option("-o", "--out", help="the page; by default RUN/report.html")] = None,
    title: Annotated[str, typer.Option(help="the page's title")] = "",
    public: Annotated[bool, typer.Option("--public", help="nothing of clients' own style: for a page to give away")] = (
        False
    ),
) -> None:
    """One HTML page about a RUN, or about several side by side; it needs nothing but itself.

    `vitrail report runs/x` writes runs/x/report.html

    `vitrail report runs/x runs/y -o both.html` compares them over rounds, over bytes and over seconds.
    """
    from pathlib import Path

    from vitrail.experiment.run_dir import RunDir
    from vitrail.report import write_report

    place = Path(out) if out else RunDir(Path(runs[0])).report if len(runs) == 1 else Path("report.html")
    write_report([Path(r) for r in runs], place, title, private=not public)
    typer.echo(f"report: {place}")


def compare(
    configs: Annotated[
        list[str], typer.Argument(metavar="CONFIG... [KEY=VALUE]...", help="files, methods; settings for all of them")
    ],
    seeds: Annotated[str, typer.Option(help="how many seeds (3 means 0, 1, 2), or which (0,7 or 7,)")] = "1",
    out: Annotated[str, typer.Option("-o", "--out", help="the comparison's folder")] = "",
    n: Annotated[int, typer.Option("-n", "--number", min=10, help="pictures that each model makes")] = 2000,
    metrics: Annotated[str, typer.Option(help="families, by commas: see `vitrail list`")] = (
        "fd-vitrail,oracle,classifier"
    ),
    fid_n: Annotated[int, typer.Option(min=10, help="pictures, real and made, for fid")] = 2000,
    best: Annotated[bool, typer.Option("--best", help="measure each run's best round in place of its last")] = False,
    only_: Annotated[
        str, typer.Option("--only", help='play these: "Split-1*; *, 1%" (* is anything, ; divides)')
    ] = "*",
    clients: Annotated[
        bool, typer.Option("--clients", help="measure every client's own generator too, on its own domain")
    ] = False,
) -> None:
    """Play several runs on the same data and seeds, and write one table: markdown, CSV and HTML.

    CONFIG is a method, a settings file, or a file with several [[runs]]; KEY=VALUE changes a setting in all of them.

    `vitrail compare prism fedgan data=mnist5k rounds=10 --seeds 3`

    `vitrail compare configs/fan-liu-mnist.toml --best -o runs/fan-liu-mnist`

    After an interruption the same command goes on where it stopped. With --only the other runs of CONFIG are not
    played; those that were before stay in the table.
    """
    from pathlib import Path

    from vitrail.cli.compare import play_comparison
    from vitrail.experiment import settings as config
    from vitrail.experiment.compare import EvalConfig, entries, place_name

    whats = [w for w in configs if "=" not in w]
    changed = dict(map(config.parse_override, (w for w in configs if "=" in w)))
    found = entries(whats, changed, only_)
    place = Path(out or Path("runs") / ("compare-" + place_name(" ".join(Path(w).stem for w in whats))))
    asked = EvalConfig(best, n, [name.strip() for name in metrics.split(",")], fid_n, clients)
    try:
        done = play_comparison(found, _seeds(seeds), place, asked)
    except KeyboardInterrupt:
        typer.echo("\nInterrupted; every finished round is saved. The same command goes on.", err=True)
        raise typer.Exit(130) from None
    if not done:
        raise typer.Exit(1)


def _seeds(text: str) -> list[int]:
    from vitrail.utils.errors import VitrailError

    try:
        given = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        given = [-1]
    seeds = given if "," in text else list(range(given[0]))
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise VitrailError(f"--seeds {text}: give how many, such as 3, or which, such as 0,7")
    return seeds
