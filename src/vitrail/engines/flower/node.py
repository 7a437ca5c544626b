"""A node of a deployment: its owner names its data and folder here, and neither leaves the machine.

In the folder, readable by its owner alone: `secret` (made once, by the operating system), `runs/ID/` (the private state
of one run, and the terms it was begun with), `refusals.log` (why it refused); for everybody: `models/ID.safetensors`,
what came out.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from vitrail.engines.flower.description import Description
from vitrail.engines.flower.image_facts import ImageFacts, facts_key, stored_facts
from vitrail.engines.flower.mmap_dataset import read_mmap, write_mmap
from vitrail.engines.flower.run_spec import RunSpec
from vitrail.engines.signing.client import NONCE, SignedSession
from vitrail.privacy.policy import KEYS as POLICY
from vitrail.privacy.policy import Policy, from_config
from vitrail.utils.atomic import file_lock, write_atomically
from vitrail.utils.errors import Malformed, Refused, VitrailError, nearest
from vitrail.utils.keys import load_or_create_key, public_key
from vitrail.utils.rng import Rng

if TYPE_CHECKING:
    from vitrail.data.dataset import Dataset, Images
    from vitrail.engines.client import Client
    from vitrail.experiment.settings import Settings
    from vitrail.methods.base import Method
    from vitrail.privacy.budget import Budget

DESCRIBE = "query.describe"  # as carry.py has it, which needs Flower
LONGEST_LOG = 2**16  # bytes of refusals.log; the oldest lines go first
T = TypeVar("T")
Value = bool | int | float | str


class NodeInterface(Protocol):
    """Whoever answers at a node."""

    def opened(self, text: str, carried: bytes, what: str) -> bytes: ...
    def closed(self, request: bytes, reply: bytes, what: str) -> bytes: ...
    def describe(self, terms: RunSpec) -> Description: ...
    def client(self, terms: RunSpec) -> Client: ...
    def keep(self, terms: RunSpec, model: bytes) -> bytes: ...


@dataclass(frozen=True)
class Node:
    """What its owner set; each field is a key of the node config."""

    name: str
    data: str
    folder: str
    device: str = "auto"
    budget: float = 0.0  # the ε it may spend in all runs together; 0: nobody counts
    budget_name: str = ""
    home: str = ""  # downloads and budgets, in place of $VITRAIL_HOME
    classes: str = ""  # what labels are called in the run, with commas between; where it does not hold all of them
    partition: str = ""  # for trials: this node holds one share of the data, as a simulated client would
    partition_id: int = 0
    num_partitions: int = 1
    discriminator: str = ""  # psfedgan: the architecture of its own D, such as dense:32
    images: int = 0  # the most images that it has, for the server to know what its sums may be; 0: it is not told
    server_key: str = ""  # the public key of the server whose requests it answers, or a file of it; none: anybody's
    peer_keys: str = ""  # a folder of NAME.pub: the keys that other nodes must have in secure sums; none: any
    policy: Policy = field(default_factory=Policy)  # of the keys that privacy/policy.py reads

    @staticmethod
    def of(given: Mapping[str, Value]) -> Node:
        """From a node config; what is missing or unknown is named."""
        values = {key.replace("-", "_"): value for key, value in given.items() if key not in POLICY}
        known = {name: f for name, f in Node.__dataclass_fields__.items() if name != "policy"}
        for key in values:
            if key not in known:
                keys = [name.replace("_", "-") for name in known] + list(POLICY)
                raise VitrailError(f"{key.replace('_', '-')} is no key of a node config; {nearest(key, keys)}")
        missing = [key for key in ("name", "data", "folder") if not values.get(key)]
        if missing:
            raise VitrailError(f"the node config lacks {', '.join(missing)}; give it to flower-supernode --node-config")
        numbers: dict[str, type[float]] = {"budget": float, "partition_id": int, "num_partitions": int, "images": int}
        try:
            own = {k: numbers[k](v) if k in numbers else str(v) for k, v in values.items()}
            policy = replace(from_config(given), budget=bool(own.get("budget")))
            node = Node(**own, policy=policy)  # type: ignore[arg-type]
        except ValueError as e:
            raise VitrailError(f"the node config holds a wrong value: {e}") from None
        if not 0 <= node.budget < math.inf:
            raise VitrailError(f"budget={node.budget:g}: must be a number above 0")
        if node.home:
            os.environ["VITRAIL_HOME"] = node.home
        return node

    @property
    def place(self) -> Path:
        """Its folder."""
        return Path(self.folder).expanduser()

    @property
    def secret(self) -> bytes:
        """What only this node knows; made when it is first needed."""
        path = self.place / "secret"
        if not path.exists():
            self.place.mkdir(parents=True, exist_ok=True)
            write_atomically(path, secrets.token_bytes(32), 0o600)
        return path.read_bytes()

    @property
    def _signs(self) -> SignedSession:
        server = public_key(self.server_key) if self.server_key else None
        return SignedSession(self.name, load_or_create_key(self.place / "node.key"), server)

    def opened(self, text: str, carried: bytes, what: str) -> bytes:
        """A request, if it comes from the server that the owner named; before anything else is done with it."""
        request = self._signs.opened(carried, text, what, "" if what == DESCRIBE else None)
        if what == DESCRIBE and len(request) != NONCE:
            raise Malformed(f"a request for a description has a nonce of {NONCE} bytes, not of {len(request)}")
        return request

    def closed(self, request: bytes, reply: bytes, what: str) -> bytes:
        """A reply, signed."""
        return self._signs.closed(request, reply, what)

    def describe(self, terms: RunSpec) -> Description:
        """Who this is, and what its images look like under a run's settings; what it refuses, it refuses first."""
        self._agree(terms)
        shape, classes = self._kind(terms.common())
        return Description(self.name, self._signs.key.public.hex(), shape, classes, self.images)

    def client(self, terms: RunSpec) -> Client:
        """This node as a client of a run."""
        from vitrail.engines.client import Client
        from vitrail.engines.signing.server import ClientKeys
        from vitrail.utils.determinism import device_for

        method = terms.method(device_for(self.device))
        if self.discriminator:
            method = method.with_client_overrides({"discriminator": self.discriminator})
        policy, budget = self._agree(terms, method)
        self._check_features(terms, method)
        s, folder = terms.common(), self._begun(terms)
        rng = Rng((s.seed,)) if s.noise_source == "seed" else Rng((self.secret,))

        def pictures() -> Images:
            """Read once in a run: each of its messages comes to a new process."""
            place = folder / "pictures"
            if not place.exists():
                data = self._data(s)
                if (data.shape, data.classes) != (terms.shape, terms.classes):
                    raise VitrailError("its pictures or their labels are no longer what it described")
                write_mmap(data.train, place)
            return read_mmap(place)

        run = bytes.fromhex(terms.id)
        peers = ClientKeys(expected=Path(self.peer_keys).expanduser()) if self.peer_keys else None
        key = self._signs.key
        return Client(
            self.name, method, run, rng, pictures, folder, budget, policy, self.log, queues=True, key=key, peers=peers
        )

    def _check_features(self, terms: RunSpec, method: Method) -> None:
        """Refuse a run that would be called private although its feature network was trained on this node's data."""
        from vitrail.experiment.plan import feature_network
        from vitrail.nets.features import FEATURES, was_trained_on

        psi = feature_network(terms.resolved())
        if method.mechanism is not None and psi in FEATURES and was_trained_on(psi, self.data):
            seen = FEATURES[psi].trained_on
            reason = f"features={psi} were trained on {seen}, which this node has: no noise makes it private"
            self.log(reason)
            raise Refused(reason, "refused by the node's policy")

    def _agree(self, terms: RunSpec, method: Method | None = None) -> tuple[Policy, Budget | None]:
        """Refuse what the owner's policy or budget does not allow, before an image is read or a file written.

        Args:
            terms: of the run.
            method: of the run; None: a provisional one is built, and only where the owner demands anything.

        Returns:
            The policy and the budget that each answer of this run is checked against.
        """
        offered = terms.common().budget
        policy = replace(self.policy, budget=bool(self.budget or offered))
        if not policy.demands:
            return policy, None
        method = method or terms.draft().method()
        budget = None
        if policy.budget:
            from vitrail.privacy.budget import Budget

            delta = policy.max_delta if self.budget else method.delta
            budget = Budget(self.budget_name or self.name, self.budget or float(offered or 0), delta)
        try:
            policy.check(method)
            if budget and not (terms.id and self._folder(terms).exists()):  # one that has begun is charged as it goes
                budget.check(method.mechanism and policy.counted(method.mechanism))
        except Refused as e:
            self.log(str(e))
            raise
        return policy, budget

    def log(self, text: str) -> None:
        """Tell the owner why something was refused: in the node's own log, and in `refusals.log` in its folder."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {''.join(c if c.isprintable() else ' ' for c in text)}"
        print(line, file=sys.stderr)
        path = self.place / "refusals.log"
        with contextlib.suppress(OSError, VitrailError), file_lock(self.place / ".refusals.lock"):
            kept = path.read_bytes() if path.exists() else b""
            kept = (kept + line.encode(errors="replace") + b"\n")[-LONGEST_LOG:]
            write_atomically(path, kept, 0o600)

    def keep(self, terms: RunSpec, model: bytes) -> bytes:
        """Store the model of a run that this node answered, once; anything else is refused.

        Args:
            terms: The run, on the terms on which this node answered it.
            model: The bytes of a model file, of the network that the terms name.

        Returns:
            The node's signed statement on the run, for the server's ledger (privacy/statement.py).

        Raises:
            VitrailError: The node never answered this run, has another model of it already, or the model is not
                one of this run.
        """
        from vitrail.engines.client import private_file
        from vitrail.engines.flower.delivery import check_delivered

        folder = self.place / "runs" / terms.id
        if not terms.id or not private_file(folder, self.name).exists():
            raise VitrailError("this node has not answered the run, so it stores no model of it")
        shutil.rmtree(self._begun(terms) / "pictures", ignore_errors=True)
        path = self.place / "models" / f"{terms.id}.safetensors"
        if path.exists() and path.read_bytes() != model:
            raise VitrailError("this node has another model of the run already")
        check_delivered(terms, model)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, model)
        return self._statement(terms)

    def _statement(self, terms: RunSpec) -> bytes:
        from vitrail.privacy.statement import write_statement

        client = self.client(terms)
        answers = int((client.private() or {}).get("given", 0))
        delta = client.method.delta
        return write_statement(self._signs.key, self.name, terms.id, client.method.mechanism, answers, delta)

    def _folder(self, terms: RunSpec) -> Path:
        return self.place / "runs" / terms.id

    def _begun(self, terms: RunSpec) -> Path:
        """The folder of a run, which names the terms it was begun with; others under its id are refused."""
        folder = self._folder(terms)
        path = folder / "terms.json"
        if not path.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, terms.text().encode(), 0o600)
        if path.read_text() != terms.text():
            raise VitrailError("the run was begun on other terms; it must go on with them, or begin anew")
        return folder

    def _kind(self, s: Settings) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Shape and label names of its images under a run's settings; decoded once, until a file changes."""
        from vitrail.data.loading import image_side

        def read() -> ImageFacts:
            data = self._data(s.model_copy(update={"labels": "auto"}))
            return ImageFacts(data.shape[0], data.classes)

        own = (self.classes, self.partition, self.partition_id, self.num_partitions)
        facts = stored_facts(self.place, self._readable(lambda: facts_key(self.data, *own)), read)
        across = image_side(self.data, s.size)
        return (facts.channels, across, across), facts.classes if s.labels == "auto" else ()

    def _data(self, s: Settings) -> Dataset:
        """Its pictures; why they cannot be read stays here, for it may name a path."""
        return self._readable(lambda: self._load(s))

    def _readable(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except (VitrailError, OSError):
            print(traceback.format_exc(), file=sys.stderr)
            raise VitrailError("its pictures cannot be read; its own log says why") from None

    def _load(self, s: Settings) -> Dataset:
        from vitrail.data.loading import load

        # A node measures nothing, so it trains on all its images; a share for trials is that of a simulated client.
        data = load(self.data, size=s.size, test_fraction=s.test_fraction if self.partition else 0.0)
        if self.classes:
            data = _named(data, tuple(word.strip() for word in self.classes.split(",")))
        if not self.partition:
            return data if s.labels == "auto" else data.without_labels()
        from vitrail.experiment.partitioning import partition_from_settings

        own = {"data": self.data, "partition": self.partition, "clients": self.num_partitions}
        data, shares, _ = partition_from_settings(s.model_copy(update=own), data)
        return replace(data, train=data.train.take(shares.indices[self.partition_id]))


def _named(data: Dataset, classes: tuple[str, ...]) -> Dataset:
    """The same pictures with labels numbered as these names are."""
    unknown = sorted(set(data.classes) - set(classes))
    if unknown or len(set(classes)) < len(classes):
        raise VitrailError(f"classes={','.join(classes)}: must name every label once, also {', '.join(unknown)}")
    number = np.array([classes.index(name) for name in data.classes], np.int64)

    def renumbered(p: Images) -> Images:
        return p if p.labels is None else replace(p, labels=number[p.labels])

    return replace(data, train=renumbered(data.train), test=renumbered(data.test), classes=classes)
