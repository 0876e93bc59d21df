"""`app.events.follow`: events of the log and new ones, for any number of readers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

import pytest

from mulligan import Event, Fail, Policy
from mulligan.core.errors import Refused
from mulligan.events import follow as following
from mulligan.events.queries import EventQueries
from support.app_tools import advance
from support.waiting import until


@pytest.fixture
def app(make_app) -> Iterator:
    app = make_app()

    @app.job(name="works")
    def works() -> None: ...

    @app.job(name="fails", policy=Policy(max_retries=0))
    def fails() -> Fail:
        return Fail("X", final=True)

    yield app
    app.close()


class Reader:
    """Collects the events of one iteration on a thread."""

    def __init__(self, events: Iterator[Event]) -> None:
        self.events: list[Event] = []
        self.is_over = threading.Event()
        threading.Thread(target=self._run, args=(events,), daemon=True).start()

    def _run(self, events: Iterator[Event]) -> None:
        for event in events:
            self.events.append(event)
        self.is_over.set()

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]


def is_followed(app, followers: int = 1) -> bool:
    groups = app.events.followers._by_filter.values()
    return sum(len(group) for group in groups) == followers


LIFE = ["job.queued", "job.started", "job.succeeded"]


def test_events_arrive_as_they_happen_and_end_with_the_app(app):
    app.open()
    reader = Reader(app.events.follow("type:job.*"))
    until(lambda: is_followed(app), 10, "a follower")
    app.enqueue("works")
    app.run_inline()
    until(lambda: reader.types == LIFE, 10, "the events of the job")
    app.close()
    until(reader.is_over.is_set, 10, "the end of the iteration")


def test_a_filter_finds_every_event_of_a_kind_and_of_a_batch(app):
    batch = app.batch("spring")
    by_kind = Reader(app.events.follow("kind:works", after=0))
    by_batch = Reader(app.events.follow(f"batch:{batch.id} type:job.*", after=0))
    app.enqueue("works", batch=batch)
    app.enqueue("fails")
    app.run_inline()
    until(lambda: by_kind.types == LIFE, 10, "the events of the kind")
    until(lambda: by_batch.types == LIFE, 10, "the events of the batch")
    assert {event.data["kind"] for event in by_kind.events} == {"works"}


def test_an_iteration_continues_after_a_cursor(app):
    app.enqueue("works")
    app.run_inline()
    first = Reader(app.events.follow("kind:works", after=0))
    until(lambda: first.types == LIFE, 10, "the log")
    second = Reader(app.events.follow("kind:works", after=first.events[0].id))
    app.enqueue("works")
    app.run_inline()
    until(lambda: second.types == [*LIFE[1:], *LIFE], 10, "the rest of the log, then new events")
    numbers = [event.id for event in second.events]
    assert numbers == sorted(set(numbers))


def test_no_event_is_lost_or_repeated_while_a_slow_reader_falls_behind(app, monkeypatch):
    monkeypatch.setattr(following, "MAX_PENDING", 5)
    monkeypatch.setattr(following, "PAGE_SIZE", 7)
    slow = app.events.follow("kind:works", after=0)
    got: list[Event] = []
    for _ in range(4):
        for _ in range(10):
            app.enqueue("works")
        app.run_inline()
        got += [next(slow) for _ in range(20)]
        time.sleep(0.05)  # the pace of the reader, not a wait for anything
    got += [next(slow) for _ in range(40)]
    with app.store.read() as tx:
        logged = EventQueries(tx).list_events_after(0, 1000)
    expected = [event.id for event in logged if event.type in LIFE]
    assert [event.id for event in got] == expected
    slow.close()
    assert is_followed(app, 0)


def test_a_cursor_older_than_the_log_yields_a_gap_first(app):
    for _ in range(3):
        app.enqueue("works")
    app.run_inline()
    advance(app, 3600)
    with app.store.begin() as tx:
        now = tx.now()
        EventQueries(tx).prune_events(now - 1, 5)
        floor = EventQueries(tx).pruned_event_id()
    events = app.events.follow(after=1)
    gap = next(events)
    assert (gap.type, gap.id, gap.data["after"]) == ("gap", floor, 1)
    assert next(events).id > floor


def test_a_cursor_of_another_database_yields_a_gap_and_new_events(app):
    app.enqueue("works")
    events = app.events.follow(after=1_000_000)
    assert next(events).type == "gap"
    app.enqueue("works")
    assert next(events).type == "job.queued"


def test_a_heartbeat_follows_a_time_without_events(app):
    app.open()
    events = app.events.follow(heartbeat=0.05)
    assert [next(events).type for _ in range(3)] == ["heartbeat"] * 3
    app.enqueue("works")
    types = [next(events).type for _ in range(20)]
    assert "job.queued" in types


def test_one_reader_of_the_log_serves_all_followers_and_stops_with_the_last(app):
    app.open()
    readers = [app.events.follow(f"kind:{kind}", heartbeat=0.05) for kind in ("works", "fails")]
    for reader in readers:
        assert next(reader).type == "heartbeat"
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("mulligan-events-reader") == 1
    for reader in readers:
        reader.close()
    until(
        lambda: "mulligan-events-reader" not in [one.name for one in threading.enumerate()],
        10,
        "the end of the reader",
    )


def test_async_iterations_occupy_no_thread_while_they_wait(app):
    async def scenario() -> None:
        before = threading.active_count()
        found: list[list[str]] = [[] for _ in range(30)]

        async def collect(types: list[str]) -> None:
            async for event in app.aio.events.follow("kind:works", after=0):
                types.append(event.type)

        tasks = [asyncio.create_task(collect(types)) for types in found]
        await asyncio.to_thread(until, lambda: is_followed(app, 30), 10, "30 followers")
        await asyncio.to_thread(app.enqueue, "works")
        await asyncio.to_thread(app.run_inline)
        await asyncio.to_thread(until, lambda: found == [LIFE] * 30, 10, "the events of the job")
        assert threading.active_count() < before + 25
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert is_followed(app, 0)

    asyncio.run(scenario())


def test_events_of_internal_jobs_are_not_followed(app):
    events = app.events.follow("type:job.*", after=0)
    app.enqueue("mulligan.deliver", {"subscription": "none", "message": {}})
    app.enqueue("works")
    assert next(events).data["kind"] == "works"


def test_an_invalid_filter_is_refused_at_once(app):
    with pytest.raises(Refused, match="unknown field"):
        app.events.follow("colour:red")


def test_a_closed_event_loop_does_not_disturb_other_followers(app):
    app.open()
    reader = Reader(app.events.follow("type:job.*"))

    async def leave() -> None:
        iteration = app.aio.events.follow(heartbeat=0.01)
        await anext(aiter(iteration))
        iterations.append(iteration)

    iterations: list = []
    with contextlib.suppress(RuntimeError):
        asyncio.run(leave())
    app.enqueue("works")
    until(lambda: reader.types == ["job.queued"], 10, "the event")
