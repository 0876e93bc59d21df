"""Run the hooks of an app around attempts. No error of a hook changes the outcome of a job.

An attempt with hooks has three parts: the hooks of `@app.around` are entered, the handler runs, and
after its outcome is on its way to the supervisor, the hooks are left and those of `@app.on_failure`
are called. A hook that raises is skipped. One that exceeds its time limit is left behind: its
thread is replaced, and the attempt continues without it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio import AbstractEventLoop, CancelledError
from collections import Counter
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from mulligan.core.attempt import Failure, Outcome
from mulligan.core.format import safe_text
from mulligan.core.tracing import begin_attempt, end_attempt
from mulligan.failures.capture import exception_text
from mulligan.failures.redact import scrub
from mulligan.manifest.hooks import Hook
from mulligan.manifest.specs import SYSTEM_PREFIX, Handler, Registry
from mulligan.worker.protocol import HookFault
from mulligan.worker.runner.context import Context
from mulligan.worker.runner.execute import STOPPED, execute_untraced, execute_untraced_async
from mulligan.worker.runner.program import run_in_thread

log = logging.getLogger("mulligan.hooks")

T = TypeVar("T")

MAX_HANGS = 3  # until this process calls a hook no more: each one may cost a thread
LOG_INTERVAL = 60.0  # seconds between log records with the traceback of one hook
MAX_ERROR = 500  # characters


class HookExit(Exception):
    """A hook raised SystemExit or KeyboardInterrupt, which would end the event loop."""


async def _contained(call: Coroutine[Any, Any, T]) -> T:
    """Await a hook in a task of its own, so that no exception of it ends the event loop."""
    try:
        return await call
    except (SystemExit, KeyboardInterrupt) as error:
        raise HookExit from error


class HookAbandoned(Exception):
    """The time limit of a hook is over: another thread continues the attempt."""


class Hooks:
    """Hooks of the app in this process, and their errors."""

    def __init__(self, registry: Registry, *, off: Sequence[str] = ()) -> None:
        """`off`: names of hooks that have ended a process and are called no more."""
        self._registry = registry
        self._off = set(off)
        self._hangs: Counter[str] = Counter()
        self._logged: dict[str, float] = {}
        self._faults: dict[str, HookFault] = {}
        self.has_faults = False

    @property
    def around(self) -> list[Hook]:
        """Hooks around attempts that are in use, the outermost first."""
        return [hook for hook in self._registry.around if hook.name not in self._off]

    @property
    def on_failure(self) -> list[Hook]:
        """Hooks for failures that are in use."""
        return [hook for hook in self._registry.on_failure if hook.name not in self._off]

    def apply_to(self, handler: Handler) -> bool:
        """True if attempts of this kind have hooks. Mulligan's own kinds have none."""
        if not (self._registry.around or self._registry.on_failure):
            return False
        return not handler.spec.name.startswith(SYSTEM_PREFIX)

    @property
    def limits(self) -> list[tuple[str, float]]:
        """Name and time limit of each hook, in the order of their numbers."""
        return [(hook.name, hook.timeout) for hook in self._all]

    @property
    def _all(self) -> list[Hook]:
        return [*self._registry.around, *self._registry.on_failure]

    @property
    def any_async(self) -> bool:
        """True if a hook needs an event loop."""
        return any(hook.is_async for hook in self._all)

    def number(self, hook: Hook) -> int:
        """Return the number of a hook on the status page."""
        return self._all.index(hook)

    def turn_off(self, names: Sequence[str]) -> None:
        """Call these hooks no more in this process."""
        self._off.update(names)

    def record_error(self, hook: Hook, context: Context, error: BaseException) -> None:
        """Count an exception of a hook, and log it at most once a minute."""
        if isinstance(error, HookExit) and error.__cause__ is not None:
            error = error.__cause__
        text = scrub(safe_text(exception_text(error)), MAX_ERROR)
        self._record(hook, context, f"{type(error).__name__}: {text}", error)

    def record_hang(self, hook: Hook, context: Context) -> None:
        """Count a call that exceeded its time limit. After a few the hook is called no more."""
        self._hangs[hook.name] += 1
        text = f"did not return within {hook.timeout:g} s"
        if self._hangs[hook.name] >= MAX_HANGS:
            self._off.add(hook.name)
            text += f" for the {MAX_HANGS}rd time; this process does not call it any more"
        self._record(hook, context, text, None)

    def _record(self, hook: Hook, context: Context, text: str, error: BaseException | None) -> None:
        known = self._faults.get(hook.name)
        count = 1 if known is None else known.faults + 1
        self._faults[hook.name] = HookFault(hook.name, count, text)
        self.has_faults = True
        now = time.monotonic()
        if now - self._logged.get(hook.name, -LOG_INTERVAL) >= LOG_INTERVAL:
            self._logged[hook.name] = now
            log.error(
                "hook %s of job %s: %s. The outcome of the job is not affected.",
                hook.name,
                context.lease.id,
                text,
                exc_info=error,
            )

    def take_faults(self) -> list[HookFault]:
        """Return the errors since the last call."""
        self.has_faults = False
        faults, self._faults = self._faults, {}
        return list(faults.values())


