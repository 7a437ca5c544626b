"""The owner's config of a node (`flower-supernode --node-config`): its data, folder, limits and policy."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from vitrail.privacy.policy import KEYS as POLICY_KEYS
from vitrail.privacy.policy import Policy, from_config
from vitrail.utils.errors import VitrailError, nearest

Value = bool | int | float | str
_NUMBERS: dict[str, type[float]] = {"budget": float, "partition_id": int, "num_partitions": int, "images": int}


@dataclass(frozen=True)
class NodeConfig:
    """What the owner of a node has set; each field is a key of the node config.

    Args:
        name: Name of the node, and of its client in every run.
        data: Source of its images.
        folder: Folder of its secret, private states, logs and models.
        device: Torch device; "auto": a GPU if there is one.
        budget: ε that it may spend in all runs together; 0: not counted.
        budget_name: Name of that budget; empty: the node's name.
        home: Folder of downloads and budgets, in place of $VITRAIL_HOME.
        classes: Names of the labels in the run, separated by commas, if the node does not have images of all.
        partition: For trials: partition of the data of which this node has one part, like a simulated client.
        partition_id: Number of its part.
        num_partitions: Number of parts.
        discriminator: Architecture of its own discriminator, such as dense:32, for methods that allow it.
        images: Largest number of its images, which the server is sent to bound its sums; 0: not sent.
        server_key: Public key of the server whose requests it answers, or a file of it; empty: any server.
        peer_keys: Folder of NAME.pub, the keys that other nodes must have in secure aggregation; empty: any.
        policy: The least that it requires of a run, from the keys that privacy/policy.py reads.
    """

    name: str
    data: str
    folder: str
    device: str = "auto"
    budget: float = 0.0
    budget_name: str = ""
    home: str = ""
    classes: str = ""
    partition: str = ""
    partition_id: int = 0
    num_partitions: int = 1
    discriminator: str = ""
    images: int = 0
    server_key: str = ""
    peer_keys: str = ""
    policy: Policy = field(default_factory=Policy)

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.folder).expanduser()


def read_node_config(given: Mapping[str, Value]) -> NodeConfig:
    """Read a node config; `home` is set as $VITRAIL_HOME of this process.

    Args:
        given: Values by key, with dashes in the keys.

    Raises:
        VitrailError: A key is unknown or missing, or a value is invalid.
    """
    values = {key.replace("-", "_"): value for key, value in given.items() if key not in POLICY_KEYS}
    known = [name for name in NodeConfig.__dataclass_fields__ if name != "policy"]
    for key in values:
        if key not in known:
            keys = [name.replace("_", "-") for name in known] + list(POLICY_KEYS)
            raise VitrailError(f"{key.replace('_', '-')} is not a key of a node config; {nearest(key, keys)}")
    missing = [key for key in ("name", "data", "folder") if not values.get(key)]
    if missing:
        raise VitrailError(f"the node config lacks {', '.join(missing)}; give it to flower-supernode --node-config")
    try:
        own = {k: _NUMBERS[k](v) if k in _NUMBERS else str(v) for k, v in values.items()}
        policy = replace(from_config(given), budget=bool(own.get("budget")))
        config = NodeConfig(**own, policy=policy)  # type: ignore[arg-type]
    except ValueError as e:
        raise VitrailError(f"the node config has an invalid value: {e}") from None
    if not 0 <= config.budget < math.inf:
        raise VitrailError(f"budget={config.budget:g}: must be a number above 0")
    if config.home:
        os.environ["VITRAIL_HOME"] = config.home
    return config
