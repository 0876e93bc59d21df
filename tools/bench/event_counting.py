"""Measure the cost of counting events: a drain with and without it, and a metrics scrape."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from bench.world import World, cpu_seconds, process_tree, until, world

from mulligan.observability.event_counts import EventCounter
from mulligan.observability.exporter import render

ROUNDS = 2


def measure_drain(store: str, n: int, module: str) -> tuple[float, float]:
    """Return jobs per second, and CPU milliseconds per job in worker, runner and server."""
    with world(store) as place:
        place.enqueue("noop", [{}] * n)
        worker = place.start(module=module)
        pids = [*process_tree(worker.pid), *servers(store)]
        began, used = time.monotonic(), cpu(pids)
        first = place.count("succeeded")
        until(lambda: place.count("succeeded") >= n, 300, every=0.1)
        took, spent = (
            time.monotonic() - began,
            cpu([*process_tree(worker.pid), *servers(store)]) - used,
        )
        return (n - first) / took, spent * 1000 / (n - first)


def servers(store: str) -> list[int]:
    """Return the pids of the PostgreSQL server."""
    if store == "sqlite":
        return []
    from bench.world import server  # noqa: PLC0415 - there is none for SQLite

    folder = Path(server()._data)  # noqa: SLF001 - there is no other way to its processes
    return process_tree(int((folder / "postmaster.pid").read_text().splitlines()[0]))


def cpu(pids: list[int]) -> float:
    return sum(cpu_seconds([pid]) for pid in pids if Path(f"/proc/{pid}/stat").exists())


def counting(store: str, n: int) -> dict[str, float]:
    """Compare drains with and without counting, alternating."""
    found: dict[str, list[tuple[float, float]]] = {"mulligan": [], "bench.engine_only": []}
    for turn in range(2 * ROUNDS):
        module = ("mulligan", "bench.engine_only")[(turn + turn // 2) % 2]
        found[module].append(measure_drain(store, n, module))
    counted, silent = found["mulligan"], found["bench.engine_only"]
    rates = [statistics.median(rate for rate, _ in runs) for runs in (silent, counted)]
    costs = [statistics.median(cost for _, cost in runs) for runs in (silent, counted)]
    return {
        "without, jobs/s": rates[0],
        "with, jobs/s": rates[1],
        "with / without": rates[1] / rates[0],
        "without, CPU ms/job": costs[0],
        "with, CPU ms/job": costs[1],
        "CPU with / without": costs[1] / costs[0],
        **measure_fold(store, n, costs[0]),
    }


def measure_fold(store: str, n: int, cost: float) -> dict[str, float]:
    """Measure the CPU of counting after a drain, also as a share of the cost of a job."""
    with world(store) as place:
        fold = EventCounter(0)
        fold.run_once(place.app.store)
        place.enqueue("noop", [{}] * n)
        place.start(module="bench.engine_only")
        until(lambda: place.count("succeeded") >= n, 300, every=0.1)
        place.stop()
        used, spent = time.thread_time(), cpu(servers(store))
        while fold.run_once(place.app.store):
            pass
        here, there = time.thread_time() - used, cpu(servers(store)) - spent
        per_job = (here + there) * 1e6 / n
        return {
            "fold, CPU µs/job": here * 1e6 / n,
            "fold and server, CPU µs/job": per_job,
            "fold, share of a job": per_job / 1000 / cost,
            **measure_scrape(place),
        }


def measure_scrape(place: World, times: int = 20) -> dict[str, float]:
    """Measure the duration and the CPU time of a metrics scrape."""
    waits, used = [], []
    for _ in range(times):
        began, spent = time.perf_counter(), time.thread_time()
        size = len(render(place.app.store))
        waits.append((time.perf_counter() - began) * 1000)
        used.append((time.thread_time() - spent) * 1000)
    return {
        "scrape, ms": statistics.median(waits),
        "scrape, CPU ms": statistics.median(used),
        "scrape, kB": size / 1000,
    }
