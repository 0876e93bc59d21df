"""Cases of the comparison. Each measures one contender once and returns its figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from bench.peers import crashes
from bench.peers.contenders import Contender
from bench.peers.idle_cost import idle, measure_import
from bench.peers.sandbox import MeasurementFailed, Sandbox, until

Figures = dict[str, float | str]
START = 120.0  # seconds for workers to start
TIMEOUT = 150.0  # for a drain; an incomplete one is rated by the jobs done
FAR = 2.0  # extra milliseconds per round trip
SCHEDULED = 1_000_000
HELD = 100_000


class Case(NamedTuple):
    """One case and the contenders it applies to."""

    name: str
    measure: Callable[[Contender, float], Figures]
    stores: tuple[str, ...] = ("postgres", "sqlite", "redis")
    limits: bool = False  # also measure the databases alone
    rounds: int = 99  # at most; some cases repeat by themselves
    ours_only: bool = False  # uses what other systems do not have
    once: bool = False  # measure other systems once, in parallel: the case mostly waits


def enqueue(contender: Contender, scale: float) -> Figures:
    """Measure jobs per second with one call each and with bulk calls."""
    with Sandbox(contender, "enqueue") as place:
        one = place.ask("one", n=_size(1_000, scale))
        many = place.ask("many", n=_size(60_000, scale))
    figures: Figures = {}
    for name, found in (("one", one), ("bulk", many)):
        if isinstance(found, dict):
            figures |= {f"{name}, {what}": rate for what, rate in found.items()}
        elif found is not None:
            figures[name] = found
    return figures


def drain(contender: Contender, scale: float, *, workers: int = 1, latency: float = 0) -> Figures:
    """Measure no-op jobs per second."""
    n = _size(contender.jobs, scale)
    with Sandbox(contender, "drain", latency=latency) as place:
        if contender.limit:
            return dict(place.ask("drain", n=n))
        return _measure_drain(place, "noop", n, workers)


def retry(contender: Contender, scale: float) -> Figures:
    """Measure jobs per second if each fails once, with a distinct message."""
    n = _size(contender.jobs // 4, scale)
    with Sandbox(contender, "retry") as place:
        place.create_marks(n)
        return _measure_drain(place, "flaky", n, 1)


def mixed_failures(contender: Contender, scale: float) -> Figures:
    """Measure jobs that fail once, with exceptions of many libraries and distinct texts."""
    return _measure_with_cpu(contender, scale, "mixed_failure", contender.jobs // 4)


def mixed_jobs(contender: Contender, scale: float) -> Figures:
    """Measure jobs of many kinds, queues and owners, and no-ops in the same measurement."""
    figures = _measure_with_cpu(contender, scale, "mixed", contender.jobs // 2)
    noop = _measure_with_cpu(contender, scale, "noop", contender.jobs // 2)
    shares: Figures = {
        "jobs/s against no-ops": float(figures["jobs/s"]) / float(noop["jobs/s"]),
        "CPU of no-ops against them": float(noop["CPU, µs/job"]) / float(figures["CPU, µs/job"]),
    }
    return figures | {f"no-ops, {name}": value for name, value in noop.items()} | shares


def _measure_with_cpu(contender: Contender, scale: float, task: str, jobs: int) -> Figures:
    """Measure the rate and the CPU time of the worker's processes per job, without its start.

    A second measurement with a tenth of the jobs contains the same start: the difference of the
    CPU times divided by the difference of the jobs is the cost of one job.
    """
    used: list[tuple[int, float]] = []
    for n in (_size(jobs // 10, scale), _size(jobs, scale)):
        with Sandbox(contender, task) as place:
            place.create_marks(n)
            figures = _measure_drain(place, task, n, 1)
            used.append((n, place.cpu_seconds()))
    (few, little), (many, much) = used
    return figures | {"CPU, µs/job": (much - little) / max(1, many - few) * 1e6}


def _measure_drain(place: Sandbox, task: str, n: int, workers: int) -> Figures:
    """Measure from the start of all workers until the system itself reports all jobs done."""
    place.ask("fill", task=task, n=n)
    for _ in range(workers):
        place.work()
    until(place.all_started, START, f"all workers at work ({place.log()})", every=0.002)
    began, before = time.monotonic(), place.count("done")
    while place.count("done") < n and time.monotonic() < began + TIMEOUT:
        time.sleep(0.01)
    done = place.count("done")
    while done >= n and place.ask("pending") and time.monotonic() < began + TIMEOUT:
        time.sleep(0.01)
    seconds = time.monotonic() - began
    if done - before < n / 3:
        raise MeasurementFailed(
            f"{done} of {n} done within {seconds:.0f} s, {before} of them before all workers had started"
        )
    return {
        "jobs/s": (done - before) / seconds,
        "n": n,
        "seconds": seconds,
        "run twice": max(0, done - n),
    }


def latency(contender: Contender, scale: float) -> Figures:
    """Measure milliseconds from the enqueue call to the first line of the handler."""
    with Sandbox(contender, "latency") as place:
        place.work()
        found = place.ask("latency", n=_size(200, scale), seconds=60.0)
        return {"p50, ms": found["p50"], "p99, ms": found["p99"], "samples": found["samples"]}


def backlog(contender: Contender, scale: float) -> Figures:
    """Compare drains with 1,000,000 scheduled jobs (ours: and 100,000 held) and an empty table."""
    n = _size(contender.jobs // 2, scale)
    rates: dict[str, list[float]] = {"empty": [], "full": []}
    with Sandbox(contender, "drain") as empty, Sandbox(contender, "drain") as full:
        full.ask("backlog", n=_size(SCHEDULED, scale), within=600)
        if contender.ours:
            full.ask("hold", n=_size(HELD, scale))
        for _ in range(3):
            rates["empty"].append(_measure_with_backlog(empty, n))
            rates["full"].append(_measure_with_backlog(full, n))
    empty_rate, full_rate = (sorted(found)[1] for found in rates.values())
    return {
        "empty, jobs/s": empty_rate,
        "full, jobs/s": full_rate,
        "full / empty": full_rate / empty_rate,
        "n": n,
    }


def _measure_with_backlog(place: Sandbox, n: int) -> float:
    """Measure a drain by the job bodies, because pending counts include the backlog."""
    before = place.count("done")
    place.ask("fill", task="noop", n=n)
    worker = place.work()
    until(lambda: place.count("done") > before, START, "the worker at work", every=0.002)
    began, first = time.monotonic(), place.count("done")
    while place.count("done") < before + n and time.monotonic() < began + 60:
        time.sleep(0.01)
    done, seconds = place.count("done") - first, time.monotonic() - began
    place.stop(worker)
    return done / seconds


def _size(n: int, scale: float) -> int:
    return max(100, int(n * scale) // 100 * 100)


CASES = {
    case.name: case
    for case in (
        Case("enqueue", enqueue, limits=True),
        Case("drain", drain, limits=True),
        Case("drain, 2 workers", partial(drain, workers=2)),
        Case(f"drain, {FAR:g} ms away", partial(drain, latency=FAR), stores=("postgres",)),
        Case(
            f"drain, 2 workers, {FAR:g} ms away",
            partial(drain, workers=2, latency=FAR),
            stores=("postgres",),
        ),
        Case("retry", retry),
        Case("mixed failures", mixed_failures),
        Case("mixed jobs", mixed_jobs, ours_only=True),
        Case("latency", latency),
        Case("idle", idle),
        Case("import", measure_import),
        Case("backlog", backlog, stores=("postgres", "sqlite"), rounds=1),
        *(
            Case(
                f"crash of {what}, {how}",
                partial(crashes.crash, everything=what == "all", fast=how == "fast"),
                once=True,
            )
            for what in ("handler", "all")
            for how in ("default", "fast")
        ),
        *(
            Case(
                f"poison {what}, {how}",
                partial(crashes.poison, task=task, fast=how == "fast"),
                once=True,
            )
            for what, task in (("handler", "poison"), ("worker", "venom"))
            for how in ("default", "fast")
        ),
    )
}
