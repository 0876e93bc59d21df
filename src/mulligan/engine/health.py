"""A dependency as code declares it, and the system job that calls its health function."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mulligan.engine.kinds import DependencySpec, checked_name
from mulligan.engine.limiting import checked_concurrency, checked_rate
from mulligan.engine.moments import length
from mulligan.errors import ConfigError, Refused
from mulligan.policy import budget as budgets
from mulligan.policy.limits import rate_parts
from mulligan.policy.redact import scrub

MODES = ("hold", "fail_fast")

Health = Callable[[], Any]  # sync or async; raises or returns False: it is down


def dependency_spec(key: str, **said: Any) -> DependencySpec:
    """Checked, field by field, so that a mistake is told where it was made."""
    defaults = DependencySpec(key="")
    mode = said.get("mode", defaults.mode)
    if mode not in MODES:
        message = f"dependency {key!r}: mode is one of {', '.join(MODES)}, not {mode!r}"
        raise ConfigError(message)
    probe = said.get("probe")
    if probe is not None and not callable(probe):
        message = f"dependency {key!r}: probe is a function without arguments, not {probe!r:.80}"
        raise ConfigError(message)
    slow = said.get("slow")
    return DependencySpec(
        key=checked_name("dependency", key),
        max_concurrency=checked_concurrency(said.get("max_concurrency"), "max_concurrency"),
        rate=checked_rate(said.get("rate")),
        mode=mode,
        open_at=_share("open_at", said["open_at"]),
        min_calls=_whole("min_calls", said["min_calls"]),
        window=_span("window", said["window"]),
        cool_down=_span("cool_down", said["cool_down"]),
        budget=_budget(said["budget"]),
        slow=None if slow is None else _span("slow", slow) / 1000,
        probe=probe is not None,
    )


def _share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        message = f"{name} is a share between 0 and 1, not {value!r}"
        raise Refused(message)
    return float(value)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        message = f"{name} must be a whole number from 1, not {value!r}"
        raise Refused(message)
    return value


def _span(name: str, value: Any) -> int:
    micros = length(name, value)
    if micros <= 0:
        message = f"{name} must be longer than nothing, not {value!r}"
        raise Refused(message)
    return micros


def _budget(value: Any) -> budgets.Terms | None:
    """A share of the first tries, "N/h", or None: nobody counts."""
    if value is None:
        return None
    parts = rate_parts(value) if isinstance(value, str) else None
    if parts is not None and parts[0] > 0:
        return budgets.per_period(*parts)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        message = f'budget is retries per success (0.1), retries per period ("100/h") or None, not {value!r}'
        raise Refused(message)
    return budgets.Terms(share=float(value))


async def ask(probes: Mapping[str, Health], dependency: str) -> dict[str, Any]:
    """What the system job returns. Whatever the function does, this ends with a word about the dependency."""
    function = probes[dependency]
    if inspect.iscoroutinefunction(function):
        answer, error = await _awaited(function())
    else:
        answer, error = await _on_a_thread(function)
        if inspect.isawaitable(answer):  # a lambda around a coroutine, an object that is called
            answer, error = await _awaited(answer)
    if error is not None:
        return {"healthy": False, "error": scrub(f"{type(error).__name__}: {error}")[:500]}
    return {"healthy": answer is not False}


Answer = tuple[Any, BaseException | None]


async def _awaited(answer: Awaitable[Any]) -> Answer:
    try:
        return await answer, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is not well
        return None, error


async def _on_a_thread(function: Health) -> Answer:
    """A thread of its own: one that hangs for ever must not take a pool's place."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Answer] = loop.create_future()

    def finish(answer: Answer) -> None:
        if not done.done():
            done.set_result(answer)  # an error too: a future refuses to be given some of them

    def call() -> None:
        answer: Answer
        try:
            answer = function(), None
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            answer = None, error
        try:
            loop.call_soon_threadsafe(finish, answer)
        except RuntimeError:  # the loop is gone
            return

    threading.Thread(target=call, name="mulligan-probe", daemon=True).start()
    return await done
