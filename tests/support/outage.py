"""The stage for an outage: a gateway, three real workers, traffic beside it; and what may be asked afterwards."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from mulligan import Mulligan, State
from mulligan.config import read_settings
from mulligan.core.event import Event
from mulligan.core.job import SECOND, Job
from support import calling, chart
from support.gateway import GONE, OK, Call, Gateway, Mode, busiest_second, most_in_flight, spans
from support.waiting import until
from support.worker import FAST, Worker

WORKERS = 3
CONCURRENCY = 10
IN_FLIGHT = WORKERS * CONCURRENCY
WINDOW = 1000


@dataclass(frozen=True)
class World:
    """What is known beforehand."""

    capacity: int = 60  # requests per second that the gateway can serve
    takes: float = 0.02  # seconds per request
    patience: float = 2.0  # seconds a client waits
    declared: Mapping[str, Any] | None = None  # of the dependency; None: nothing, the defaults hold
    probed: bool = False
    settings: Mapping[str, str] | None = None

    @property
    def cool_down(self) -> float:
        return float((self.declared or {}).get("cool_down", 30))

    def next_look(self, outage: float) -> float:
        """The longest cool-down there may be at the end of an outage of this length."""
        return max(self.cool_down, outage / 2)


class Steady:
    """Enqueues at an even pace from a thread, until it is told to stop."""

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


class Stage:
    """One test's gateway, store and workers."""

    def __init__(self, url: str, folder: Path, world: World, gateway: Gateway) -> None:
        self.world = world
        self.gateway = gateway
        self.app: Mulligan = calling.app
        self.workers: list[Worker] = []
        self.calls: list[str] = []
        self._url = url
        self._folder = folder
        self._others: Steady | None = None
        self._events: list[Event] = []
        self._cursor = 0
        self._since_epoch = time.time() - time.monotonic()

    # -- who does what ----------------------------------------------------------------------------
    def hire(self, count: int = WORKERS) -> None:
        environ = {
            calling.GATEWAY_URL: self.gateway.url,
            calling.PATIENCE: str(self.world.patience),
        }
        environ[calling.DECLARED] = json.dumps(dict(self.world.declared or {}))
        if self.world.probed:
            environ[calling.PROBED] = "yes"
        settings = {"worker__concurrency": str(CONCURRENCY), **(self.world.settings or {})}
        for _ in range(count):
            app = "support.calling:app"
            self.workers.append(
                Worker(self._url, self._folder, app=app, environ=environ, **settings)
            )
        for worker in self.workers[-count:]:
            worker.ready()

    def call(self, count: int) -> list[str]:
        ids = [job.id for job in calling.call.enqueue_many([{} for _ in range(count)])]
        self.calls += ids
        return ids

    def call_steadily(self, rate: float) -> Steady:
        return Steady(calling.call.enqueue, rate)

    def others_begin(self, rate: float = 5.0) -> None:
        """Jobs that use nothing, all the time."""
        self._others = Steady(calling.other.enqueue, rate)

    # -- moments ----------------------------------------------------------------------------------
    def pass_time(self, seconds: float) -> None:
        """The scenario's own time: an outage has a length."""
        end = time.monotonic() + seconds
        until(lambda: time.monotonic() > end, seconds + 5)

    def events(self, kind: str = "dependency.") -> list[Event]:
        """Those of the guards, in order."""
        with self.app.store.read() as unit:
            while new := unit.events_after(self._cursor, WINDOW):
                self._cursor = new[-1].id
                self._events += [event for event in new if event.type.startswith("dependency.")]
        return [event for event in self._events if event.type.startswith(kind)]

    def moment(self, event: Event) -> float:
        """By the clock of the gateway."""
        return event.at / SECOND - self._since_epoch

    def opened(self, timeout: float = 10.0) -> float:
        """The moment at which the breaker opened for the first time."""
        return self.moment(
            until(lambda: self.events("dependency.opened"), timeout, "the breaker opens")[0]
        )

    def wait_closed(self, timeout: float) -> None:
        until(lambda: self.opens() and self.opens()[-1][1] < inf, timeout, "the breaker closes")

    def opens(self) -> list[tuple[float, float]]:
        """From when to when the breaker was open; inf: it still is."""
        found: list[tuple[float, float]] = []
        for event in self.events():
            is_open = bool(found) and found[-1][1] == inf
            if event.type == "dependency.opened" and not is_open:
                found.append((self.moment(event), inf))
            elif event.type == "dependency.closed" and is_open:
                found[-1] = (found[-1][0], self.moment(event))
        return found

    def ended(self, ids: Sequence[str], timeout: float) -> list[Job]:
        """Each of them, once all have come to an end."""
        deadline = time.monotonic() + timeout
        return [
            self.app.jobs.wait(job_id, max(0.05, deadline - time.monotonic())) for job_id in ids
        ]

    def story(self, timeout: float) -> Story:
        """Wait until everything has ended, then tell."""
        jobs = self.ended(self.calls, timeout)
        others = [] if self._others is None else self.ended(self._others.stop(), 10)
        return Story(
            self.world, self.gateway.calls(), self.gateway.modes(), self.opens(), jobs, others
        )

    def leave(self) -> None:
        if self._others is not None:
            self._others.stop()
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.kill()


