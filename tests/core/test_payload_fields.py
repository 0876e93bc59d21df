"""Payload values that filters compare."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.json import (
    HASH_PREFIX,
    MAX_INDEXED_LENGTH,
    index_entries,
    index_value,
    payload_substrings,
    scalar_text,
)
from mulligan.manifest.arguments import to_json


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "x"),
        ("", ""),
        (42, "42"),
        (1.5, "1.5"),
        (1.0, "1.0"),
        (True, "true"),
        (None, "null"),
        ([], None),
    ],
)
def test_a_scalar_is_compared_by_its_text(value, text):
    assert scalar_text({"a": value}, "a") == text
    assert scalar_text({"b": {"c": value}}, "b.c") == text


def test_a_missing_field_has_no_text():
    for payload in ({}, {"a": {"b": 1}}, {"a": [1]}, {"a": "b"}, [1], 7):
        assert scalar_text(payload, "a.b.c") is None


def test_each_scalar_field_is_indexed():
    assert index_entries({"a": 1, "b": {"c": "x"}, "d": [1]}, ("a", "b.c", "d", "e")) == (
        ("a", "1"),
        ("b.c", "x"),
    )


def test_long_and_unstorable_values_are_indexed_by_their_hash():
    assert index_value("x" * MAX_INDEXED_LENGTH) == "x" * MAX_INDEXED_LENGTH
    for text in ("x" * (MAX_INDEXED_LENGTH + 1), "a\x00b", "\ud800", index_value("x" * 500)):
        assert index_value(text).startswith(HASH_PREFIX)
        assert index_value(text) != text
    assert index_value("x" * 500) != index_value("x" * 501)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
names = st.text(min_size=1).filter(lambda name: "." not in name)


@given(st.dictionaries(names, scalars | st.dictionaries(names, scalars), min_size=1))
def test_every_matching_payload_contains_one_of_the_substrings(payload):
    text = to_json(payload, "it")
    paths = list(payload.items())
    for name, value in payload.items():
        if isinstance(value, dict):
            paths += [(f"{name}.{inner}", one) for inner, one in value.items()]
    for path, value in paths:
        expected = scalar_text(json.loads(text), path)
        assert (expected is None) == isinstance(value, dict)
        if expected is not None:
            assert any(part in text for part in payload_substrings(path, expected))
