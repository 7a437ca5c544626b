"""From settings to a run that is ready to start. Nothing is written here, so a refused run leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data import from_torch
from vitrail.data import load as load_data
from vitrail.data.dataset import Dataset
from vitrail.data.holdout import not_held_out
from vitrail.data.partitions import Partition
from vitrail.data.specs import parse_partition
from vitrail.experiment import settings as config
from vitrail.experiment.checks import check_plan
from vitrail.experiment.partitioning import apply_label_mode, partition_dataset
from vitrail.experiment.run_dir import RunDir
from vitrail.experiment.settings import Settings
from vitrail.experiment.validation import GIVEN, NODES
from vitrail.methods.base import UNSET_TASK, Method, Task
from vitrail.nets.features import FEATURES, load_features, was_trained_on
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
    """A run that is ready to start.

    Args:
        settings: Complete settings.
        data: The dataset; in a deployment, the server's.
        partition: Which client has which images.
        clients: Clients that have images; the others are skipped.
        method: The method, with its task.
        id: Identifies everything that decides the result: settings, data and start.
        folder: The run's folder.
        start: The server's state of an earlier run, with `init_from=`.
        notes: Warnings to show before the run starts.
        against: Feature networks that this run, or one it starts from, trains against; they may not evaluate it.
        split: Which test split was used; empty if an earlier run, from which this one starts, did not record it.
        earlier_run: What the run that this one starts from has released.
        deployed: Whether clients are nodes on other machines; otherwise they are simulated here.
        key: Signs the ledger; None: a new key of this run.
    """

    settings: Settings
    data: Dataset
    partition: Partition
    clients: list[str]
    method: Method
    id: bytes
    folder: RunDir
    start: store.State | None
    notes: tuple[str, ...]
    against: tuple[str, ...]
    split: str = ""
    earlier_run: EarlierRun | None = None
    deployed: bool = False
    key: Key | None = None

    @property
    def budget(self) -> Budget | None:
        """The privacy budget of each client."""
        s = self.settings
        return Budget(s.budget_name or self.data.name, s.budget, self.method.delta) if s.budget else None

    @property
    def flaw(self) -> str:
        """Why no mechanism makes this run private; empty if there is no such reason."""
        psi = self.method.feature_network
        if psi and was_trained_on(psi, self.data.name):
            return f"features={psi} were trained on this very data"
        return self.earlier_run.flaw if self.earlier_run else ""

    @property
    def ledger_notes(self) -> dict[str, str]:
        """What a privacy claim rests on in addition to its mechanism."""
        psi, start = self.method.feature_network, self.earlier_run
        notes = {"features": f"{psi}, public, trained on {FEATURES[psi].trained_on}"} if psi else {}
        if start is not None:
            notes["started_from"] = f"{start.run}, whose ledger ends with {start.head or 'nothing'}: {start.says}"
        return notes

    @property
    def has_copies(self) -> bool:
        """Whether clients have some images more than once (bootstrap, attributes, perhaps partitions of plugins)."""
        assigned = np.concatenate([*self.partition.indices])
        return len(np.unique(assigned)) < len(assigned)

    def init_server(self) -> store.State:
        """Return the method's state before the first round; with `init_from`, from the last one of an earlier run."""
        indices = self.partition.server
        data = self.data.train.take(indices) if len(indices) else None
        return self.method.server_init(Rng((self.settings.seed,)).child("server", "init"), data, self.start)

    @property
    def empty(self) -> list[str]:
        """Clients without images."""
        return [name for name in self.partition.names if name not in set(self.clients)]


def prepare(settings: Settings, given: Any = None) -> Plan:
    """Load the data, partition it, and build the method.

    Args:
        settings: Resolved settings.
        given: The data, if it comes from Python.

    Raises:
        VitrailError: If the run could not finish.
    """
    settings, data, shares = load_and_partition(settings, given)
    data, notes = apply_label_mode(settings, data)
    clients = [name for name, indices in zip(shares.names, shares.indices, strict=True) if len(indices)]
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
    """Build the plan of a run of these clients.

    Args:
        settings: Complete settings (see `complete`).
        data: The dataset; it need not include the clients' images.
        shares: Which client has which images.
        clients: Clients that have images.
        content: Identifies the clients' images.
        notes: Warnings to show before the run starts.
        deployed: Whether clients are nodes on other machines.
        key: Signs the ledger.
        images: Largest number of images of any client, if `shares` does not show it.
    """
    _check_names(shares)
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
    start, start_digest = _load_start(settings)
    run = config.identity(settings, content, start_digest)
    earlier = None
    if settings.init_from:
        seed = settings.seed if settings.noise_source == "seed" else None
        earlier = earlier_run(Path(settings.init_from), store.tree_digest(start), method.mechanism, deployed, seed)
    split = data.split if settings.init_from is None or RunDir(Path(settings.init_from)).split else ""
    notes = [*notes, *_notes(method, data, shares, split, earlier)]
    plan = Plan(
        settings, data, shares, clients, method, run, RunDir(Path(settings.out)), start, tuple(notes),
        _trained_against(settings), split, earlier, deployed, key,
    )  # fmt: skip
    check_plan(plan)
    return plan


