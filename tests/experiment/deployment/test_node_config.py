"""The owner's config of a node."""

from __future__ import annotations

import pytest

from tests.experiment.deployment.nodes import node
from vitrail.utils.errors import VitrailError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"name": ""}, "lacks name"),
        ({"bugdet": 3}, "bugdet is not a key of a node config; did you mean budget"),
        ({"budget": "much"}, "has an invalid value"),
        ({"budget": -1}, "must be a number above 0"),
        ({"budget": "nan"}, "must be a number above 0"),
        ({"budget": "inf"}, "must be a number above 0"),
    ],
)
def test_an_invalid_node_config_is_refused_with_the_reason(tmp_path, given, expected):
    with pytest.raises(VitrailError, match=expected):
        node(tmp_path, **given)
