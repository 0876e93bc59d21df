"""Measure filters, lists, counts and groups over a million jobs while a worker runs.

The jobs are inserted directly: 950,000 succeeded, 10,000 are dead of 30 causes, 20,000 wait (half of
them among the oldest, scheduled for later), some are parked or cancelled. There are 200 owners and one
with twenty old jobs, thousands of batches of 50, a kind with an index and a rare one without.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from bench.world import ROOT, World

from mulligan.core.ids import first_id
from mulligan.jobs.queries import SearchQueries
from mulligan.manifest.queries import ManifestQueries
from mulligan.manifest.specs import KindSpec, Manifest
from mulligan.storage.base import Store
from support.store import is_postgres, prefix

DAY = 86_400_000_000
SPAN = 5 * DAY
LATER = 30 * DAY
GROUPS = 30
RATE = 100  # jobs per second during the measurement
REPETITIONS = 15  # times each
COLUMNS = (
    "id",
    "kind",
    "queue",
    "owner",
    "lane",
    "run_at",
    "created_at",
    "batch_id",
    "payload",
    "state",
    "attempt",
    "token",
    "finished_at",
    "error",
    "result",
    "announced",
    "died_code",
    "died_class",
    "died_group",
)
Row = tuple[Any, ...]
ERROR = '{"code": "C#", "class": "transient", "message": "Cause # broke it."}'
KINDS = {
    **{name: KindSpec(name) for name in ("render", "mail", "rare")},
    "bill": KindSpec("bill", index=("customer",)),
}


# --- Rows ---
def rows(jobs: int, now: int) -> Iterator[Row]:
    for i in range(jobs):
        at = _at(i, jobs, now)
        state = _state(i, jobs)
        kind, queue = _kind(i, jobs)
        ended = at + 1_000_000 if state in {"succeeded", "dead", "cancelled"} else None
        cause = _cause(i)
        dead = state == "dead"
        yield (
            _id(i, at),
            kind,
            queue,
            _owner(i, jobs),
            f"{queue}|{kind}||0",
            now + LATER if state == "queued" else at,
            at,
            f"batch-{i // 50}" if i // 50 % 4 == 0 else None,
            json.dumps({"customer": i % 5000, "note": "x" * 120, "n": i}, separators=(",", ":")),
            state,
            0 if state == "queued" else 1,
            0 if state == "queued" else 1,
            ended,
            ERROR.replace("#", cause) if dead else None,
            "null" if state == "succeeded" else None,
            True,
            f"C{cause}" if dead else None,
            "transient" if dead else None,
            f"v2-{cause}" if dead else None,
        )


def _id(i: int, at: int) -> str:
    return f"{first_id(at // 1000)[:20]}{i:08}"


def _state(i: int, jobs: int) -> str:
    """Return the state of job i: 1 % dead, 2 % queued (half among the oldest), few others."""
    if i % 101 == 0:
        return "dead"
    if i < jobs // 50 and i % 2 == 1:
        return "queued"
    if i % 100 == 50:
        return "queued"
    if i % 5000 == 7:
        return "parked"
    return "cancelled" if i % 500 == 9 else "succeeded"


def _kind(i: int, jobs: int) -> tuple[str, str]:
    if i < jobs // 2 and i % 10_000 == 1:
        return "rare", "slow"
    return (("render", "default"), ("render", "default"), ("mail", "mail"), ("bill", "default"))[
        i % 4
    ]


def _owner(i: int, jobs: int) -> str:
    return "seldom" if i < jobs // 10 and i % (jobs // 200) == 3 else f"owner{i // 7 % 200}"


def fill(place: World, jobs: int) -> None:
    store = place.app.open().store
    with store.begin() as tx:
        now = tx.now()
        manifest = Manifest("bench", "1", KINDS)
        ManifestQueries(tx).store_manifest(
            manifest.id, manifest.app, manifest.release, manifest.to_json()
        )
    _write(store, "job", COLUMNS, rows(jobs, now))
    _write(store, "job_arg", ("name", "value", "job_id", "kind"), _args(jobs, now))
    names = "job_id token generation attempt worker settled_by started_at ended_at ended verb code cls fingerprint"
    _write(store, "attempt", tuple(names.split()), _attempts(jobs, now))
    if is_postgres(store):  # as autovacuum would do later
        with psycopg.connect(place.url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")


def _args(jobs: int, now: int) -> Iterator[Row]:
    billed = (i for i in range(jobs) if _kind(i, jobs)[0] == "bill")
    return (("customer", str(i % 5000), _id(i, _at(i, jobs, now)), "bill") for i in billed)


def _attempts(jobs: int, now: int) -> Iterator[Row]:
    for i in range(jobs):
        if _state(i, jobs) == "dead":
            at, cause = _at(i, jobs, now), _cause(i)
            ended = (at, at + 1_000_000, "failed", "die", f"C{cause}", "transient", f"v2-{cause}")
            yield (_id(i, at), 1, 1, 1, "w", "w", *ended)


def _at(i: int, jobs: int, now: int) -> int:
    return now - SPAN + i * (SPAN // jobs)


def _cause(i: int) -> str:
    return f"{i // 100 % GROUPS:02}"


def _write(store: Store, table: str, columns: tuple[str, ...], found: Iterator[Row]) -> None:
    name, listed = f"{prefix(store)}{table}", ", ".join(columns)
    with store.transaction() as connection:
        if is_postgres(store):
            with (
                connection.cursor() as cursor,
                cursor.copy(f"COPY {name} ({listed}) FROM STDIN") as copy,
            ):
                for row in found:
                    copy.write_row(row)
        else:
            marks = ", ".join("?" * len(columns))
            connection.executemany(f"INSERT INTO {name} ({listed}) VALUES ({marks})", found)  # noqa: S608 - ours


# --- Queries ---
FILTERS = (
    "",
    "state:succeeded",
    "state:dead",
    "state:queued",
    "state:running",
    "state:parked",
    "state:cancelled",
    "state:dead,parked",
    "phase:scheduled",
    "phase:held",
    "kind:render",
    "kind:rare",
    "queue:mail",
    "owner:owner7",
    "owner:seldom",
    "owner:owner7 state:dead",
    "owner:owner7 state:queued",
    "kind:mail state:dead",
    "batch:batch-4000",
    "batch:batch-4000 state:dead",
    "since:2h",
    "since:2h kind:rare",
    "code:C07",
    "class:transient kind:render",
    "group:v2-07",
    "group:v2-07 owner:owner7",
    "group:v2-07,v2-08",
    '"cause 07"',
    "arg.customer:43",
    "arg.customer:43 state:dead",
    "arg.customer:43 owner:owner7 kind:bill",
    "arg.customer:41 kind:render since:1d",
)


def build_queries(place: World) -> dict[str, Callable[[], object]]:
    app = place.app
    queries: dict[str, Callable[[], object]] = {}
    for text in FILTERS:
        queries[f"list {text}"] = lambda text=text: app.jobs.list(text)
        queries[f"count {text}"] = lambda text=text: app.jobs.count(text)
    middle = first_id((time.time_ns() // 1000 - SPAN // 2) // 1000)
    queries["list from the middle"] = lambda: app.jobs.list("", before=middle)
    queries["list state:dead from the middle"] = lambda: app.jobs.list("state:dead", before=middle)
    queries["groups"] = app.failures.groups
    queries["groups of an owner"] = lambda: app.failures.groups(owner="owner7")
    queries["groups of a kind"] = lambda: app.failures.groups("kind:render")
    queries["groups by argument"] = lambda: app.failures.groups("arg.customer:43")
    queries["one group"] = lambda: app.failures.get("v2-07")
    queries["counts per state"] = lambda: _counts(place)
    return queries


def _counts(place: World) -> object:
    with place.app.store.read() as tx:
        return SearchQueries(tx).count_jobs_by_state(10_000)


class Times(NamedTuple):
    """Times of one query in milliseconds: elapsed, and CPU."""

    waited: list[float]
    worked: list[float]


def measure(place: World) -> dict[str, float]:
    """Run all queries in turn, warm, while a worker runs. Print a table, slowest first."""
    queries = build_queries(place)
    for query in queries.values():
        query()
    times = {name: Times([], []) for name in queries}
    before, began = done(place), time.monotonic()
    clock = _work(place)
    for name, query in [*queries.items()] * REPETITIONS:
        start, before = time.monotonic(), clock()
        query()
        times[name].worked.append((clock() - before) * 1000)
        times[name].waited.append((time.monotonic() - start) * 1000)
    rate = (done(place) - before) / (time.monotonic() - began)
    _table(times)
    return _figures(times) | {"jobs/s meanwhile": rate, "load average": os.getloadavg()[0]}


def _work(place: World) -> Callable[[], float]:
    """Return a clock of the CPU seconds of this thread and its PostgreSQL backends."""
    if not is_postgres(place.app.store):
        return time.thread_time
    idle = place.app.store._pool._pool  # type: ignore[attr-defined]  # noqa: SLF001 - no public name
    return lambda: time.thread_time() + sum(_cpu(one.info.backend_pid) for one in list(idle))


def _cpu(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _table(times: dict[str, Times]) -> None:
    print(f"  {'':<46}{'median':>9}{'slowest':>9}{'CPU':>9}   ms")
    for name, found in sorted(times.items(), key=lambda one: -statistics.median(one[1].waited)):
        middle, worked = statistics.median(found.waited), statistics.median(found.worked)
        print(f"  {name:<46}{middle:>9.1f}{max(found.waited):>9.1f}{worked:>9.1f}")


def _figures(times: dict[str, Times]) -> dict[str, float]:
    return {
        "slowest median, ms": max(statistics.median(found.waited) for found in times.values()),
        "slowest answer, ms": max(max(found.waited) for found in times.values()),
        "most CPU, median, ms": max(statistics.median(found.worked) for found in times.values()),
    }


def done(place: World) -> int:
    """Return the number of jobs the worker has done; inserted jobs have other kinds."""
    text = (
        "SELECT count(*) FROM {p}job WHERE id > '{low}' AND kind = 'noop' AND state = 'succeeded'"
    )
    low = first_id((time.time_ns() - 3600 * 10**9) // 10**6)
    with place.app.store.transaction() as connection:
        found = connection.execute(text.format(p=prefix(place.app.store), low=low))
        return int(found.fetchone()[0])


# --- Load during the measurement ---
def feeder(place: World) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.million", place.url]
    return subprocess.Popen(command, cwd=ROOT / "tools")


def feed(url: str) -> None:
    """Enqueue 100 jobs per second, ten at a time, until killed."""
    from bench.app import noop  # noqa: PLC0415 - only here

    from mulligan import Mulligan  # noqa: PLC0415 - only here

    noop._app = Mulligan(url)  # type: ignore[attr-defined]  # noqa: SLF001 - enqueue into this database
    due = time.monotonic()
    while True:
        noop.enqueue_many([{}] * (RATE // 10))
        due += 0.1
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    feed(sys.argv[1])
