"""The claim/settle loop: jobs start on a hint or a poll, and no lease is lost or dispatched twice."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from faults.loop_harness import LONG, Scene, SilentListener, StoreFault
from mulligan.core.attempt import Lease
from mulligan.storage import Store
from mulligan.worker.supervisor import loop as work_loop
from support.store import (
    KINDS,
    all_rows,
    enqueue,
    event_types,
    get,
    migrated,
    sql,
)

pytestmark = pytest.mark.processes

SHORT = 1  # ms


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with migrated(store_url) as opened:
        yield opened


def states(store: Store) -> list[str]:
    return sorted(row.state for row in all_rows(store))


async def start_jobs(scene: Scene, count: int) -> list[Lease]:
    """Enqueue jobs and wait until the runner has got all of them."""
    enqueue(scene.store, count)
    await scene.until(lambda: scene.runners.count == count and scene.loop.all_written)
    return scene.runners.leases


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


# --- Hints and polls ---


def test_a_job_is_claimed_after_a_hint(store: Store) -> None:
    scene = Scene(store, poll=600)

    async def act(scene: Scene) -> None:
        for _ in range(3):
            ids = enqueue(store)
            await scene.until(lambda: scene.runners.dispatched)
            assert {fence[0] for fence in scene.runners.dispatched} == set(ids)
            scene.runners.end(scene.runners.leases)
            await scene.until(lambda: scene.loop.all_written)
            scene.runners.dispatched.clear()

    scene.play(act)
    assert scene.transactions.threads == {"mulligan-transactions"}


def test_jobs_are_claimed_by_the_poll_if_no_hint_comes(store: Store) -> None:
    scene = Scene(store, poll=0.02, listener=SilentListener())

    async def act(scene: Scene) -> None:
        for count in (2, 3, 4):
            enqueue(store)
            await scene.until(lambda: scene.runners.count == count - 1)  # noqa: B023

    scene.play(act)


def test_a_job_that_becomes_due_between_two_polls_is_claimed_in_time(store: Store) -> None:
    scene = Scene(store, poll=600, listener=(listener := SilentListener()))

    async def act(scene: Scene) -> None:
        (job_id,) = enqueue(store)
        sql(store, "UPDATE {p}job SET run_at = run_at + 300000")
        listener.hint()
        await scene.until(lambda: scene.runners.count == 1)
        assert scene.runners.leases[0].id == job_id

    scene.play(act)


def test_an_idle_poll_does_not_wake_the_event_loop(store: Store) -> None:
    scene = Scene(store, poll=0.01, listener=SilentListener())

    async def act(scene: Scene) -> None:
        await scene.until(lambda: len(scene.transactions.recorded) > 20)
        assert scene.clocks == []

    scene.play(act)


def test_a_jump_of_the_clock_is_reported_to_the_event_loop(store: Store) -> None:
    scene = Scene(store, poll=0.02, listener=SilentListener())

    async def act(scene: Scene) -> None:
        store.shift_clock(3_600_000_000)
        await scene.until(lambda: scene.clocks)

    scene.play(act)


def test_a_wake_looks_for_due_jobs(store: Store) -> None:
    scene = Scene(store, poll=600, listener=SilentListener())

    async def act(scene: Scene) -> None:
        enqueue(store, 2)
        scene.loop.wake()
        await scene.until(lambda: scene.runners.count == 2)

    scene.play(act)


def test_a_hint_during_a_transaction_is_followed_by_another_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, poll=600)
    slow = SlowTransaction(scene, monkeypatch)

    async def act(scene: Scene) -> None:
        slow.begin()
        enqueue(store)
        await scene.until(slow.running.is_set)
        enqueue(store, 2)
        slow.may_continue.set()
        await scene.until(lambda: scene.runners.count == 3)

    scene.play(act)


# --- Slots ---


def test_hints_claim_nothing_while_no_slot_is_free(store: Store) -> None:
    scene = Scene(store, concurrency=2, poll=600, listener=(listener := SilentListener()))

    async def act(scene: Scene) -> None:
        enqueue(store, 5)
        listener.hint()
        await scene.until(lambda: scene.runners.count == 2 and scene.loop.all_written)
        transactions = len(scene.transactions.recorded)
        for _ in range(20):
            listener.hint()
            await scene.until(lambda: not listener.hinted.is_set() and scene.loop.all_written)
        assert len(scene.transactions.recorded) == transactions
        assert len(scene.runners.dispatched) == 2
        while len(scene.runners.dispatched) < 5 or scene.runners.count:
            scene.runners.end_some(Random(1), 0.7, LONG)
            await scene.until(lambda: scene.loop.all_written)

    scene.play(act)
    assert scene.runners.most_active <= 2


@pytest.mark.parametrize("cause", ["forbidden", "no runner"])
def test_nothing_is_claimed_while_claims_are_impossible(store: Store, cause: str) -> None:
    scene = Scene(store, poll=0.01)

    async def act(scene: Scene) -> None:
        scene.may_claim = cause != "forbidden"
        scene.runners.runner.ready = cause != "no runner"
        await scene.until(lambda: scene.loop.all_written)
        scene.transactions.recorded.clear()
        enqueue(store, 3)
        polls = asyncio.get_running_loop().time() + 0.2
        await scene.until(lambda: asyncio.get_running_loop().time() > polls)
        assert scene.transactions.recorded == []
        scene.may_claim = scene.runners.runner.ready = True
        await scene.until(lambda: scene.runners.count == 3)

    scene.play(act)


def test_a_full_worker_polls_for_deliveries_once_a_poll(store: Store) -> None:
    scene = Scene(store, concurrency=1, poll=0.05)

    async def act(scene: Scene) -> None:
        await start_jobs(scene, 1)
        scene.transactions.recorded.clear()
        await scene.until(lambda: len(scene.transactions.recorded) == 3)
        assert scene.transactions.recorded == [(0, 0)] * 3

    scene.play(act)


def test_a_slot_is_free_only_when_the_ending_of_its_job_is_durable(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, concurrency=2, poll=600)
    slow = SlowTransaction(scene, monkeypatch)

    async def act(scene: Scene) -> None:
        first, second = await start_jobs(scene, 2)
        enqueue(store, 4)
        slow.begin()
        scene.runners.end([first])
        await scene.until(slow.running.is_set)
        scene.runners.end([second])
        slow.may_continue.set()
        await scene.until(lambda: len(scene.runners.dispatched) == 4)
        assert scene.transactions.recorded[-2:] == [(1, 1), (1, 1)]

    scene.play(act)
    assert scene.runners.most_active <= 2


def test_slots_stay_taken_until_endings_are_durable_and_no_job_is_lost_or_repeated(
    store: Store,
) -> None:
    scene, total = Scene(store, concurrency=12), 600
    enqueue(store, total)

    async def act(scene: Scene) -> None:
        rng = Random(5)
        while any(row.state != "succeeded" for row in all_rows(store)):
            scene.runners.end_some(rng, 0.8, SHORT)
            await asyncio.sleep(rng.random() * 0.002)  # jobs end at random times

    scene.play(act)
    assert len(scene.runners.dispatched) == len(set(scene.runners.dispatched)) == total


def test_jobs_are_claimed_ahead_after_short_ones(store: Store) -> None:
    scene = Scene(store, concurrency=20)

    async def act(scene: Scene) -> None:
        leases = await start_jobs(scene, 20)
        enqueue(store, 40)
        scene.runners.end(leases, duration_ms=SHORT)
        await scene.until(lambda: scene.runners.count == 40)  # twenty run, twenty wait
        await scene.until(lambda: scene.loop.all_written)
        scene.loop.stop_prefetch()
        enqueue(store, 40)
        scene.loop.wake()
        await scene.until(lambda: scene.loop.all_written)
        assert scene.runners.count == 40

    scene.play(act)


def test_endings_gather_for_one_transaction_while_the_runner_has_enough_work(store: Store) -> None:
    scene = Scene(store)

    async def act(scene: Scene) -> None:
        enqueue(store, 2000)
        while scene.runners.count < 800:  # 800 jobs of 1 ms in 4 slots are work for 0.2 s
            scene.runners.end(scene.runners.leases[:1], duration_ms=SHORT)
            await scene.until(lambda: scene.loop.all_written)
        scene.transactions.recorded.clear()
        began = time.monotonic()
        for lease in scene.runners.leases[:100]:
            scene.runners.end([lease], duration_ms=SHORT)
            await asyncio.sleep(0.002)
        await scene.until(lambda: scene.loop.all_written)
        transactions = len(scene.transactions.recorded)
        assert transactions <= 2 + (time.monotonic() - began) / work_loop.GATHER

    scene.play(act)


@pytest.mark.parametrize(
    "kind", ["render", "report"], ids=["ended by the test", "ended by the runner"]
)
def test_concurrent_hints_and_endings_never_lose_or_repeat_a_job(store: Store, kind: str) -> None:
    scene, total = Scene(store, concurrency=5), 120

    def enqueue_all() -> None:
        for _ in range(total):
            enqueue(store, kind=kind)

    async def act(scene: Scene) -> None:
        rng = Random(3)
        enqueuing = asyncio.get_running_loop().run_in_executor(None, enqueue_all)
        while not enqueuing.done() or any(row.state != "succeeded" for row in all_rows(store)):
            if kind == "render":
                scene.runners.end_some(rng, 0.7, LONG)
            await asyncio.sleep(rng.random() * 0.004)  # jobs end at random times

    scene.play(act)
    assert len(scene.runners.dispatched) == len(set(scene.runners.dispatched)) == total
    assert {fence[1] for fence in scene.runners.dispatched} == {1}
    assert scene.transactions.threads == {"mulligan-transactions"}


# --- Errors ---


def test_a_claim_whose_result_was_lost_is_found_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = StoreFault(store, monkeypatch, committed=True)
    scene = Scene(store)

    async def act(scene: Scene) -> None:
        fault.active = True
        (job_id,) = enqueue(store)
        await scene.until(lambda: len(scene.transactions.recorded) > 1)
        fault.active = False
        await scene.until(lambda: scene.runners.count)
        assert [lease.id for lease in scene.runners.leases] == [job_id]
        assert event_types(store, job_id) == ["queued", "started"]

    scene.play(act)


@pytest.mark.parametrize("committed", [False, True])
def test_an_outage_leaves_each_job_ended_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    fault = StoreFault(store, monkeypatch, committed=committed)
    scene = Scene(store, concurrency=20)

    async def act(scene: Scene) -> None:
        leases = await start_jobs(scene, 8)
        fault.active = True
        scene.runners.end(leases[:3], duration_ms=SHORT)
        await scene.until(lambda: fault.failures > 1)
        assert len(scene.loop.unwritten) == 3
        scene.runners.end(leases[3:], duration_ms=SHORT)
        fault.active = False
        await scene.until(lambda: scene.loop.all_written)
        assert all(event_types(store, lease.id).count("succeeded") == 1 for lease in leases)
        assert not scene.runners.leases  # none was dispatched again as an unknown lease

    scene.play(act)


def test_endings_during_an_outage_do_not_shorten_the_wait(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_loop, "OUTAGE_WAIT", (600.0, 600.0))
    fault = StoreFault(store, monkeypatch, committed=False)
    scene = Scene(store)

    async def act(scene: Scene) -> None:
        leases = await start_jobs(scene, 4)
        fault.active = True
        for lease in leases:
            scene.runners.end([lease])
            await scene.until(lambda: fault.failures == 1)
        fault.active = False

    scene.play(act)  # a loop that stops does not wait
    assert states(store) == ["succeeded"] * 4


def test_an_error_in_a_claim_does_not_stop_the_loop(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store)
    monkeypatch.setattr(work_loop, "OUTAGE_WAIT", (0.01, 0.01))

    async def act(scene: Scene) -> None:
        claimer = scene.transactions._claimer
        claimer.kinds = None  # type: ignore[assignment]
        enqueue(store)
        await scene.until(lambda: len(scene.transactions.recorded) > 1)
        claimer.kinds = KINDS
        await scene.until(lambda: scene.runners.count == 1)
        enqueue(store)
        await scene.until(lambda: scene.runners.count == 2)

    scene.play(act)


def test_an_error_of_the_thread_ends_the_loop_with_it(store: Store) -> None:
    scene = Scene(store)

    async def act(scene: Scene) -> None:
        def fail() -> bool:
            raise ZeroDivisionError

        scene.loop._may_claim = fail
        scene.loop.wake()
        await scene.loop.run()

    with pytest.raises(ZeroDivisionError):
        scene.play(act)


@contextmanager
def failing_dispatch(scene: Scene) -> Iterator[list[int]]:
    """Let the next dispatch fail. Yield the number of leases of each dispatch."""
    dispatch, tries = scene.runners.dispatch, []

    def fail_once(leases: Any, previous_attempts: Any) -> None:
        tries.append(len(leases))
        if len(tries) == 1:
            raise MemoryError
        dispatch(leases, previous_attempts)

    scene.runners.dispatch = fail_once  # type: ignore[method-assign]
    yield tries


def test_leases_that_could_not_be_dispatched_are_found_again(store: Store) -> None:
    scene = Scene(store, concurrency=20)

    async def act(scene: Scene) -> None:
        with failing_dispatch(scene) as tries:
            enqueue(store, 12)
            await scene.until(lambda: scene.runners.count == 12)
            assert tries == [12, 12]
            assert {fence[1] for fence in scene.runners.dispatched} == {1}  # no second claim

    scene.play(act)


# --- Messages of the event loop ---


def test_the_loop_is_not_quiet_before_its_leases_are_dispatched(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, quiet = Scene(store), []

    async def act(scene: Scene) -> None:
        dispatch = scene.runners.dispatch

        def recorded(leases: Any, previous_attempts: Any) -> None:
            quiet.append(scene.loop.all_written)
            dispatch(leases, previous_attempts)

        monkeypatch.setattr(scene.runners, "dispatch", recorded)
        await start_jobs(scene, 2)

    scene.play(act)
    assert set(quiet) == {False}


def test_a_call_runs_on_the_transaction_thread_and_its_error_reaches_the_caller(
    store: Store,
) -> None:
    scene = Scene(store)

    async def act(scene: Scene) -> None:
        name = await scene.loop.submit(lambda: threading.current_thread().name)
        assert name == "mulligan-transactions"
        with pytest.raises(ZeroDivisionError):
            await scene.loop.submit(lambda: 1 / 0)
        await start_jobs(scene, 1)  # the loop still works

    scene.play(act)


def test_the_last_progress_of_a_job_is_written_with_its_ending(store: Store) -> None:
    scene = Scene(store)

    async def act(scene: Scene) -> None:
        first, second = await start_jobs(scene, 2)
        scene.loop.progress[first.fence] = (0.5, "half")
        scene.loop.progress[second.fence] = (0.9, "almost")
        scene.runners.end([first])
        await scene.until(lambda: scene.loop.all_written)
        assert get(store, first.id).progress_message == "half"
        assert set(scene.loop.progress) == {second.fence}

    scene.play(act)


def test_a_loop_that_stops_writes_the_endings_that_waited(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, concurrency=8)
    slow = SlowTransaction(scene, monkeypatch)

    async def act(scene: Scene) -> None:
        leases = await start_jobs(scene, 8)
        slow.begin()
        scene.runners.end(leases[:1])
        await scene.until(slow.running.is_set)
        scene.runners.end(leases[1:])
        scene.loop.stop()
        slow.may_continue.set()

    scene.play(act)
    assert scene.loop.unwritten == []
    assert states(store) == ["succeeded"] * 8
