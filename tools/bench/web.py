"""Measure pages and list calls with a million jobs on a real server while a worker runs."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from urllib.parse import quote

from bench.million import done, feeder
from bench.web_client import AnswerTimes, WebClient, open_streams, start_web_client
from bench.world import World, until

from support.store import is_postgres, sql

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "40"))  # requests per page
STREAMS = {
    "idle streams": ("/api/v1/events?filter=kind:nothing", 200),
    "live pages": ("/live", 20),  # each receives an event per job
}
DATABASE_CONNECTIONS = 16  # the pool's size
BARRED = ("overview", "failures", "jobs")
FILTERS = {
    "by state": "state:dead",
    "that wait": "state:queued",
    "parked": "state:parked",
    "held": "phase:held",
    "by kind": "kind:render3",
    "by queue": "queue:mail",
    "by owner": "owner:owner7",
    "dead of an owner": "owner:owner7 state:dead",
    "by group": "group:{group}",
    "by cause": "code:CODE_07",
    "by batch": "batch:{batch}",
    "by time": "since:{since}h",
    "by words": '"step 7 of"',
    "by argument": "arg.customer:43",
}


# --- Pages ---
def paths(place: World) -> dict[str, str]:
    known = _sample_ids(place)
    jobs = {
        f"jobs {name}": f"/jobs?filter={quote(text.format(**known))}"
        for name, text in FILTERS.items()
    }
    listed = {f"API {name}": f"/api/v1{path}" for name, path in jobs.items()}
    return {
        "overview": "/",
        "failures": "/failures",
        "failures by words": f"/failures?filter={quote(FILTERS['by words'])}",
        "failures by kind": "/failures?filter=kind:render3",
        "failure group": f"/failures/{known['group']}",
        "jobs": "/jobs",
        "jobs from the middle": f"/jobs?before={known['middle']}",
        **jobs,
        "job": f"/jobs/{known['job']}",
        "batches": "/batches",
        "batch": f"/batches/{known['batch']}",
        **{
            name: f"/{name}"
            for name in (
                "queues",
                "dependencies",
                "policies",
                "insight",
                "operations",
                "events",
                "audit",
                "alerts",
                "notifications",
                "schedules",
            )
        },
        "API jobs": "/api/v1/jobs",
        **listed,
        **{
            f"API {name}": f"/api/v1/{name}"
            for name in (
                "failures",
                "batches",
                "queues",
                "workers",
                "dependencies",
                "operations",
                "deliveries",
            )
        },
        "metrics": "/api/v1/metrics",
    }


def _sample_ids(place: World) -> dict[str, str]:
    """Return the ids of the largest group, a batch and a dead job, and the age of the newest 10,000."""
    store = place.app.store
    (group,) = sql(
        store,
        "SELECT died_group FROM {p}job WHERE state = 'dead' GROUP BY 1 ORDER BY count(*) DESC LIMIT 1",
    )
    (batch,) = sql(store, "SELECT id FROM {p}batch ORDER BY id DESC LIMIT 1 OFFSET 50")
    (middle, job) = (
        sql(store, f"SELECT id FROM {{p}}job WHERE {where} ORDER BY id DESC LIMIT 1 OFFSET 500")  # noqa: S608 - constants
        for where in ("1 = 1", "state = 'dead'")
    )
    ((at,),) = sql(store, "SELECT created_at FROM {p}job ORDER BY id DESC LIMIT 1 OFFSET 10000")
    since = (time.time_ns() // 1000 - at) / 3.6e9
    return {
        "group": group[0],
        "batch": batch[0],
        "middle": middle[0][0],
        "job": job[0][0],
        "since": f"{since:.1f}",
    }


# -- how long it takes ---------------------------------------------------------------------------
def measure(place: World) -> dict[str, float]:
    place.start(
        retention__succeeded="315360000",
        retention__dead="315360000",
        retention__cancelled="315360000",
        retention__batches="315360000",
    )
    feeding = feeder(place)
    try:
        with start_web_client(place) as client:
            pages = paths(place)
            until(lambda: place.app.jobs.count("since:1m kind:noop state:succeeded") > 0, 60)
            for path in list(pages.values()) * 2:
                client.ask(path)
            figures = _measure_pages(place, client, pages)
            for name, (path, many) in STREAMS.items():
                figures |= _measure_with_streams(place, client, name, path, many)
            return figures
    finally:
        feeding.terminate()
        feeding.wait(10)


def _measure_pages(place: World, client: WebClient, pages: dict[str, str]) -> dict[str, float]:
    before, began = done(place), time.monotonic()
    found: dict[str, list[AnswerTimes]] = {name: [] for name in pages}
    for name, path in [*pages.items()] * ROUNDS:
        found[name].append(client.ask(path))
    rate = (done(place) - before) / (time.monotonic() - began)
    _table(found)
    figures = {
        f"{name}, {what}": value
        for name, answers in found.items()
        for what, value in _figures(answers).items()
    }
    barred = [found[name] for name in pages if name.partition(" ")[0] in BARRED]
    return {
        **figures,
        "overview, failures, job lists: worst p95, ms": max(
            _figures(answers)["p95, ms"] for answers in barred
        ),
        "jobs/s meanwhile": rate,
        "load average": os.getloadavg()[0],
    }


def _measure_with_streams(
    place: World, client: WebClient, name: str, path: str, many: int
) -> dict[str, float]:
    """Measure pages, list calls and database connections with many open streams."""
    pages = {
        "overview": "/",
        "jobs": "/jobs",
        "API jobs": "/api/v1/jobs",
        "API failures": "/api/v1/failures",
    }
    with open_streams(client, many, path) as streams:
        assert len(streams) == many
        found: dict[str, list[AnswerTimes]] = {what: [] for what in pages}
        connections = 0
        busy, began = client.busy(), time.monotonic()
        time.sleep(5)
        alone = (client.busy() - busy) / (time.monotonic() - began)
        for what, page in [*pages.items()] * ROUNDS:
            found[what].append(client.ask(page))
            connections = max(connections, len(client.backends()))
        print(
            f"  next to {many} {name}, which alone take {alone * 100:.1f} % of a core, {connections} connections"
        )
        _table(found)
        if is_postgres(place.app.store):
            assert connections <= DATABASE_CONNECTIONS + 2, connections  # plus two that listen
        waits = {
            f"{what} beside {name}, p95, ms": _figures(few)["p95, ms"]
            for what, few in found.items()
        }
        return {
            **waits,
            f"{name}, % of a core": alone * 100,
            f"connections beside {name}": float(connections),
        }


def _figures(answers: Sequence[AnswerTimes]) -> dict[str, float]:
    waits = [one.waited for one in answers]
    return {
        "p50, ms": statistics.median(waits),
        "p95, ms": _at(waits, 0.95),
        "p99, ms": _at(waits, 0.99),
        "CPU, ms": statistics.median(one.worked for one in answers),
    }


def _at(values: Sequence[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, round(share * len(ranked)))]


def _table(found: dict[str, list[AnswerTimes]]) -> None:
    print(f"  {'':<28}{'p50':>9}{'p95':>9}{'p99':>9}{'CPU':>9}   ms{'kB':>9}")
    for name, answers in found.items():
        p50, p95, p99, cpu = _figures(answers).values()
        print(
            f"  {name:<28}{p50:>9.1f}{p95:>9.1f}{p99:>9.1f}{cpu:>9.1f}{answers[-1].size / 1000:>14.1f}",
            flush=True,
        )
