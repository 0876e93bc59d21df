"""Payloads are checked against the stored schema as the jsonschema library would check them."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pytest
from annotated_types import Ge, Len, Lt, MultipleOf
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker
from pydantic import BaseModel, Field, TypeAdapter
from typing_extensions import TypedDict

from mulligan.core.errors import PayloadRefused
from mulligan.manifest.schema import FORMATS, accepts_payload, check_payload, find_mismatches


class Color(Enum):
    RED = "red"
    BLUE = 2


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Ge(0)] = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    name: Annotated[str, Field(pattern=r"^[a-z]+$", max_length=5)]


class Tree(BaseModel, extra="forbid"):
    value: int
    children: list[Tree] = []


class Size(TypedDict, total=False):
    width: int
    unit: Literal["px", "mm"]


ANNOTATIONS: list[Any] = [
    int,
    float,
    str,
    bool,
    None,
    int | None,
    str | int | None,
    Decimal,
    Color,
    Point,
    Tree,
    Size,
    date,
    datetime,
    timedelta,
    UUID,
    list[int],
    set[str],
    tuple[int, str],
    tuple[int, ...],
    dict[str, int],
    dict[str, Tree],
    Literal["a", 1] | None,
    Annotated[int, Ge(1), Lt(10)],
    Annotated[int, MultipleOf(5)],
    Annotated[float, MultipleOf(0.5)],
    Annotated[list[int], Len(1, 3)],
    Annotated[str, Len(2, 4)],
    Annotated[Cat | Dog, Field(discriminator="kind")],
    Annotated[dict[str, int], Len(1, 2)],
]

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.sampled_from([0.0, 1.0, 1.5, 2.0]),
    st.sampled_from(["", "a", "red", "px", "cat", "dog", "rex", "Rex", "2026-11-18", "PT5S"]),
    st.sampled_from(["2026-11-18T03:00:00Z", "12345678-1234-5678-1234-567812345678", "1.5"]),
)
NAMES = st.sampled_from(["value", "children", "kind", "name", "lives", "width", "unit", "x"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def reference_validator(schema: Any) -> Draft202012Validator:
    formats = FormatChecker(formats=())
    for name, type_ in FORMATS.items():
        formats.checks(name, raises=ValueError)(TypeAdapter(type_).validate_python)
    return Draft202012Validator(schema, format_checker=formats)


SCHEMAS = [TypeAdapter(annotation).json_schema() for annotation in ANNOTATIONS]
VALIDATORS = [(schema, reference_validator(schema)) for schema in SCHEMAS]


@given(VALUES)
def test_a_value_fits_a_schema_of_pydantic_if_the_jsonschema_library_says_so(value):
    for schema, validator in VALIDATORS:
        mismatches = find_mismatches(value, schema)
        assert (not mismatches) == validator.is_valid(value), (schema, mismatches)


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"type": "string"}},
        {"patternProperties": {"^n": {"type": "integer"}}, "additionalProperties": False},
        {"propertyNames": {"maxLength": 4}},
        {"allOf": [{"type": ["integer", "null"]}, {"maximum": 3}]},
        {"uniqueItems": True},
        {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
        {"prefixItems": [{"type": "integer"}], "items": False},
        {"const": [True, {"x": 1}]},
        {"enum": [1, "a", None]},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}},
        {"minProperties": 1, "maxProperties": 2},
        True,
        False,
        {"unknownKeyword": 7},
    ],
    ids=json.dumps,
)
@given(value=VALUES)
def test_keywords_that_users_add_mean_what_they_mean_in_the_library(schema, value):
    assert (not find_mismatches(value, schema)) == Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize(
    ("annotation", "payload", "message"),
    [
        (Tree, {"value": "x"}, 'work: value: expected an integer, got "x"'),
        (Tree, {}, "work: value: is missing"),
        (Tree, {"value": 1, "colour": 2}, "work: colour: unknown; known: value, children"),
        (Tree, {"value": 1, "children": [{"value": None}]}, "children.0.value: expected an int"),
        (int | None, "x", 'payload: expected an integer, got "x"; or expected null, got "x"'),
        (Color, "green", 'payload: expected "red" or 2, got "green"'),
        (Annotated[int, Ge(1)], 0, "payload: 0 is below 1"),
        (Annotated[str, Len(2, 4)], "a", "payload: has 1 characters, at least 2 are needed"),
        (UUID, "x", 'payload: "x" is not a valid uuid'),
        (dict[str, Annotated[str, Field(pattern="^a")]], {"k": "b"}, 'k: "b" does not match ^a'),
        (str, ["x" * 500], "payload: expected a string, got ["),
    ],
)
def test_a_refusal_names_the_place_the_value_and_what_is_expected(annotation, payload, message):
    with pytest.raises(PayloadRefused) as refused:
        check_payload("work", payload, TypeAdapter(annotation).json_schema())
    assert message in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_broken_schema_accepts_nothing_and_an_empty_one_everything():
    assert not accepts_payload("work", {}, {"$ref": "#/$defs/none"})
    assert accepts_payload("work", {"any": 1}, {})
