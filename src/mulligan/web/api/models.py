"""What an answer looks like, for the OpenAPI document: read from the very types that are answered."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NotRequired, Union, get_args, get_origin, get_type_hints

from typing_extensions import TypedDict

from mulligan.engine.preview import Chance as GroupChance
from mulligan.web.api.shapes import NAMES, shown_of

_CALLED: Mapping[type, str] = {GroupChance: "GroupChance"}  # there are two
_made: Any = TypedDict  # its names and fields are computed here, which no type checker follows


def model(name: str, /, **said: Any) -> Any:
    """An object with these fields."""
    return _made(name, said)


def many(of: Any) -> Any:
    """A list of these."""
    return list[of]


@cache
def model_of(kind: type) -> Any:
    """A value of ours as `plain` writes it."""
    found = {NAMES.get(name, name): written(_hint(kind, name)) for name in shown_of(kind)}
    return _made(_CALLED.get(kind, kind.__name__), found)


def varied(
    made: Any,
    name: str,
    *,
    without: Iterable[str] = (),
    maybe: Iterable[str] = (),
    more: Mapping[str, Any] | None = None,
) -> Any:
    """The same with other fields; `maybe`: not in every answer."""
    left, rare = set(without), set(maybe)
    said = {field: hint for field, hint in {**made.__annotations__, **(more or {})}.items() if field not in left}
    return _made(name, {field: NotRequired[hint] if field in rare else hint for field, hint in said.items()})


def _hint(kind: type, name: str) -> Any:
    found = getattr(kind, name, None)
    return get_type_hints(found.fget)["return"] if isinstance(found, property) else get_type_hints(kind)[name]


def written(hint: Any) -> Any:
    """A type as JSON has its values."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return Union[tuple(written(one) for one in inner)]  # noqa: UP007 - its parts are computed
    if origin is not None and issubclass(origin, Mapping):
        return dict[str, written(inner[1])]  # type: ignore[misc]
    if origin is not None and issubclass(origin, Sequence | set | frozenset):
        return list[written(inner[0])]  # type: ignore[misc]
    if isinstance(hint, type) and shown_of(hint):
        return model_of(hint)
    return hint
