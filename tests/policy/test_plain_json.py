"""The quick encoder writes what the library's own writes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.policy.plain_json import encode, encoder

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_every_value_is_written_as_the_library_writes_it(value):
    assert encode(value) == json.dumps(value, separators=(",", ":"))
    assert encoder(ascii_only=False)(value) == json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize("value", [{1, 2}, object(), {(1, 2): 3}])
def test_what_the_library_refuses_is_refused(value):
    with pytest.raises(TypeError):
        encode(value)


def test_an_interpreter_without_the_quick_one_has_the_slow_one(monkeypatch):
    monkeypatch.setattr("json.encoder.c_make_encoder", None)
    assert encoder()({"a": [1, None]}) == '{"a":[1,null]}'
