"""Job bodies, identical for all systems, and the files in which they record their work.

Each record is one small write to a file in BENCH_FOLDER, which costs every system the same: done-W and
tried-W get a byte per job that worker W finished or failed on purpose; `events` gets a line per
event; `marks` has a byte per job that was tried once.
"""

from __future__ import annotations

import asyncio
import importlib.util
import mmap
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import failure_mix

FOLDER = Path(os.environ.get("BENCH_FOLDER", "."))
WORKER = os.environ.get("BENCH_WORKER", "0")
SECONDS = 5.0  # a long job
SEED = int(os.environ.get("BENCH_SEED", "1"))
MIX = os.environ.get("BENCH_MIX", "")  # path of a module with its own `fail(i, seed)`

_files: dict[str, int] = {}
_marks: list[mmap.mmap] = []


def _write(name: str, data: bytes) -> None:
    if name not in _files:
        _files[name] = os.open(FOLDER / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(_files[name], data)


def _event(kind: str, i: int) -> None:
    _write("events", f"{kind} {i} {os.getpid()} {time.monotonic_ns()}\n".encode())


def noop(i: int) -> None:
    del i
    _write(f"done-{WORKER}", b".")


def flaky(i: int) -> None:
    """Fail once, with a distinct message."""
    if _first(i):
        _write(f"tried-{WORKER}", b".")
        raise ConnectionError(f"request {i} to shard {i % 97} was reset after {i / 7:.3f} s")
    noop(i)


def mixed_failure(i: int) -> None:
    """Fail once, with one of many kinds of exceptions."""
    if _first(i):
        _write(f"tried-{WORKER}", b".")
        _mix.fail(i, SEED)
    noop(i)


def _load_mix(path: str) -> ModuleType:
    """Return the module whose failures are raised: ours, or the one at this path."""
    spec = importlib.util.spec_from_file_location("other_mix", path) if path else None
    if spec is None or spec.loader is None:
        return failure_mix
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_mix = _load_mix(MIX)


def _first(i: int) -> bool:
    if not _marks:
        with (FOLDER / "marks").open("r+b") as file:
            _marks.append(mmap.mmap(file.fileno(), 0))
    tried = _marks[0][i]
    _marks[0][i] = 1
    return not tried


def stamp(i: int) -> None:
    _event("start", i)


def sleeper(i: int) -> None:
    _event("start", i)
    time.sleep(SECONDS)
    _event("end", i)


async def sleeper_async(i: int) -> None:
    _event("start", i)
    await asyncio.sleep(SECONDS)
    _event("end", i)


def innocent(i: int) -> None:
    """Run long enough to be running when a poison job kills the process."""
    _event("start", i)
    time.sleep(0.2)
    _event("end", i)


async def innocent_async(i: int) -> None:
    _event("start", i)
    await asyncio.sleep(0.2)
    _event("end", i)


def poison(i: int) -> None:
    """Kill the process it runs in."""
    _event("poison", i)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def venom(i: int) -> None:
    """Kill the whole worker, as the end of its container would."""
    _event("poison", i)
    top = int((FOLDER / f"worker-{WORKER}.pid").read_text())
    for pid in [*_process_tree(top), os.getpid()]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    time.sleep(60)


def _process_tree(pid: int) -> list[int]:
    """Return a process and its descendants, parents first, so that no child is restarted."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *(below for child in children for below in _process_tree(int(child)))]


TASKS: dict[str, Callable[[int], object]] = {
    task.__name__: task
    for task in (noop, flaky, mixed_failure, stamp, sleeper, innocent, poison, venom)
}
FAILING = ("flaky", "mixed_failure")  # tasks that fail once and must be retried at once
ASYNC_TASKS = {
    **TASKS,
    "sleeper": sleeper_async,
    "innocent": innocent_async,
}  # async variants
