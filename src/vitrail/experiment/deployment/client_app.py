"""The ClientApp of a real node, configured by its owner."""

from __future__ import annotations

import sys

from flwr.app import Context

from vitrail.engines.flower.client import client_app
from vitrail.experiment.deployment.node import Node
from vitrail.utils.errors import Refused, VitrailError


def _node(context: Context) -> Node:
    try:
        return Node.of(context.node_config)
    except VitrailError as e:  # the text may reveal the owner's policy
        print(f"the node config is refused: {e}", file=sys.stderr)
        raise Refused(str(e), "its node config is wrong; see the node's own log") from e


app = client_app(_node)
