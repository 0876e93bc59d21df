"""Plain values as JSON: the same text as the library's, with or without its quick encoder."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.json import decode, encode, quick_dump

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(PLAIN)
def test_it_says_what_the_library_says(value):
    assert quick_dump(",", ":")(value) == json.dumps(value, separators=(",", ":"))
    assert quick_dump(", ", ": ")(value) == json.dumps(value)
    assert encode(value) == json.dumps(value, separators=(",", ":"))


def test_numbers_that_are_none_are_written_where_they_may_be():
    assert encode([math.nan, -math.inf]) == json.dumps([math.nan, -math.inf], separators=(",", ":"))


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("value", [math.nan, {"a": [math.inf]}, object(), {"a": {1}}, {(1, 2): 3}])
def test_what_is_not_plain_is_refused(monkeypatch, value, quick):
    if not quick:
        monkeypatch.setattr(json.encoder, "c_make_encoder", None)
    dump = quick_dump(",", ":")
    with pytest.raises((TypeError, ValueError)):
        dump(value)
    assert dump({"a": "é\x00"}) == '{"a":"\\u00e9\\u0000"}'


def test_a_circle_ends():
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises((RecursionError, ValueError)):
        quick_dump(",", ":")(circle)


@given(PLAIN, st.sampled_from(["", " ", "\n\t "]), st.sampled_from(["", " ", "\r\n"]))
def test_it_reads_what_the_library_reads(value, before, after):
    text = f"{before}{json.dumps(value)}{after}"
    assert decode(text) == json.loads(text)


@pytest.mark.parametrize("text", ["", " ", "{", "1 2", "{}x", "\ufeff1", "nan", "[1,]"])
def test_what_the_library_does_not_read_it_does_not_read(text):
    with pytest.raises(json.JSONDecodeError) as library:
        json.loads(text)
    with pytest.raises(json.JSONDecodeError) as ours:
        decode(text)
    assert str(ours.value) == str(library.value)