class HookRun:
    """One attempt with hooks, on one thread or in one task. The base class serves `run_inline`."""

    def __init__(
        self, hooks: Hooks, context: Context, loop: AbstractEventLoop | None = None
    ) -> None:
        """`loop`: runs async hooks of sync handlers."""
        self.hooks = hooks
        self.context = context
        self.loop = loop
        self.around = hooks.around

    def begin(self, hook: Hook) -> None:
        """Note that a hook is called."""

    def end(self) -> None:
        """Note that a hook has returned. Raise HookAbandoned if that was too late."""

    def handler_starts(self) -> None:
        """Note that all hooks are entered."""

    def report(self, outcome: Outcome | None) -> None:
        """Send the outcome of the handler. Returns when it is sent. For sync handlers."""

    async def report_async(self, outcome: Outcome | None) -> None:
        """Send the outcome of the handler. Returns when it is sent."""

    def call(self, hook: Hook) -> Any:
        """Call the function of a hook around attempts. Return its context manager."""
        return hook.call(self.context) if hook.takes_context else hook.call()


# --- Sync handlers ---


def execute_sync_with_hooks(handler: Handler, run: HookRun, result_limit: int) -> Outcome | None:
    """Run a sync handler and its hooks on the current thread."""
    context = run.context
    context.keeps_exception = True
    before = begin_attempt(context.lease)
    entered: list[_Entered] = []
    try:
        with context.traced() as set_outcome:
            _enter_all(run, entered)
            outcome = STOPPED
            if not context.stop_requested:
                run.handler_starts()
                outcome = execute_untraced(handler, context, result_limit)
            set_outcome(outcome)
            run.report(outcome)
            error, context.raised = context.raised, None
            _leave_all(run, entered, error)
        _call_failure_hooks(run, outcome)
    except HookAbandoned:
        # The hook that was too slow has returned at last: leave what this thread has entered.
        for left in reversed(entered):
            with suppress(BaseException):
                left.leave(None)
        raise
    finally:
        end_attempt(before)
    return outcome


class _Entered:
    """A context manager that was entered on this thread."""

    def __init__(self, hook: Hook, manager: Any) -> None:
        self.hook = hook
        self._manager = manager
        manager.__enter__()

    def leave(self, error: BaseException | None) -> None:
        self._manager.__exit__(*_exception_info(error))


class _EnteredOnLoop(_Entered):
    """An async context manager around a sync handler: one task on the loop enters and leaves it."""

    def __init__(self, hook: Hook, manager: Any, loop: AbstractEventLoop) -> None:
        self.hook = hook
        self._entered: Future[None] = Future()
        self._handler_ended: Future[None] = Future()
        self._task = asyncio.run_coroutine_threadsafe(_contained(self._hold(manager)), loop)
        try:
            self._entered.result(hook.timeout)
        except TimeoutError:
            self._task.cancel()
            raise

    async def _hold(self, manager: Any) -> None:
        try:
            await manager.__aenter__()
        except BaseException as error:
            self._entered.set_exception(error)
            raise
        self._entered.set_result(None)
        raised: BaseException | None = None
        try:
            await asyncio.wrap_future(self._handler_ended)
        except BaseException as error:  # noqa: BLE001 - of the handler
            raised = error
        await manager.__aexit__(*_exception_info(raised))

    def leave(self, error: BaseException | None) -> None:
        # A future cannot hold a StopIteration.
        if error is None or isinstance(error, StopIteration):
            self._handler_ended.set_result(None)
        else:
            self._handler_ended.set_exception(error)
        try:
            self._task.result(self.hook.timeout)
        except TimeoutError:
            self._task.cancel()
            raise


def _exception_info(error: BaseException | None) -> tuple[Any, Any, Any]:
    if error is None:
        return None, None, None
    return type(error), error, error.__traceback__


def _enter_all(run: HookRun, entered: list[_Entered]) -> None:
    for hook in run.around:
        run.begin(hook)
        try:
            entered.append(_enter(run, hook))
        except BaseException as error:  # noqa: BLE001 - of user code
            _record(run, hook, error)
        run.end()


def _enter(run: HookRun, hook: Hook) -> _Entered:
    manager = run.call(hook)
    if not hasattr(manager, "__enter__") and not hasattr(manager, "__aenter__"):
        message = (
            f"@app.around: {hook.name} returned {manager!r:.80}, not a context manager. "
            "Write a generator with one yield: the attempt runs at the yield."
        )
        raise TypeError(message)
    if hasattr(manager, "__aenter__") and run.loop is not None:
        return _EnteredOnLoop(hook, manager, run.loop)
    return _Entered(hook, manager)


