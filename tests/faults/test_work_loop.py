"""The claim/settle loop: one transaction at a time, and no lease is lost or dispatched twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from faults.loop_harness import LISTENER, LONG, LOOP_THREAD, Scene, StoreFault
from mulligan.core.errors import StoreUnavailable
from mulligan.storage import Store
from mulligan.worker.supervisor import loop as work_loop
from mulligan.worker.supervisor.transactions import TransactionResult
from support.store import KINDS, all_rows, enqueue, event_types, migrated, sql

pytestmark = pytest.mark.processes

LONG_POLL = 600.0  # seconds: a slow machine cannot use up a tenth of it


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with migrated(store_url) as opened:
        yield opened


def test_the_listener_claims_on_a_hint_while_the_loop_waits(store: Store) -> None:
    scene = Scene(store)

    async def act(scene: Scene) -> None:
        ids = enqueue(store, 3)
        await scene.hint()
        await scene.until(lambda: scene.runners.count == 3)
        assert scene.transactions.threads == [LISTENER]
        assert {fence[0] for fence in scene.runners.dispatched} == set(ids)

    scene.play(act)


def test_the_listener_polls_in_place_of_the_loop_when_no_hint_comes(
    store: Store,
) -> None:
    scene = Scene(store)

    async def act(scene: Scene) -> None:
        enqueue(store, 3)
        await scene.quiet()
        await scene.until(lambda: scene.runners.count == 3)
        assert scene.transactions.threads == [LISTENER]

    scene.play(act)


def test_the_loop_is_not_woken_when_the_listener_finds_no_work(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, calls_to_the_loop = Scene(store), []

    async def act(scene: Scene) -> None:
        monkeypatch.setattr(scene.loop, "_call_on_loop", calls_to_the_loop.append)
        await scene.quiet()
        assert 0 < scene.loop.on_quiet() <= 60  # it has just looked
        assert scene.transactions.threads == [LISTENER]
        scene.loop._wake_if_not_polled()
        assert not scene.loop.wake.is_set()

    scene.play(act)
    assert calls_to_the_loop == [None]


def test_the_listener_reports_a_jump_of_the_clock_to_the_loop(store: Store) -> None:
    scene, reported = Scene(store), []

    async def act(scene: Scene) -> None:
        scene.loop._on_clock = reported.append
        await scene.quiet()
        assert reported == []
        store.shift_clock(3_600_000_000)
        await scene.quiet()
        await scene.until(lambda: reported)

    scene.play(act)


def test_a_loop_woken_while_the_listener_polls_runs_a_cycle_even_if_the_poll_is_empty(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, running, may_continue = Scene(store), threading.Event(), threading.Event()
    settle_and_claim = scene.transactions.settle_and_claim

    def slow(*arguments: Any, **options: Any) -> Any:
        result = settle_and_claim(*arguments, **options)
        running.set()
        assert may_continue.wait(30)
        return result

    async def act(scene: Scene) -> None:
        monkeypatch.setattr(scene.transactions, "settle_and_claim", slow)
        polling = asyncio.create_task(scene.quiet())
        await scene.until(running.is_set)
        enqueue(store, 2)
        scene.loop.wake.set()
        await scene.until(lambda: not scene.loop._offered)  # the loop waits for the listener
        may_continue.set()
        await polling
        await scene.until(lambda: scene.runners.count == 2)
        assert scene.transactions.threads == [LISTENER, LOOP_THREAD]

    scene.play(act)


def test_a_claim_of_the_listener_that_cannot_be_dispatched_does_not_block_the_loop(
    store: Store,
) -> None:
    scene = Scene(store)

    async def act(scene: Scene) -> None:
        with failing_dispatch(scene) as tries:
            enqueue(store, 2)
            await scene.quiet()
            await scene.until(lambda: tries)
            scene.loop.wake.set()  # the loop finds the leases in the database
            await scene.until(lambda: scene.runners.count == 2)
            assert {fence[1] for fence in scene.runners.dispatched} == {1}

    scene.play(act)


def polls_until_the_loop_wakes(scene: Scene) -> float:
    """Return how long the loop waits if nothing happens, in polls."""
    timer = scene.loop._timer
    assert timer is not None
    return (timer.when() - asyncio.get_running_loop().time()) / LONG_POLL


def test_the_loop_waits_two_polls_only_while_a_listener_polls(store: Store) -> None:
    """A listener that loses its connection reports it as a hint, so a hint ends the longer wait."""
    scene = Scene(store, poll=LONG_POLL)

    async def act(scene: Scene) -> None:
        assert 0.9 < polls_until_the_loop_wakes(scene) <= 1
        await scene.quiet()
        scene.loop.wake.set()
        await scene.until(
            lambda: (
                len(scene.transactions.threads) == 2
                and not scene.loop.in_cycle
                and scene.loop._offered
            )
        )
        assert 1.9 < polls_until_the_loop_wakes(scene) <= 2
        await scene.hint()
        await scene.until(lambda: not scene.loop._claiming)
        assert 0.9 < polls_until_the_loop_wakes(scene) <= 1

    scene.play(act)


def test_the_loop_does_not_rely_on_the_listener_during_an_outage(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holds if the wait between two tries is as long as a poll."""
    monkeypatch.setattr(work_loop, "OUTAGE_WAIT", (LONG_POLL, LONG_POLL))
    scene = Scene(store, poll=LONG_POLL)

    async def act(scene: Scene) -> None:
        await scene.quiet()
        scene.loop._finish_failed_claim(StoreUnavailable("away"))
        assert 0.9 < polls_until_the_loop_wakes(scene) <= 1

    scene.play(act)


