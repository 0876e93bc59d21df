"""How a writer waits for another one on SQLite."""

from __future__ import annotations

import threading

import apsw
import pytest

from mulligan.storage import sqlite_handle as handle
from mulligan.storage.sqlite_handle import BUSY_MS, ApswHandle, BusyHandler


class Clock:
    """Clock that advances only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(handle, "time", made)
    return made


def tries_of(patience: BusyHandler) -> int:
    tries = 0
    while patience(tries):
        tries += 1
    return tries


def test_it_retries_often_at_first_and_less_often_later(clock: Clock) -> None:
    tries_of(BusyHandler(BUSY_MS))
    assert clock.slept[0] == 0.001
    assert clock.slept == sorted(clock.slept)
    assert clock.slept[-1] == handle.LAST_PAUSE


@pytest.mark.parametrize("ms", [250, BUSY_MS])
def test_it_gives_up_after_its_timeout_and_starts_again_next_time(clock: Clock, ms: int) -> None:
    patience = BusyHandler(ms)
    for _ in range(2):
        began = clock.now
        assert tries_of(patience) > 1
        assert ms / 1000 <= clock.now - began <= ms / 1000 + handle.LAST_PAUSE


def test_a_second_writer_gets_its_turn_when_the_first_is_done(tmp_path) -> None:
    one, other = (ApswHandle.open(str(tmp_path / "a.db")) for _ in range(2))
    one.execute("BEGIN IMMEDIATE")
    waiting, patience = threading.Event(), BusyHandler(BUSY_MS)

    def patient(tries: int) -> bool:
        waiting.set()
        return patience(tries)

    other.connection.set_busy_handler(patient)
    writer = threading.Thread(target=other.execute, args=("BEGIN IMMEDIATE",))
    writer.start()
    assert waiting.wait(30)
    one.execute("COMMIT")
    writer.join(30)
    assert other.in_transaction()
    other.close()
    one.close()


def test_a_short_timeout_raises(tmp_path) -> None:
    one, other = (ApswHandle.open(str(tmp_path / "a.db")) for _ in range(2))
    one.execute("BEGIN IMMEDIATE")
    other.set_busy_timeout(1)
    with pytest.raises(apsw.BusyError):
        other.execute("BEGIN IMMEDIATE")
    other.close()
    one.close()
