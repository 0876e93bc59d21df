"""A handler's arguments as JSON and back, checked by their annotations on both sides of the journey."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pydantic
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import PydanticSerializationError, to_jsonable_python

from mulligan.core.errors import ConfigError, PayloadRefused
from mulligan.core.json import decode, quick_dump


class Arguments:
    """The parameters of one handler, without its context."""

    def __init__(self, function: Callable[..., Any], context_type: type) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        hints = _hints(function)
        self.context_name: str | None = None
        self.signature = inspect.signature(function)
        fields: dict[str, Any] = {}
        extra: typing.Literal["allow", "forbid"] = "forbid"
        for parameter in self.signature.parameters.values():
            hint = hints.get(parameter.name, Any)
            if _is(hint, context_type):
                self.context_name = parameter.name
            elif parameter.kind is parameter.VAR_KEYWORD:
                extra = "allow"
            else:
                fields[parameter.name] = (hint, _default(parameter, self.name))
        parameters = [p for p in self.signature.parameters.values() if p.name != self.context_name]
        self.public_signature = self.signature.replace(parameters=parameters, return_annotation=Any)
        config = ConfigDict(extra=extra, arbitrary_types_allowed=True, ser_json_inf_nan="constants")
        self._fields = tuple(fields)
        self._names = frozenset(fields)
        self._alias = {name: _ALIAS + name for name in fields}
        self._owns = {alias: name for name, alias in self._alias.items()}
        self._extra = extra == "allow"
        self._plain = not fields
        self._exact = _exact(fields) if extra == "forbid" else None
        self.model: type[BaseModel] = create_model(
            f"{self.name} arguments", __config__=config, **_safe_names(fields)
        )
        # Its methods `model_validate` and `model_dump` are these with more to ask and answer on the way.
        self._validate: Callable[[Any], BaseModel] = (
            self.model.__pydantic_validator__.validate_python
        )
        self._dump: Callable[..., dict[str, Any]] = self.model.__pydantic_serializer__.to_python

    @property
    def names(self) -> tuple[str, ...]:
        """What it takes, without its context."""
        return self._fields

    @property
    def takes_more(self) -> bool:
        """Has it `**others`?"""
        return self._extra

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Positional arguments get their names."""
        if not args and kwargs.keys() == self._names:
            return dict(kwargs)
        try:
            bound = self.public_signature.bind(*args, **kwargs)
        except TypeError as error:
            message = f"{self.name}: {error}"
            raise PayloadRefused(message) from None
        given = dict(bound.arguments)
        for parameter in self.public_signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                given |= given.pop(parameter.name, {})
        return given

    def encode(self, given: Mapping[str, Any]) -> Any:
        """Checked and made of plain JSON values; only what was given, so that later defaults apply."""
        plain = self._as_it_is(given)
        if plain is not None:
            return plain
        known = type(given) is dict and given.keys() <= self._names
        model = self._validated(given) if known else self._checked(given)
        try:
            plain = self._dump(model, mode="json", exclude_unset=True)
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            message = f"{self.name}: the payload cannot be written as JSON: {error}"
            raise PayloadRefused(message) from None
        owns = self._owns
        return {owns.get(name) or _own(name): value for name, value in plain.items()}

    def _as_it_is(self, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """What a check would leave as it is: all arguments given, each of the very type that its annotation names."""
        exact = self._exact
        if exact is None or type(given) is not dict or len(given) != len(exact):
            return None
        plain = {}
        for name, types_ in exact:
            value = given.get(name, _ABSENT)
            if type(value) not in types_:
                return None
            if type(value) is str and not value.isascii():  # it may hold half a character
                return None
            plain[name] = value
        return plain

    @property
    def flat(self) -> bool:
        """Do payloads hold nothing but texts and numbers?"""
        return self._exact is not None

    def encode_all(self, given: Iterable[Mapping[str, Any]]) -> list[Any]:
        """The same for many. Those that a check would leave as they are, are looked at column by column."""
        if (
            self._exact is None
        ):  # each as it comes: whoever makes them may fill the same dict or list anew for the next
            return [self.encode(one if type(one) is dict else dict(one)) for one in given]
        payloads = [dict(one) for one in given]  # a copy, for the same reason
        return (
            payloads if self._all_as_they_are(payloads) else [self.encode(one) for one in payloads]
        )

    def _all_as_they_are(self, payloads: Sequence[dict[str, Any]]) -> bool:
        """All arguments in their order in each of them, and as in `_as_it_is`."""
        if self._exact is None or {*map(tuple, payloads)} != {self._fields}:
            return False
        columns = (([one[name] for one in payloads], types_) for name, types_ in self._exact)
        return all(_fits(column, types_) for column, types_ in columns)

    def decode(self, text: str) -> dict[str, Any]:
        """Keyword arguments for the handler; raises PayloadRefused if the stored payload does not fit it."""
        raw = decode(text)
        if self._plain and not raw:
            return {}
        if type(raw) is not dict:
            raise self._no_payload(raw)
        plain = self._as_it_is(raw)
        if plain is not None:
            return plain
        model = self._validated(raw)
        found = model.__dict__
        values = {name: found[alias] for name, alias in self._alias.items()}
        if not self._extra:
            return values
        return values | {_own(name): value for name, value in (model.model_extra or {}).items()}

    def _checked(self, given: Any) -> BaseModel:
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise self._no_payload(given)
        return self._validated(given)

    def _no_payload(self, given: object) -> PayloadRefused:
        return PayloadRefused(
            f"{self.name}: a payload maps names of arguments to values, not {given!r:.80}"
        )

    def _validated(self, given: Mapping[str, Any]) -> BaseModel:
        alias = self._alias
        try:
            return self._validate(
                {alias.get(name) or _ALIAS + name: value for name, value in given.items()}
            )
        except ValidationError as errors:
            raise PayloadRefused(_sentence(self.name, errors)) from None

    def schema(self) -> dict[str, Any]:
        """JSON schema of the payload, or nothing where the types have none."""
        try:
            schema = self.model.model_json_schema()
        except pydantic.errors.PydanticInvalidForJsonSchema:
            return {}
        if "properties" in schema:
            schema["properties"] = {
                _own(name): _titled(field) for name, field in schema["properties"].items()
            }
        if "required" in schema:
            schema["required"] = [_own(name) for name in schema["required"]]
        return typing.cast("dict[str, Any]", json.loads(json.dumps(schema, default=str)))


# Handlers may call their parameters `model_config` or `schema`; a prefix keeps pydantic's own names free.
_ALIAS = "arg__"
_ALIAS_TITLE = "Arg  "  # what pydantic makes of it


def _own(name: str) -> str:
    return name.removeprefix(_ALIAS)


def _titled(field: dict[str, Any]) -> dict[str, Any]:
    return (
        field | {"title": field["title"].removeprefix(_ALIAS_TITLE)} if "title" in field else field
    )


def _safe_names(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {_ALIAS + name: definition for name, definition in fields.items()}


def _default(parameter: inspect.Parameter, name: str) -> Any:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
        message = f"{name}: parameter {parameter} has no name to travel under; use ordinary or keyword parameters"
        raise ConfigError(message)
    return ... if parameter.default is parameter.empty else parameter.default


def _exact(fields: Mapping[str, tuple[Any, Any]]) -> tuple[tuple[str, frozenset[type]], ...] | None:
    """For each argument the types of which every value is right and is plain JSON; None: of one of them there are none.

    A default may say more than the annotation does, unless it is such a value itself.
    """
    found = []
    for name, (hint, default) in fields.items():
        named = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)
        if not all(isinstance(one, type) and one in _EXACT for one in named):
            return None
        if default is not ... and type(default) not in _EXACT:
            return None
        found.append((name, frozenset(named)))
    return tuple(found)


def _fits(column: Sequence[Any], types_: frozenset[type]) -> bool:
    found = {*map(type, column)}
    if not found <= types_:
        return False
    return str not in found or all(value.isascii() for value in column if type(value) is str)


_EXACT = frozenset({int, str, bool, float, type(None)})
_ABSENT = object()


def _is(hint: Any, context_type: type) -> bool:
    """`Context`, or `Context | None` for those who call the plain function without one."""
    return hint is context_type or (
        typing.get_origin(hint) in _UNIONS and context_type in typing.get_args(hint)
    )


_UNIONS = (typing.Union, types.UnionType)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        # A name that exists only for type checkers: what can be read is read, one by one, the rest is Any.
        raw: dict[str, Any] = getattr(function, "__annotations__", {})
        return {name: hint for name in raw if (hint := _hint(function, raw[name])) is not None}


def _hint(function: Callable[..., Any], raw: Any) -> Any:
    alone = types.SimpleNamespace(__annotations__={"it": raw})
    try:
        return typing.get_type_hints(
            alone, getattr(function, "__globals__", {}), include_extras=True
        )["it"]
    except (NameError, TypeError, AttributeError):
        return None


def _sentence(name: str, errors: ValidationError) -> str:
    parts = [
        f"{'.'.join(_own(str(p)) for p in error['loc'])}: {error['msg']}"
        for error in errors.errors()
    ]
    return f"{name}: {'; '.join(parts)}"


_dump = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=to_jsonable_python).encode
_dump_plain = quick_dump(",", ":")