def test_the_loop_wakes_two_polls_after_the_last_poll_of_the_listener(store: Store) -> None:
    scene = Scene(store, poll=LONG_POLL)

    async def act(scene: Scene) -> None:
        await scene.quiet()
        scene.loop._wake_if_not_polled()
        assert not scene.loop.wake.is_set()
        assert 1.9 < polls_until_the_loop_wakes(scene) <= 2
        scene.loop._last_poll -= 2 * LONG_POLL
        scene.loop._wake_if_not_polled()
        assert scene.loop.wake.is_set()

    scene.play(act)


def test_a_full_worker_is_woken_once_a_poll_however_often_the_listener_reports_silence(
    store: Store,
) -> None:
    scene, calls_to_the_loop = Scene(store, concurrency=1, poll=LONG_POLL), []

    async def act(scene: Scene) -> None:
        enqueue(store, 2)
        await scene.hint()
        await scene.until(lambda: scene.runners.count == 1)
        scene.loop._call_on_loop = calls_to_the_loop.append  # type: ignore[method-assign]
        await scene.quiet()
        for _ in range(50):
            assert scene.loop.on_quiet() > 0.9 * LONG_POLL
        scene.loop._decline_claim()

    scene.play(act)
    assert len(calls_to_the_loop) == 1


def test_a_full_worker_polls_for_deliveries_each_time_silence_wakes_it(store: Store) -> None:
    scene = Scene(store, concurrency=1)

    async def act(scene: Scene) -> None:
        enqueue(store, 1)
        await scene.hint()
        await scene.until(lambda: scene.runners.count == 1)
        scene.loop._last_poll = scene.loop._last_listener_poll = (
            asyncio.get_running_loop().time() - 59.5
        )  # a little early
        await asyncio.get_running_loop().run_in_executor(scene.listener, scene.loop.on_quiet)
        await scene.until(lambda: scene.transactions.threads == [LISTENER, LOOP_THREAD])

    scene.play(act)


@pytest.mark.parametrize("listener_reported", [False, True])
def test_the_loop_polls_when_no_listener_polls(store: Store, listener_reported: bool) -> None:
    scene = Scene(store, poll=0.02)

    async def act(scene: Scene) -> None:
        if listener_reported:
            await scene.quiet()
        enqueue(store, 2)
        await scene.until(lambda: scene.runners.count == 2)
        assert LOOP_THREAD in scene.transactions.threads

    scene.play(act)


def test_the_listener_leaves_polling_to_the_loop_while_all_slots_are_taken(store: Store) -> None:
    scene = Scene(store, concurrency=1)

    async def act(scene: Scene) -> None:
        enqueue(store, 2)
        await scene.hint()
        await scene.until(lambda: scene.runners.count == 1)
        await scene.quiet()
        await scene.until(
            lambda: scene.transactions.threads == [LISTENER, LOOP_THREAD]
        )  # for deliveries

    scene.play(act)


def test_a_hint_claims_nothing_while_no_slot_is_free(store: Store) -> None:
    scene = Scene(store, concurrency=2)

    async def act(scene: Scene) -> None:
        enqueue(store, 5)
        await scene.hint()
        await scene.until(lambda: scene.runners.count == 2)
        await scene.hint()
        assert len(scene.transactions.threads) == 1
        assert len(scene.runners.dispatched) == 2

    scene.play(act)


