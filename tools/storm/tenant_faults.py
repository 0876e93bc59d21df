"""Faults of users: one tenant asks for too much, and results are as large as they may be."""

from __future__ import annotations

import contextlib
import time
from http.client import HTTPConnection, HTTPException
from random import Random
from typing import Any

from storm.faults import NotPossibleNow, fault
from storm.world import World

from mulligan.core.errors import MulliganError
from mulligan.doctor.verify.records import Clients

TENANT = "globex"
LANES = 300
STREAMS = 100
LARGE_RESULTS = 12


@fault(0.7, group="tenant")
def flood_lanes(world: World, rng: Random) -> None:
    """One owner enqueues into 300 queues at once; half of the floods are due 5 seconds later."""
    delay = rng.choice((0, 5))
    numbers = range(rng.randrange(10**9), 10**10)[:LANES]
    jobs = [
        ({"n": n}, {"queue": f"flood-{i}", "delay": delay, "owner": TENANT})
        for i, n in enumerate(numbers)
    ]
    _enqueue_many(world, "plain", jobs)


@fault(0.7, group="streams")
def flood_streams(world: World, rng: Random) -> None:
    """One owner opens 100 streams that ask for all events since the beginning, and reads none."""
    connections = [HTTPConnection("127.0.0.1", world.port, timeout=5) for _ in range(STREAMS)]
    headers = {"Authorization": f"Bearer {world.tenant_key}", "Last-Event-ID": "0"}
    try:
        for connection in connections:
            with contextlib.suppress(OSError, HTTPException):  # the web server may be down just now
                connection.request("GET", "/api/v1/events", headers=headers)
        time.sleep(rng.uniform(1, 5))
    finally:
        for connection in connections:
            connection.close()


@fault(0.4, group="results")
def large_results(world: World, rng: Random) -> None:
    """Twelve jobs that return almost 1 MB each end at about the same time."""
    numbers = range(rng.randrange(10**9), 10**10)[:LARGE_RESULTS]
    _enqueue_many(world, "large", [({"n": n}, {"priority": -5}) for n in numbers])


def _enqueue_many(
    world: World, kind: str, jobs: list[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    """Enqueue in one call, and record it as a client does. The database may be down just now."""
    records = Clients(world.folder / "clients.jsonl", "tenant")
    try:
        app = world.open_app()
    except MulliganError as error:  # down, or `open_snapshot` has the file open in this process
        raise NotPossibleNow from error
    try:
        with (
            contextlib.suppress(MulliganError, OSError),
            records.call(
                "enqueue_many", kind=kind, payloads=[payload for payload, _ in jobs]
            ) as call,
        ):
            new = [app.build_job(kind, payload, **options) for payload, options in jobs]
            call.ok(*app.insert(new))
    finally:
        app.close()
