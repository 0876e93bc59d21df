"""Check JSON values against the JSON schema of a payload, where the app is not loaded.

Knows the keywords that pydantic writes and their close relatives. It ignores other keywords: the
worker checks the payload against the handler's annotations anyway.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from functools import cache
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from mulligan.core.errors import PayloadRefused
from mulligan.failures.redact import scrub_public

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Schema = Mapping[str, Any] | bool
Path = tuple[str | int, ...]

TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float),
    "integer": (int, float),
}
TYPE_NAMES = {"object": "an object", "array": "a list", "integer": "an integer", "null": "null"}
# Formats of strings, read as the handler's annotations would read them.
FORMATS: Mapping[str, type] = {
    "date-time": datetime,
    "date": date,
    "time": time,
    "duration": timedelta,
    "uuid": UUID,
    "ipv4": IPv4Address,
    "ipv6": IPv6Address,
}
NUMBER_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
MAX_SHOWN = 60  # characters of a value in a message
MAX_MESSAGE = 200


class Mismatch(NamedTuple):
    """A place in a value that does not fit its schema."""

    path: Path
    message: str

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path)) or 'payload'}: {self.message}"


def check_payload(kind: str, payload: Any, schema: Mapping[str, Any]) -> None:
    """Raise PayloadRefused if a payload does not fit. An empty schema accepts everything.

    Nothing is converted: unlike a call in the app, "7" is refused where 7 is expected.
    """
    if not schema:
        return
    mismatches = find_mismatches(payload, schema)
    if mismatches:
        parts = [scrub_public(str(mismatch), MAX_MESSAGE) for mismatch in mismatches]
        raise PayloadRefused(f"{kind}: {'; '.join(parts)}")


def accepts_payload(kind: str, payload: Any, schema: Mapping[str, Any]) -> bool:
    """True if a payload fits. A schema that cannot be used accepts nothing."""
    try:
        check_payload(kind, payload, schema)
    except Exception:  # noqa: BLE001 - a broken schema must not stop the settlement of an attempt
        return False
    return True


def find_mismatches(value: Any, schema: Schema) -> list[Mismatch]:
    """Return where a value does not fit, in the order of the paths."""
    found = SchemaChecker(schema).check(value, schema, ())
    return sorted(found, key=lambda mismatch: [*map(str, mismatch.path)])


class SchemaChecker:
    """Checks values against parts of one schema. Knows the whole schema, for references."""

    def __init__(self, root: Schema) -> None:
        self._root = root

    def check(self, value: Any, schema: Schema, path: Path) -> Iterator[Mismatch]:
        """Yield where a value does not fit a part of the schema."""
        if isinstance(schema, bool):
            if not schema:
                yield Mismatch(path, "must be left out")
            return
        for keywords, check in CHECKS:
            if not keywords.isdisjoint(schema):
                yield from check(self, value, schema, path)

    def fits(self, value: Any, schema: Schema) -> bool:
        """True if a value fits a part of the schema."""
        return next(self.check(value, schema, ()), None) is None

    def resolve(self, reference: str) -> Schema:
        """Return the part of the schema that a reference such as `#/$defs/Size` names."""
        part: Any = self._root
        for name in reference.removeprefix("#").split("/")[1:]:
            part = part[name.replace("~1", "/").replace("~0", "~")]
        return part  # type: ignore[no-any-return]


# --- Keywords for any value ---

Check = Callable[[SchemaChecker, Any, Mapping[str, Any], Path], Iterator[Mismatch]]


def _check_reference(
    checker: SchemaChecker, value: Any, schema: Any, path: Path
) -> Iterator[Mismatch]:
    yield from checker.check(value, checker.resolve(schema["$ref"]), path)


def _check_type(_: SchemaChecker, value: Any, schema: Any, path: Path) -> Iterator[Mismatch]:
    names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if not any(is_type(value, name) for name in names):
        expected = " or ".join(TYPE_NAMES.get(name, f"a {name}") for name in names)
        yield Mismatch(path, f"expected {expected}, got {shorten(value)}")


def _check_values(_: SchemaChecker, value: Any, schema: Any, path: Path) -> Iterator[Mismatch]:
    allowed = schema["enum"] if "enum" in schema else [schema["const"]]
    if not any(is_equal(value, one) for one in allowed):
        expected = " or ".join(shorten(one) for one in allowed)
        yield Mismatch(path, f"expected {expected}, got {shorten(value)}")


def _check_any_of(
    checker: SchemaChecker, value: Any, schema: Any, path: Path
) -> Iterator[Mismatch]:
    reasons: list[Mismatch] = []
    for alternative in schema["anyOf"]:
        mismatches = [*checker.check(value, alternative, path)]
        if not mismatches:
            return
        reasons += mismatches[:1]
    parts = dict.fromkeys(_relative_message(reason, path) for reason in reasons)
    yield Mismatch(path, "; or ".join(parts))


def _check_one_of(
    checker: SchemaChecker, value: Any, schema: Any, path: Path
) -> Iterator[Mismatch]:
    fitting = [one for one in schema["oneOf"] if checker.fits(value, one)]
    if not fitting:
        yield from _check_any_of(checker, value, {"anyOf": schema["oneOf"]}, path)
    elif len(fitting) > 1:
        yield Mismatch(path, f"{shorten(value)} fits more than one of the alternatives")


def _check_all_of(
    checker: SchemaChecker, value: Any, schema: Any, path: Path
) -> Iterator[Mismatch]:
    for part in schema["allOf"]:
        yield from checker.check(value, part, path)


def _check_not(checker: SchemaChecker, value: Any, schema: Any, path: Path) -> Iterator[Mismatch]:
    if checker.fits(value, schema["not"]):
        yield Mismatch(path, f"{shorten(value)} is not allowed")


# --- Objects ---


def _check_required(_: SchemaChecker, value: Any, schema: Any, path: Path) -> Iterator[Mismatch]:
    if isinstance(value, dict):
        for name in schema["required"]:
            if name not in value:
                yield Mismatch((*path, name), "is missing")


def _check_properties(
    checker: SchemaChecker, value: Any, schema: Any, path: Path
) -> Iterator[Mismatch]:
    """Check the fields of an object: named ones, those with a pattern, and all others."""
    if not isinstance(value, dict):
        return
    properties = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    others = schema.get("additionalProperties", True)
    for name, item in value.items():
        parts = []
        for pattern, part in patterns.items():
            if re.search(pattern, name):
                parts.append(part)
        if name in properties:
            parts.append(properties[name])
        if not parts and others is False:
            yield Mismatch((*path, name), f"unknown; known: {', '.join(properties) or 'none'}")
        for part in parts or [others]:
            if part is not False:
                yield from checker.check(item, part, (*path, name))


def _check_property_names(
    checker: SchemaChecker, value: Any, schema: Any, path: Path
) -> Iterator[Mismatch]:
    if isinstance(value, dict):
        for name in value:
            yield from checker.check(name, schema["propertyNames"], (*path, name))


def _check_property_count(
    _: SchemaChecker, value: Any, schema: Any, path: Path
) -> Iterator[Mismatch]:
    if isinstance(value, dict):
        bounds = schema.get("minProperties"), schema.get("maxProperties")
        yield from _check_bounds(len(value), *bounds, "fields", path)


# --- Lists ---


def _check_items(checker: SchemaChecker, value: Any, schema: Any, path: Path) -> Iterator[Mismatch]:
    if not isinstance(value, list):
        return
    first = schema.get("prefixItems", [])
    rest = schema.get("items", True)
    for place, item in enumerate(value):
        part = first[place] if place < len(first) else rest
        yield from checker.check(item, part, (*path, place))


def _check_item_count(_: SchemaChecker, value: Any, schema: Any, path: Path) -> Iterator[Mismatch]:
    if isinstance(value, list):
        bounds = schema.get("minItems"), schema.get("maxItems")
        yield from _check_bounds(len(value), *bounds, "items", path)


def _check_unique_items(
    _: SchemaChecker, value: Any, schema: Any, path: Path
) -> Iterator[Mismatch]:
    if not isinstance(value, list) or not schema["uniqueItems"]:
        return
    for place, item in enumerate(value):
        if any(is_equal(item, earlier) for earlier in value[:place]):
            yield Mismatch((*path, place), f"{shorten(item)} is there twice")


# --- Strings ---


def _check_length(_: SchemaChecker, value: Any, schema: Any, path: Path) -> Iterator[Mismatch]:
    if isinstance(value, str):
        bounds = schema.get("minLength"), schema.get("maxLength")
        yield from _check_bounds(len(value), *bounds, "characters", path)


def _check_pattern(_: SchemaChecker, value: Any, schema: Any, path: Path) -> Iterator[Mismatch]:
    if isinstance(value, str) and not re.search(schema["pattern"], value):
        yield Mismatch(path, f"{shorten(value)} does not match {schema['pattern']}")


def _check_format(_: SchemaChecker, value: Any, schema: Any, path: Path) -> Iterator[Mismatch]:
    if not isinstance(value, str) or schema["format"] not in FORMATS:
        return
    try:
        _format_adapter(schema["format"]).validate_python(value)
    except ValueError:
        yield Mismatch(path, f"{shorten(value)} is not a valid {schema['format']}")


@cache
def _format_adapter(name: str) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # noqa: PLC0415 - slow import

    return TypeAdapter(FORMATS[name])


# --- Numbers ---


def _check_number(_: SchemaChecker, value: Any, schema: Any, path: Path) -> Iterator[Mismatch]:
    if not is_type(value, "number"):
        return
    if "minimum" in schema and value < schema["minimum"]:
        yield Mismatch(path, f"{value} is below {schema['minimum']}")
    if "maximum" in schema and value > schema["maximum"]:
        yield Mismatch(path, f"{value} is above {schema['maximum']}")
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        yield Mismatch(path, f"{value} must be above {schema['exclusiveMinimum']}")
    if "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
        yield Mismatch(path, f"{value} must be below {schema['exclusiveMaximum']}")
    if "multipleOf" in schema and not _is_multiple(value, schema["multipleOf"]):
        yield Mismatch(path, f"{value} is not a multiple of {schema['multipleOf']}")


def _is_multiple(value: float, step: float) -> bool:
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    return (value / step).is_integer()


# --- Helpers ---


def is_type(value: Any, name: str) -> bool:
    """True if a value is of a JSON type. A boolean is no number; 7.0 is an integer."""
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES.get(name, object))


def is_equal(one: Any, other: Any) -> bool:
    """Compare JSON values. Unlike in Python, `true` is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return False
        return all(is_equal(one[key], other[key]) for key in one)
    return bool(one == other)