def test_a_hint_claims_nothing_while_claims_are_forbidden(store: Store) -> None:
    scene = Scene(store, concurrency=2)

    async def act(scene: Scene) -> None:
        enqueue(store, 5)
        scene.may_claim = False
        await scene.hint()
        await scene.until(lambda: not scene.loop.wake.is_set() and scene.loop._offered)
        assert scene.transactions.threads == []
        assert scene.runners.dispatched == []

    scene.play(act)


def test_a_hint_claims_nothing_while_no_runner_is_ready(store: Store) -> None:
    scene = Scene(store, concurrency=2)

    async def act(scene: Scene) -> None:
        enqueue(store, 5)
        scene.runners.runner.ready = False
        await scene.hint()
        await scene.until(lambda: not scene.loop.wake.is_set() and scene.loop._offered)
        assert scene.transactions.threads == []
        assert scene.runners.dispatched == []

    scene.play(act)


def test_a_claim_of_the_listener_that_fills_all_slots_is_followed_by_a_cycle(
    store: Store,
) -> None:
    scene = Scene(store, concurrency=2)

    async def act(scene: Scene) -> None:
        enqueue(store, 5)
        await scene.hint()
        await scene.until(lambda: scene.runners.count == 2)
        while len(scene.runners.dispatched) < 5 or scene.runners.count:
            scene.runners.end_some(Random(1), 0.7, LONG)
            await scene.until(lambda: scene.loop.all_written)

    scene.play(act)
    assert scene.runners.most_active <= 2


def test_a_claim_whose_result_the_listener_never_got_is_found_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = StoreFault(store, monkeypatch, committed=True)
    scene = Scene(store)

    async def act(scene: Scene) -> None:
        (job_id,) = enqueue(store)
        fault.active = True
        await scene.hint()
        await scene.until(
            lambda: len(scene.transactions.threads) > 1
        )  # the loop tries again without a hint
        fault.active = False
        await scene.until(lambda: scene.runners.count)
        assert [lease.id for lease in scene.runners.leases] == [job_id]
        assert event_types(store, job_id) == ["queued", "started"]

    scene.play(act)


def test_an_error_in_a_claim_of_the_listener_stops_neither_the_loop_nor_the_listener(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store)
    monkeypatch.setattr("mulligan.worker.supervisor.loop.OUTAGE_WAIT", (0.01, 0.01))

    async def act(scene: Scene) -> None:
        claimer = scene.transactions._claimer
        claimer.kinds = None  # type: ignore[assignment]
        enqueue(store)
        await scene.hint()
        await scene.until(lambda: len(scene.transactions.threads) > 1)
        claimer.kinds = KINDS
        await scene.until(lambda: scene.runners.count == 1)
        enqueue(store)
        await scene.hint()
        await scene.until(lambda: scene.runners.count == 2)

    scene.play(act)


@pytest.mark.parametrize(
    "kind", ["render", "report"], ids=["ended by the test", "ended by the runner"]
)
def test_concurrent_hints_and_endings_never_overlap_transactions_nor_lose_or_repeat_a_job(
    store: Store, kind: str
) -> None:
    scene, total, listener_rng = Scene(store, concurrency=5), 120, Random(4)

    def listen() -> None:
        for _ in range(total):
            enqueue(store, kind=kind)
            scene.loop.on_hint() if listener_rng.random() < 0.7 else scene.report_silence()
        scene.loop.on_hint()

    async def act(scene: Scene) -> None:
        rng = Random(3)
        listening = asyncio.get_running_loop().run_in_executor(scene.listener, listen)
        while not listening.done() or any(row.state != "succeeded" for row in all_rows(store)):
            if kind == "render":
                scene.runners.end_some(rng, 0.7, LONG)
            await asyncio.sleep(rng.random() * 0.004)  # jobs end at random times

    scene.play(act)
    assert scene.transactions.overlaps == 0
    assert len(scene.runners.dispatched) == len(set(scene.runners.dispatched)) == total
    assert {fence[1] for fence in scene.runners.dispatched} == {1}
    assert set(scene.transactions.threads) == {LISTENER, LOOP_THREAD}


