"""Payloads: a call's arguments by name, so that filters, unique keys and titles can use them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from mulligan.core.errors import PayloadRefused
from mulligan.core.job import Unique

POSITIONAL = "_positional"  # key of a payload: how many arguments were passed without a name
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@cache
def task_signature(func: Callable[..., Any], *, takes_context: bool) -> inspect.Signature:
    """Return the parameters of a task function, without its context."""
    signature = inspect.signature(func)
    parameters = list(signature.parameters.values())
    return signature.replace(parameters=parameters[1:] if takes_context else parameters)


def build_payload(
    signature: inspect.Signature, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the payload of a call. Refuse arguments that the function does not take."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        message = f"{name}{signature}: {error}"
        raise PayloadRefused(message) from None
    payload: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        if parameter.name not in bound.arguments:
            continue
        value = bound.arguments[parameter.name]
        if parameter.kind is parameter.VAR_KEYWORD:
            payload |= value
        elif parameter.kind is parameter.VAR_POSITIONAL:
            payload[parameter.name] = list(value)
        else:
            payload[parameter.name] = value
    positional = sum(one.kind in _BY_POSITION for one in signature.parameters.values())
    if args:
        payload[POSITIONAL] = min(len(args), positional)
    return payload


def split_payload(
    signature: inspect.Signature, payload: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call as they were passed: (positional, by name)."""
    named = dict(payload)
    count = named.pop(POSITIONAL, 0)
    args: list[Any] = []
    for parameter in signature.parameters.values():
        is_counted = parameter.kind in _BY_POSITION and len(args) < count
        if is_counted and parameter.name in named:
            args.append(named.pop(parameter.name))
        elif parameter.kind is parameter.VAR_POSITIONAL:
            args += named.pop(parameter.name, [])
    return args, named


def spread_unique(unique: Unique, signature: inspect.Signature) -> Unique:
    """Return uniqueness by each argument instead of by the payload.

    The payload also has how the arguments were passed: f(1) and f(order=1) are the same task.
    """
    if "payload" not in unique.by:
        return unique
    parameters = signature.parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return unique
    names = tuple(f"payload.{parameter.name}" for parameter in parameters)
    others = tuple(part for part in unique.by if part != "payload")
    return replace(unique, by=(*others, *names))
