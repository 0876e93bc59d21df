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
        started_at = time.monotonic()
        cpu_before = cpu([*process_tree(worker.pid), *servers(store)])
        done_before = place.count("succeeded")
        until(lambda: place.count("succeeded") >= n, 300, every=0.1)
        seconds = time.monotonic() - started_at
        cpu_used = cpu([*process_tree(worker.pid), *servers(store)]) - cpu_before
        jobs = n - done_before
        return jobs / seconds, cpu_used * 1000 / jobs


def servers(store: str) -> list[int]:
    """Return the pids of the PostgreSQL server."""
    if store == "sqlite":
        return []
    from bench.world import server  # noqa: PLC0415 - there is none for SQLite

    folder = Path(server()._data)  # noqa: SLF001 - there is no other way to its processes
    return process_tree(int((folder / "postmaster.pid").read_text().splitlines()[0]))


def cpu(pids: list[int]) -> float:
    """Return the CPU seconds of the processes that still exist."""
    alive = [pid for pid in pids if Path(f"/proc/{pid}/stat").exists()]
    return sum(cpu_seconds([pid]) for pid in alive)


def counting(store: str, n: int) -> dict[str, float]:
    """Compare drains with and without counting, alternating."""
    found: dict[str, list[tuple[float, float]]] = {"mulligan": [], "bench.engine_only": []}
    for number in range(ROUNDS):
        modules = list(found)
        if number % 2:
            modules.reverse()
        for module in modules:
            found[module].append(measure_drain(store, n, module))
    rate_with, cost_with = _medians(found["mulligan"])
    rate_without, cost_without = _medians(found["bench.engine_only"])
    return {
        "without, jobs/s": rate_without,
        "with, jobs/s": rate_with,
        "with / without": rate_with / rate_without,
        "without, CPU ms/job": cost_without,
        "with, CPU ms/job": cost_with,
        "CPU with / without": cost_with / cost_without,
        **measure_fold(store, n, cost_without),
    }


def _medians(runs: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the median of the jobs per second, and of the CPU milliseconds per job."""
    rates = [rate for rate, _ in runs]
    costs = [cost for _, cost in runs]
    return statistics.median(rates), statistics.median(costs)


def measure_fold(store: str, n: int, cost: float) -> dict[str, float]:
    """Measure the CPU of counting after a drain, also as a share of the cost of a job."""
    with world(store) as place:
        fold = EventCounter(0)
        fold.run_once(place.app.store)
        place.enqueue("noop", [{}] * n)
        place.start(module="bench.engine_only")
        until(lambda: place.count("succeeded") >= n, 300, every=0.1)
        place.stop()
        own_before = time.thread_time()
        server_before = cpu(servers(store))
        while fold.run_once(place.app.store):
            pass
        own_used = time.thread_time() - own_before
        server_used = cpu(servers(store)) - server_before
        per_job = (own_used + server_used) * 1e6 / n
        return {
            "fold, CPU µs/job": own_used * 1e6 / n,
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