def to_json(value: Any, what: str) -> str:
    """ASCII JSON text: NUL and lone surrogates travel escaped, so both stores keep them the same."""
    try:
        text = _dump_plain(value)
    except (TypeError, ValueError, RecursionError):
        text = _dumped(value, what)
    if len(text) > MOST_LEVELS and _deeper(text, MOST_LEVELS):
        raise PayloadRefused(_too_deep(what))
    return text


def all_json(values: Sequence[dict[str, Any]]) -> list[str] | None:
    """The same of many, written as one text and cut; None: it must be done one by one."""
    try:
        text = _dump_plain(values)
    except (TypeError, ValueError, RecursionError):
        return None
    if text.count(_CUT) != len(values) - 1:  # it stands elsewhere too, as in a string
        return None
    texts = text[1:-1].replace(_CUT, "}\x1f{").split("\x1f")
    deep = max(map(len, texts)) > MOST_LEVELS and any(_deeper(one, MOST_LEVELS) for one in texts)
    return None if deep else texts


_CUT = "},{"


def _dumped(value: Any, what: str) -> str:
    """By the one that knows more types, and what to say of those it does not know."""
    try:
        return _dump(value)
    except RecursionError:
        raise PayloadRefused(_too_deep(what)) from None
    except (TypeError, ValueError, PydanticSerializationError) as error:
        message = f"{what} cannot be written as JSON: {error}"
        raise PayloadRefused(message) from None