def _leave_all(run: HookRun, entered: list[_Entered], error: BaseException | None) -> None:
    while entered:
        left = entered.pop()
        run.begin(left.hook)
        try:
            left.leave(error)
        except BaseException as raised:  # noqa: BLE001 - of user code
            if raised is not error:
                _record(run, left.hook, raised)
        run.end()


def _call_failure_hooks(run: HookRun, outcome: Outcome | None) -> None:
    if outcome is None or outcome.failure is None:
        return
    context = run.context
    for hook in run.hooks.on_failure:
        run.begin(hook)
        try:
            answer = hook.call(context.job, context.attempt, outcome.failure)
            if hook.is_async:
                _wait_on_loop(run, answer, hook.timeout)
        except BaseException as error:  # noqa: BLE001 - of user code
            _record(run, hook, error)
        run.end()


def _wait_on_loop(run: HookRun, coroutine: Coroutine[Any, Any, Any], timeout: float) -> None:
    if run.loop is None:
        message = "no event loop runs its coroutine"
        raise RuntimeError(message)
    task = asyncio.run_coroutine_threadsafe(_contained(coroutine), run.loop)
    try:
        task.result(timeout)
    except TimeoutError:
        task.cancel()
        raise


def _record(run: HookRun, hook: Hook, error: BaseException) -> None:
    if hook.is_async and isinstance(error, TimeoutError):
        run.hooks.record_hang(hook, run.context)
    else:
        run.hooks.record_error(hook, run.context, error)


# --- Async handlers ---


async def execute_async_with_hooks(
    handler: Handler, run: HookRun, result_limit: int
) -> Outcome | None:
    """Run an async handler and its hooks in the current task."""
    context = run.context
    context.keeps_exception = True
    before = begin_attempt(context.lease)
    try:
        with context.traced() as set_outcome:
            entered = await _enter_all_async(run)
            outcome = STOPPED
            if not context.stop_requested:
                run.handler_starts()
                outcome = await execute_untraced_async(handler, context, result_limit)
            set_outcome(outcome)
            await run.report_async(outcome)
            error, context.raised = context.raised, None
            await _leave_all_async(run, entered, error)
        if outcome is not None:
            await call_failure_hooks(run, outcome.failure)
    finally:
        end_attempt(before)
    return outcome


async def _enter_all_async(run: HookRun) -> list[tuple[Hook, Any]]:
    entered: list[tuple[Hook, Any]] = []
    for hook in run.around:
        if run.context.stop_requested:
            break
        manager = await _call_limited(run, hook, _enter_async(run, hook), None)
        if manager is not None:
            entered.append((hook, manager))
    return entered


async def _enter_async(run: HookRun, hook: Hook) -> Any:
    manager = run.call(hook)
    if hasattr(manager, "__aenter__"):
        await manager.__aenter__()
    else:
        manager.__enter__()
    return manager


async def _leave_all_async(
    run: HookRun, entered: list[tuple[Hook, Any]], error: BaseException | None
) -> None:
    for hook, manager in reversed(entered):
        await _call_limited(run, hook, _leave_async(manager, error), error)


async def _leave_async(manager: Any, error: BaseException | None) -> None:
    if hasattr(manager, "__aexit__"):
        await manager.__aexit__(*_exception_info(error))
    else:
        manager.__exit__(*_exception_info(error))


async def call_failure_hooks(run: HookRun, failure: Failure | None) -> None:
    """Call the hooks for a failure, one after another."""
    if failure is None:
        return
    for hook in run.hooks.on_failure:
        await _call_limited(run, hook, _call_failure_hook(hook, run.context, failure), None)


async def _call_failure_hook(hook: Hook, context: Context, failure: Failure) -> None:
    """Call a hook for a failure; a sync one on a thread of its own, because it may block."""
    if hook.is_async:
        await hook.call(context.job, context.attempt, failure)
        return

    def call() -> None:
        hook.call(context.job, context.attempt, failure)

    # Shielded: a call that is too slow is left behind on its thread.
    await asyncio.shield(_contained(run_in_thread(call, lambda: None)))


async def _call_limited(
    run: HookRun, hook: Hook, call: Coroutine[Any, Any, Any], expected: BaseException | None
) -> Any:
    """Await a part of a hook for at most its time limit. Return None if it raises.

    `expected`: the exception of the handler, which a context manager may raise again.
    """
    task = asyncio.current_task()
    run.begin(hook)
    try:
        async with asyncio.timeout(hook.timeout) as limit:
            return await call
    except BaseException as error:
        is_cancelled = isinstance(error, CancelledError) and error is not expected
        if is_cancelled and task is not None and task.cancelling():
            if run.context.stop_requested:  # the attempt must stop, or has ended meanwhile
                return None
            raise  # the loop is shutting down
        if error is expected:
            return None
        if isinstance(error, TimeoutError) and limit.expired():
            run.hooks.record_hang(hook, run.context)
        else:
            run.hooks.record_error(hook, run.context, error)
        return None
    finally:
        run.end()
