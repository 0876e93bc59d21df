"""Benchmark cases. Each takes the name of a database and a size and returns its figures."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random

from bench.event_counting import counting
from bench.failures import measure
from bench.world import World, cpu_seconds, process_tree, pss_megabytes, until, world

from mulligan.core.durations import SECOND
from mulligan.core.ids import new_id
from mulligan.core.job import Gate, NewJob, WorkerRow
from mulligan.guards.queries import GuardQueries
from mulligan.jobs.queries import JobQueries
from mulligan.worker.claim import Claimer
from mulligan.worker.queries import WorkerQueries

Figures = dict[str, float]


def _measure_drain(place: World, n: int) -> float:
    """Return jobs per second from the first ending to the last, with one worker and one runner."""
    place.start()
    until(lambda: place.count("succeeded") > 0, 60)
    began, first = time.monotonic(), place.count("succeeded")
    until(lambda: place.count("succeeded") >= n, 300, every=0.02)
    return (n - first) / (time.monotonic() - began)


def drain(store: str, n: int) -> Figures:
    """Drain no-op jobs, async and sync."""
    figures = {}
    for kind in ("noop", "noop_sync"):
        with world(store) as place:
            place.enqueue(kind, [{}] * n)
            figures[f"{kind}, jobs/s"] = _measure_drain(place, n)
    return figures


def retry_path(store: str, n: int) -> Figures:
    """Drain jobs that each fail once, with distinct messages."""
    with world(store) as place:
        place.enqueue("fails_once", [{"n": i} for i in range(n)])
        return {"jobs/s": _measure_drain(place, n)}


def enqueue(store: str, n: int) -> Figures:
    """Enqueue one at a time, and thousands in one call."""
    with world(store) as place:
        few = max(200, n // 20)
        began = time.monotonic()
        for _ in range(few):
            place.app.enqueue("noop", {})
        one = few / (time.monotonic() - began)
        began = time.monotonic()
        place.enqueue("noop", [{}] * n)
        return {"one at a time, jobs/s": one, "bulk, jobs/s": n / (time.monotonic() - began)}


def latency(store: str, n: int) -> Figures:
    """Measure the time from the enqueue call to the first line of the handler on an idle worker."""
    with world(store) as place:
        place.start()
        rng, waits = Random(7), []
        for _ in range(min(n, 300)):
            time.sleep(0.01 + rng.random() * 0.05)
            before = time.time_ns() // 1000
            job = place.app.enqueue("stamp", {})
            waits.append((place.app.jobs.wait(job.id, 10).result - before) / 1000)
        waits.sort()
        return {"p50, ms": statistics.median(waits), "p99, ms": waits[int(len(waits) * 0.99) - 1]}


def idle(store: str, n: int) -> Figures:
    """Measure CPU over 20 s and memory of an idle worker (supervisor and runner)."""
    del n
    with world(store) as place:
        worker = place.start()
        time.sleep(3)  # let the start-up finish
        pids = process_tree(worker.pid)
        began, used = time.monotonic(), cpu_seconds(pids)
        time.sleep(20)
        share = (cpu_seconds(pids) - used) / (time.monotonic() - began)
        return {"CPU, % of a core": share * 100, "PSS, MB": pss_megabytes(pids)}


def backlog(store: str, n: int) -> Figures:
    """Compare an empty table with 1,000,000 scheduled and 100,000 held jobs.

    First claims alone in batches of 100, then the whole drain.
    """
    return _measure_with_backlog(store, n, scheduled=50 * n, rounds=3)


def held(store: str, n: int) -> Figures:
    """Compare an empty table with one in which a dependency holds 100,000 jobs."""
    return _measure_with_backlog(store, n, scheduled=0, rounds=3)


def _measure_with_backlog(store: str, n: int, *, scheduled: int, rounds: int) -> Figures:
    """Alternate between both databases, so that other load affects both equally."""
    claims: dict[str, list[float]] = {"empty": [], "full": []}
    drains: dict[str, list[float]] = {"empty": [], "full": []}
    with world(store) as empty, world(store) as full:
        fill(full, scheduled=scheduled, held=5 * n)
        places = {"empty": empty, "full": full}
        for _ in range(rounds):
            for name, found in _claim_rates(places, n // 4).items():
                claims[name] += found
        for name, place in [*places.items()] * rounds:
            done = place.count("succeeded")
            place.enqueue("other", [{}] * n)
            drains[name].append(_measure_drain(place, done + n))
            place.stop()
    return _compare("claim", claims) | _compare("drain", drains)


def recorder(store: str, n: int) -> Figures:
    """Compare drains of kinds with and without a flight recorder, which succeed."""
    return _compare_recorder(store, "noop", n) | _compare_recorder(store, "logs", n)


def _compare_recorder(store: str, kind: str, n: int, rounds: int = 10) -> Figures:
    """Alternate between log=0 and log=200, and which of them comes first.

    CPU time per job is compared too: other load on the machine disturbs it less than the rate.
    """
    kinds = {"log=0": f"{kind}_unrecorded", "log=200": kind}
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for number in range(rounds):
        for name in sorted(kinds, reverse=number % 2 == 1):
            with world(store) as place:
                place.enqueue(kinds[name], [{}] * n)
                costs[name].append(_measure_cost(place, n))
    figures = {}
    for place_of, unit in enumerate(("jobs/s", "CPU µs per job")):
        off, on = ([cost[place_of] for cost in costs[name]] for name in kinds)
        figures[f"{kind}, log=0, {unit}"] = statistics.median(off)
        figures[f"{kind}, log=200, {unit}"] = statistics.median(on)
        ratios = [after / before for before, after in zip(off, on, strict=True)]
        figures[f"{kind}, log=200 / log=0, {unit}"] = statistics.median(ratios)
    return figures


def _measure_cost(place: World, n: int) -> tuple[float, float]:
    """Return jobs per second and microseconds of CPU time per job of a drain."""
    worker = place.start()
    until(lambda: place.count("succeeded") > 0, 60)
    pids = process_tree(worker.pid)
    began, used, first = time.monotonic(), cpu_seconds(pids), place.count("succeeded")
    until(lambda: place.count("queued") + place.count("running") == 0, 300, every=0.05)
    seconds, jobs = time.monotonic() - began, n - first
    return jobs / seconds, 1e6 * (cpu_seconds(pids) - used) / jobs


def _compare(what: str, rates: dict[str, list[float]]) -> Figures:
    middle = {name: statistics.median(found) for name, found in rates.items()}
    figures = {f"{what}, {name}, jobs/s": rate for name, rate in middle.items()}
    return {**figures, f"{what}, full / empty": middle["full"] / middle["empty"]}


def fill(place: World, *, scheduled: int, held: int) -> None:
    """Insert scheduled and held jobs. Half of the scheduled ones are in the claimed lane."""
    later = datetime.now(UTC) + timedelta(days=30)
    place.enqueue("other", [{}] * (scheduled // 2), delay=later)
    place.enqueue("noop", [{}] * (scheduled // 2), delay=later)
    place.enqueue("held", [{}] * held)
    with place.app.store.begin() as tx:
        now = tx.now()
        GuardQueries(tx).close_gate(
            Gate("dependency", "gateway", now, now + 86_400 * SECOND, "bench", "bench")
        )


def _claim_rates(places: dict[str, World], n: int) -> dict[str, list[float]]:
    """Claim n jobs in each database, 100 at a time and alternating. Return the rates."""
    claimers = {name: _claimer(place, n) for name, place in places.items()}
    rates: dict[str, list[float]] = {name: [] for name in places}
    for name in [*places] * (n // 100):
        began = time.monotonic()
        with places[name].app.store.begin() as tx:
            taken = len(claimers[name].claim(tx, 100).leases)
        rates[name].append(taken / (time.monotonic() - began))
        assert taken == 100
    for name, place in places.items():
        _finish(place, claimers[name].worker)
    return rates


def _claimer(place: World, n: int) -> Claimer:
    """Insert a worker and n jobs for it. Return its claimer."""
    worker = f"w_{new_id()}"
    row = WorkerRow(
        worker, "h", 1, "b", 3600 * SECOND, 0, 0, 0, None, "", "", 0, 0, "[]", "[]", 1, "", False
    )
    jobs = [NewJob(id=new_id(), kind="other", queue="other", payload="{}") for _ in range(n)]
    with place.app.store.begin() as tx:
        WorkerQueries(tx).insert_worker(row)
        JobQueries(tx).insert_jobs(jobs, announce=True)
    return Claimer(worker, frozenset({"other", "held", "noop"}))


def _finish(place: World, worker: str) -> None:
    """Settle all claimed jobs, so that the next round starts from the same table."""
    from mulligan.config import RetrySection  # noqa: PLC0415 - only here
    from mulligan.core.attempt import Ended, Ending, Outcome  # noqa: PLC0415 - only here
    from mulligan.retries.effective import EffectivePolicies  # noqa: PLC0415 - only here
    from mulligan.worker.settle import SettleContext, settle  # noqa: PLC0415 - only here

    with place.app.store.begin() as tx:
        endings = [
            Ending(lease, Outcome(Ended.RETURNED, result="null"))
            for lease in WorkerQueries(tx).list_leases(worker)
        ]
        settle(
            tx,
            endings,
            SettleContext(EffectivePolicies(RetrySection(), {}), tx.now(), Random(1)),
        )
        WorkerQueries(tx).close_worker(worker, "done", last_renewed=None)


def crash(store: str, n: int) -> Figures:
    """Kill the runner, then the worker, under ten 5-second jobs; measure until all are done."""
    del n
    figures = {}
    for what in ("runner", "worker"):
        with world(store) as place:
            worker = place.start()
            place.enqueue("nap", [{"seconds": 5.0}] * 10)
            until(lambda place=place: place.count("running") == 10, 20)
            time.sleep(1)
            (pid,) = process_tree(worker.pid)[1:] if what == "runner" else [worker.pid]
            _kill(pid)
            began = time.monotonic()
            if what == "worker":
                worker.wait()
                place.start(ready=False)
            until(lambda place=place: place.count("succeeded") == 10, 120, every=0.02)
            figures[f"kill of the {what}, s until all done"] = time.monotonic() - began
    return figures


def _kill(pid: int) -> None:
    import os  # noqa: PLC0415 - only here
    import signal  # noqa: PLC0415 - only here

    os.kill(pid, signal.SIGKILL)


def capture(store: str, n: int) -> Figures:
    """Measure capture, classification and fingerprint of a failure. Needs no database."""
    del store
    return dict(measure(max(300, n // 10)))


def insight(store: str, n: int) -> Figures:
    """Measure `app.insight()` with 200,000 attempts: with its default limit, then over all."""
    from mulligan.insight import service as engine  # noqa: PLC0415 - only here
    from support.history import insert_finished_jobs  # noqa: PLC0415 - only here

    del n
    with world(store) as place:
        with place.app.store.read() as tx:
            now = tx.now()
        insert_finished_jobs(place.app.store, 111_112, now=now)
        figures = {}
        for name, most in (
            ("100,000 attempts, s", engine.MAX_ATTEMPTS),
            ("200,000 attempts, s", 200_000),
        ):
            engine.MAX_ATTEMPTS = engine.MAX_JOBS = most
            began = time.monotonic()
            place.app.insight(timedelta(days=7))
            figures[name] = time.monotonic() - began
        return figures


def groups(store: str, n: int) -> Figures:
    """Failure groups and filters: by default 100,000 dead jobs of three causes among 300,000."""
    from bench.groups import fill, measure  # noqa: PLC0415 - only here

    with world(store) as place:
        fill(place.app, 15 * n)
        return dict(measure(place.app))


def operations(store: str, n: int) -> Figures:
    """By default 10,000 dead jobs of two causes, one retried and one discarded by an operation."""
    from bench.operations import measure  # noqa: PLC0415 - only here

    with world(store) as place:
        return measure(place.app, 3 * n // 2)


def million(store: str, n: int) -> Figures:
    """Every filter, list, count and group at a million jobs, while a worker runs a hundred jobs a second."""
    from bench.million import feeder, fill, measure  # noqa: PLC0415 - only here

    with world(store) as place:
        began = time.monotonic()
        fill(place, 50 * n)
        filled = time.monotonic() - began
        place.start()
        feeding = feeder(place)
        try:
            until(lambda: place.count("running") + place.count("succeeded") > 0, 30)
            time.sleep(3)  # let the start-up finish
            return {"to fill, s": filled, **measure(place)}
        finally:
            feeding.terminate()
            feeding.wait(10)


def web(store: str, n: int) -> Figures:
    """Measure every page and list call with a million jobs while a worker runs 100 jobs per second."""
    from bench.cached_database import cached_database  # noqa: PLC0415 - only here
    from bench.web import measure  # noqa: PLC0415 - only here

    with cached_database(store, 50 * n) as place:
        return measure(place)


CASES: dict[str, Callable[[str, int], Figures]] = {
    "enqueue": enqueue,
    "drain": drain,
    "retry": retry_path,
    "latency": latency,
    "idle": idle,
    "crash": crash,
    "backlog": backlog,
    "held": held,
    "recorder": recorder,
    "capture": capture,
    "insight": insight,
    "groups": groups,
    "operations": operations,
    "million": million,
    "counting": counting,
    "web": web,
}
