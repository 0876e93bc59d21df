"""`mulligan demo`: soon every screen has something true on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mulligan import Mulligan, testing
from mulligan.core.errors import MulliganError
from mulligan.events.queries import EventQueries
from support.waiting import until

pytestmark = pytest.mark.processes

PATIENCE = (
    120.0  # seconds, for a machine that has other things to do; an idle one needs less than thirty
)

EXPECTED: dict[str, Callable[[Mulligan], Any]] = {
    "a flaky job recovered": lambda app: any(
        job.failures for job in app.jobs.list("kind:send_receipt state:succeeded", limit=200)
    ),
    "one failed for good": lambda app: _died(app, "PROGRAMMING_ERROR"),
    "one took too long": lambda app: _died(app, "TIMEOUT"),
    "one was killed": lambda app: _attempt(app, "kind:convert_raw", "PROCESS_DIED"),
    "one was rate limited": lambda app: _attempt(app, "kind:translate", "RATE_LIMITED"),
    "one waits for a person": lambda app: app.jobs.list("state:parked"),
    "a breaker opened": lambda app: _happened(app, "dependency.opened", "gateway"),
    "and closed": lambda app: _happened(app, "dependency.closed", "gateway"),
    "a batch is ready": lambda app: app.batches.list(state="ready"),
    "a batch is partial": lambda app: app.batches.list(state="partial"),
    "a batch recovered": lambda app: _happened(app, "batch.recovered"),
    "an operation finished": lambda app: any(
        one.state == "finished" for one in app.operations.list()
    ),
    "an operation stopped by itself": lambda app: any(
        one.state == "stopped" for one in app.operations.list()
    ),
    "there are schedules": lambda app: len(app.schedules.list()) == 2,
    "an alert fired": lambda app: _happened(app, "alert.fired"),
    "a message was delivered": lambda app: app.deliveries.list(state="succeeded"),
    "a message was refused at first": lambda app: any(
        one.failures for one in app.deliveries.list(limit=200)
    ),
    "a message was given up": lambda app: app.deliveries.list(state="dead"),
    "people did things": lambda app: (
        {"queue.paused", "kind.held", "job.cancelled", "job.retried", "dependency.changed"}
        <= {event.type for event in app.events.list(limit=200)}
    ),
    "a shadow rule matched": lambda app: any(
        "feed-not-there" in (one.judged or "")
        for job in app.jobs.list("kind:parse_feed")
        for one in app.jobs.attempts(job.id)
    ),
}


def _died(app: Mulligan, code: str) -> Any:
    return app.jobs.list(f"state:dead code:{code}")


def _attempt(app: Mulligan, filter: str, code: str) -> bool:  # noqa: A002 - as everywhere
    return any(
        one.code == code for job in app.jobs.list(filter) for one in app.jobs.attempts(job.id)
    )


def _happened(app: Mulligan, type_: str, dependency: str = "") -> bool:
    with app.store.read() as tx:
        events = EventQueries(tx).list_events_after(0, 20_000)
    return any(
        one.type == type_ and dependency in ("", one.data.get("dependency")) for one in events
    )


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE + 60)
def test_the_demo_shows_every_outcome_within_half_a_minute(start, store_url):
    demo = start("demo", "--port", "0", "--seconds", "120", "--database", store_url)
    demo.wait_for_output("http://", PATIENCE / 2)
    missing = dict(EXPECTED)

    def all_present() -> bool:
        for name, check in list(missing.items()):
            try:
                if check(app):
                    del missing[name]
            except MulliganError:
                continue
        return not missing

    with closing(Mulligan(store_url)) as app, suppress(AssertionError):
        until(all_present, PATIENCE)
    assert list(missing) == []
    assert demo.stop().code == 0


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE + 60)
def test_the_demo_begins_with_a_day_of_history(tmp_path):
    url = f"sqlite:///{tmp_path}/demo.db"
    command = [sys.executable, "-m", "mulligan.cli.demo_feeder", "history"]
    done = subprocess.run(
        command,
        env={**os.environ, "MULLIGAN_DATABASE_URL": url},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    with closing(Mulligan(url)) as app:
        oldest = app.jobs.list("", limit=1000)[-1]
        causes = {group.code: group.state for group in app.failures.groups(history=True)}
        insight = app.insight(timedelta(days=2))
        clock = testing.now(app)
        held = [kind.name for kind in app.kinds.list() if kind.held]

    assert (done.stdout, done.stderr) == ("", "")
    assert abs(datetime.now(UTC) - clock) < timedelta(seconds=30)
    assert datetime.now(UTC) - oldest.created_at > timedelta(hours=5)
    assert {"BAD_FILE", "PROGRAMMING_ERROR"} <= causes.keys()
    assert held == []
    assert insight.numbers.retry_success.whole > 50
