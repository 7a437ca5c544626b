"""A node of a deployment: its owner names its data and folder here, and neither leaves the machine.

In the folder, readable by its owner alone: `secret` (made once, by the operating system), `runs/ID/` (the private state
of one run, and the terms it was begun with); for everybody: `models/ID.safetensors`, what came out.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from vitrail.atomic import write_atomically
from vitrail.engines.flower.laid import laid, lay
from vitrail.engines.flower.terms import Terms
from vitrail.engines.signed_client import Signed
from vitrail.errors import Malformed, VitrailError, nearest, printable
from vitrail.privacy.policy import KEYS as POLICY
from vitrail.privacy.policy import Policy, from_config
from vitrail.privacy.signing import kept_key, public_key
from vitrail.rng import Rng

if TYPE_CHECKING:
    from vitrail.config import Settings
    from vitrail.data.pictures import Dataset, Pictures
    from vitrail.engines.client import Client

DESCRIBE = "query.describe"  # as carry.py has it, which needs Flower
MOST_CLASSES = 10_000
SHAPES = (range(1, 5), range(1, 4097), range(1, 4097))  # channels, height, width: as data/resize.py allows
Value = bool | int | float | str


@dataclass(frozen=True)
class Description:
    """What a node says of itself: who it is, and what pictures it holds; not how many, nor where."""

    name: str
    key: str  # its public key; tells a node that was restarted from another one of the same name
    shape: tuple[int, ...]
    classes: tuple[str, ...]

    def text(self) -> str:
        """As it travels."""
        return json.dumps(asdict(self))

    @property
    def public(self) -> bytes:
        """The key that it signs with."""
        return bytes.fromhex(self.key)

    @staticmethod
    def read(text: str) -> Description:
        """Read a description that a node sent.

        Args:
            text: What came; nothing is known of it.

        Returns:
            The description: name, key, shape and classes have been checked.

        Raises:
            VitrailError: The node refuses to take part, in its own words, or the text is no description.
        """
        try:
            found = json.loads(text)
            if "refuses" in found:
                who, why = printable(str(found.get("name", "")), 60), printable(str(found["refuses"]))
                raise VitrailError(f"{who}: {why}".removeprefix(": "))
            name, key, shape, classes = (found[field] for field in ("name", "key", "shape", "classes"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            raise Malformed(f"its description cannot be read: {type(e).__name__}") from None
        if not _is_name(name):
            raise Malformed("its name is not 1 to 255 bytes of printable text")
        if not (isinstance(key, str) and re.fullmatch("[0-9a-f]{64}", key)):
            raise Malformed(f"{name}: its key is not 64 hexadecimal digits")
        if not (isinstance(shape, list) and len(shape) == 3 and all(map(_in, shape, SHAPES))):
            raise Malformed(f"{name}: its pictures have an impossible shape")
        if not (isinstance(classes, list) and len(classes) <= MOST_CLASSES and all(map(_is_name, classes))):
            raise Malformed(f"{name}: its labels are not at most {MOST_CLASSES:,} names of 1 to 255 printable bytes")
        if len(set(classes)) < len(classes):
            raise Malformed(f"{name}: two of its labels have the same name")
        return Description(name, key, tuple(shape), tuple(classes))


def _is_name(text: object) -> bool:
    return isinstance(text, str) and text == printable(text, 256) and 1 <= len(text.encode()) <= 255


def _in(n: object, bounds: range) -> bool:
    return type(n) is int and n in bounds


class Party(Protocol):
    """Whoever answers at a node."""

    def opened(self, text: str, carried: bytes, what: str) -> bytes: ...
    def closed(self, request: bytes, reply: bytes, what: str) -> bytes: ...
    def describe(self, terms: Terms) -> Description: ...
    def client(self, terms: Terms) -> Client: ...
    def keep(self, terms: Terms, model: bytes) -> None: ...


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
    server_key: str = ""  # the public key of the server whose requests it answers, or a file of it; none: anybody's
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
        numbers: dict[str, type[float]] = {"budget": float, "partition_id": int, "num_partitions": int}
        try:
            own = {k: numbers[k](v) if k in numbers else str(v) for k, v in values.items()}
            node = Node(**own, policy=from_config(given))  # type: ignore[arg-type]
        except ValueError as e:
            raise VitrailError(f"the node config holds a wrong value: {e}") from None
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
    def _signs(self) -> Signed:
        server = public_key(self.server_key) if self.server_key else None
        return Signed(self.name, kept_key(self.place / "node.key"), server)

    def opened(self, text: str, carried: bytes, what: str) -> bytes:
        """A request, if it comes from the server that the owner named; before anything else is done with it."""
        return self._signs.opened(carried, text, what, "" if what == DESCRIBE else None)

    def closed(self, request: bytes, reply: bytes, what: str) -> bytes:
        """A reply, signed."""
        return self._signs.closed(request, reply, what)

    def describe(self, terms: Terms) -> Description:
        """Who this is, and what its pictures look like under a run's settings."""
        data = self._data(terms.common())
        return Description(self.name, self._signs.key.public.hex(), data.shape, data.classes)

    def client(self, terms: Terms) -> Client:
        """This node as a client of a run."""
        from vitrail.determinism import device_for
        from vitrail.engines.client import Client
        from vitrail.privacy.budget import Budget

        method = terms.method(device_for(self.device))
        if self.discriminator:
            method = method.preferring({"discriminator": self.discriminator})
        s, folder = terms.common(), self._begun(terms)
        rng = Rng((s.seed,)) if s.entropy == "seed" else Rng((self.secret,))
        budget = None
        if self.budget or s.budget:
            name = self.budget_name or self.name
            delta = self.policy.max_delta if self.budget else float(getattr(method, "delta", 1e-5))
            budget = Budget(name, self.budget or float(s.budget or 0), delta)

        def pictures() -> Pictures:
            """Read once in a run: each of its messages comes to a new process."""
            place = folder / "pictures"
            if not place.exists():
                data = self._data(s)
                if (data.shape, data.classes) != (terms.shape, terms.classes):
                    raise VitrailError("its pictures or their labels are no longer what it described")
                lay(data.train, place)
            return laid(place)

        run = bytes.fromhex(terms.id)
        return Client(self.name, method, run, rng, pictures, folder, budget, self.policy, queues=True)

    def keep(self, terms: Terms, model: bytes) -> None:
        """Write what came out of a run."""
        shutil.rmtree(self._begun(terms) / "pictures", ignore_errors=True)
        models = self.place / "models"
        models.mkdir(parents=True, exist_ok=True)
        write_atomically(models / f"{terms.id}.safetensors", model)

    def _begun(self, terms: Terms) -> Path:
        """The folder of a run, which names the terms it was begun with; others under its id are refused."""
        folder = self.place / "runs" / terms.id
        path = folder / "terms.json"
        if not path.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, terms.text().encode(), 0o600)
        if path.read_text() != terms.text():
            raise VitrailError("the run was begun on other terms; it must go on with them, or begin anew")
        return folder

    def _data(self, s: Settings) -> Dataset:
        """Its pictures; why they cannot be read stays here, for it may name a path."""
        try:
            return self._load(s)
        except (VitrailError, OSError):
            print(traceback.format_exc(), file=sys.stderr)
            raise VitrailError("its pictures cannot be read; its own log says why") from None

    def _load(self, s: Settings) -> Dataset:
        from vitrail.data.sources import load

        data = load(self.data, size=s.size, held_out=s.held_out)
        if self.classes:
            data = _named(data, tuple(word.strip() for word in self.classes.split(",")))
        if not self.partition:
            return data if s.labels == "auto" else data.without_labels()
        from vitrail.division import divide

        own = {"data": self.data, "partition": self.partition, "clients": self.num_partitions}
        data, shares, _ = divide(s.model_copy(update=own), data)
        return replace(data, train=data.train.take(shares.indices[self.partition_id]))


def _named(data: Dataset, classes: tuple[str, ...]) -> Dataset:
    """The same pictures with labels numbered as these names are."""
    unknown = sorted(set(data.classes) - set(classes))
    if unknown or len(set(classes)) < len(classes):
        raise VitrailError(f"classes={','.join(classes)}: must name every label once, also {', '.join(unknown)}")
    number = np.array([classes.index(name) for name in data.classes], np.int64)

    def renumbered(p: Pictures) -> Pictures:
        return p if p.labels is None else replace(p, labels=number[p.labels])

    return replace(data, train=renumbered(data.train), test=renumbered(data.test), classes=classes)
