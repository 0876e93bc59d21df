"""The side writer of endings: writes during a transaction, loses no ending, frees no slot too early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from faults.loop_harness import Scene, StoreFault
from mulligan.core.attempt import Ended, Ending, Lease, Outcome
from mulligan.storage import Store
from mulligan.worker.fast import loop as side_writer
from support.builders import make_lease
from support.store import FAILED, RETURNED, all_rows, enqueue, event_types, migrated

pytestmark = pytest.mark.processes

MIN_BATCH = 5
SHORT = 1  # ms
RELEASED = Outcome(Ended.RELEASED, reason="released")


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with migrated(store_url) as opened:
        yield opened


@pytest.fixture(autouse=True)
def small_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_writer, "MIN_BATCH", MIN_BATCH)
    monkeypatch.setattr(
        side_writer, "SLOW_AFTER", 60.0
    )  # a slow machine must not change which thread writes


def states(store: Store) -> list[str]:
    return sorted(row.state for row in all_rows(store))


class SlowTransaction:
    """Transaction of the loop that waits until `may_continue` is set."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running, self.may_continue = threading.Event(), threading.Event()
        settle_and_claim = scene.transactions.settle_and_claim

        def slow(*arguments: Any, **options: Any) -> Any:
            self.running.set()
            assert self.may_continue.wait(30)
            return settle_and_claim(*arguments, **options)

        self.begin = lambda: monkeypatch.setattr(scene.transactions, "settle_and_claim", slow)


async def start_jobs(scene: Scene, count: int) -> list[Lease]:
    enqueue(scene.store, count)
    await scene.hint()
    await scene.until(lambda: scene.runners.count == count)
    return scene.runners.leases


def end_short(scene: Scene, leases: list[Lease], outcome: Outcome = RETURNED) -> None:
    """Report the end of jobs that took a millisecond."""
    scene.runners.end(leases, outcome, SHORT)


def test_short_jobs_that_returned_are_written_while_a_transaction_runs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, concurrency=20, side_writer=True)
    slow = SlowTransaction(scene, monkeypatch)

    async def act(scene: Scene) -> None:
        leases = await start_jobs(scene, 12)
        slow.begin()
        end_short(scene, leases[:1])
        await scene.until(slow.running.is_set)
        end_short(scene, leases[1:11])
        await scene.until(lambda: states(store).count("succeeded") == 10)
        assert not slow.may_continue.is_set()
        end_short(scene, leases[11:])  # too few for a write of their own
        slow.may_continue.set()
        await scene.until(lambda: scene.loop.all_written)
        assert states(store) == ["succeeded"] * 12
        assert all(
            event_types(store, lease.id) == ["queued", "started", "succeeded"] for lease in leases
        )

    scene.play(act)


class BlockedSideWriter:
    """Block the side writer, as a held lock does. Record how many endings each write has."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_write, self.calls, self.written = threading.Event(), 0, list[int]()
        finish = scene.transactions.settle_simple

        def slow(endings: list[Ending], *arguments: Any) -> None:
            self.calls += 1
            assert self.may_write.wait(30)
            self.written.append(len(endings))
            finish(endings, *arguments)

        monkeypatch.setattr(scene.transactions, "settle_simple", slow)


def record_transactions(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Record how many endings each transaction writes and how many jobs it may claim."""
    recorded: list[tuple[int, int]] = []

    def take(endings: list[Ending], free: int, *arguments: Any, **options: Any) -> Any:
        recorded.append((len(endings), free))
        return type(scene.transactions).settle_and_claim(
            scene.transactions, endings, free, *arguments, **options
        )

    monkeypatch.setattr(scene.transactions, "settle_and_claim", take)
    return recorded


def test_the_loop_claims_while_the_side_writer_settles_short_jobs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, concurrency=20, side_writer=True)

    async def act(scene: Scene) -> None:
        leases = await start_jobs(scene, 12)
        blocked, transactions = (
            BlockedSideWriter(scene, monkeypatch),
            record_transactions(scene, monkeypatch),
        )
        end_short(scene, leases)
        await scene.until(lambda: transactions)
        assert transactions == [(0, 8)]  # endings that are not durable yet hold their slots
        blocked.may_write.set()
        await scene.until(lambda: scene.loop.all_written)
        assert states(store) == ["succeeded"] * 12

    scene.play(act)


def test_endings_that_arrive_during_a_write_wait_for_the_next_write_and_delay_no_claim(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, concurrency=40, side_writer=True)

    async def act(scene: Scene) -> None:
        leases = await start_jobs(scene, 24)
        blocked, transactions = (
            BlockedSideWriter(scene, monkeypatch),
            record_transactions(scene, monkeypatch),
        )
        end_short(scene, leases[:10])
        await scene.until(lambda: transactions == [(0, 16)])
        end_short(scene, leases[10:20])
        end_short(scene, leases[20:21], RELEASED)  # the loop must settle this one
        await scene.until(lambda: transactions[-1] == (1, 17))
        blocked.may_write.set()
        await scene.until(lambda: blocked.written == [10, 10])
        end_short(scene, leases[21:])  # too few: the loop writes them
        await scene.until(lambda: scene.loop.all_written)
        assert states(store).count("succeeded") == 23
        assert max(count for count, _ in transactions) == 3

    scene.play(act)


