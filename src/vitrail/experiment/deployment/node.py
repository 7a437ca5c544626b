"""A node of a deployment: answers requests for its owner; neither its images nor their location leave the machine.

Files in its folder, readable by its owner alone: `secret` (drawn once by the operating system), `runs/ID/` (private
state and specification of one run), `refusals.log`; readable by everyone: `models/ID.safetensors`, the final models.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.engines.flower.descriptions import Description, RunSpec
from vitrail.engines.signing.client import DESCRIBE, NONCE, SignedSession
from vitrail.experiment.deployment.mmap_dataset import read_mmap, write_mmap
from vitrail.experiment.deployment.node_config import NodeConfig, Value, read_node_config
from vitrail.experiment.deployment.node_images import image_format, node_images
from vitrail.experiment.deployment.specs import common_settings, draft_spec, method_of, resolved_settings
from vitrail.privacy.policy import Policy
from vitrail.utils.atomic import file_lock, write_atomically
from vitrail.utils.errors import Malformed, Refused, VitrailError
from vitrail.utils.keys import load_or_create_key, public_key
from vitrail.utils.paths import private_file
from vitrail.utils.rng import Rng

if TYPE_CHECKING:
    from vitrail.data.dataset import Images
    from vitrail.engines.client import Client
    from vitrail.methods.base import Method
    from vitrail.privacy.budget import Budget

MAX_LOG = 2**16  # bytes of refusals.log; the oldest lines are deleted first


@dataclass(frozen=True)
class Node:
    """A node with its owner's config."""

    config: NodeConfig

    @staticmethod
    def of(given: Mapping[str, Value]) -> Node:
        """Create a node from a node config.

        Raises:
            VitrailError: The config is invalid.
        """
        return Node(read_node_config(given))

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.config.name

    @property
    def secret(self) -> bytes:
        """Random bytes that only this node knows; created when they are first needed."""
        path = self.config.path / "secret"
        if not path.exists():
            self.config.path.mkdir(parents=True, exist_ok=True)
            write_atomically(path, secrets.token_bytes(32), 0o600)
        return path.read_bytes()

    @property
    def _session(self) -> SignedSession:
        server = public_key(self.config.server_key) if self.config.server_key else None
        return SignedSession(self.name, load_or_create_key(self.config.path / "node.key"), server)

    def verify(self, spec: str, signed: bytes, purpose: str) -> bytes:
        """Return the request in a signed message; called before anything else is done with it.

        Raises:
            Malformed: The request does not come from the server that the owner named.
        """
        request = self._session.verify(signed, spec, purpose, "" if purpose == DESCRIBE else None)
        if purpose == DESCRIBE and len(request) != NONCE:
            raise Malformed(f"a request for a description has a nonce of {NONCE} bytes, not of {len(request)}")
        return request

    def sign(self, request: bytes, reply: bytes, purpose: str) -> bytes:
        """Return a reply, followed by this node's signature."""
        return self._session.sign(request, reply, purpose)

    def describe(self, spec: RunSpec) -> Description:
        """Return name, key and image format of this node; policy and budget are checked first.

        Raises:
            Refused: The owner's policy or budget does not allow the run.
        """
        self._check_limits(spec)
        shape, classes = image_format(self.config, common_settings(spec))
        return Description(self.name, self._session.key.public.hex(), shape, classes, self.config.images)

    def client(self, spec: RunSpec) -> Client:
        """Return this node as a client of a run.

        Raises:
            Refused: The owner's policy or budget does not allow the run.
            VitrailError: The run was started with another specification.
        """
        from vitrail.engines.client import Client
        from vitrail.engines.signing.server import ClientKeys
        from vitrail.utils.determinism import device_for

        c = self.config
        method = method_of(spec, device_for(c.device))
        if c.discriminator:
            method = method.with_client_overrides({"discriminator": c.discriminator})
        policy, budget = self._check_limits(spec, method)
        self._check_features(spec, method)
        s, folder = common_settings(spec), self._run_folder(spec)
        return Client(
            c.name,
            method,
            bytes.fromhex(spec.id),
            Rng((s.seed,)) if s.noise_source == "seed" else Rng((self.secret,)),
            lambda: self._images(spec, folder),
            folder,
            budget,
            policy,
            self.log,
            shared_folder=True,
            key=self._session.key,
            peers=ClientKeys(expected=Path(c.peer_keys).expanduser()) if c.peer_keys else None,
        )

    def keep(self, spec: RunSpec, model: bytes) -> bytes:
        """Store the final model of a run that this node has answered.

        Args:
            spec: The specification with which this node answered the run.
            model: Bytes of a model file, of the network that the specification names.

        Returns:
            The node's signed statement on the run, for the server's ledger (privacy/statement.py).

        Raises:
            VitrailError: The node has not answered this run, has another model of it, or the model is not of this run.
        """
        from vitrail.experiment.deployment.delivered_model import check_delivered
        from vitrail.privacy.statement import write_statement

        if not spec.id or not private_file(self._run_path(spec), self.name).exists():
            raise VitrailError("this node has not answered the run, so it stores no model of it")
        shutil.rmtree(self._run_folder(spec) / "images", ignore_errors=True)
        path = self.config.path / "models" / f"{spec.id}.safetensors"
        if path.exists() and path.read_bytes() != model:
            raise VitrailError("this node already has another model of the run")
        check_delivered(spec, model)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, model)
        client = self.client(spec)
        answers = int((client.store.load() or {}).get("given", 0))
        method = client.method
        return write_statement(self._session.key, self.name, spec.id, method.mechanism, answers, method.delta)

    def log(self, text: str) -> None:
        """Report a refusal to the owner: on stderr, and in `refusals.log` in the node's folder."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {''.join(c if c.isprintable() else ' ' for c in text)}"
        print(line, file=sys.stderr)
        path = self.config.path / "refusals.log"
        with contextlib.suppress(OSError, VitrailError), file_lock(self.config.path / ".refusals.lock"):
            lines = path.read_bytes() if path.exists() else b""
            lines = (lines + line.encode(errors="replace") + b"\n")[-MAX_LOG:]
            write_atomically(path, lines, 0o600)

    def _images(self, spec: RunSpec, folder: Path) -> Images:
        """Decode the images once per run: each message is answered by a new process."""
        place = folder / "images"
        if not place.exists():
            data = node_images(self.config, common_settings(spec))
            if (data.shape, data.classes) != (spec.shape, spec.classes):
                raise VitrailError("its images or their labels differ from its description")
            write_mmap(data.train, place)
        return read_mmap(place)

    def _check_features(self, spec: RunSpec, method: Method) -> None:
        """Refuse a private run whose feature network was trained on this node's data."""
        from vitrail.experiment.plan import feature_network
        from vitrail.nets.features import FEATURES, was_trained_on

        psi = feature_network(resolved_settings(spec))
        if method.mechanism is not None and psi in FEATURES and was_trained_on(psi, self.config.data):
            seen = FEATURES[psi].trained_on
            reason = f"features={psi} were trained on {seen}, which this node has: no noise makes it private"
            self.log(reason)
            raise Refused(reason, "refused by the node's policy")

    def _check_limits(self, spec: RunSpec, method: Method | None = None) -> tuple[Policy, Budget | None]:
        """Check a run against the owner's policy and budget, before an image is read or a file written.

        Args:
            spec: The specification of the run.
            method: The method of the run; None: a provisional one is built if the owner requires anything.

        Returns:
            The policy and the budget that each answer of this run is checked against.
        """
        c, offered = self.config, common_settings(spec).budget
        policy = replace(c.policy, budget=bool(c.budget or offered))
        if not policy.demands:
            return policy, None
        method = method or method_of(draft_spec(spec))
        budget = None
        if policy.budget:
            from vitrail.privacy.budget import Budget

            delta = policy.max_delta if c.budget else method.delta
            budget = Budget(c.budget_name or c.name, c.budget or float(offered or 0), delta)
        try:
            policy.check(method)
            if budget and not (spec.id and self._run_path(spec).exists()):  # a started run is charged per answer
                budget.check(method.mechanism and policy.counted(method.mechanism))
        except Refused as e:
            self.log(str(e))
            raise
        return policy, budget

    def _run_path(self, spec: RunSpec) -> Path:
        return self.config.path / "runs" / spec.id

    def _run_folder(self, spec: RunSpec) -> Path:
        """The folder of a run; another specification than the first is refused."""
        folder = self._run_path(spec)
        path = folder / "terms.json"
        if not path.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, spec.text().encode(), 0o600)
        if path.read_text() != spec.text():
            raise VitrailError("the run was started with other settings; continue with those, or start a new run")
        return folder
