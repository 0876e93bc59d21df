"""Stacks of a running attempt: captured by its runner, or read from a dump of faulthandler.

A runner whose event loop is responsive captures the stacks of an attempt itself. One that is not,
for example because a handler holds the GIL, gets a signal on which faulthandler writes the stacks
of all threads.
"""

from __future__ import annotations

import linecache
import re
import signal
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, CoroutineType, FrameType
from typing import Any, NamedTuple

from mulligan.core.format import safe_text
from mulligan.failures.facts import SOURCE_MARK
from mulligan.failures.redact import scrub

# Makes a runner write the stacks of all its threads. No library uses one of these by custom.
DUMP_SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGUSR2 + 3) - 3
MAX_DUMP = 1 << 18  # bytes
MAX_DEPTH = 64  # frames of one stack; the innermost ones are kept
MAX_STACKS = 16
MAX_TEXT = 32_768  # characters of all stacks of an attempt
MAX_SOURCE_LINE = 200
FINGERPRINT_FRAMES = 3  # innermost frames of the app that tell places apart


class StackFrame(NamedTuple):
    """A line of code that was being executed."""

    path: str
    line: int
    function: str


class Stack(NamedTuple):
    """The frames of one thread or task, outermost first."""

    title: str
    frames: tuple[StackFrame, ...]


# --- Capture, in the process itself ---


def stack_of_frame(title: str, frame: FrameType | None) -> Stack:
    """Return the stack whose innermost frame is `frame`."""
    frames: list[StackFrame] = []
    while frame is not None:
        frames.append(_frame(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return Stack(title, tuple(reversed(frames[:MAX_DEPTH])))


def stack_of_coroutine(title: str, coroutine: Any) -> Stack:
    """Return the stack of a suspended coroutine: what it awaits, down to the innermost one."""
    frames: list[StackFrame] = []
    while coroutine is not None and len(frames) < 10 * MAX_DEPTH:
        frame, awaited = _suspended(coroutine)
        if frame is not None:
            frames.append(_frame(frame.f_code, frame.f_lineno))
        coroutine = awaited
    return Stack(title, tuple(frames[-MAX_DEPTH:]))


def _suspended(coroutine: Any) -> tuple[FrameType | None, Any]:
    """Return the frame of a coroutine or generator, and what it waits for."""
    if isinstance(coroutine, CoroutineType):
        return coroutine.cr_frame, coroutine.cr_await
    for frame, awaited in (("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await")):
        if hasattr(coroutine, frame):
            return getattr(coroutine, frame), getattr(coroutine, awaited)
    return None, None


def _frame(code: CodeType, line: int | None) -> StackFrame:
    return StackFrame(code.co_filename, line or code.co_firstlineno, code.co_name)


# --- Messages from a runner ---


def stacks_from_wire(items: Any) -> list[Stack]:
    """Build stacks from a message. Raises ValueError for anything else: it may be forged."""
    stacks = []
    for title, frames in items[:MAX_STACKS]:
        found = [
            StackFrame(safe_text(path, 500), int(line), safe_text(function, 300))
            for path, line, function in frames[-MAX_DEPTH:]
        ]
        stacks.append(Stack(safe_text(title, 300), tuple(found)))
    return stacks


# --- Dumps of faulthandler ---

_THREAD = re.compile(
    r"(?:Current thread|Thread) 0x([0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):"
)
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


def parse_dump(dump: str, thread: int) -> list[Stack]:
    """Return the stack of one thread of a dump. Empty if the dump does not have it."""
    frames: list[StackFrame] = []
    found = False
    for line in dump.splitlines():
        head = _THREAD.match(line)
        if head is not None:
            if found:
                break
            found = int(head[1], 16) == thread
            continue
        match = _FRAME.match(line) if found else None
        if match is not None:
            path, number, function = match.groups()
            frames.append(StackFrame(safe_text(path, 500), int(number), safe_text(function, 300)))
    if not frames:
        return []
    return [Stack("Thread of the attempt", tuple(reversed(frames[:MAX_DEPTH])))]


# --- Frames of the app ---

_STDLIB = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
_MULLIGAN = f"{Path(__file__).parents[1]}/"
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/([^/.]+)")


def _is_internal(frame: StackFrame) -> bool:
    """True for a frame of Python or of Mulligan."""
    path = frame.path
    if path.startswith(("<frozen ", _MULLIGAN)):
        return True
    return _INSTALLED.match(path) is None and path.startswith(_STDLIB)


def _package(frame: StackFrame) -> str:
    """Return the installed package of a frame; empty for code that is not installed."""
    match = _INSTALLED.match(frame.path)
    return match[1] if match else ""


def app_frames(stack: Stack) -> list[StackFrame]:
    """Return the frames of the app: those of its own code, not of Python and of libraries.

    The outermost frame that is neither Python's nor Mulligan's belongs to the app. So does its
    package, if it is installed.
    """
    outer = [frame for frame in stack.frames if not _is_internal(frame)]
    if not outer:
        return []
    home = _package(outer[0])
    return [frame for frame in outer if _package(frame) in {"", home}]


def place_of(stacks: Sequence[Stack]) -> tuple[str, ...]:
    """Return the innermost frames of the app as `folder/file.py:function`, innermost last.

    Neither lines nor the folders above: they change from deploy to deploy.
    """
    for stack in stacks:
        names: list[str] = []
        for frame in app_frames(stack):
            name = f"{'/'.join(frame.path.rsplit('/', 2)[-2:])}:{frame.function}"
            if name not in names[-1:]:  # a recursion counts once
                names.append(name)
        if names:
            return tuple(names[-FINGERPRINT_FRAMES:])
    return ()


# --- Text ---


def format_stacks(stacks: Sequence[Stack]) -> str:
    """Return stacks as text, with the app's own lines of code and without secrets."""
    texts = ["\n".join(_format_stack(stack)) for stack in stacks if stack.frames]
    return safe_text("\n\n".join(texts), MAX_TEXT)


def _format_stack(stack: Stack) -> list[str]:
    own = set(app_frames(stack))
    lines = [f"{stack.title} (most recent call last):"]
    begin = 0
    while own and stack.frames[begin] not in own:
        begin += 1  # how the attempt was called
    for frame in stack.frames[begin:]:
        lines.append(f"  {frame.path}:{frame.line} in {frame.function}")
        if frame in own:
            lines += _source_line(frame)
    return lines


def _source_line(frame: StackFrame) -> list[str]:
    try:
        source = linecache.getline(frame.path, frame.line).strip()
    except Exception:  # noqa: BLE001 - a file may contain anything
        return []
    return [f"{SOURCE_MARK}{scrub(safe_text(source, MAX_SOURCE_LINE))}"] if source else []
