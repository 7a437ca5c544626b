"""From settings to a run that is ready to go; nothing is written here, so whatever is refused costs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.data import from_torch
from vitrail.data import load as load_data
from vitrail.data.dataset import Dataset
from vitrail.data.holdout import not_held_out
from vitrail.data.partitions import Partition
from vitrail.data.specs import parse_partition
from vitrail.engines.robust import check_robust
from vitrail.engines.secagg.server import check_secure
from vitrail.experiment import settings as config
from vitrail.experiment.partitioning import apply_label_mode, partition_dataset
from vitrail.experiment.run_dir import RunDir
from vitrail.experiment.settings import Settings
from vitrail.experiment.tensorboard import check_installed
from vitrail.experiment.validation import GIVEN, NODES
from vitrail.methods.base import Method, Task
from vitrail.nets.features import FEATURES, choose_features, load_features, was_trained_on
from vitrail.privacy.budget import Budget
from vitrail.privacy.warm_start import EarlierRun, earlier_run
from vitrail.utils import state as store
from vitrail.utils.determinism import device_for
from vitrail.utils.errors import VitrailError
from vitrail.utils.keys import Key
from vitrail.utils.rng import Rng
from vitrail.wire.message import digest


@dataclass(frozen=True)
class Plan:
    """A run that is ready to go: settings, data, who holds what, and the method."""

    settings: Settings
    data: Dataset
    partition: Partition
    clients: list[str]  # those that hold pictures; the others sit out
    method: Method
    id: bytes
    folder: RunDir
    start: store.State | None
    notes: tuple[str, ...]  # what a person should know before it starts
    against: tuple[str, ...]  # networks that this run, or one it starts from, trains against: they may not measure it
    split: str = ""  # where its test images come from; empty if an earlier run, from which it starts, did not record it
    earlier_run: EarlierRun | None = None  # what the run that it starts from has released
    deployed: bool = False  # whether clients are nodes of their own; otherwise they are simulated here
    key: Key | None = None  # signs the ledger; None: a key of the run's own

    @property
    def budget(self) -> Budget | None:
        """What each client may spend on privacy."""
        s = self.settings
        delta = float(getattr(self.method, "delta", 1e-5))
        return Budget(s.budget_name or self.data.name, s.budget, delta) if s.budget else None

    @property
    def flaw(self) -> str:
        """Why no mechanism makes this run private; empty where nothing speaks against it."""
        psi = feature_network(self.settings)
        if psi and was_trained_on(psi, self.data.name):
            return f"features={psi} were trained on this very data"
        return self.earlier_run.flaw if self.earlier_run else ""

    @property
    def ledger_notes(self) -> dict[str, str]:
        """What a claim of privacy rests on beside its mechanism."""
        psi, start = feature_network(self.settings), self.earlier_run
        notes = {"features": f"{psi}, public, trained on {FEATURES[psi].trained_on}"} if psi else {}
        if start is not None:
            notes["started_from"] = f"{start.run}, whose ledger ends with {start.head or 'nothing'}: {start.says}"
        return notes

    @property
    def empty(self) -> list[str]:
        """The clients that a partition left without pictures."""
        return [name for name in self.partition.names if name not in set(self.clients)]


def prepare(settings: Settings, given: Any = None) -> Plan:
    """Load the data, divide it, and build the method."""
    settings, data, shares = load_and_partition(settings, given)
    data, notes = apply_label_mode(settings, data)
    clients = [name for name, held in zip(shares.names, shares.indices, strict=True) if len(held)]
    return assemble(settings, data, shares, clients, data.train.digest(), notes)


def assemble(
    settings: Settings,
    data: Dataset,
    shares: Partition,
    clients: list[str],
    content: str,
    notes: list[str],
    *,
    deployed: bool = False,
    key: Key | None = None,
    images: int = 0,
) -> Plan:
    """A run of these clients; `data` need not hold their pictures, and `content` names what they hold."""
    for name in shares.names:
        if len(name.encode(errors="surrogateescape")) > 255 or not _is_text(name):
            raise VitrailError(
                f"the client name {name[:40]!r} is longer than 255 bytes or not UTF-8; rename its folder"
            )
    task = Task(
        data.shape,
        len(data.classes),
        settings.rounds,
        len(shares.names),
        device_for(settings.device),
        settings.secagg_threshold,
        settings.noise_source,
        aggregation=settings.aggregation,
        trim=settings.trim,
        images=images or max(map(len, shares.indices), default=0),
    )
    method = config.build_method(settings, task)
    start, start_digest = _earlier(settings)
    run = config.identity(settings, content, start_digest)
    seed = settings.seed if settings.noise_source == "seed" else None
    earlier = None
    if settings.init_from:
        earlier = earlier_run(Path(settings.init_from), store.tree_digest(start), method.mechanism, deployed, seed)
    if psi := feature_network(settings):
        load_features(psi)  # what is missing shows here, not in every client
        if was_trained_on(psi, data.name):
            notes.append(f"features={psi} were trained on this very data: call no such run private")
    notes += _privacy_notes(method, shares)
    split = data.split if settings.init_from is None or RunDir(Path(settings.init_from)).split else ""
    if doubt := not_held_out(data, split):
        notes.append(f"figures of this run: {doubt}")
    folder = RunDir(Path(settings.out))
    if method.mechanism is not None and earlier is not None and earlier.flaw:
        notes.append(f"not private, whatever noise is added: {earlier.flaw}")
    plan = Plan(
        settings, data, shares, clients, method, run, folder, start, tuple(notes), _against(settings), split,
        earlier, deployed, key,
    )  # fmt: skip
    _check(plan)
    return plan


def load_and_partition(settings: Settings, given: Any = None) -> tuple[Settings, Dataset, Partition]:
    """A run's data and who holds which of it, with its labels even where the run does without them."""
    data = _data(settings, given)
    settings = complete(settings, data)
    return settings, *partition_dataset(settings, data)


