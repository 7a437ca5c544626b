"""New clients in few rounds: a trained run goes on with clients of other domains, beside a run from nothing.

Content is carried over in the server's state. New clients begin with a fresh style, the one that the earlier run's
clients began with. Each is measured on its own: held-out pictures through its transform against its own generator's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vitrail.analysis.views import Views, views_of
from vitrail.data.specs import parse_partition
from vitrail.engines.client import private_file
from vitrail.engines.rounds import RoundResult
from vitrail.experiment import settings as config
from vitrail.experiment.callbacks import Callback, CallbackList
from vitrail.experiment.plan import Plan, load_and_partition
from vitrail.experiment.run_dir import RunDir
from vitrail.experiment.train import resume, start_run
from vitrail.metrics.evaluation import as_stored
from vitrail.metrics.extractors import choose_ruler, features_of, own
from vitrail.metrics.frechet import Gaussian, frechet
from vitrail.models.image_grid import write_grid
from vitrail.models.model_file import open_model
from vitrail.utils import state as store
from vitrail.utils.atomic import write_atomically
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng

SAMPLES = 1000
LOOKS = (1, 2, 3, 5, 8, 12, 18, 25)  # rounds after which clients are measured, and every tenth after them


@dataclass
class Curve(Callback):
    """Fréchet distance of each client's own generator, after some of the rounds; watches a run."""

    views: Views
    ruler: str
    samples: int = SAMPLES
    by_round: dict[int, dict[str, float]] = field(default_factory=dict)
    keep: Callable[[], None] = lambda: None  # called after each look, so that a kill loses none

    def on_run_start(self, plan: Plan, done: int) -> None:
        """Look at the last round that was saved, where a kill came before the look."""
        self.plan = plan
        self._look(done)

    def on_round_end(self, result: RoundResult, row: dict[str, Any]) -> None:  # noqa: ARG002
        self._look(result.round + 1)

    def _look(self, n: int) -> None:
        """Measure the clients' generators after round n, where it is one to look at."""
        due = n in LOOKS or (n and n % 10 == 0) or n == self.plan.settings.rounds
        if due and n not in self.by_round:
            with one_thread():
                self.by_round[n] = self.distances()
            self.keep()

    @torch.no_grad()
    def distances(self) -> dict[str, float]:
        """Each client's generator, as its file and the checkpoint have it now."""
        folder, extractor = self.plan.folder, own(self.ruler)
        server = store.load(folder.checkpoint)["federation"]["server"]
        found: dict[str, float] = {}
        for k, name in enumerate(self.views.names):
            private = private_file(folder.clients, name)
            if not private.exists():
                continue  # was never asked
            made = self.plan.method.export_models(server, store.load(private)["state"])["generator"]
            real = self.views.test.pictures.take((self.views.test.client == k).nonzero()[0])
            fake = Gaussian.empty(extractor.dim)
            for x, _ in open_model(made, self.plan.data.classes).batches(self.samples):
                fake.update(extractor.rows(as_stored(x)))
            found[name] = frechet(features_of(extractor, real).gaussian, fake)
        return found


def adapt(
    run: str | Path, to: str, rounds: int, out: Path, *, scratch: bool = True, overrides: dict[str, Any] | None = None,
    samples: int = SAMPLES, watch: Any = None,
) -> dict[str, dict[int, dict[str, float]]]:  # fmt: skip
    """Go on with a run on new clients, beside the same from nothing; keeps curves, a chart and grids in `out`."""
    place = RunDir(Path(run))
    domains = parse_partition(to).domains
    if not place.settings.exists() or not domains:
        raise VitrailError(f"adapt {run} --to {to}: give a padpaf run's folder, and new clients such as domains:new3")
    few = {"clients_per_round": None, "quorum": 1}  # of the earlier run, which had other clients
    asked = {"partition": to, "clients": len(domains), "rounds": rounds, "eval_every": 0, **few, **(overrides or {})}
    about = {"from": str(run), "to": to, "rounds": rounds, "samples": samples, "overrides": overrides or {}}
    curves = _kept(out, about)
    out.mkdir(parents=True, exist_ok=True)
    starts: dict[str, str | None] = {"adapted": str(run)} | ({"from scratch": None} if scratch else {})
    for name, start in starts.items():
        folder = RunDir(out / name.replace(" ", "-"))
        settings = config.resolve(str(place.settings), {**asked, "init_from": start, "out": str(folder.path)})
        settings, data, shares = load_and_partition(settings)
        views = views_of(data, shares, settings.seed, shares.names)
        ruler = choose_ruler(data.name, [])

        def keep(ruler: str = ruler) -> None:
            write_atomically(
                out / "adaptation.json",
                (json.dumps({**about, "ruler": ruler, "curves": curves}, indent=1) + "\n").encode(),
            )

        curve = Curve(views, ruler, samples, curves.setdefault(name, {}), keep)
        keep()  # what is asked, before anything is there to go on with
        both = CallbackList(curve, watch) if watch else curve
        resume(folder.path, callbacks=[both]) if folder.settings.exists() else start_run(settings, None, both)
        _draw(curves, ruler, out / "adaptation.png")
        _grid(out / f"{folder.path.name}.png", curve, views)
    return curves


def _kept(out: Path, about: dict[str, Any]) -> dict[str, dict[int, dict[str, float]]]:
    """The curves of the same adaptation, as far as an earlier one came."""
    path = out / "adaptation.json"
    if not path.exists():
        if any(RunDir(out / name).settings.exists() for name in ("adapted", "from-scratch")):
            raise VitrailError(f"{out} holds runs, but no {path.name}; give another --out, or remove the folder")
        return {}
    tree = json.loads(path.read_text("utf-8"))
    if other := [key for key, value in about.items() if tree.get(key) != value]:
        raise VitrailError(f"{out} is of another {', '.join(other)}; give another --out, or remove the folder")
    return {name: {int(n): found for n, found in by.items()} for name, by in tree["curves"].items()}


@torch.no_grad()
def _grid(path: Path, curve: Curve, views: Views, columns: int = 12) -> None:
    """For each new client, a row of real held-out pictures and two that its generator makes."""
    folder = curve.plan.folder
    server = store.load(folder.checkpoint)["federation"]["server"]
    rows = []
    for k, name in enumerate(views.names):
        if not private_file(folder.clients, name).exists():
            continue  # was never asked
        order = Rng((0,)).child("pictures of new clients").numpy().permutation(len(views.test.client))
        real = views.test.pictures.pixels[order[views.test.client[order] == k][:columns]]
        made = curve.plan.method.export_models(server, store.load(private_file(folder.clients, name))["state"])[
            "generator"
        ]
        rows += [torch.from_numpy(real).float() / 255, open_model(made, curve.plan.data.classes).sample(2 * columns)]
    if rows:
        write_grid(path, torch.cat(rows), columns)


def _draw(curves: dict[str, dict[int, dict[str, float]]], ruler: str, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    for (what, by_round), line in zip(curves.items(), ("-", "--"), strict=False):
        names: Sequence[str] = sorted({name for values in by_round.values() for name in values})
        for k, name in enumerate(names):
            seen = {n: values[name] for n, values in by_round.items() if name in values}
            ax.plot(list(seen), list(seen.values()), line, label=f"{name}, {what}", color=f"C{k}")
    ax.set_xlabel("round")
    ax.set_ylabel(f"Fréchet distance ({ruler})")
    ax.set_yscale("log")
    ax.legend(fontsize=7)
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=90, format="png")
