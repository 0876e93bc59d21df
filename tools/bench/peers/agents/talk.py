"""An agent speaks for one system, in that system's own environment, and does what it is told line by line.

In: one JSON object a line, {"do": "fill", "task": "noop", "n": 1000}. Out: {"said": …} or {"error": "…"}.
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
FAST = (
    os.environ.get("BENCH_FAST") == "1"
)  # the quickest settings that are safe for a job of five seconds
CASE = os.environ.get("BENCH_CASE", "")
CONCURRENCY = int(os.environ.get("BENCH_CONCURRENCY", "0"))
POSTGRES = os.environ.get("BENCH_POSTGRES", "")
REDIS = os.environ.get("BENCH_REDIS", "")
SQLITE = os.environ.get("BENCH_SQLITE", "")
AT_ONCE = 1000  # jobs in one bulk call
WARM = 5  # first starts that are not counted


def script(name: str) -> str:
    """A program of this environment."""
    return str(Path(sys.executable).parent / name)


class Agent:
    """A system whose calls block. `fill`, `one` and the others below are what can be asked for."""

    bulk = True  # has a call for many jobs
    concurrency = 1  # the best of those tried, unless the case says how many

    def open(self) -> None:
        """Connect, make the schema."""

    def close(self) -> None: ...

    def enqueue(self, task: str, i: int) -> None:
        """Durable when it returns, as far as the system makes it so."""
        raise NotImplementedError

    def enqueue_many(self, task: str, ids: Sequence[int]) -> None:
        for i in ids:
            self.enqueue(task, i)

    def enqueue_each(self, task: str, n: int) -> None:
        for i in range(n):
            self.enqueue(task, i)

    def pending(self) -> int:
        """Jobs that are not recorded as finished."""
        raise NotImplementedError

    def summary(self) -> str:
        """What its own books say in the end."""
        raise NotImplementedError

    def backlog(self, n: int) -> None:
        """Have n jobs that are due in a month."""
        raise NotImplementedError

    def worker(self) -> list[str]:
        """The command that starts a worker."""
        raise NotImplementedError

    # -- what is asked for ------------------------------------------------------------------------
    def fill(self, task: str, n: int) -> None:
        for start in range(0, n, AT_ONCE):
            self.enqueue_many(task, range(start, min(n, start + AT_ONCE)))

    def one(self, n: int) -> float:
        """Jobs a second, one call each; the very first, which connects, is not counted."""
        self.enqueue_each("noop", 1)
        began = time.perf_counter()
        self.enqueue_each("noop", n)
        return n / (time.perf_counter() - began)

    def many(self, n: int) -> float | None:
        """Jobs a second, a thousand in a call; None where there is no such call."""
        if not self.bulk:
            return None
        began = time.perf_counter()
        self.fill("noop", n)
        return n / (time.perf_counter() - began)

    def latency(self, n: int, seconds: float) -> dict[str, float]:
        """Milliseconds from before the call of enqueue to the first line of the handler, the worker being idle."""
        rng, waits, until = random.Random(7), [], time.monotonic() + seconds
        for i in range(n + WARM):
            if time.monotonic() > until:
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
    """When did job number i, the newest, start?"""
    path, until = FOLDER / "events", time.monotonic() + within
    while True:
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        if (
            len(lines) > i + 1
        ):  # the last one may be half written: a line across two pages grows in two steps
            return int(lines[i].split()[3])
        if time.monotonic() > until:
            raise TimeoutError(f"job {i} did not start within {within} s")
        time.sleep(0.0005)


def alternate(ways: dict[str, Callable[[int], object]], n: int, turns: int = 4) -> dict[str, float]:
    """Jobs a second of each way to insert n of them, a quarter at a time, so that nobody has the warmer cache."""
    spent = dict.fromkeys(ways, 0.0)
    for way in ways.values():
        way(1)
    for name, way in [*ways.items()] * turns:
        began = time.perf_counter()
        way(n // turns)
        spent[name] += time.perf_counter() - began
    return {name: n // turns * turns / seconds for name, seconds in spent.items()}


class AsyncAgent(Agent):
    """A system whose calls are awaited."""

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
    """Until the input ends. What the system itself prints goes to the log."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    _answer(out, agent.open, {})
    for line in sys.stdin:
        asked = json.loads(line)
        do = asked.pop("do")
        _answer(out, getattr(agent, do if do in COMMANDS else "unknown"), asked)
    _end_workers()
    agent.close()


def _end_workers() -> None:
    """Whoever asked is gone. Workers of this place that still live would live for ever."""
    mark = f"BENCH_FOLDER={FOLDER}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if int(path.parent.name) != os.getpid() and mark in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
        except OSError:
            continue


def _answer(out: Any, what: Any, asked: dict[str, Any]) -> None:
    try:
        said = {"said": what(**asked)}
    except Exception as error:  # noqa: BLE001 - whatever it was, the conductor must know
        traceback.print_exc()
        said = {"error": f"{type(error).__name__}: {error}"[:2000]}
    out.write(json.dumps(said) + "\n")
