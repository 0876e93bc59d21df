"""Handler arguments as JSON: encoded at enqueue, decoded before the call, validated both times.

Processes without the app check payloads against the JSON schema that the manifest stores.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

import pydantic
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import PydanticSerializationError, to_jsonable_python

from mulligan.core.errors import ConfigError, OutcomeRequest, PayloadRefused, ResultMismatch
from mulligan.core.json import decode, make_chunk_encoder
from mulligan.core.suggest import did_you_mean, find_enqueue_option, warn_caller
from mulligan.manifest.storable import advise, find_unstorable

CONTEXT_NAMES = ("ctx", "context", "self")  # what people call a context that they do not annotate


class Arguments:
    """Parameters of one handler, without its context."""

    def __init__(self, function: Callable[..., Any], context_type: type) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        hints = _type_hints(function)
        self._hints = hints
        self.context_name: str | None = None
        self.signature = inspect.signature(function)
        fields: dict[str, Any] = {}
        extra: typing.Literal["allow", "forbid"] = "forbid"
        for parameter in self.signature.parameters.values():
            hint = hints.get(parameter.name, Any)
            if _is_context(hint, context_type):
                self._refuse_second_context(parameter.name)
                self.context_name = parameter.name
            elif parameter.kind is parameter.VAR_KEYWORD:
                extra = "allow"
            else:
                fields[parameter.name] = (hint, _parameter_default(parameter, self.name))
        parameters = [p for p in self.signature.parameters.values() if p.name != self.context_name]
        self.public_signature = self.signature.replace(parameters=parameters, return_annotation=Any)
        config = ConfigDict(extra=extra, arbitrary_types_allowed=True, ser_json_inf_nan="constants")
        self._fields = tuple(fields)
        self._names = frozenset(fields)
        self._aliases = {name: _ALIAS_PREFIX + name for name in fields}
        self._names_by_alias = {alias: name for name, alias in self._aliases.items()}
        self._accepts_extra = extra == "allow"
        self._has_no_fields = not fields
        self._exact_types = _find_exact_types(fields) if extra == "forbid" else None
        self.model: type[BaseModel] = create_model(
            f"{self.name} arguments", __config__=config, **_add_alias_prefix(fields)
        )
        # Called directly: `model_validate` and `model_dump` only add overhead.
        self._validate: Callable[[Any], BaseModel] = (
            self.model.__pydantic_validator__.validate_python
        )
        self._dump: Callable[..., dict[str, Any]] = self.model.__pydantic_serializer__.to_python

    def _refuse_second_context(self, name: str) -> None:
        if self.context_name is not None:
            message = f"{self.name}: {self.context_name} and {name} are both Context. Keep one."
            raise ConfigError(message)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arguments, without the context."""
        return self._fields

    @property
    def accepts_extra(self) -> bool:
        """True if the handler has a `**kwargs` parameter."""
        return self._accepts_extra

    @cached_property
    def _result_adapter(self) -> pydantic.TypeAdapter[Any] | None:
        """Return what converts results; None if no annotation says how."""
        return _build_adapter(self._hints.get("return", Any))

    def convert_result(self, result: Any) -> Any:
        """Return a result, given as JSON values, as the type that the handler is annotated with."""
        adapter = self._result_adapter
        if adapter is None:
            return result
        try:
            return adapter.validate_json(json.dumps(result))
        except ValidationError as errors:
            problem = _format_errors("it does not fit", errors)
            message = f"{self.name}{self.describe()} returned {result!r:.200}: {problem}"
            raise ResultMismatch(message) from None

    def describe(self) -> str:
        """Return the call and its result as a person writes them: `(clip: int) -> str`."""
        parameters = [
            parameter.replace(annotation=self._hints.get(parameter.name, parameter.annotation))
            for parameter in self.public_signature.parameters.values()
        ]
        returned = self._hints.get("return", inspect.Signature.empty)
        return str(self.public_signature.replace(parameters=parameters, return_annotation=returned))

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments by name, as the handler would receive them."""
        if not args and kwargs.keys() == self._names:
            return dict(kwargs)
        try:
            bound = self.public_signature.bind(*args, **kwargs)
        except TypeError as error:
            raise PayloadRefused(self._describe_bad_call(kwargs, error)) from None
        arguments = dict(bound.arguments)
        for parameter in self.public_signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments |= arguments.pop(parameter.name, {})
        return arguments

    def _describe_bad_call(self, kwargs: Mapping[str, Any], error: TypeError) -> str:
        """Return which argument of a call is wrong, and what is likely meant."""
        unknown = [name for name in kwargs if name not in self._names]
        if unknown and not self._accepts_extra:
            if option := find_enqueue_option(unknown[0]):
                return (
                    f"{self.name}: unknown argument {unknown[0]!r}. For the option write "
                    f".options({option}=…).enqueue(…)"
                )
            nearest = did_you_mean(unknown[0], self._fields)
            advice = nearest or f" It takes {', '.join(self._fields) or 'no arguments'}."
            return f"{self.name}: unknown argument {unknown[0]!r}.{advice}"
        return f"{self.name}: {error}{self._context_hint(str(error))}"

    def _context_hint(self, problem: str) -> str:
        """Return how to get the context if a parameter seems to be meant for it."""
        for name in CONTEXT_NAMES:
            parameter = self.public_signature.parameters.get(name)
            if parameter is None or parameter.annotation is not parameter.empty:
                continue
            if name in problem:
                return f". If {name} is the context, annotate it: {name}: Context"
        return ""

    def encode(self, arguments: Mapping[str, Any]) -> Any:
        """Validate arguments and return them as JSON values.

        Arguments that were not passed are left out, so that a later default applies to them.
        """
        payload = self._copy_if_exact(arguments)
        if payload is not None:
            return payload
        is_known = type(arguments) is dict and arguments.keys() <= self._names
        model = self._validate_model(arguments) if is_known else self._check_and_validate(arguments)
        try:
            payload = self._dump(model, mode="json", exclude_unset=True)
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            field, value = self._find_unwritable(model)
            what = f"{self.name}: {field}: the value"
            raise PayloadRefused(_describe_unwritable(what, value, error)) from None
        names = self._names_by_alias
        return {
            names.get(alias) or _remove_alias_prefix(alias): value
            for alias, value in payload.items()
        }

    def _find_unwritable(self, model: BaseModel) -> tuple[str, Any]:
        """Return the name and value of the first field that cannot be written as JSON."""
        for alias, value in {**model.__dict__, **(model.model_extra or {})}.items():
            try:
                self._dump(model, mode="json", include={alias})
            except (PydanticSerializationError, ValueError, RecursionError):
                return self._names_by_alias.get(alias) or _remove_alias_prefix(alias), value
        return "payload", None

    def _copy_if_exact(self, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return a copy of arguments that validation would not change; None for all others.

        All arguments must be passed, each of exactly the type of its annotation.
        """
        exact_types = self._exact_types
        if exact_types is None or type(arguments) is not dict or len(arguments) != len(exact_types):
            return None
        payload = {}
        for name, types_ in exact_types:
            value = arguments.get(name, _ABSENT)
            if type(value) not in types_:
                return None
            if type(value) is str and not value.isascii():  # it may contain a lone surrogate
                return None
            payload[name] = value
        return payload

    def encode_all(self, calls: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Encode the arguments of many calls; flat ones are checked column by column.

        Each call is encoded or copied as it is read: the caller may reuse one dict for all.
        """
        if self._exact_types is None:
            return [self.encode(self._as_dict(call)) for call in calls]
        payloads = [dict(self._as_dict(call)) for call in calls]
        is_exact = {*map(tuple, payloads)} == {self._fields}
        for name, types_ in self._exact_types if is_exact else ():
            column = [*map(itemgetter(name), payloads)]
            found = {*map(type, column)}
            if not found <= types_:
                is_exact = False
            elif str in found:  # it may contain a lone surrogate
                is_exact &= all(type(value) is not str or value.isascii() for value in column)
        return payloads if is_exact else [self.encode(payload) for payload in payloads]

    def _as_dict(self, call: Any) -> dict[str, Any]:
        if type(call) is dict:
            return call
        if not isinstance(call, Mapping):
            raise self._not_a_payload(call)
        return dict(call)

    def decode(self, text: str) -> dict[str, Any]:
        """Return keyword arguments for the handler.

        Raises PayloadRefused if the stored payload does not fit its parameters.
        """
        return self.convert(decode(text))

    def convert(self, raw: Any) -> dict[str, Any]:
        """Return keyword arguments from a payload of JSON values."""
        if self._has_no_fields and not raw:
            return {}
        if type(raw) is not dict:
            raise self._not_a_payload(raw)
        payload = self._copy_if_exact(raw)
        if payload is not None:
            return payload
        model = self._validate_model(raw)
        values = model.__dict__
        arguments = {name: values[alias] for name, alias in self._aliases.items()}
        if self._accepts_extra:
            for alias, value in (model.model_extra or {}).items():
                arguments[_remove_alias_prefix(alias)] = value
        return arguments

    def _check_and_validate(self, arguments: Any) -> BaseModel:
        if not isinstance(arguments, Mapping):
            raise self._not_a_payload(arguments)
        if not all(isinstance(name, str) for name in arguments):
            raise self._not_a_payload(arguments)
        return self._validate_model(arguments)

    def _not_a_payload(self, value: object) -> PayloadRefused:
        return PayloadRefused(
            f"{self.name}: a payload must map argument names to values, not {value!r:.80}"
        )

    def _validate_model(self, arguments: Mapping[str, Any]) -> BaseModel:
        aliases = self._aliases
        try:
            return self._validate(
                {
                    aliases.get(name) or _ALIAS_PREFIX + name: value
                    for name, value in arguments.items()
                }
            )
        except ValidationError as errors:
            problem = _format_errors(self.name, errors)
            raise PayloadRefused(f"{problem}{self._context_hint(problem)}") from None

    def check_types(self, kind: str) -> None:
        """Refuse types that JSON cannot hold, before the first enqueue would."""
        for path, reason in find_unstorable(self.model.__pydantic_core_schema__):
            message = f"kind {kind!r}: argument {_remove_alias_prefix(path)} {reason}"
            raise ConfigError(message)

    def warn_about_unresolved_annotations(self, kind: str) -> None:
        """Warn about annotations that name nothing at run time: those arguments take any value."""
        for name in self._fields:
            annotation = self.signature.parameters[name].annotation
            if annotation is not inspect.Parameter.empty and name not in self._hints:
                message = (
                    f"kind {kind!r}: the annotation {annotation!r} of argument {name} cannot be"
                    " resolved, so its values are not checked. Import that name at run time too."
                )
                warn_caller(message, UserWarning)

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the payload; empty if one of the types has none."""
        try:
            schema = self.model.model_json_schema()
        except pydantic.errors.PydanticInvalidForJsonSchema:
            return {}
        if "properties" in schema:
            schema["properties"] = {
                _remove_alias_prefix(name): _fix_title(field)
                for name, field in schema["properties"].items()
            }
        if "required" in schema:
            schema["required"] = [_remove_alias_prefix(name) for name in schema["required"]]
        return typing.cast("dict[str, Any]", json.loads(json.dumps(schema, default=str)))


# --- Parameter names and types ---

# A handler's parameter may be called `model_config` or `schema`. The prefix avoids a conflict with
# attributes of pydantic models.
_ALIAS_PREFIX = "arg__"
_ALIAS_TITLE = "Arg  "  # the prefix in titles that pydantic derives from names


def _build_adapter(hint: Any) -> pydantic.TypeAdapter[Any] | None:
    """Return what converts JSON values to the type of a result; None if its hint says nothing."""
    if typing.get_origin(hint) in _UNIONS:
        values = [one for one in typing.get_args(hint) if not _is_outcome(one)]
        hint = typing.Union[tuple(values)] if values else None  # noqa: UP007
    elif hint is None or _is_outcome(hint):
        hint = type(None)
    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(hint)
    except (pydantic.PydanticUserError, NameError):
        return None
    return None if any(find_unstorable({"schema": adapter.core_schema})) else adapter


def result_converter(function: Callable[..., Any]) -> Callable[[Any], Any] | None:
    """Return what converts a recorded result to the type that a function is annotated with.

    None: the annotation says nothing, or JSON values are of that type already.
    """
    hint = getattr(function, "__annotations__", {}).get("return", Any)
    if hint is None or hint is Any or (isinstance(hint, type | str) and hint in _JSON_HINTS):
        return None
    adapter = _cached_adapter(getattr(function, "__code__", function), function)
    if adapter is None:
        return None

    def convert(value: Any) -> Any:
        try:
            return adapter.validate_json(json.dumps(value))
        except ValidationError as errors:
            name = getattr(function, "__qualname__", repr(function))
            problem = _format_errors("it does not fit", errors)
            message = f"the recorded result of {name}, {value!r:.200}: {problem}"
            raise ResultMismatch(message) from None

    return convert


def read_first_argument(function: Callable[..., Any], text: str | None) -> Any:
    """Return a recorded value as the type that a function's first parameter is annotated with."""
    value = json.loads(text or "null")
    try:
        hints = typing.get_type_hints(function)
        first = next(iter(inspect.signature(function).parameters), "")
    except (NameError, TypeError, ValueError):
        return value
    hint = hints.get(first, Any)
    if hint is Any or hint in _JSON_HINTS:
        return value
    try:
        return pydantic.TypeAdapter(hint).validate_json(text or "null")
    except (pydantic.errors.PydanticUserError, ValidationError) as errors:
        name = getattr(function, "__qualname__", repr(function))
        message = f"the recorded result {value!r:.200} does not fit {name}: {errors}"
        raise ResultMismatch(message) from None


_JSON_HINTS = frozenset({str, int, bool, dict, list, "None", "str", "int", "bool", "dict", "list"})
_adapters: dict[Any, pydantic.TypeAdapter[Any] | None] = {}  # by code: a function may be local
_MAX_ADAPTERS = 1000


def _cached_adapter(key: Any, function: Callable[..., Any]) -> pydantic.TypeAdapter[Any] | None:
    if key not in _adapters:
        if len(_adapters) >= _MAX_ADAPTERS:
            _adapters.clear()
        _adapters[key] = _build_adapter(_type_hints(function).get("return", Any))
    return _adapters[key]


def _remove_alias_prefix(alias: str) -> str:
    return alias.removeprefix(_ALIAS_PREFIX)


def _fix_title(field: dict[str, Any]) -> dict[str, Any]:
    if "title" not in field:
        return field
    return {**field, "title": field["title"].removeprefix(_ALIAS_TITLE)}


def _add_alias_prefix(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {_ALIAS_PREFIX + name: definition for name, definition in fields.items()}


def _parameter_default(parameter: inspect.Parameter, name: str) -> Any:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
        message = (
            f"{name}: parameter {parameter} cannot be stored by name;"
            " use ordinary or keyword parameters"
        )
        raise ConfigError(message)
    return ... if parameter.default is parameter.empty else parameter.default


def _find_exact_types(
    fields: Mapping[str, tuple[Any, Any]],
) -> tuple[tuple[str, frozenset[type]], ...] | None:
    """Return for each argument the JSON types of its annotation; None if any has another type.

    A value of such a type needs no validation. A default of another type may carry constraints
    (pydantic's `Field`), so it excludes the handler too.
    """
    exact = []
    for name, (hint, default) in fields.items():
        members = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)
        if not all(isinstance(member, type) and member in _JSON_TYPES for member in members):
            return None
        if default is not ... and type(default) not in _JSON_TYPES:
            return None
        exact.append((name, frozenset(members)))
    return tuple(exact)


_JSON_TYPES = frozenset({int, str, bool, float, type(None)})
_ABSENT = object()


def _is_outcome(hint: Any) -> bool:
    """Return True for Retry, Snooze and so on, which a handler returns instead of a result."""
    return isinstance(hint, type) and issubclass(hint, OutcomeRequest)


def _is_context(hint: Any, context_type: type) -> bool:
    """Return True for `Context`, and for `Context | None`: tests call handlers without one."""
    if hint is context_type:
        return True
    return typing.get_origin(hint) in _UNIONS and context_type in typing.get_args(hint)


_UNIONS = (typing.Union, types.UnionType)


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function; those that cannot be resolved are left out.

    A name imported under TYPE_CHECKING does not exist at run time. Resolve one by one then.
    """
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        annotations: dict[str, Any] = getattr(function, "__annotations__", {})
        hints = {name: _resolve_hint(function, raw) for name, raw in annotations.items()}
        return {name: hint for name, hint in hints.items() if hint is not None}


def _resolve_hint(function: Callable[..., Any], annotation: Any) -> Any:
    holder = types.SimpleNamespace(__annotations__={"value": annotation})
    function_globals = getattr(function, "__globals__", {})
    try:
        return typing.get_type_hints(holder, function_globals, include_extras=True)["value"]
    except (NameError, TypeError, AttributeError):
        return None


_PROBLEMS = {"missing": "is missing", "extra_forbidden": "unknown argument"}


def _format_errors(name: str, errors: ValidationError) -> str:
    parts = []
    for error in errors.errors():
        path = ".".join(_remove_alias_prefix(str(part)) for part in error["loc"])
        problem = _PROBLEMS.get(error["type"]) or error["msg"]
        parts.append(f"{path}: {problem}".removeprefix(": "))
    return f"{name}: {'; '.join(parts)}"


# --- JSON text ---

_dump_any = json.JSONEncoder(
    separators=(",", ":"), allow_nan=False, default=to_jsonable_python
).encode
_encode_chunks = make_chunk_encoder(",", ":")  # several times faster, for JSON types only


def to_json(value: Any, what: str) -> str:
    """Return ASCII JSON text. `what` names the value in errors.

    NUL and lone surrogates are escaped, so that both databases store them unchanged.
    """
    try:
        text = "".join(_encode_chunks(value, 0))
    except (TypeError, ValueError, RecursionError):
        text = _dump_or_refuse(value, what)
    if len(text) > MAX_DEPTH and _is_deeper(text, MAX_DEPTH):
        raise PayloadRefused(_too_deep(what))
    return text


def to_json_many(values: Sequence[dict[str, Any]]) -> list[str] | None:
    """Encode all values as one text and split it, which is faster than one by one.

    Return None if that is not possible; the caller then encodes each value.
    """
    try:
        text = "".join(_encode_chunks(values, 0))
    except (TypeError, ValueError, RecursionError):
        return None
    if text.count(_BOUNDARY) != len(values) - 1:  # it also occurs inside a value
        return None
    texts = text[1:-1].replace(_BOUNDARY, "}\x1f{").split("\x1f")
    if max(map(len, texts)) > MAX_DEPTH and any(_is_deeper(text, MAX_DEPTH) for text in texts):
        return None
    return texts


_BOUNDARY = "},{"


def _dump_or_refuse(value: Any, what: str) -> str:
    """Encode a value of any type that pydantic knows; refuse all others."""
    try:
        return _dump_any(value)
    except RecursionError:
        raise PayloadRefused(_too_deep(what)) from None
    except (TypeError, ValueError, PydanticSerializationError) as error:
        raise PayloadRefused(_describe_unwritable(what, value, error)) from None


def _describe_unwritable(what: str, value: Any, error: Exception) -> str:
    """Return why a value cannot be written as JSON, and what to use instead."""
    problem = f"{what} cannot be written as JSON: {error}"
    if isinstance(error, RecursionError):
        return problem
    for found in _values_inside(value):
        try:
            to_jsonable_python(found)
        except (PydanticSerializationError, ValueError, RecursionError):
            return f"{problem}. {advise(type(found))}"
    return problem


def _values_inside(value: Any) -> Iterator[Any]:
    """Yield the values in lists and mappings, up to a depth at which advice is of no use."""
    stack = [(value, 0)]
    while stack:
        found, depth = stack.pop()
        inner: Iterable[Any] = ()
        if isinstance(found, Mapping):
            inner = found.values()
        elif isinstance(found, list | tuple | set | frozenset):
            inner = found
        elif isinstance(found, BaseModel):
            inner = found.__dict__.values()
        else:
            yield found
        if depth < MAX_ADVICE_DEPTH:
            stack.extend((one, depth + 1) for one in inner)


MAX_ADVICE_DEPTH = 5


# Decoding may start deep in a call stack, where a value that was just encodable is too deep.
MAX_DEPTH = 100
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NO_BRACKET = re.compile(r"[^][{}]+")


def _too_deep(what: str) -> str:
    return f"{what} is nested deeper than {MAX_DEPTH} levels"


def _is_deeper(text: str, levels: int) -> bool:
    if text.count("[") + text.count("{") <= levels:
        return False
    brackets = _NO_BRACKET.sub("", _STRING.sub("", text)).replace("{", "[").replace("}", "]")
    for _ in range(levels):  # each round removes the innermost level
        if not brackets:
            return False
        brackets = brackets.replace("[]", "")
    return bool(brackets)


# --- Callbacks of a kind ---

ALL_ARGUMENTS = None  # the callback has a **kwargs parameter


@dataclass(frozen=True, slots=True)
class JobCallback:
    """Function `done=` or `can_retry=` of a kind. It gets the handler's arguments that it names."""

    name: str
    call: Callable[..., Any]
    is_async: bool
    arguments: frozenset[str] | None
    context_name: str | None = None

    def select_arguments(self, arguments: Mapping[str, Any], context: Any = None) -> dict[str, Any]:
        """Return the arguments of the callback, taken from those of the handler."""
        selected = {
            name: value
            for name, value in arguments.items()
            if self.arguments is ALL_ARGUMENTS or name in self.arguments
        }
        if self.context_name is not None:
            selected[self.context_name] = context
        return selected

    def call_blocking(self, arguments: Mapping[str, Any]) -> Any:
        """Call the function and wait for it, even if it is a coroutine function."""
        if not self.is_async:
            return self.call(**arguments)

        def run() -> Any:
            return asyncio.run(self.call(**arguments))

        # On another thread: an event loop may be running on this one.
        with ThreadPoolExecutor(1) as executor:
            return executor.submit(run).result()


def build_callback(
    name: str, function: Any, handler: Arguments, context_type: type, *, in_attempt: bool
) -> JobCallback | None:
    """Check a callback against the parameters of its handler.

    `in_attempt`: it is called only inside attempts, so it may have a context.
    """
    if function is None:
        return None
    if not callable(function):
        message = f"{handler.name}: {name} must be a function, not {function!r:.80}"
        raise ConfigError(message)
    parameters = Arguments(function, context_type)
    if parameters.context_name is not None and not in_attempt:
        message = (
            f"{handler.name}: {name} must not have a context parameter:"
            " it is also called outside of attempts"
        )
        raise ConfigError(message)
    unknown = [one for one in parameters.names if not _has_argument(handler, one)]
    if unknown:
        message = (
            f"{handler.name}: {name} has parameters that the handler does not have:"
            f" {', '.join(unknown)}. Use {', '.join(handler.names) or 'no parameters'}"
            " or a context by annotation."
        )
        raise ConfigError(message)
    selected = ALL_ARGUMENTS if parameters.accepts_extra else frozenset(parameters.names)
    is_async = inspect.iscoroutinefunction(function)
    return JobCallback(name, function, is_async, selected, parameters.context_name)


def check_editable(fields: Any, handler: Arguments) -> tuple[str, ...]:
    """Return the names of arguments that a manual retry may change."""
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    unknown = [
        name for name in names if not isinstance(name, str) or not _has_argument(handler, name)
    ]
    if unknown:
        message = (
            f"{handler.name}: editable contains {', '.join(map(repr, unknown))}, but the handler"
            f" takes {', '.join(handler.names) or 'no arguments'}"
        )
        raise ConfigError(message)
    return tuple(dict.fromkeys(names))


def _has_argument(handler: Arguments, name: str) -> bool:
    return handler.accepts_extra or name in handler.names


def refusal_message(answer: Any) -> str:
    """Return why `can_retry` refuses a manual retry; empty if it does not."""
    if answer is None or answer is True:
        return ""
    if answer is False:
        return "This job cannot be run again."
    return str(answer).strip() or "This job cannot be run again."
