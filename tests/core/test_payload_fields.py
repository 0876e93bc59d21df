"""What a filter compares of a payload."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.json import HASHED, LONGEST, indexed, kept, needles, text_at
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
    assert text_at({"a": value}, "a") == text
    assert text_at({"b": {"c": value}}, "b.c") == text


def test_what_is_not_there_has_no_text():
    for payload in ({}, {"a": {"b": 1}}, {"a": [1]}, {"a": "b"}, [1], 7):
        assert text_at(payload, "a.b.c") is None


def test_an_index_has_a_row_for_each_argument_that_is_a_scalar():
    assert indexed({"a": 1, "b": {"c": "x"}, "d": [1]}, ("a", "b.c", "d", "e")) == (
        ("a", "1"),
        ("b.c", "x"),
    )


def test_a_long_value_and_one_that_no_database_holds_are_hashed():
    assert kept("x" * LONGEST) == "x" * LONGEST
    for text in ("x" * (LONGEST + 1), "a\x00b", "\ud800", kept("x" * 500)):
        assert kept(text).startswith(HASHED)
        assert kept(text) != text
    assert kept("x" * 500) != kept("x" * 501)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
names = st.text(min_size=1).filter(lambda name: "." not in name)


@given(st.dictionaries(names, scalars | st.dictionaries(names, scalars), min_size=1))
def test_every_payload_that_says_so_holds_one_of_the_needles(payload):
    text = to_json(payload, "it")
    paths = list(payload.items())
    for name, value in payload.items():
        paths += (
            [(f"{name}.{inner}", one) for inner, one in value.items()]
            if isinstance(value, dict)
            else []
        )
    for path, value in paths:
        said = text_at(json.loads(text), path)
        assert (said is None) == isinstance(value, dict)
        if said is not None:
            assert any(needle in text for needle in needles(path, said))
