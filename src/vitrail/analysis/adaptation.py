"""Adaptation to new clients: continue a trained run with clients of other domains, and compare with a run from scratch.

Content comes from the server's state of the earlier run. New clients start with the style that its clients started
with. Each client's generator is compared with held-out images through the client's transform.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vitrail.analysis.views import Views, make_views
from vitrail.data.specs import parse_partition
from vitrail.engines.rounds import RoundResult
from vitrail.experiment.callbacks import Callback, CallbackList
from vitrail.experiment.plan import Plan, load_and_partition
from vitrail.experiment.run_dir import RunDir
from vitrail.experiment.train import resume, start_run
from vitrail.metrics.evaluation import round_to_8_bits
from vitrail.metrics.extractors import choose_feature_network, features_of, load_extractor
from vitrail.metrics.frechet import Gaussian, frechet
from vitrail.models.image_grid import write_grid
from vitrail.models.model_file import Generator, open_model
from vitrail.utils import state as store
from vitrail.utils.atomic import write_atomically
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import VitrailError
from vitrail.utils.paths import private_file
from vitrail.utils.rng import Rng

SAMPLES = 1000
EVAL_ROUNDS = (1, 2, 3, 5, 8, 12, 18, 25)  # rounds after which clients are evaluated, and every tenth round

Curves = dict[str, dict[int, dict[str, float]]]  # start -> round -> client -> Fréchet distance


@dataclass
class AdaptationCurve(Callback):
    """Callback that computes the Fréchet distance of each client's generator after some of the rounds.

    Args:
        views: Held-out images of the clients.
        feature_network: Name of the feature network.
        samples: Generated images per client.
        by_round: Distances by round and client; filled by the callback.
        save: Called after each evaluation, so that an interruption loses none.
    """

    views: Views
    feature_network: str
    samples: int = SAMPLES
    by_round: dict[int, dict[str, float]] = field(default_factory=dict)
    save: Callable[[], None] = lambda: None

    def on_run_start(self, plan: Plan, done: int) -> None:
        """Evaluate the last saved round, if the run was interrupted before its evaluation."""
        self.plan = plan
        self._evaluate(done)

    def on_round_end(self, result: RoundResult, row: dict[str, Any]) -> None:  # noqa: ARG002
        self._evaluate(result.round + 1)

    def _evaluate(self, n: int) -> None:
        due = n in EVAL_ROUNDS or (n and n % 10 == 0) or n == self.plan.settings.rounds
        if due and n not in self.by_round:
            with one_thread():
                self.by_round[n] = self.distances()
            self.save()

    def generators(self) -> dict[int, Generator]:
        """Load the generators of clients that have taken part, by index, from their files and the checkpoint."""
        folder, found = self.plan.folder, {}
        server = store.load(folder.checkpoint)["federation"]["server"]
        for k, name in enumerate(self.views.names):
            path = private_file(folder.clients, name)
            if path.exists():
                model = self.plan.method.export_models(server, store.load(path)["state"])["generator"]
                found[k] = open_model(model, self.plan.data.classes)
        return found

    @torch.no_grad()
    def distances(self) -> dict[str, float]:
        """Return the Fréchet distance of each client that has taken part."""
        extractor, found = load_extractor(self.feature_network), {}
        for k, generator in self.generators().items():
            real = self.views.test.images.take((self.views.test.client == k).nonzero()[0])
            fake = Gaussian.empty(extractor.dim)
            for x, _ in generator.batches(self.samples):
                fake.update(extractor.rows(round_to_8_bits(x)))
            found[self.views.names[k]] = frechet(features_of(extractor, real).gaussian, fake)
        return found


def adapt(
    run: str | Path, to: str, rounds: int, out: Path, *, scratch: bool = True, overrides: dict[str, Any] | None = None,
    samples: int = SAMPLES, watch: Any = None,
) -> Curves:  # fmt: skip
    """Continue a run on new clients, and train the same from scratch; write curves, a chart and image grids.

    Repeated with the same arguments after an interruption, it continues.

    Args:
        run: The folder of the trained run.
        to: The new clients, as a partition by domains.
        rounds: Rounds of training.
        out: Folder to write.
        scratch: Whether to train from scratch, too.
        overrides: Settings to change.
        samples: Generated images per client and evaluation.
        watch: Another callback.

    Returns:
        Fréchet distances by start ("adapted", "from scratch"), round and client.

    Raises:
        VitrailError: If `run` is not the folder of a run, `to` names no domains, or `out` has other results.
    """
    earlier = RunDir(Path(run))
    domains = parse_partition(to).domains
    if not earlier.settings.exists() or not domains:
        raise VitrailError(f"adapt {run} --to {to}: give the folder of a run, and new clients such as domains:new3")
    overrides = overrides or {}
    changed = {"partition": to, "clients": len(domains), "rounds": rounds, "eval_every": 0}
    changed |= {"clients_per_round": None, "quorum": 1} | overrides  # those two fit the clients of the earlier run only
    about = {"from": str(run), "to": to, "rounds": rounds, "samples": samples, "overrides": overrides}
    curves = _saved_curves(out, about)
    out.mkdir(parents=True, exist_ok=True)
    starts: dict[str, str | None] = {"adapted": str(run)} | ({"from scratch": None} if scratch else {})
    for name, start in starts.items():
        folder = RunDir(out / name.replace(" ", "-"))
        settings = earlier.stored_settings(**{**changed, "init_from": start, "out": str(folder.path)})
        settings, data, partition = load_and_partition(settings)
        views = make_views(data, partition, settings.seed, partition.names)
        network = choose_feature_network(data.name, [])

        def save(network: str = network) -> None:
            tree = {**about, "ruler": network, "curves": curves}
            write_atomically(out / "adaptation.json", (json.dumps(tree, indent=1) + "\n").encode())

        curve = AdaptationCurve(views, network, samples, curves.setdefault(name, {}), save)
        save()  # the arguments, before there is anything to continue
        callback = CallbackList(curve, watch) if watch else curve
        resume(folder.path, callbacks=[callback]) if folder.settings.exists() else start_run(settings, None, callback)
        _draw_curves(curves, network, out / "adaptation.png")
        _write_images(out / f"{folder.path.name}.png", curve)
    return curves


def _saved_curves(out: Path, about: dict[str, Any]) -> Curves:
    """Return the curves that an earlier call with the same arguments has saved."""
    path = out / "adaptation.json"
    if not path.exists():
        if any(RunDir(out / name).settings.exists() for name in ("adapted", "from-scratch")):
            raise VitrailError(f"{out} contains runs, but no {path.name}; give another --out, or remove the folder")
        return {}
    tree = json.loads(path.read_text("utf-8"))
    if other := [key for key, value in about.items() if tree.get(key) != value]:
        raise VitrailError(
            f"{out} contains an adaptation with another {', '.join(other)}; give another --out, or remove the folder"
        )
    return {name: {int(n): found for n, found in by_round.items()} for name, by_round in tree["curves"].items()}


@torch.no_grad()
def _write_images(path: Path, curve: AdaptationCurve, columns: int = 12) -> None:
    """Write, for each new client, one row of held-out images and two rows of generated ones."""
    test, rows = curve.views.test, []
    for k, generator in curve.generators().items():
        order = Rng((0,)).child("pictures of new clients").numpy().permutation(len(test.client))
        real = test.images.pixels[order[test.client[order] == k][:columns]]
        rows += [torch.from_numpy(real).float() / 255, generator.sample(2 * columns)]
    if rows:
        write_grid(path, torch.cat(rows), columns)


def _draw_curves(curves: Curves, feature_network: str, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.2), layout="constrained")
    ax = figure.subplots()
    for (start, by_round), line in zip(curves.items(), ("-", "--"), strict=False):
        for k, name in enumerate(sorted({name for values in by_round.values() for name in values})):
            values = {n: found[name] for n, found in by_round.items() if name in found}
            ax.plot(list(values), list(values.values()), line, label=f"{name}, {start}", color=f"C{k}")
    ax.set_xlabel("round")
    ax.set_ylabel(f"Fréchet distance ({feature_network})")
    ax.set_yscale("log")
    ax.legend(fontsize=7)
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=90, format="png")
