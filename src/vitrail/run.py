"""One run, start to finish."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from vitrail import __version__, config
from vitrail import state as store
from vitrail.artifact import Generator, load, open_model, save_model
from vitrail.config import Settings
from vitrail.data import draw_partition, from_torch, partition
from vitrail.data import load as load_data
from vitrail.data.partitions import Partition
from vitrail.data.pictures import Dataset, Pictures
from vitrail.engines.embedded import Crew, Embedded, one_thread
from vitrail.engines.rounds import Federation, Outcome, choose, play
from vitrail.errors import VitrailError
from vitrail.folder import Folder, new_folder
from vitrail.methods.base import Method, Task
from vitrail.nets.features import TRAINED_ON
from vitrail.rng import Rng

VOID_LIMIT = 3  # rounds in a row without a quorum after which a run stops


class Watch(Protocol):
    """Somebody who looks on."""

    def begin(self, plan: Plan, done: int) -> None: ...
    def during(self, outcome: Outcome) -> None: ...
    def round(self, outcome: Outcome, row: dict[str, Any]) -> None: ...
    def end(self, run: Run) -> None: ...


class Nobody:
    """Looks at nothing."""

    def begin(self, plan: Plan, done: int) -> None: ...
    def during(self, outcome: Outcome) -> None: ...
    def round(self, outcome: Outcome, row: dict[str, Any]) -> None: ...
    def end(self, run: Run) -> None: ...


@dataclass(frozen=True)
class Plan:
    """A run that is ready to go: settings, data, who holds what, and the method."""

    settings: Settings
    data: Dataset
    partition: Partition
    method: Method
    id: bytes
    folder: Folder

    @property
    def clients(self) -> list[str]:
        """The clients that hold pictures; the others sit out."""
        return [name for name, held in zip(self.partition.names, self.partition.indices, strict=True) if len(held)]

    @property
    def empty(self) -> list[str]:
        """The clients that a partition left without pictures."""
        return [name for name, held in zip(self.partition.names, self.partition.indices, strict=True) if not len(held)]


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    settings: Settings
    rows: Sequence[dict[str, Any]]

    @property
    def generator(self) -> Generator:
        """What came out, loaded from the stored model."""
        return load(self.folder)


def train(method: str, *, data: Any = None, watch: Watch | None = None, **settings: Any) -> Run:
    """Train a method, or repeat a settings file, and return the run.

    `data` is a source's name, a `vitrail.data.Dataset`, or any torch Dataset of pictures. `from` is a word of Python:
    write `start=` here.
    """
    given = None
    if data is not None and not isinstance(data, str):
        given = data if isinstance(data, Dataset) else from_torch(data, size=settings.get("size"))
        data = config.GIVEN
    values = settings | ({} if data is None else {"data": data})
    if "start" in values:
        values["from"] = values.pop("start")
    return begin(config.resolve(method, values), given, watch or Nobody())


def begin(settings: Settings, data: Dataset | None, watch: Watch) -> Run:
    """Start a run in a folder of its own."""
    out = Path(settings.out) if settings.out else new_folder(settings.method, settings.data)
    settings = settings.model_copy(update={"out": str(out)})
    plan = prepare(settings, data)
    with plan.folder.locked():
        plan.folder.begin(config.to_toml(settings, __version__))
        return _go(plan, watch)


def resume(
    folder: str | Path,
    *,
    data: Dataset | None = None,
    workers: int | str | None = None,
    watch: Watch | None = None,
) -> Run:
    """Go on with a run that was interrupted; the result has the bits of one that was not."""
    place = Folder(Path(folder))
    if not place.settings.exists():
        raise VitrailError(
            f"{folder} holds no run (there is no settings.toml); give the folder that `vitrail run` named"
        )
    overrides: dict[str, Any] = {"out": str(folder)} | ({} if workers is None else {"workers": workers})
    plan = prepare(config.resolve(str(place.settings), overrides), data)
    with place.locked():
        return _go(plan, watch or Nobody())


def prepare(settings: Settings, data: Dataset | None = None) -> Plan:
    """Load the data, divide it, and build the method; nothing is written."""
    if data is None:
        if settings.data == config.GIVEN:
            raise VitrailError("this run was given its data from Python; hand the same Dataset over again with data=")
        data = load_data(settings.data, size=settings.size, held_out=settings.held_out)
    rng = Rng((settings.seed,))
    shares = partition(
        settings.partition, data, settings.clients, rng.child("partition").numpy(), settings.server_share
    )
    labelled = settings.labels == "auto" and data.train.labels is not None
    if not labelled:
        data = Dataset(
            data.name,
            data.train.without_labels(),
            data.test.without_labels(),
            (),
            data.attributes,
            data.groups,
        )
    task = Task(data.shape, len(data.classes), settings.rounds, len(shares.names), data.name, _device(settings.device))
    run = config.identity(settings, data.train.digest())
    plan = Plan(settings, data, shares, config.build_method(settings, task), run, Folder(Path(settings.out)))
    if not plan.clients:
        raise VitrailError(
            f"partition={settings.partition}: no client holds a picture; use fewer clients or another partition"
        )
    plan.method.declares()  # a network that cannot be built for these pictures shows here
    return plan


def psi_saw(features: str, data: str) -> bool:
    """Whether a feature network was trained on the very data it is used on."""
    return TRAINED_ON.get(features) == data.partition(":")[0]


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as e:
        raise VitrailError(
            f"device={name}: torch cannot use it here ({str(e).splitlines()[0]}); set device=auto"
        ) from e
    return name


def _go(plan: Plan, watch: Watch) -> Run:
    s, folder, method = plan.settings, plan.folder, plan.method
    rng = Rng((s.seed,))
    saved = folder.load_checkpoint(plan.id)
    fed = Federation.from_tree(saved["federation"]) if saved else _first(plan, rng)
    void = saved["void"] if saved else 0
    folder.rewind(fed.round)
    if not saved:
        draw_partition(plan.partition, plan.data, folder.partition)
    holds = dict(zip(plan.partition.names, plan.partition.indices, strict=True))
    workers = min(len(plan.clients), os.cpu_count() or 1) if s.workers == "auto" else int(s.workers)
    crew = Crew(method, plan.id, rng, holds, folder.clients)
    watch.begin(plan, fed.round)
    with one_thread(), Embedded(crew, plan.data.train, workers, s.dropout) as engine:
        while fed.round < s.rounds:
            began, t = time.perf_counter(), fed.round
            clients = choose(plan.clients, s.per_round or len(plan.clients), rng.child("choose", t))
            fed, outcome = play(
                method,
                fed,
                plan.id,
                clients,
                engine.ask,
                rng,
                quorum=min(s.quorum, len(clients)),
                tell=watch.during,
            )
            void = void + 1 if outcome.void else 0
            if s.grids and not outcome.void and (t % max(1, s.rounds // s.grids) == 0 or fed.round == s.rounds):
                _grid(plan, fed)
            row = _row(outcome, time.perf_counter() - began)
            folder.log(row)
            store.save(folder.checkpoint, {"run": plan.id, "federation": fed.tree(), "void": void})
            watch.round(outcome, row)
            if void >= VOID_LIMIT:
                reasons = "; ".join(f"{c}: {r}" for c, r in list(outcome.left_out.items())[:3])
                raise VitrailError(
                    f"stopped after {void} rounds in a row with fewer than quorum={s.quorum} answers ({reasons}); "
                    f"nothing is lost: `vitrail resume {folder.path}` goes on once that is mended"
                )
        _finish(plan, fed)
    run = Run(folder.path, s, folder.rows())
    watch.end(run)
    return run


def _first(plan: Plan, rng: Rng) -> Federation:
    """The server before the first round; with `from`, where an earlier run of the same method ended."""
    held = plan.partition.server
    data = plan.data.train.take(held) if len(held) else None
    return Federation(0, plan.method.server_init(rng.child("server", "init"), data, _earlier(plan.settings)))


def _earlier(s: Settings) -> store.State | None:
    if s.start is None:
        return None
    place = Folder(Path(s.start))
    if not place.checkpoint.exists():
        raise VitrailError(
            f"from={s.start}: there is no checkpoint; give the folder of a run that has finished a round"
        )
    was = config.resolve(str(place.settings), {}).method
    if was != s.method:
        raise VitrailError(
            f"from={s.start}: that run is of method {was}, this one of {s.method}; start from one of the same method"
        )
    state: store.State = store.load(place.checkpoint)["federation"]["server"]
    return state


def _grid(plan: Plan, fed: Federation) -> None:
    plan.folder.samples.mkdir(exist_ok=True)
    classes = plan.data.classes
    generator = open_model(plan.method.products(fed.server)["generator"], classes)
    generator.grid(
        plan.folder.samples / f"round-{fed.round:04d}.png", 8 * len(classes) if 0 < len(classes) <= 20 else 64
    )


def _row(o: Outcome, seconds: float) -> dict[str, Any]:
    return {
        "round": o.round,
        "seconds": round(seconds, 3),
        "asked": o.asked,
        "answered": len(o.answered),
        "left_out": o.left_out,
        "void": o.void,
        "bytes_up": sum(o.up.values()),
        "bytes_down": sum(o.down.values()),
        "up": o.up,
        "down": o.down,
        **{k: float(np.float32(v)) for k, v in o.metrics.items()},
    }


def _finish(plan: Plan, fed: Federation) -> None:
    """Write what came out."""
    s, rows = plan.settings, plan.folder.rows()
    about = {
        "vitrail": __version__,
        "method": s.method,
        "data": plan.data.name,
        "clients": len(plan.clients),
        "rounds": s.rounds,
        "seed": s.seed,
        "bytes_up": sum(r["bytes_up"] for r in rows),
        "bytes_down": sum(r["bytes_down"] for r in rows),
        "privacy": "not private: nothing was noised",
    }
    if psi := getattr(s, "features", ""):
        saw = ", this very data" if psi_saw(psi, s.data) else ""
        about["features"] = f"{psi}, trained on {TRAINED_ON[psi]}{saw}"
    for name, model in plan.method.products(fed.server).items():
        path = plan.folder.model if name == "generator" else plan.folder.path / f"{name}.safetensors"
        save_model(path, model, plan.data.classes, about)
    generator = load(plan.folder.model)
    classes = len(plan.data.classes)
    generator.grid(plan.folder.path / "samples.png", 8 * classes if 0 < classes <= 20 else 64)


__all__ = ["Nobody", "Pictures", "Plan", "Run", "Watch", "begin", "prepare", "resume", "train"]