@contextmanager
def stage(url: str, folder: Path, world: World) -> Iterator[Stage]:
    environ = {**FAST, "MULLIGAN_DATABASE_URL": url}
    with ExitStack() as stack:
        stack.enter_context(
            calling.app.redirected(read_settings(environ=environ, file=folder / "none.toml"))
        )
        gateway = Gateway(capacity=world.capacity, takes=world.takes)
        stack.callback(gateway.close)
        made = Stage(url, folder, world, gateway)
        stack.callback(made.leave)
        yield made


@dataclass(frozen=True)
class Story:
    """What happened, and the sentences that must be true of it."""

    world: World
    calls: list[Call]
    modes: list[Mode]
    opens: list[tuple[float, float]]
    jobs: list[Job]
    others: list[Job]

    def line_was_held(
        self, *, grace: float = 1.0, slack: float = 2.0, margin: int = 5, others: float = 1.0
    ) -> None:
        """The whole promise, for one outage."""
        self.all_succeeded()
        self.each_was_served_once()
        self.nobody_paid_twice(margin)
        self.was_not_overrun(margin)
        self.one_at_a_time_while_open(grace)
        self.closed_soon(slack)
        self.never_too_fast()
        self.others_ran_at_once(others)

    def all_succeeded(self) -> None:
        ends = {
            job.id: (job.state, job.error) for job in self.jobs if job.state is not State.SUCCEEDED
        }
        assert not ends, (
            f"{len(ends)} of {len(self.jobs)} did not succeed: {list(ends.items())[:3]}"
        )

    def each_was_served_once(self) -> None:
        """The gateway's own count: whom it has answered well is not asked for again."""
        served = [call.tag for call in self.calls if call.status == 200 and call.tag != "probe"]
        assert len(served) == len(set(served)), "some were served twice"

    def nobody_paid_twice(self, margin: int = 0) -> None:
        """An outage costs those in flight one failure at most, and nobody else anything."""
        paid = self._paid()
        charged = sum(count > 0 for count in paid)
        assert max(paid) <= 1, f"a job was charged {max(paid)} times; {charged} were charged"
        assert charged <= IN_FLIGHT + margin, (
            f"{charged} jobs were charged, {IN_FLIGHT} were in flight"
        )

    def was_not_overrun(self, most: int) -> None:
        """So many may find out how much the gateway can serve when it is well."""
        refused = sum(self._overruns().values())
        assert refused <= most, f"{refused} requests were above the gateway's capacity"

    def paid_at_most_once_per_opening(self, margin: int = 0) -> None:
        charges = sum(self._paid())
        assert charges <= IN_FLIGHT * len(self.opens) + margin, (
            f"{charges} failures in {len(self.opens)} openings"
        )

    def _paid(self) -> list[int]:
        """What the outage has cost each job: its failures, but for those of a gateway that was well and too busy."""
        busy = self._overruns()
        return [max(0, job.failures - busy[job.id]) for job in self.jobs]

    def _overruns(self) -> Counter[str]:
        bad = spans(self.modes, time.monotonic())
        refused = [call for call in self.calls if call.status == 503]
        return Counter(
            call.tag for call in refused if not any(a <= call.began < b for a, b, _ in bad)
        )

    def one_at_a_time_while_open(self, grace: float) -> None:
        """`grace`: what was in flight at the opening may end."""
        assert self.opens, "the breaker never opened"
        for opened, closed in self.opens:
            most = (
                most_in_flight(self.calls, opened + grace, closed) if closed > opened + grace else 0
            )
            assert most <= 1, (
                f"{most} requests at once while the breaker was open, {grace} s after it opened"
            )

    def closed_soon(self, slack: float) -> None:
        """Within one cool-down of the gateway's last recovery, and for good."""
        assert self.opens, "the breaker never opened"
        assert self.opens[-1][1] < inf, "the breaker is still open"
        recovered = [mode.since for mode in self.modes if mode.name == OK][-1]
        for opened, closed in self.opens:
            cool_down = self.world.next_look(recovered - opened)
            if opened <= recovered <= closed:
                late = closed - recovered
                assert late <= cool_down + slack, (
                    f"{late:.1f} s after recovery; a cool-down is {cool_down:.0f} s"
                )

    def never_too_fast(self) -> None:
        """Once it has closed, no second above 1.5 times what the gateway can serve."""
        closed = self.opens[-1][1]
        most = busiest_second(self.calls, closed, inf)
        allowed = 1.5 * self.world.capacity
        assert most <= allowed, (
            f"{most} requests in one second after closing; capacity {self.world.capacity}/s"
        )

    def others_ran_at_once(self, within: float) -> None:
        assert self.others, "nothing was enqueued beside"
        waits = sorted(_took(job) for job in self.others)
        late = [wait for wait in waits if wait > within]
        share = (
            f"{len(late)} of {len(waits)} other jobs were late; the last after {waits[-1]:.1f} s"
        )
        assert waits[int(len(waits) * 0.95)] <= within, share
        assert waits[-1] <= within + 1.5, share

    def facts(self) -> dict[str, Any]:
        """For people."""
        asked = [call for call in self.calls if call.status != GONE]
        return {
            "succeeded": sum(job.state is State.SUCCEEDED for job in self.jobs),
            "dead": sum(job.state is State.DEAD for job in self.jobs),
            "charged": sum(job.failures > 0 for job in self.jobs),
            "failures": sum(job.failures for job in self.jobs),
            "above capacity": sum(self._overruns().values()),
            "requests": len(self.calls),
            "answered badly": sum(call.status != 200 for call in asked),
            "openings": len(self.opens),
            "busiest second": busiest_second(self.calls, 0, inf),
            "other jobs, slowest": max((_took(job) for job in self.others), default=0.0),
        }

    def draw(self, folder: Path, title: str) -> Path:
        """The picture, and the facts below one another."""
        opens = [(opened, min(closed, time.monotonic())) for opened, closed in self.opens]
        path = chart.draw(
            folder / "outage.svg", self.calls, self.modes, opens, self.world.capacity, title
        )
        lines = [
            f"\n{title}: {path}",
            *(f"  {name}: {value}" for name, value in self.facts().items()),
        ]
        print(*lines, sep="\n")  # noqa: T201 - for a person who looks
        return path


def _took(job: Job) -> float:
    assert job.finished_at is not None
    return (job.finished_at - job.created_at).total_seconds()