def shorten(value: Any) -> str:
    """Return the beginning of a value as JSON."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def _check_bounds(
    count: int, lowest: int | None, highest: int | None, noun: str, path: Path
) -> Iterator[Mismatch]:
    if lowest is not None and count < lowest:
        yield Mismatch(path, f"has {count} {noun}, at least {lowest} are needed")
    if highest is not None and count > highest:
        yield Mismatch(path, f"has {count} {noun}, at most {highest} are allowed")


def _relative_message(mismatch: Mismatch, path: Path) -> str:
    """Return the message of a mismatch below `path`, with the rest of its path."""
    below = ".".join(map(str, mismatch.path[len(path) :]))
    return f"{below} {mismatch.message}" if below else mismatch.message


CHECKS: Sequence[tuple[frozenset[str], Check]] = [
    (frozenset({"$ref"}), _check_reference),
    (frozenset({"type"}), _check_type),
    (frozenset({"enum", "const"}), _check_values),
    (frozenset({"anyOf"}), _check_any_of),
    (frozenset({"oneOf"}), _check_one_of),
    (frozenset({"allOf"}), _check_all_of),
    (frozenset({"not"}), _check_not),
    (frozenset({"required"}), _check_required),
    (frozenset({"properties", "patternProperties", "additionalProperties"}), _check_properties),
    (frozenset({"propertyNames"}), _check_property_names),
    (frozenset({"minProperties", "maxProperties"}), _check_property_count),
    (frozenset({"items", "prefixItems"}), _check_items),
    (frozenset({"minItems", "maxItems"}), _check_item_count),
    (frozenset({"uniqueItems"}), _check_unique_items),
    (frozenset({"minLength", "maxLength"}), _check_length),
    (frozenset({"pattern"}), _check_pattern),
    (frozenset({"format"}), _check_format),
    (frozenset(NUMBER_KEYWORDS), _check_number),
]