def load_and_partition(settings: Settings, given: Any = None) -> tuple[Settings, Dataset, Partition]:
    """Return complete settings, the dataset with all its labels, and which client has which images."""
    data = _load(settings, given)
    settings = complete(settings, data)
    return settings, *partition_dataset(settings, data)


def _load(s: Settings, given: Any) -> Dataset:
    if given is None:
        if s.data == GIVEN:
            raise VitrailError("this run was started with data from Python; pass the same data again with data=")
        if s.data == NODES:
            raise VitrailError(
                "data=nodes means the data of a deployment's nodes: start or continue such a run with `flwr run` "
                "(see docs/how-to/deploy.md), or name data that is available here"
            )
        return load_data(s.data, size=s.size, test_fraction=s.test_fraction)
    data = given if isinstance(given, Dataset) else from_torch(given, size=s.size, test_fraction=s.test_fraction)
    if s.size not in (None, data.shape[1]):
        raise VitrailError(
            f"size={s.size}, but the given data is {data.shape[1]} pixels wide; pass size to from_arrays instead"
        )
    return data


def complete(s: Settings, data: Dataset) -> Settings:
    """Set what follows from the data: image size, the method's "auto" settings, clients of folders or domains."""
    found: dict[str, Any] = {"size": data.shape[1], **config.build_method(s, UNSET_TASK).auto_settings(data.name)}
    if s.partition == "folders" and "clients" not in s.model_fields_set and data.groups:
        found["clients"] = len(data.groups)
    if "clients" not in s.model_fields_set and (domains := parse_partition(s.partition).domains):
        found["clients"] = len(domains)
    return s.model_copy(update=found)


def feature_network(s: Settings) -> str:
    """Return the name of the feature network that a run trains against; empty if there is none."""
    return config.build_method(s, UNSET_TASK).feature_network


def _notes(method: Method, data: Dataset, shares: Partition, split: str, earlier: EarlierRun | None) -> Iterator[str]:
    """Warnings to show before the run starts."""
    if psi := method.feature_network:
        load_features(psi)  # fails here, and not in every client, if its weights are missing
        if was_trained_on(psi, data.name):
            yield f"features={psi} were trained on this very data: no such run is private"
    if (mechanism := method.mechanism) is not None:
        units = len(shares.names) if mechanism.unit == "client" else sum(map(len, shares.indices))
        if method.delta * units >= 1:
            yield (
                f"delta={method.delta:g} is not below one over the {units:,} {mechanism.unit}s: a δ this large would "
                "allow releasing one of them in full"
            )
    if doubt := not_held_out(data, split):
        yield f"metrics of this run: {doubt}"
    if mechanism is not None and earlier is not None and earlier.flaw:
        yield f"not private, whatever noise is added: {earlier.flaw}"


def _trained_against(s: Settings | None) -> tuple[str, ...]:
    """The feature networks of a run and of the runs it starts from."""
    found: dict[str, None] = {}
    while s is not None:
        found |= dict.fromkeys(filter(None, [feature_network(s)]))
        s = RunDir(Path(s.init_from)).stored_settings() if s.init_from else None
    return tuple(found)


def _check_names(shares: Partition) -> None:
    for name in shares.names:
        try:
            valid = len(name.encode()) <= 255
        except UnicodeEncodeError:
            valid = False
        if not valid:
            raise VitrailError(
                f"the client name {name[:40]!r} is longer than 255 bytes or not UTF-8; rename its folder"
            )


def _load_start(s: Settings) -> tuple[store.State | None, str]:
    """The last server state of the run that `init_from` names, and a digest of its checkpoint."""
    if s.init_from is None:
        return None, ""
    run_dir = RunDir(Path(s.init_from))
    if not run_dir.checkpoint.exists():
        raise VitrailError(
            f"init_from={s.init_from}: there is no checkpoint; give the folder of a run that has finished a round"
        )
    was = run_dir.stored_settings().method
    if was != s.method:
        raise VitrailError(
            f"init_from={s.init_from}: that run is of method {was}, this one of {s.method}; give one of the same method"
        )
    state: store.State = store.load(run_dir.checkpoint)["federation"]["server"]
    return state, digest(run_dir.checkpoint.read_bytes()).hex()
