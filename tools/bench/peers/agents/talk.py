"""An agent runs in the environment of one system and executes commands, one per line.

In: one JSON object per line, {"do": "fill", "task": "noop", "n": 1000}. Out: {"result": …} or {"error": "…"}.
Standard library only, and nothing of Mulligan.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("BENCH_FOLDER", "."))
# True: the fastest settings that are safe for a job of five seconds.
FAST = os.environ.get("BENCH_FAST") == "1"
CASE = os.environ.get("BENCH_CASE", "")
CONCURRENCY = int(os.environ.get("BENCH_CONCURRENCY", "0"))
POSTGRES = os.environ.get("BENCH_POSTGRES", "")
REDIS = os.environ.get("BENCH_REDIS", "")
SQLITE = os.environ.get("BENCH_SQLITE", "")
BULK_SIZE = 1000  # jobs in one bulk call
WARM = 5  # first starts that are not counted


def script(name: str) -> str:
    """Return the path of a program of this environment."""
    return str(Path(sys.executable).parent / name)


class Agent:
    """A system with blocking calls. COMMANDS lists the methods that can be called remotely."""

    bulk = True  # has a call for many jobs
    concurrency = 1  # the best of those tried, unless the case says how many

    def open(self) -> None:
        """Connect, make the schema."""

    def close(self) -> None: ...

    def enqueue(self, task: str, i: int) -> None:
        """Enqueue one job, as durably as the system can."""
        raise NotImplementedError

    def enqueue_many(self, task: str, ids: Sequence[int]) -> None:
        for i in ids:
            self.enqueue(task, i)

    def enqueue_each(self, task: str, n: int) -> None:
        for i in range(n):
            self.enqueue(task, i)

    def pending(self) -> int:
        """Return the number of jobs not recorded as finished."""
        raise NotImplementedError

    def summary(self) -> str:
        """Return the final counts of the system, as text."""
        raise NotImplementedError

    def backlog(self, n: int) -> None:
        """Insert n jobs that are due in a month."""
        raise NotImplementedError

    def worker(self) -> list[str]:
        """Return the command that starts a worker."""
        raise NotImplementedError

    # --- Commands ---
    def fill(self, task: str, n: int) -> None:
        for start in range(0, n, BULK_SIZE):
            self.enqueue_many(task, range(start, min(n, start + BULK_SIZE)))

    def one(self, n: int) -> float:
        """Return jobs per second with one call each. The first call, which connects, is not counted."""
        self.enqueue_each("noop", 1)
        began = time.perf_counter()
        self.enqueue_each("noop", n)
        return n / (time.perf_counter() - began)

    def many(self, n: int) -> float | None:
        """Return jobs per second with bulk calls; None if there is no bulk call."""
        if not self.bulk:
            return None
        began = time.perf_counter()
        self.fill("noop", n)
        return n / (time.perf_counter() - began)

    def latency(self, n: int, seconds: float) -> dict[str, float]:
        """Return milliseconds from the enqueue call to the first line of the handler."""
        rng = random.Random(7)
        waits = []
        deadline = time.monotonic() + seconds
        for i in range(n + WARM):
            if time.monotonic() > deadline:
                break
            before = time.monotonic_ns()
            self.enqueue("stamp", i)
            waits.append((_started(i) - before) / 1e6)
            time.sleep(0.02 + rng.random() * 0.04)
        waits = sorted(waits[WARM:])
        return {
            "p50": statistics.median(waits),
            "p99": waits[int(len(waits) * 0.99)],
            "samples": len(waits),
        }


def _started(i: int, within: float = 60) -> int:
    """Wait for the start of job i, the newest, and return its time in nanoseconds."""
    path = FOLDER / "events"
    deadline = time.monotonic() + within
    while True:
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        if len(lines) > i + 1:  # the last line may be incomplete
            return int(lines[i].split()[3])
        if time.monotonic() > deadline:
            raise TimeoutError(f"job {i} did not start within {within} s")
        time.sleep(0.0005)


def alternate(ways: dict[str, Callable[[int], object]], n: int, turns: int = 4) -> dict[str, float]:
    """Return jobs per second of each way to insert n jobs.

    The ways alternate, so that none profits from a warmer cache.
    """
    spent = dict.fromkeys(ways, 0.0)
    for way in ways.values():
        way(1)
    for name, way in [*ways.items()] * turns:
        began = time.perf_counter()
        way(n // turns)
        spent[name] += time.perf_counter() - began
    return {name: n // turns * turns / seconds for name, seconds in spent.items()}


class AsyncAgent(Agent):
    """A system with async calls."""

    def __init__(self) -> None:
        try:
            import uvloop  # noqa: PLC0415 - not every environment has it
        except ImportError:
            self._runner = asyncio.Runner()
        else:
            self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)

    def run(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(what)

    async def put(self, task: str, i: int) -> None:
        raise NotImplementedError

    def enqueue(self, task: str, i: int) -> None:
        self.run(self.put(task, i))

    def enqueue_each(self, task: str, n: int) -> None:
        async def each() -> None:
            for i in range(n):
                await self.put(task, i)

        self.run(each())


COMMANDS = (
    "fill",
    "one",
    "many",
    "pending",
    "summary",
    "backlog",
    "worker",
    "latency",
    "drain",
    "about",
    "hold",
)


def serve(agent: Agent) -> None:
    """Serve commands until the input ends. Output of the system goes to the log."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    _answer(out, agent.open, {})
    for line in sys.stdin:
        arguments = json.loads(line)
        do = arguments.pop("do")
        _answer(out, getattr(agent, do if do in COMMANDS else "unknown"), arguments)
    _end_workers()
    agent.close()


def _end_workers() -> None:
    """Kill the workers of this measurement; the caller may have been killed."""
    mark = f"BENCH_FOLDER={FOLDER}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if int(path.parent.name) != os.getpid() and mark in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
        except OSError:
            continue


def _answer(out: Any, command: Any, arguments: dict[str, Any]) -> None:
    try:
        answer = {"result": command(**arguments)}
    except Exception as error:  # noqa: BLE001 - reported to the caller
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
    out.write(json.dumps(answer) + "\n")