# Who reads it may stand deep in a stack of its own: what was hardly written could not be read back there.
MOST_LEVELS = 100
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NO_BRACKET = re.compile(r"[^][{}]+")


def _too_deep(what: str) -> str:
    return f"{what} is nested deeper than {MOST_LEVELS} levels"


def _deeper(text: str, levels: int) -> bool:
    if text.count("[") + text.count("{") <= levels:
        return False
    brackets = _NO_BRACKET.sub("", _STRING.sub("", text)).replace("{", "[").replace("}", "]")
    for _ in range(levels):  # each round takes the innermost level away
        if not brackets:
            return False
        brackets = brackets.replace("[]", "")
    return bool(brackets)


# Functions of the app that are asked about one job: is its result there already, may it run again?

ALL = None  # of the handler's arguments


@dataclass(frozen=True, slots=True)
class Question:
    """`done=` or `can_retry=` of a kind: a function of those of the handler's arguments that it names."""

    name: str
    call: Callable[..., Any]
    is_async: bool
    takes: frozenset[str] | None
    context_name: str | None = None

    def given(self, arguments: Mapping[str, Any], context: Any = None) -> dict[str, Any]:
        """What it is called with, out of what the handler is called with."""
        named = {
            name: value
            for name, value in arguments.items()
            if self.takes is ALL or name in self.takes
        }
        return named if self.context_name is None else {**named, self.context_name: context}

    def answer(self, given: Mapping[str, Any]) -> Any:
        """Blocks, also where it is a coroutine, and wherever that may be."""
        if not self.is_async:
            return self.call(**given)
        with ThreadPoolExecutor(1) as alone:  # this thread may have a loop that runs
            return alone.submit(lambda: asyncio.run(self.call(**given))).result()


def question(
    name: str, function: Any, handler: Arguments, context_type: type, *, in_attempt: bool
) -> Question | None:
    """Checked against the handler's own parameters; `in_attempt`: only asked where one runs."""
    if function is None:
        return None
    if not callable(function):
        message = (
            f"{handler.name}: {name} must be a function of its arguments, not {function!r:.80}"
        )
        raise ConfigError(message)
    own = Arguments(function, context_type)
    if own.context_name is not None and not in_attempt:
        message = f"{handler.name}: {name} is also asked where no attempt runs, so it gets no context; leave it out"
        raise ConfigError(message)
    strange = [one for one in own.names if one not in handler.names and not handler.takes_more]
    if strange:
        message = (
            f"{handler.name}: {name} takes {', '.join(strange)}, which its handler does not; it gets the handler's "
            f"arguments by name ({', '.join(handler.names) or 'there are none'}), and a context by annotation"
        )
        raise ConfigError(message)
    takes = ALL if own.takes_more else frozenset(own.names)
    return Question(name, function, inspect.iscoroutinefunction(function), takes, own.context_name)


def editable_fields(fields: Any, handler: Arguments) -> tuple[str, ...]:
    """Names of arguments that a retry by hand may change."""
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    strange = [
        one
        for one in names
        if not isinstance(one, str) or not (one in handler.names or handler.takes_more)
    ]
    if strange:
        message = (
            f"{handler.name}: editable names {', '.join(map(repr, strange))}, which its handler does not take; it "
            f"takes {', '.join(handler.names) or 'nothing'}"
        )
        raise ConfigError(message)
    return tuple(dict.fromkeys(names))


def refusal(answer: Any) -> str:
    """What `can_retry` says against it; empty: nothing."""
    if answer is None or answer is True:
        return ""
    if answer is False:
        return "This job cannot be run again."
    return str(answer).strip() or "This job cannot be run again."
