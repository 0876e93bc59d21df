"""The second writer settles in parallel to the transaction thread and loses no ending."""

from __future__ import annotations

import threading

import pytest

from mulligan.core.attempt import Ended, Ending, Outcome
from mulligan.core.errors import StoreUnavailable
from mulligan.worker.supervisor.second_writer import MIN_BATCH, SecondWriter
from support.builders import make_lease
from support.waiting import until


def endings(count, **lease):
    outcome = Outcome(Ended.RETURNED, result="null")
    return [Ending(make_lease(id=f"job{number}", **lease), outcome, 1) for number in range(count)]


class Harness:
    """A writer whose transactions wait for permission."""

    def __init__(self):
        self.may_write = threading.Event()
        self.writing = threading.Event()
        self.error = None
        self.settled = []
        self.failed = []
        self.writer = SecondWriter(self.settle, self.settled.extend, self.failed.extend)
        self.writer.start()

    def settle(self, batch):
        self.writing.set()
        assert self.may_write.wait(10)
        if self.error is not None:
            raise self.error


@pytest.fixture
def harness():
    harness = Harness()
    yield harness
    harness.may_write.set()
    harness.writer.stop()


def test_a_full_batch_is_settled(harness):
    batch = endings(MIN_BATCH)
    assert harness.writer.accept(batch) == []
    assert harness.writer.unwritten() == batch
    harness.may_write.set()
    until(lambda: harness.settled == batch)
    until(lambda: harness.writer.unwritten() == [])


def test_endings_that_a_dependency_guard_counts_are_declined(harness):
    guarded = endings(MIN_BATCH, uses="gateway")
    assert harness.writer.accept(guarded) == guarded
    assert harness.writer.unwritten() == []


def test_a_small_batch_waits_for_the_transaction_thread(harness):
    batch = endings(MIN_BATCH - 1)
    assert harness.writer.accept(batch) == []
    assert harness.writer.withdraw() == batch
    assert harness.writer.unwritten() == []


def test_endings_that_come_during_a_transaction_are_settled_next(harness):
    first = endings(MIN_BATCH)
    harness.writer.accept(first)
    assert harness.writing.wait(10)
    second = endings(MIN_BATCH)
    harness.writer.accept(second)
    harness.may_write.set()
    until(lambda: harness.settled == first + second)


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), ValueError("refused")])
def test_a_failed_batch_is_given_back_and_the_writer_declines_until_it_is_resumed(harness, error):
    harness.error = error
    harness.may_write.set()
    batch = endings(MIN_BATCH)
    harness.writer.accept(batch)
    until(lambda: harness.failed == batch)
    until(lambda: harness.writer.unwritten() == [])
    assert harness.writer.accept(batch) == batch
    harness.writer.resume()
    assert harness.writer.accept(batch[:1]) == []


def test_stop_waits_for_the_running_transaction_and_gives_back_the_rest(harness):
    first = endings(MIN_BATCH)
    harness.writer.accept(first)
    assert harness.writing.wait(10)
    harness.writer.accept(endings(3))
    threading.Timer(0.05, harness.may_write.set).start()
    assert len(harness.writer.stop()) == 3
    assert harness.settled == first
    assert harness.writer.accept(first) == first