def _privacy_notes(method: Method, shares: Partition) -> list[str]:
    """Where a claim would be true and say little."""
    mechanism, delta = method.mechanism, getattr(method, "delta", 0.0)
    if mechanism is None:
        return []
    units = len(shares.names) if mechanism.unit == "client" else sum(map(len, shares.indices))
    if delta * units < 1:
        return []
    return [f"delta={delta:g} is not below one over the {units:,} {mechanism.unit}s: such a δ allows to show one whole"]


def _data(s: Settings, given: Any) -> Dataset:
    if given is None:
        if s.data == GIVEN:
            raise VitrailError("this run was given its data from Python; hand the same data over again with data=")
        if s.data == NODES:
            raise VitrailError(
                "data=nodes is what the nodes of a deployment hold: start or continue such a run with `flwr run` "
                "(docs/flower.md), or name data that lies here"
            )
        return load_data(s.data, size=s.size, test_fraction=s.test_fraction)
    data = given if isinstance(given, Dataset) else from_torch(given, size=s.size, test_fraction=s.test_fraction)
    if s.size not in (None, data.shape[1]):
        width = data.shape[1]
        raise VitrailError(
            f"size={s.size}, but the given data is {width} pixels wide; give size to from_arrays instead"
        )
    return data


def complete(s: Settings, data: Dataset) -> Settings:
    """What follows from the data: its size, the features that have not seen it, clients for folders or domains."""
    found: dict[str, Any] = {"size": data.shape[1]}
    if getattr(s, "features", "") == "auto":
        found["features"] = choose_features(data.name)
    if s.partition == "folders" and "clients" not in s.model_fields_set and data.groups:
        found["clients"] = len(data.groups)
    if "clients" not in s.model_fields_set and (domains := parse_partition(s.partition).domains):
        found["clients"] = len(domains)
    return s.model_copy(update=found)


def _check(plan: Plan) -> None:
    s = plan.settings
    if not plan.clients:
        raise VitrailError(
            f"partition={s.partition}: no client holds a picture; use fewer clients or another partition"
        )
    asked = min(s.clients_per_round or len(plan.clients), len(plan.clients))
    if s.quorum > asked:
        raise VitrailError(f"quorum={s.quorum}: only {asked} clients that hold pictures are asked in a round; lower it")
    if s.tensorboard:
        check_installed()
    if s.engine == "flower":
        from vitrail.engines.flower import check_installed as check_flower

        check_flower()
    plan.method.reply_spec()  # a network that cannot be built for these pictures shows here, or an ε that cannot be had
    if s.aggregation != "mean":
        check_robust(plan.method, asked)
    if s.secagg_threshold:
        check_secure(plan.method, asked)
    if plan.start is not None:
        plan.method.server_init(Rng((s.seed,)), None, plan.start)  # so does a start that does not fit


def feature_network(s: Settings) -> str:
    """The network ψ that a run trains against; empty where there is none."""
    return "" if getattr(s, "loss", "") == "gan" else getattr(s, "features", "")


def _against(s: Settings | None) -> tuple[str, ...]:
    found: dict[str, None] = {}
    while s is not None:
        found |= dict.fromkeys(filter(None, [feature_network(s)]))
        s = config.resolve(str(RunDir(Path(s.init_from)).settings), {}) if s.init_from else None
    return tuple(found)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _earlier(s: Settings) -> tuple[store.State | None, str]:
    """The server's state where `from` ended, and a digest of its checkpoint."""
    if s.init_from is None:
        return None, ""
    place = RunDir(Path(s.init_from))
    if not place.checkpoint.exists():
        raise VitrailError(
            f"init_from={s.init_from}: there is no checkpoint; give the folder of a run that has finished a round"
        )
    was = config.resolve(str(place.settings), {}).method
    if was != s.method:
        raise VitrailError(
            f"init_from={s.init_from}: that run is of method {was}, this one of {s.method}; take one of the same"
        )
    state: store.State = store.load(place.checkpoint)["federation"]["server"]
    return state, digest(place.checkpoint.read_bytes()).hex()
