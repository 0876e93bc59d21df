"""Hooks around attempts: functions that the app registers with `@app.around` and `@app.on_failure`.

They exist only in processes that load the app. `worker/runner/hooks.py` runs them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from typing import Any, NamedTuple

from mulligan.core.durations import SECOND, check_duration
from mulligan.core.errors import ConfigError, Duration

DEFAULT_HOOK_TIMEOUT = 10.0  # seconds
_FAILURE_ARGUMENTS = 3  # job, attempt, failure


class HookPoint(StrEnum):
    """When a hook is called."""

    AROUND = "around"
    ON_FAILURE = "on_failure"


class Hook(NamedTuple):
    """Function that the app registered for every attempt or for every failure."""

    name: str  # module and qualified name
    point: HookPoint
    call: Callable[..., Any]
    is_async: bool
    takes_context: bool
    timeout: float  # seconds of one call


def build_around_hook(function: Any, timeout: Duration) -> Hook:
    """Check the function of `@app.around`. A generator function becomes a context manager."""
    name = _hook_name("around", function)
    inner = inspect.unwrap(function)
    call = function
    if inspect.isasyncgenfunction(function):
        call = asynccontextmanager(function)
    elif inspect.isgeneratorfunction(function):
        call = contextmanager(function)
    elif inspect.iscoroutinefunction(inner):
        message = (
            f"@app.around: {name} is a coroutine function. "
            "Write a generator with one yield: the attempt runs at the yield."
        )
        raise ConfigError(message)
    if not _accepts(function, 0) and not _accepts(function, 1):
        message = f"@app.around: {name} must take nothing, or one argument: the Context"
        raise ConfigError(message)
    is_async = inspect.isasyncgenfunction(inner) or hasattr(inner, "__aenter__")
    seconds = _timeout_seconds("around", timeout)
    return Hook(name, HookPoint.AROUND, call, is_async, _accepts(function, 1), seconds)


def build_failure_hook(function: Any, timeout: Duration) -> Hook:
    """Check the function of `@app.on_failure`."""
    name = _hook_name("on_failure", function)
    if not _accepts(function, _FAILURE_ARGUMENTS):
        message = f"@app.on_failure: {name} must take three arguments: job, attempt and failure"
        raise ConfigError(message)
    is_async = inspect.iscoroutinefunction(function)
    seconds = _timeout_seconds("on_failure", timeout)
    return Hook(name, HookPoint.ON_FAILURE, function, is_async, False, seconds)


def _hook_name(decorator: str, function: Any) -> str:
    if not callable(function):
        message = f"@app.{decorator} takes a function, not {function!r:.80}"
        raise ConfigError(message)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '')}.{name}"


def _accepts(function: Callable[..., Any], count: int) -> bool:
    """True if a function can be called with that many positional arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def _timeout_seconds(decorator: str, timeout: Duration) -> float:
    seconds = check_duration(f"@app.{decorator} timeout", timeout) / SECOND
    if seconds <= 0:
        message = f"@app.{decorator}: timeout must be longer than 0 seconds, not {timeout!r:.80}"
        raise ConfigError(message)
    return seconds
