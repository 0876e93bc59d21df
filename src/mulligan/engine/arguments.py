"""A handler's arguments as JSON and back, checked by their annotations on both sides of the journey."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from typing import Any

import pydantic
from pydantic import ConfigDict, ValidationError, create_model
from pydantic_core import PydanticSerializationError, to_jsonable_python

from mulligan.errors import ConfigError, PayloadRefused


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
            if hint is context_type:
                self.context_name = parameter.name
            elif parameter.kind is parameter.VAR_KEYWORD:
                extra = "allow"
            else:
                fields[parameter.name] = (hint, _default(parameter, self.name))
        parameters = [p for p in self.signature.parameters.values() if p.name != self.context_name]
        self.public_signature = self.signature.replace(parameters=parameters, return_annotation=Any)
        config = ConfigDict(extra=extra, arbitrary_types_allowed=True, ser_json_inf_nan="constants")
        self._fields = tuple(fields)
        self._extra = extra == "allow"
        self._plain = not fields
        self.model = create_model(f"{self.name} arguments", __config__=config, **_safe_names(fields))

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Positional arguments get their names."""
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
        try:
            model = self.model.model_validate({_ALIAS + name: value for name, value in given.items()})
        except ValidationError as errors:
            raise PayloadRefused(_sentence(self.name, errors)) from None
        try:
            plain = model.model_dump(mode="json", exclude_unset=True)
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            message = f"{self.name}: the payload cannot be written as JSON: {error}"
            raise PayloadRefused(message) from None
        return {name.removeprefix(_ALIAS): value for name, value in plain.items()}

    def decode(self, text: str) -> dict[str, Any]:
        """Keyword arguments for the handler; raises PayloadRefused if the stored payload does not fit it."""
        raw = json.loads(text)
        if self._plain and not raw:
            return {}
        try:
            model = self.model.model_validate({_ALIAS + name: value for name, value in raw.items()})
        except ValidationError as errors:
            raise PayloadRefused(_sentence(self.name, errors)) from None
        values = {name: getattr(model, _ALIAS + name) for name in self._fields}
        return values | {k.removeprefix(_ALIAS): v for k, v in (model.model_extra or {}).items()}

    def schema(self) -> dict[str, Any]:
        """JSON schema of the payload, or nothing where the types have none."""
        try:
            schema = self.model.model_json_schema()
        except pydantic.errors.PydanticInvalidForJsonSchema:
            return {}
        text = json.dumps(schema, default=str).replace(_ALIAS, "")
        return typing.cast("dict[str, Any]", json.loads(text))


# Handlers may call their parameters `model_config` or `schema`; a prefix keeps pydantic's own names free.
_ALIAS = "arg__"


def _safe_names(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {_ALIAS + name: definition for name, definition in fields.items()}


def _default(parameter: inspect.Parameter, name: str) -> Any:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
        message = f"{name}: parameter {parameter} has no name to travel under; use ordinary or keyword parameters"
        raise ConfigError(message)
    return ... if parameter.default is parameter.empty else parameter.default


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        # A name that exists only for type checkers: take what can be read, the rest is Any.
        raw = getattr(function, "__annotations__", {})
        return {name: hint for name, hint in raw.items() if not isinstance(hint, str)}


def _sentence(name: str, errors: ValidationError) -> str:
    parts = [
        f"{'.'.join(str(p).removeprefix(_ALIAS) for p in error['loc'])}: {error['msg']}" for error in errors.errors()
    ]
    return f"{name}: {'; '.join(parts)}"


def to_json(value: Any, what: str) -> str:
    """ASCII JSON text: NUL and lone surrogates travel escaped, so both stores keep them the same."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, default=to_jsonable_python)
    except (TypeError, ValueError, RecursionError, PydanticSerializationError) as error:
        message = f"{what} cannot be written as JSON: {error}"
        raise PayloadRefused(message) from None
