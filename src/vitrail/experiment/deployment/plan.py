"""The plan of a run over nodes, from its settings and what the nodes described."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from vitrail.data import load
from vitrail.data.dataset import Dataset, Images
from vitrail.data.partitions import Partition
from vitrail.experiment import settings as config
from vitrail.experiment.partitioning import partition_from_settings
from vitrail.experiment.plan import Plan, assemble, complete
from vitrail.experiment.settings import Settings
from vitrail.experiment.validation import NODES
from vitrail.methods.base import UNSET_TASK
from vitrail.utils.errors import VitrailError
from vitrail.utils.keys import Key


def deployment_plan(settings: Settings, facts: Mapping[str, Any], key: Key | None = None) -> Plan:
    """Plan a run over nodes; only data that the server's own settings name is loaded.

    Args:
        settings: Settings of the run.
        facts: What the nodes described, as nodes.json stores it.
        key: The server's key, which signs the ledger.

    Raises:
        VitrailError: The server's own data differs in shape or labels from the nodes'.
    """
    shape, names = tuple(facts["shape"]), tuple(facts["names"])
    classes = tuple(facts["classes"]) if settings.labels == "auto" else ()
    none = np.empty(0, np.int64)
    empty = Images(np.empty((0, *shape), np.uint8), none if classes else None)
    data, server_indices = Dataset(NODES, empty, empty, classes), none
    notes = []
    if settings.data == NODES:
        notes.append("the server has no images, so there is no evaluation; evaluate the model where there are some")
    else:
        data = load(settings.data, size=shape[1], test_fraction=settings.test_fraction)
        if settings.server_fraction:
            data, shares, _ = partition_from_settings(complete(settings, data), data)
            server_indices = shares.server
        data = data if classes else data.without_labels()
        if (data.shape, data.classes) != (shape, classes):
            raise VitrailError(
                f"data={settings.data} at the server has images {data.shape} and labels {data.classes}, the nodes "
                f"{shape} and {classes}; name data of the same kind, or none"
            )
    declared = facts.get("images", {}).values()
    images = max(declared) if declared and all(declared) else 0
    limit = config.build_method(settings, replace(UNSET_TASK, classes=len(classes))).max_images_per_client
    images = images if limit is None else min(images, limit)  # a declaration cannot raise the method's own bound
    partition = Partition(NODES, names, (none,) * len(names), server_indices)
    settings = complete(settings, data)
    if settings.noise_source == "seed":
        notes.append(
            "noise_source=seed: noise and secrets follow from the seed, which the server knows; for trials only"
        )
    return assemble(
        settings, data, partition, list(names), facts["nonce"], notes, deployed=True, key=key, images=images
    )
