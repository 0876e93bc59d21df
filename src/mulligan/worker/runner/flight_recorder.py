"""Record what an attempt logs and prints, and capture the stacks of its threads and tasks.

What is recorded belongs to the attempt in whose context it was logged, on the event loop or on a
thread. A thread that the handler started belongs to the attempt of the thread that started it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context as ContextVars
from typing import Any, TextIO

from mulligan.core.attempt import Lease
from mulligan.core.tracing import attempt_in, current_attempt
from mulligan.worker.recording import MAX_MESSAGE, Recording, reset_lock_after_fork
from mulligan.worker.stacks import MAX_STACKS, Stack, stack_of_coroutine, stack_of_frame

# Finds the recording of an attempt; None as argument: of the only attempt, if there is only one.
FindRecording = Callable[[Lease | None], Recording | None]

_STARTER = "_mulligan_attempt"  # attribute of a thread: the attempt that started it
_finders: list[FindRecording] = []  # of the runner, or of each run_inline() of this process
_install_lock = threading.Lock()


@contextmanager
def recording_into(find: FindRecording) -> Iterator[None]:
    """Record logs, output and threads of this process while the block runs."""
    with _install_lock:
        if not _finders:
            _install()
        _finders.append(find)
    try:
        yield
    finally:
        with _install_lock:
            _finders.remove(find)
            if not _finders:
                _uninstall()


def current_recording() -> Recording | None:
    """Return the recording of the attempt to which the running code belongs."""
    lease = current_attempt() or getattr(threading.current_thread(), _STARTER, None)
    for find in _finders:
        if (recording := find(lease)) is not None:
            return recording
    return None


# --- Hooks ---

_call_handlers = logging.Logger.callHandlers
_start_thread = threading.Thread.start


def _install() -> None:
    # At the class, because a logger may not propagate its records and `dictConfig` of an app
    # removes handlers.
    logging.Logger.callHandlers = _record_and_call_handlers  # type: ignore[assignment,method-assign]
    threading.Thread.start = _note_and_start_thread  # type: ignore[assignment,method-assign]
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None:
            setattr(sys, name, RecordedStream(stream, name))


def _uninstall() -> None:
    """Restore what no other library has replaced meanwhile."""
    if logging.Logger.callHandlers is _record_and_call_handlers:
        logging.Logger.callHandlers = _call_handlers  # type: ignore[method-assign]
    if threading.Thread.start is _note_and_start_thread:
        threading.Thread.start = _start_thread  # type: ignore[method-assign]
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, RecordedStream):
            setattr(sys, name, stream.stream)


def _record_and_call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
    try:
        recording = current_recording()
        if recording is not None:
            message = _message(record)
            recording.add(record.levelname, record.name, message, record.created)
    except Exception:  # noqa: BLE001, S110 - a record that cannot be read must not fail the job
        pass
    _call_handlers(logger, record)


def _message(record: logging.LogRecord) -> str:
    message = record.getMessage()
    if not record.exc_info or not isinstance(record.exc_info[1], BaseException):
        return message
    lines = traceback.format_exception(record.exc_info[1], limit=-10, chain=False)
    return f"{message[:MAX_MESSAGE]}\n{''.join(lines)}".rstrip()


def _note_and_start_thread(thread: threading.Thread) -> None:
    thread.__dict__[_STARTER] = current_attempt() or getattr(
        threading.current_thread(), _STARTER, None
    )
    _start_thread(thread)


class RecordedStream:
    """Standard output or error that also records what attempts write to it."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self.stream = stream
        self._name = name

    def write(self, text: str) -> int:
        """Write, and record the lines."""
        written = self.stream.write(text)
        # A handler of `logging` writes what is recorded already.
        if sys._getframe(1).f_globals.get("__name__") != "logging":  # noqa: SLF001 - see above
            self._record(text)
        return written

    def writelines(self, lines: Any) -> None:
        """Write several texts, and record them."""
        for line in lines:
            self.write(line)

    def _record(self, text: str) -> None:
        try:
            recording = current_recording()
            if recording is not None:
                recording.add_output(self._name, text)
        except Exception:  # noqa: BLE001, S110 - printing must not fail the job
            pass

    def __iter__(self) -> Iterator[str]:
        return iter(self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=reset_lock_after_fork)


# --- Stacks ---


def capture_stacks(lease: Lease, thread: int | None, task: asyncio.Task[Any] | None) -> list[Stack]:
    """Return the stacks of an attempt: of its thread or task, then of those that it started.

    Called on the event loop. `thread`: identifier of the thread that runs a sync handler.
    """
    stacks = []
    frames = sys._current_frames()  # noqa: SLF001 - documented
    names = {one.ident: one for one in threading.enumerate()}
    if thread in frames:
        stacks.append(stack_of_frame(f"Thread {names[thread].name}", frames[thread]))
    if task is not None:
        stacks.append(stack_of_coroutine(f"Task {task.get_name()}", task.get_coro()))
        stacks += [
            stack_of_coroutine(f"Task {one.get_name()}", one.get_coro())
            for one in asyncio.all_tasks()
            if one is not task and any(attempt_in(held) is lease for held in _contexts_of(one))
        ]
    for ident, one in names.items():
        if ident != thread and ident in frames and getattr(one, _STARTER, None) is lease:
            stacks.append(stack_of_frame(f"Thread {one.name}", frames[ident]))
    return stacks[:MAX_STACKS]


def _contexts_of(task: asyncio.Task[Any]) -> list[ContextVars]:
    """Return the context of a task. Before Python 3.12: those in which it is waited for."""
    if hasattr(task, "get_context"):
        return [task.get_context()]
    callbacks = getattr(task, "_callbacks", None) or ()
    return [context for _, context in callbacks if context is not None]