class NoThreads:
    def submit(self, *_: object) -> None:
        raise RuntimeError("can't start new thread")


def test_the_loop_writes_all_endings_when_no_thread_can_be_started(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, concurrency=40, side_writer=True)

    async def act(scene: Scene) -> None:
        leases = await start_jobs(scene, 20)
        monkeypatch.setattr(scene.loop._side_writer, "_thread", NoThreads())
        end_short(scene, leases)
        await scene.until(lambda: scene.loop.all_written)
        assert states(store) == ["succeeded"] * 20

    scene.play(act)


def test_the_loop_writes_the_waiting_endings_when_the_side_writer_is_blocked_for_long(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_writer, "SLOW_AFTER", 0.05)
    scene = Scene(store, concurrency=40, side_writer=True)

    async def act(scene: Scene) -> None:
        leases = await start_jobs(scene, 20)
        blocked = BlockedSideWriter(scene, monkeypatch)
        end_short(scene, leases[:10])
        await scene.until(lambda: blocked.calls)
        end_short(scene, leases[10:])
        await scene.until(
            lambda: scene.loop._side_writer is not None and not scene.loop._side_writer.is_fast
        )
        scene.loop.wake.set()
        await scene.until(lambda: states(store).count("succeeded") == 10)
        blocked.may_write.set()
        await scene.until(lambda: scene.loop.all_written)
        assert states(store) == ["succeeded"] * 20

    scene.play(act)


def test_a_loop_that_stops_writes_the_endings_that_waited(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, concurrency=40, side_writer=True)

    async def act(scene: Scene) -> None:
        leases = await start_jobs(scene, 20)
        blocked = BlockedSideWriter(scene, monkeypatch)
        end_short(scene, leases[:10])
        await scene.until(lambda: blocked.calls)
        end_short(scene, leases[10:])
        scene.loop.stopping = True
        scene.loop.wake.set()
        blocked.may_write.set()

    scene.play(act)
    assert scene.loop.all_written
    assert states(store) == ["succeeded"] * 20


def test_endings_that_the_side_writer_could_not_write_are_written_by_the_next_cycle(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, concurrency=40, side_writer=True)
    slow, tries = SlowTransaction(scene, monkeypatch), []

    def refuse(endings: list[Ending], *_: object) -> None:
        tries.append(len(endings))
        raise ValueError("refused")

    async def act(scene: Scene) -> None:
        leases = await start_jobs(scene, 20)
        monkeypatch.setattr(scene.transactions, "settle_simple", refuse)
        slow.begin()
        end_short(scene, leases[:1])
        await scene.until(slow.running.is_set)
        end_short(scene, leases[1:])
        await scene.until(lambda: tries and len(scene.loop.unwritten) == len(scene.loop.endings))
        slow.may_continue.set()
        await scene.until(lambda: scene.loop.all_written)
        assert states(store) == ["succeeded"] * 20
        assert tries == [19]

    scene.play(act)


def test_the_side_writer_writes_a_limited_number_of_endings_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_writer, "MAX_BATCH", 8)
    scene = Scene(store, concurrency=40, side_writer=True)

    async def act(scene: Scene) -> None:
        leases = await start_jobs(scene, 20)
        blocked = BlockedSideWriter(scene, monkeypatch)
        blocked.may_write.set()
        end_short(scene, leases)
        await scene.until(lambda: scene.loop.all_written)
        assert states(store) == ["succeeded"] * 20
        assert blocked.written[0] == max(blocked.written) == 8

    scene.play(act)


def test_the_loop_claims_ahead_after_short_jobs_that_the_side_writer_settled(
    store: Store,
) -> None:
    scene = Scene(store, concurrency=20, side_writer=True)

    async def act(scene: Scene) -> None:
        leases = await start_jobs(scene, 20)
        enqueue(store, 40)
        end_short(scene, leases)
        await scene.until(
            lambda: scene.runners.count == 40
        )  # twenty run, twenty wait in the runner

    scene.play(act)


