"""Commands that measure: evaluate, compare, benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from vitrail.cli.settings_arguments import Overrides, parse_overrides
from vitrail.utils.errors import VitrailError


def evaluate(
    model: Annotated[
        str, Argument(metavar="RUN|MODEL|IMAGES", help="A run's folder, a model file, npz:FILE or folder:PATH.")
    ],
    data: Annotated[str | None, Option(help="Data to measure against; by default that of training.")] = None,
    n: Annotated[int, Option("-n", "--number", min=10, max=1_000_000, help="Number of images to generate.")] = 5000,
    metrics: Annotated[
        str | None, Option(help="Metrics, separated by commas (see `vitrail list`); by default all but fid.")
    ] = None,
    fid_n: Annotated[int, Option(min=10, help="Number of real and of generated images for fid.")] = 2000,
    best: Annotated[bool, Option("--best", help="Also measure the run's best round.")] = False,
    ensemble: Annotated[
        bool, Option("--ensemble", help="Masked models: also with a new mask per batch, as in papers.")
    ] = False,
    clients: Annotated[
        bool, Option("--clients", help="Measure each client's own generator on held-out images of its domain.")
    ] = False,
    seed: Annotated[int, Option(min=0, help="Seed of the noise.")] = 0,
    out: Annotated[str | None, Option("-o", "--out", help="JSON file to write.")] = None,
) -> None:
    """Measure a run, a model file or given images against held-out real images.

    `vitrail evaluate runs/x` prints all families but fid and writes runs/x/evaluation.json

    `vitrail evaluate runs/x --metrics fid,oracle --fid-n 2000`

    `vitrail evaluate model.safetensors --data mnist -n 10000`

    `vitrail evaluate npz:samples.npz --data mnist` measures images from elsewhere; so does folder:PATH.

    `vitrail evaluate runs/x --clients -n 2000` prints one line per client and writes runs/x/clients.json

    A model is never measured with a feature network that it was trained against, nor on the images that selected its
    best round.
    """
    from vitrail.experiment.evaluate import evaluate_clients, evaluate_stored
    from vitrail.experiment.run_dir import RunDir
    from vitrail.metrics.results_io import write_evaluation
    from vitrail.metrics.samples import KINDS, evaluate_samples
    from vitrail.report import write_report
    from vitrail.report.evaluation import print_measures, show_clients
    from vitrail.utils.console import Console, show_status

    console, folder = Console(), RunDir(Path(model))
    chosen = [name.strip() for name in metrics.split(",")] if metrics else None
    with show_status() as report_progress:
        how: dict[str, Any] = {"families": chosen, "n": n, "fid_n": fid_n, "seed": seed}
        how["report_progress"] = report_progress
        if clients:
            if data is not None or best or ensemble:
                raise VitrailError("--clients measures on the run's own data; remove --data, --best and --ensemble")
            found, columns = evaluate_clients(model, **how)
        elif model.startswith(KINDS):
            if data is None or best or ensemble:
                raise VitrailError(f"{model}: name the real images with --data; --best and --ensemble are for runs")
            found, columns = evaluate_samples(model, data, **how)
        else:
            found, columns = evaluate_stored(model, data, best=best, ensemble=ensemble, **how)
    console.print(f"{model} against test images of {found.name}\n", markup=False)
    if clients:
        show_clients(columns, console)
        write_evaluation(Path(out) if out else folder.by_client, found, columns)
        console.print(f"\nwritten to {out or folder.by_client}", markup=False)
        return
    print_measures(columns, console)
    own = folder.settings.exists() and data is None  # results on other data are not the run's own
    if out or own:
        write_evaluation(Path(out) if out else folder.evaluation, found, columns)
    if own and not out:
        write_report([folder.path], folder.report)
        console.print(f"\nwritten to {folder.evaluation} and {folder.report}", markup=False)


def compare(
    configs: Annotated[
        list[str], Argument(metavar="CONFIG... [KEY=VALUE]...", help="Methods or files, and settings for all.")
    ],
    seeds: Annotated[str, Option(help="Number of seeds (`3` means 0, 1, 2) or a list (`0,7` or `7,`).")] = "1",
    out: Annotated[str, Option("-o", "--out", help="Folder of the comparison.")] = "",
    n: Annotated[int, Option("-n", "--number", min=10, help="Images that each model generates.")] = 2000,
    metrics: Annotated[str, Option(help="Metric families, separated by commas (see `vitrail list`).")] = (
        "fd-vitrail,oracle,classifier"
    ),
    fid_n: Annotated[int, Option(min=10, help="Number of real and of generated images for fid.")] = 2000,
    best: Annotated[bool, Option("--best", help="Measure each run's best round instead of its last.")] = False,
    only_: Annotated[
        str, Option("--only", help='Run only these: "Split-1*; *, 1%" (`*` matches anything, `;` separates).')
    ] = "*",
    clients: Annotated[
        bool, Option("--clients", help="Also measure each client's own generator on its domain.")
    ] = False,
) -> None:
    """Run several methods on the same data and seeds and write one table as Markdown, CSV and HTML.

    CONFIG is a method, a settings file, or a file with several [[runs]]; KEY=VALUE changes a setting in all of them.

    `vitrail compare prism fedgan data=mnist5k rounds=10 --seeds 3`

    `vitrail compare configs/fan-liu-mnist.toml --best -o runs/fan-liu-mnist`

    After an interruption the same command continues. With `--only` the other runs of CONFIG are skipped; results that
    exist stay in the table.
    """
    from vitrail.cli.comparison import run_comparison
    from vitrail.experiment.compare import EvalConfig, entries, folder_name

    names = [w for w in configs if "=" not in w]
    if clients and (numbers := [w for w in names if w.isdigit()]):
        raise VitrailError(f"--clients {numbers[0]}: settings are written without dashes: write clients={numbers[0]}")
    changed = parse_overrides([w for w in configs if "=" in w])
    found = entries(names, changed, only_)
    folder = Path(out or Path("runs") / ("compare-" + folder_name(" ".join(Path(w).stem for w in names))))
    how = EvalConfig(best, n, [name.strip() for name in metrics.split(",")], fid_n, clients)
    try:
        done = run_comparison(found, _seeds(seeds), folder, how)
    except KeyboardInterrupt:
        typer.echo("\nInterrupted; all finished rounds are saved. The same command continues.", err=True)
        raise typer.Exit(130) from None
    if not done:
        raise typer.Exit(1)


def benchmark(
    context: typer.Context,
    data: Annotated[str, Argument(help="Data with labels, such as mnist; without a test set, images are held out.")],
    overrides: Overrides = None,
    epsilon: Annotated[str, Option(help="Values of ε, separated by commas; `none`: without noise.")] = "1,10",
    method: Annotated[str, Option(help="The method.")] = "moments",
    images: Annotated[
        str | None, Option(help="Measure these images instead of a method's: npz:FILE or folder:PATH.")
    ] = None,
    seeds: Annotated[str, Option(help="Number of seeds (`3` means 0, 1, 2) or a list (`0,7` or `7,`).")] = "1",
    preset: Annotated[
        str, Option(help="`quick` (a trial), `cpu` (20,000 images, two classifiers) or `full` (60,000, three).")
    ] = "cpu",
    out: Annotated[str, Option("-o", "--out", help="Folder of the benchmark.")] = "",
) -> None:
    """Train a method at each ε and rank it as published private generators are ranked.

    Classifiers are trained on generated images only and tested on all real test images; FID, precision, recall and
    coverage are against the training set. Published results on the same data are in the same table, with their source.

    `vitrail benchmark mnist secagg_threshold=8 --epsilon 1,10 --seeds 3`

    `vitrail benchmark mnist --images npz:samples.npz` measures images that were generated elsewhere.

    After an interruption the same command continues.
    """
    from vitrail.cli.comparison import run_benchmark

    folder = Path(out or Path("runs") / f"benchmark-{data.replace(':', '-')}")
    settings = parse_overrides(overrides)
    if images is not None:
        _check_applies(context, method, settings)
    try:
        run_benchmark(method, data, _epsilons(epsilon), _seeds(seeds), folder, preset, settings, images)
    except KeyboardInterrupt:
        typer.echo("\nInterrupted; all finished rounds are saved. The same command continues.", err=True)
        raise typer.Exit(130) from None


def _check_applies(context: typer.Context, method: str, settings: dict[str, Any]) -> None:
    """Refuse what has no effect with --images: options of the training, and settings other than size=."""
    from click.core import ParameterSource

    from vitrail.experiment.settings import resolve

    for name in ("method", "epsilon", "seeds"):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise VitrailError(f"--{name} has no effect with --images: nothing is trained; omit it")
    resolve(method, settings)  # reports wrong names and values
    if other := [name for name in settings if name != "size"]:
        raise VitrailError(f"{other[0]}= has no effect with --images: nothing is trained; only size= applies")


def _epsilons(text: str) -> list[float | None]:
    try:
        found = [None if word.strip() == "none" else float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or len(set(found)) < len(found) or not all(e is None or 0 < e < float("inf") for e in found):
        raise VitrailError(f"--epsilon {text}: give positive numbers separated by commas, such as 1,10, or none")
    return found


def _seeds(text: str) -> list[int]:
    try:
        given = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        given = [-1]
    seeds = given if "," in text else list(range(given[0]))
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise VitrailError(f"--seeds {text}: give a number of seeds, such as 3, or a list, such as 0,7")
    return seeds
