"""The fast JSON functions return what the standard library returns."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.core.json import decode, encode, make_encoder

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(JSON_VALUES)
def test_encoding_equals_the_standard_library(value):
    assert make_encoder(",", ":")(value) == json.dumps(value, separators=(",", ":"))
    assert make_encoder(", ", ": ")(value) == json.dumps(value)
    assert encode(value) == json.dumps(value, separators=(",", ":"))


def test_nan_and_infinity_are_encoded_where_allowed():
    assert encode([math.nan, -math.inf]) == json.dumps([math.nan, -math.inf], separators=(",", ":"))


@pytest.mark.parametrize("accelerated", [True, False])
@pytest.mark.parametrize("value", [math.nan, {"a": [math.inf]}, object(), {"a": {1}}, {(1, 2): 3}])
def test_values_outside_json_are_refused(monkeypatch, value, accelerated):
    if not accelerated:
        monkeypatch.setattr(json.encoder, "c_make_encoder", None)
    dump = make_encoder(",", ":")
    with pytest.raises((TypeError, ValueError)):
        dump(value)
    assert dump({"a": "é\x00"}) == '{"a":"\\u00e9\\u0000"}'


def test_a_cyclic_value_raises():
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises((RecursionError, ValueError)):
        make_encoder(",", ":")(cycle)


@given(JSON_VALUES, st.sampled_from(["", " ", "\n\t "]), st.sampled_from(["", " ", "\r\n"]))
def test_decoding_equals_the_standard_library(value, before, after):
    text = f"{before}{json.dumps(value)}{after}"
    assert decode(text) == json.loads(text)


@pytest.mark.parametrize("text", ["", " ", "{", "1 2", "{}x", "\ufeff1", "nan", "[1,]"])
def test_invalid_json_raises_the_error_of_the_standard_library(text):
    with pytest.raises(json.JSONDecodeError) as library:
        json.loads(text)
    with pytest.raises(json.JSONDecodeError) as ours:
        decode(text)
    assert str(ours.value) == str(library.value)