@pytest.mark.parametrize(("losses", "dispatched"), [(0, 20), (1, 30)])
def test_many_leases_are_dispatched_once_the_next_transaction_runs_and_hold_their_slots_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch, losses: int, dispatched: int
) -> None:
    """Leases with losses are dispatched first: the next claim must know which run alone."""
    monkeypatch.setattr(work_loop, "DEFERRED_DISPATCH_SIZE", 5)
    scene, recorded = Scene(store, concurrency=20), []

    async def act(scene: Scene) -> None:
        enqueue(store, 40)
        sql(store, "UPDATE {p}job SET losses = :losses", {"losses": losses})
        await scene.hint()
        await scene.until(lambda: scene.runners.count == 20)
        first, second = (scene.runners.leases[part] for part in (slice(10), slice(10, 20)))
        slot_limits = scene.loop._slot_limits
        settle_and_claim = scene.transactions.settle_and_claim

        def recorded_slot_limits() -> Any:
            found = slot_limits()
            recorded.append((found[0], len(scene.runners.dispatched)))
            return found

        def claim_and_end_more(*arguments: Any, **options: Any) -> Any:
            result = settle_and_claim(*arguments, **options)
            if second:
                asyncio.run_coroutine_threadsafe(end_second(), loop).result()
            return result

        async def end_second() -> None:
            scene.runners.end(second)
            second.clear()

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(scene.loop, "_slot_limits", recorded_slot_limits)
        monkeypatch.setattr(scene.transactions, "settle_and_claim", claim_and_end_more)
        scene.runners.end(first)
        await scene.until(lambda: len(scene.runners.dispatched) == 40)
        assert recorded[:2] == [(10, 20), (10, dispatched)]

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


@pytest.mark.parametrize("hinted", [False, True])
def test_leases_that_could_not_be_dispatched_are_found_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, hinted: bool
) -> None:
    monkeypatch.setattr(work_loop, "DEFERRED_DISPATCH_SIZE", 5)
    scene = Scene(store, concurrency=20)

    async def act(scene: Scene) -> None:
        with failing_dispatch(scene) as tries:
            enqueue(store, 12)
            await scene.hint()
            await scene.until(lambda: tries)
            if hinted:
                enqueue(store)
                await scene.hint()
            scene.loop.wake.set()  # the poll
            await scene.until(lambda: scene.runners.count == 12 + hinted)
            assert tries[0] == 12
            assert {fence[1] for fence in scene.runners.dispatched} == {1}  # no second claim

    scene.play(act)


def test_leases_that_could_not_be_dispatched_during_a_transaction_are_found_by_the_next_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_loop, "DEFERRED_DISPATCH_SIZE", 5)
    scene, running, may_continue = (
        Scene(store, concurrency=20),
        threading.Event(),
        threading.Event(),
    )
    settle_and_claim = scene.transactions.settle_and_claim

    def slow(*arguments: Any, **options: Any) -> Any:
        running.set()
        assert may_continue.wait(30)
        return settle_and_claim(*arguments, **options)

    async def act(scene: Scene) -> None:
        enqueue(store, 10)
        await scene.hint()
        await scene.until(lambda: scene.runners.count == 10)
        with failing_dispatch(scene) as tries:
            dispatch, held_back = scene.runners.dispatch, list[Any]()
            scene.runners.dispatch = lambda *work: held_back.append(work)  # type: ignore[method-assign]
            enqueue(store, 6)
            await scene.hint()
            await scene.until(lambda: held_back)
            monkeypatch.setattr(scene.transactions, "settle_and_claim", slow)
            scene.runners.end(scene.runners.leases)
            await scene.until(running.is_set)
            scene.runners.dispatch = dispatch  # type: ignore[method-assign]
            scene.loop._dispatch_deferred(
                TransactionResult([], *held_back[0], now=0, next_due=None, more_due=False)
            )
            assert tries == [6]
            may_continue.set()
            await scene.until(lambda: not scene.loop.unwritten)
            scene.loop.wake.set()  # the poll
            await scene.until(lambda: scene.runners.count == 6)

    scene.play(act)


def test_leases_that_are_being_dispatched_hold_their_slots(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_loop, "DEFERRED_DISPATCH_SIZE", 5)
    scene, free = Scene(store, concurrency=20), []

    async def act(scene: Scene) -> None:
        dispatch = scene.runners.dispatch

        def recorded_dispatch(leases: Any, previous_attempts: Any) -> None:
            free.append(scene.loop._free_slots())
            dispatch(leases, previous_attempts)

        monkeypatch.setattr(scene.runners, "dispatch", recorded_dispatch)
        enqueue(store, 12)
        await scene.hint()
        await scene.until(lambda: scene.runners.count == 12)
        assert free == [8]

    scene.play(act)
