"""Descriptions of nodes, as a server reads them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from tests.engines.flower.descriptions import GOOD, NASTY
from vitrail.engines.flower.descriptions import Description
from vitrail.utils.errors import VitrailError

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_a_malformed_description_is_refused_with_a_printable_reason(text):
    with pytest.raises(VitrailError) as refused:
        Description.read(text)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 700


@drawn(st.sampled_from(sorted(GOOD)), _JSON)
def test_any_value_in_a_description_is_checked_or_refused(field, value):
    try:
        read = Description.read(json.dumps({**GOOD, field: value}))
    except VitrailError:
        return
    assert json.loads(read.text()) == {**GOOD, field: value}
    assert all(1 <= len(text.encode()) <= 255 for text in (read.name, *read.classes))
    assert len(bytes.fromhex(read.key)) == 32
    assert len(read.shape) == 3
