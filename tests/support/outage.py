"""Outage tests: a gateway, three real workers, other traffic, and checks of what happened."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from mulligan import Mulligan, State
from mulligan.config import read_settings
from mulligan.core.durations import SECOND
from mulligan.core.event import Event
from mulligan.core.job import Job
from mulligan.events.queries import EventQueries
from support import gateway_app
from support import outage_chart as chart
from support.gateway import (
    CLIENT_GONE,
    OK,
    Call,
    Gateway,
    Mode,
    bad_periods,
    busiest_second,
    most_in_flight,
)
from support.waiting import until
from support.worker import FAST, Worker

WORKERS = 3
CONCURRENCY = 10
IN_FLIGHT = WORKERS * CONCURRENCY
WINDOW = 1000


@dataclass(frozen=True)
class OutageScenario:
    """Parameters of an outage test."""

    capacity: int = 60  # requests per second that the gateway can serve
    request_seconds: float = 0.02  # seconds per request
    client_timeout: float = 2.0  # seconds a client waits
    declared: Mapping[str, Any] | None = None  # options of the dependency; None: defaults
    has_health_check: bool = False
    settings: Mapping[str, str] | None = None

    @property
    def cool_down(self) -> float:
        return float((self.declared or {}).get("cool_down", 30))

    def max_cool_down(self, outage: float) -> float:
        """Return the longest cool-down after an outage of this length."""
        return max(self.cool_down, outage / 2)


class SteadyProducer:
    """Enqueues jobs at a constant rate from a thread until it is stopped."""

    def __init__(self, enqueue: Callable[[], Job], rate: float) -> None:
        self.ids: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(enqueue, rate))
        self._thread.start()

    def _run(self, enqueue: Callable[[], Job], rate: float) -> None:
        began = time.monotonic()
        while not self._stop.wait(max(0.0, began + len(self.ids) / rate - time.monotonic())):
            self.ids.append(enqueue().id)

    def stop(self) -> list[str]:
        self._stop.set()
        self._thread.join()
        return self.ids


class OutageStage:
    """Gateway, store and workers of one test."""

    def __init__(self, url: str, folder: Path, world: OutageScenario, gateway: Gateway) -> None:
        self.world = world
        self.gateway = gateway
        self.app: Mulligan = gateway_app.app
        self.workers: list[Worker] = []
        self.calls: list[str] = []
        self._url = url
        self._folder = folder
        self._others: SteadyProducer | None = None
        self._events: list[Event] = []
        self._cursor = 0
        self._since_epoch = time.time() - time.monotonic()

    # -- actors ----------------------------------------------------------------------------------
    def start_workers(self, count: int = WORKERS) -> None:
        environ = {
            gateway_app.GATEWAY_URL: self.gateway.url,
            gateway_app.PATIENCE: str(self.world.client_timeout),
        }
        environ[gateway_app.DECLARED] = json.dumps(dict(self.world.declared or {}))
        if self.world.has_health_check:
            environ[gateway_app.PROBED] = "yes"
        settings = {"worker__concurrency": str(CONCURRENCY), **(self.world.settings or {})}
        for _ in range(count):
            app = "support.gateway_app:app"
            self.workers.append(
                Worker(self._url, self._folder, app=app, environ=environ, **settings)
            )
        for worker in self.workers[-count:]:
            worker.ready()

    def call(self, count: int) -> list[str]:
        ids = [job.id for job in gateway_app.call.enqueue_many([{} for _ in range(count)])]
        self.calls += ids
        return ids

    def call_steadily(self, rate: float) -> SteadyProducer:
        return SteadyProducer(gateway_app.call.enqueue, rate)

    def start_other_jobs(self, rate: float = 5.0) -> None:
        """Start to enqueue jobs without a dependency, at a constant rate."""
        self._others = SteadyProducer(gateway_app.other.enqueue, rate)

    # -- times -----------------------------------------------------------------------------------
    def pass_time(self, seconds: float) -> None:
        """Wait for the duration of an outage."""
        end = time.monotonic() + seconds
        until(lambda: time.monotonic() > end, seconds + 5)

    def events(self, kind: str = "dependency.") -> list[Event]:
        """Return the events of dependencies, in order."""
        with self.app.store.read() as tx:
            while new := EventQueries(tx).list_events_after(self._cursor, WINDOW):
                self._cursor = new[-1].id
                self._events += [event for event in new if event.type.startswith("dependency.")]
        return [event for event in self._events if event.type.startswith(kind)]

    def event_time(self, event: Event) -> float:
        """Return the time of an event on the clock of the gateway."""
        return event.at / SECOND - self._since_epoch

    def wait_opened(self, timeout: float = 10.0) -> float:
        """Wait until the breaker opens for the first time and return when."""
        return self.event_time(
            until(lambda: self.events("dependency.opened"), timeout, "the breaker opens")[0]
        )

    def wait_closed(self, timeout: float) -> None:
        until(
            lambda: self.open_periods() and self.open_periods()[-1][1] < inf,
            timeout,
            "the breaker closes",
        )

    def open_periods(self) -> list[tuple[float, float]]:
        """Return the periods in which the breaker was open; inf: it still is."""
        found: list[tuple[float, float]] = []
        for event in self.events():
            is_open = bool(found) and found[-1][1] == inf
            if event.type == "dependency.opened" and not is_open:
                found.append((self.event_time(event), inf))
            elif event.type == "dependency.closed" and is_open:
                found[-1] = (found[-1][0], self.event_time(event))
        return found

    def wait_ended(self, ids: Sequence[str], timeout: float) -> list[Job]:
        """Wait until all jobs have ended and return them."""
        deadline = time.monotonic() + timeout
        return [
            self.app.jobs.wait(job_id, max(0.05, deadline - time.monotonic())) for job_id in ids
        ]

    def report(self, timeout: float) -> OutageReport:
        """Wait until all jobs have ended and return what happened."""
        jobs = self.wait_ended(self.calls, timeout)
        others = [] if self._others is None else self.wait_ended(self._others.stop(), 10)
        return OutageReport(
            self.world,
            self.gateway.calls(),
            self.gateway.modes(),
            self.open_periods(),
            jobs,
            others,
            [self.event_time(event) for event in self.events("dependency.probing")],
        )

    def stop(self) -> None:
        if self._others is not None:
            self._others.stop()
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.kill()


@contextmanager
def open_stage(url: str, folder: Path, world: OutageScenario) -> Iterator[OutageStage]:
    environ = {**FAST, "MULLIGAN_DATABASE_URL": url}
    with ExitStack() as stack:
        stack.enter_context(
            gateway_app.app.redirected(read_settings(environ=environ, file=folder / "none.toml"))
        )
        gateway = Gateway(capacity=world.capacity, takes=world.request_seconds)
        stack.callback(gateway.close)
        made = OutageStage(url, folder, world, gateway)
        stack.callback(made.stop)
        yield made


@dataclass(frozen=True)
class OutageReport:
    """Record of an outage, and checks that must pass."""

    world: OutageScenario
    calls: list[Call]
    modes: list[Mode]
    open_periods: list[tuple[float, float]]
    jobs: list[Job]
    others: list[Job]
    probes: list[float]  # when each began

    def check_all(
        self, *, grace: float = 1.0, slack: float = 2.0, margin: int = 5, others: float = 1.0
    ) -> None:
        """Run all checks for one outage."""
        self.check_all_succeeded()
        self.check_served_once()
        self.check_charged_at_most_once(margin)
        self.check_not_overloaded(margin)
        self.check_one_probe_at_a_time(grace)
        self.check_one_probe_per_cool_down()
        self.check_closed_soon(slack)
        self.check_rate_after_closing()
        self.check_other_jobs_ran_at_once(others)

    def check_all_succeeded(self) -> None:
        ends = {
            job.id: (job.state, job.error) for job in self.jobs if job.state is not State.SUCCEEDED
        }
        assert not ends, (
            f"{len(ends)} of {len(self.jobs)} did not succeed: {list(ends.items())[:3]}"
        )

    def check_served_once(self) -> None:
        """Check that the gateway answered each job at most once with success."""
        served = [call.tag for call in self.calls if call.status == 200 and call.tag != "probe"]
        assert len(served) == len(set(served)), "some were served twice"

    def check_charged_at_most_once(self, margin: int = 0) -> None:
        """Check that only jobs in flight were charged, each at most one failure."""
        charges = self._charges()
        charged = sum(count > 0 for count in charges)
        assert max(charges) <= 1, f"a job was charged {max(charges)} times; {charged} were charged"
        assert charged <= IN_FLIGHT + margin, (
            f"{charged} jobs were charged, {IN_FLIGHT} were in flight"
        )

    def check_not_overloaded(self, most: int) -> None:
        """Check that at most `most` requests exceeded the capacity of the healthy gateway."""
        refused = sum(self._overruns().values())
        assert refused <= most, f"{refused} requests were above the gateway's capacity"

    def check_charged_once_per_opening(self, margin: int = 0) -> None:
        charges = sum(self._charges())
        assert charges <= IN_FLIGHT * len(self.open_periods) + margin, (
            f"{charges} failures in {len(self.open_periods)} openings"
        )

    def _charges(self) -> list[int]:
        """Return the failures of each job without those of an overloaded healthy gateway."""
        busy = self._overruns()
        return [max(0, job.failures - busy[job.id]) for job in self.jobs]

    def _overruns(self) -> Counter[str]:
        bad = bad_periods(self.modes, time.monotonic())
        refused = [call for call in self.calls if call.status == 503]
        return Counter(
            call.tag for call in refused if not any(a <= call.began < b for a, b, _ in bad)
        )

    def check_one_probe_at_a_time(self, grace: float) -> None:
        """Check the requests while open, `grace` seconds after opening: running ones may end."""
        assert self.open_periods, "the breaker never opened"
        for opened, closed in self.open_periods:
            most = (
                most_in_flight(self.calls, opened + grace, closed) if closed > opened + grace else 0
            )
            assert most <= 1, (
                f"{most} requests at once while the breaker was open, {grace} s after it opened"
            )

    def check_one_probe_per_cool_down(self) -> None:
        """Check the probes until the recovery: a cool-down is drawn from its second half."""
        recovered = [mode.since for mode in self.modes if mode.name == OK][-1]
        failed = [began for began in self.probes if began < recovered]
        shortest = min((b - a for a, b in pairwise(failed)), default=inf)
        assert shortest >= self.world.cool_down / 2, f"two probes within {shortest:.2f} s"

    def check_closed_soon(self, slack: float) -> None:
        """Check that the breaker closed within one cool-down after the last recovery."""
        assert self.open_periods, "the breaker never opened"
        assert self.open_periods[-1][1] < inf, "the breaker is still open"
        recovered = [mode.since for mode in self.modes if mode.name == OK][-1]
        for opened, closed in self.open_periods:
            cool_down = self.world.max_cool_down(recovered - opened)
            if opened <= recovered <= closed:
                late = closed - recovered
                assert late <= cool_down + slack, (
                    f"{late:.1f} s after recovery; a cool-down is {cool_down:.0f} s"
                )

    def check_rate_after_closing(self) -> None:
        """Check that no second after closing exceeds 1.5 times the capacity."""
        closed = self.open_periods[-1][1]
        most = busiest_second(self.calls, closed, inf)
        allowed = 1.5 * self.world.capacity
        assert most <= allowed, (
            f"{most} requests in one second after closing; capacity {self.world.capacity}/s"
        )

    def check_other_jobs_ran_at_once(self, within: float) -> None:
        assert self.others, "no other jobs were enqueued"
        waits = sorted(_duration(job) for job in self.others)
        late = [wait for wait in waits if wait > within]
        share = (
            f"{len(late)} of {len(waits)} other jobs were late; the last after {waits[-1]:.1f} s"
        )
        assert waits[int(len(waits) * 0.95)] <= within, share
        assert waits[-1] <= within + 1.5, share

    def summary(self) -> dict[str, Any]:
        """Return the numbers of the outage for a person."""
        answered = [call for call in self.calls if call.status != CLIENT_GONE]
        return {
            "succeeded": sum(job.state is State.SUCCEEDED for job in self.jobs),
            "dead": sum(job.state is State.DEAD for job in self.jobs),
            "charged": sum(job.failures > 0 for job in self.jobs),
            "failures": sum(job.failures for job in self.jobs),
            "above capacity": sum(self._overruns().values()),
            "requests": len(self.calls),
            "answered badly": sum(call.status != 200 for call in answered),
            "openings": len(self.open_periods),
            "busiest second": busiest_second(self.calls, 0, inf),
            "other jobs, slowest": max((_duration(job) for job in self.others), default=0.0),
        }

    def draw(self, folder: Path, title: str) -> Path:
        """Draw the chart and print the summary."""
        opens = [(opened, min(closed, time.monotonic())) for opened, closed in self.open_periods]
        path = chart.draw_outage(
            folder / "outage.svg", self.calls, self.modes, opens, self.world.capacity, title
        )
        lines = [
            f"\n{title}: {path}",
            *(f"  {name}: {value}" for name, value in self.summary().items()),
        ]
        print(*lines, sep="\n")  # noqa: T201 - for a person who looks
        return path


def _duration(job: Job) -> float:
    assert job.finished_at is not None
    return (job.finished_at - job.created_at).total_seconds()
