"""Find arguments of a handler whose values JSON cannot hold, before the first enqueue would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# Nodes of a pydantic schema that only contain others. A node of any other type ends the search:
# its validator or serializer may convert what JSON holds.
_CONTAINERS = frozenset(
    {
        "custom-error",
        "dataclass",
        "dataclass-args",
        "dataclass-field",
        "default",
        "definitions",
        "dict",
        "frozenset",
        "list",
        "model",
        "model-field",
        "model-fields",
        "named-tuple",
        "nullable",
        "set",
        "tuple",
        "typed-dict",
        "typed-dict-field",
        "union",
    }
)
_CHILD_KEYS = (
    "schema",
    "items_schema",
    "keys_schema",
    "values_schema",
    "choices",
    "fields",
    "definitions",
)


def find_unstorable(schema: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of each unstorable value and why: ("order", "is an Image, which …")."""
    for node, where in _children(schema, path):
        reason = _why_unstorable(node)
        if reason:
            yield where, reason
        elif node.get("type") in _CONTAINERS and not _converts(node):
            yield from find_unstorable(node, where)


def _children(schema: Any, path: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    for key in _CHILD_KEYS:
        yield from _nodes(schema.get(key), path)


def _nodes(value: Any, path: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the schemas in a schema, a list of schemas, or a mapping of field names to schemas."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _nodes(item, path)
    elif isinstance(value, Mapping) and "type" in value and isinstance(value["type"], str):
        name = value.get("name", "") if value["type"] == "dataclass-field" else ""
        yield value, _join(path, name)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _nodes(item, _join(path, str(name)))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}".strip(".")


def _converts(node: Mapping[str, Any]) -> bool:
    """Return True if the type has its own way to write values, or leaves this one out."""
    config = node.get("config") or {}
    return bool(
        node.get("serialization")
        or node.get("serialization_exclude")
        or config.get("ser_json_bytes") in ("base64", "hex")
    )


def _why_unstorable(node: Mapping[str, Any]) -> str:
    if node.get("serialization"):
        return ""
    if node["type"] == "bytes":
        return (
            "is bytes, which JSON cannot hold. Use pydantic.Base64Bytes, or store the data and "
            "pass a reference."
        )
    if node["type"] == "callable":
        return "is a function, which JSON cannot hold. Pass a name and look the function up."
    if node["type"] == "is-subclass" or node.get("cls") is type:
        return "is a class, which JSON cannot hold. Pass its name."
    if node["type"] == "is-instance" and isinstance(node.get("cls"), type):
        return (
            f"is of type {node['cls'].__name__}, which cannot be written as JSON. "
            f"{advise(node['cls'])}"
        )
    return ""


def advise(type_: type) -> str:
    """Return what to pass instead of a value of this type."""
    if hasattr(type_, "_meta") and hasattr(type_, "pk"):  # a Django model
        return "Pass its pk, and read it in the handler."
    if issubclass(type_, bytes | bytearray | memoryview):
        return "Pass base64 text, or store the data and pass a reference."
    return "Pass its id, or a dataclass or pydantic model."