def test_short_jobs_that_failed_are_written_by_the_side_writer_and_retried(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, concurrency=20, side_writer=True)
    slow = SlowTransaction(scene, monkeypatch)

    async def act(scene: Scene) -> None:
        leases = await start_jobs(scene, 8)
        slow.begin()
        end_short(scene, leases[:1])
        await scene.until(slow.running.is_set)
        end_short(scene, leases[1:], FAILED)
        await scene.until(lambda: states(store).count("queued") == 7)
        assert {row.failures for row in all_rows(store) if row.state == "queued"} == {1}
        assert event_types(store, leases[-1].id) == ["queued", "started", "retry_scheduled"]
        slow.may_continue.set()
        await scene.until(lambda: scene.loop.all_written)

    scene.play(act)


@pytest.mark.parametrize(
    "change",
    [
        lambda ending: ending._replace(outcome=RELEASED),
        lambda ending: ending._replace(duration_ms=1000),
        lambda ending: ending._replace(duration_ms=None),
        lambda ending: ending._replace(lease=ending.lease._replace(uses="gateway")),
        lambda ending: ending._replace(lease=ending.lease._replace(batch_id="b1")),
        lambda ending: ending._replace(lease=ending.lease._replace(alone=True)),
        lambda ending: ending._replace(lease=ending.lease._replace(queue="mulligan.deliveries")),
    ],
)
def test_the_side_writer_refuses_endings_that_the_loop_must_settle(
    change: Callable[[Ending], Ending],
) -> None:
    ending = Ending(make_lease(), RETURNED, SHORT)
    assert side_writer.is_simple(ending)
    assert not side_writer.is_simple(change(ending))


def test_an_ending_with_unwritten_progress_is_written_by_the_loop(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, concurrency=20, side_writer=True)
    slow = SlowTransaction(scene, monkeypatch)

    async def act(scene: Scene) -> None:
        leases = await start_jobs(scene, 8)
        slow.begin()
        end_short(scene, leases[:1])
        await scene.until(slow.running.is_set)
        scene.loop.progress[leases[1].fence] = (0.5, "half")
        end_short(scene, leases[1:])
        await scene.until(lambda: [ending.lease for ending in scene.loop.unwritten] == [leases[1]])
        assert states(store).count("succeeded") == 6
        slow.may_continue.set()
        await scene.until(lambda: scene.loop.all_written)

    scene.play(act)
    assert states(store) == ["succeeded"] * 8
    assert {row.progress_message for row in all_rows(store)} == {"", "half"}


@pytest.mark.parametrize("committed", [False, True])
def test_an_outage_during_a_write_leaves_each_job_ended_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    fault = StoreFault(store, monkeypatch, committed=committed)
    scene = Scene(store, concurrency=20, side_writer=True)
    slow = SlowTransaction(scene, monkeypatch)

    async def act(scene: Scene) -> None:
        leases = await start_jobs(scene, 8)
        slow.begin()
        end_short(scene, leases[:1])
        await scene.until(slow.running.is_set)
        fault.active = True
        end_short(scene, leases[1:])
        await scene.until(lambda: fault.failures)
        fault.active = False
        slow.may_continue.set()
        await scene.until(lambda: scene.loop.all_written)
        assert states(store) == ["succeeded"] * 8
        assert all(event_types(store, lease.id).count("succeeded") == 1 for lease in leases)
        assert not scene.runners.leases  # none of them was dispatched again as an unknown lease

    scene.play(act)


def test_a_loop_that_stops_waits_for_the_side_writer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, concurrency=20, side_writer=True)
    slow = SlowTransaction(scene, monkeypatch)
    writes, may_write = scene.transactions.settle_simple, threading.Event()

    def late(*arguments: Any) -> None:
        assert may_write.wait(30)
        writes(*arguments)

    monkeypatch.setattr(scene.transactions, "settle_simple", late)

    async def act(scene: Scene) -> None:
        leases = await start_jobs(scene, 8)
        slow.begin()
        end_short(scene, leases[:1])
        await scene.until(slow.running.is_set)
        end_short(scene, leases[1:])
        scene.loop.stopping = True
        slow.may_continue.set()
        await scene.until(lambda: states(store).count("succeeded") == 1)
        assert not scene.loop.all_written
        may_write.set()

    scene.play(act)  # returns when the loop has ended
    assert states(store) == ["succeeded"] * 8


def test_a_slot_is_free_only_when_its_ending_is_durable_and_no_job_is_lost_or_repeated(
    store: Store,
) -> None:
    scene, total = Scene(store, concurrency=12, side_writer=True), 600
    enqueue(store, total)

    async def act(scene: Scene) -> None:
        rng = Random(5)
        await scene.hint()
        while any(row.state != "succeeded" for row in all_rows(store)):
            scene.runners.end_some(rng, 0.8, SHORT)
            running = sum(row.state == "running" for row in all_rows(store))
            assert running <= scene.loop._prefetch.free_slots(0)
            await asyncio.sleep(rng.random() * 0.002)  # jobs end at random times

    scene.play(act)
    assert scene.transactions.overlaps == 0
    assert len(scene.runners.dispatched) == len(set(scene.runners.dispatched)) == total
