"""On SQLite a connection keeps what it knows of a moved clock until somebody else has committed."""

from __future__ import annotations

from contextlib import closing

import pytest

from mulligan.core.durations import SECOND
from mulligan.storage import open_store
from support.store import enqueue, is_postgres, now, sql

HOUR = 3600 * SECOND
MOVE = "INSERT INTO {p}meta VALUES ('clock_offset', '3600000000')"


def by_this_store(store, _):
    store.shift_clock(HOUR)


def by_another(_, url):
    with closing(open_store(url)) as other:
        other.shift_clock(HOUR)


def by_another_and_then_seen(store, url):
    by_another(store, url)
    with store.read() as unit:
        unit.now()


def by_hand(store, _):
    sql(store, MOVE)


@pytest.mark.parametrize("moved", [by_this_store, by_another, by_another_and_then_seen, by_hand])
def test_a_moved_clock_is_seen_by_the_next_unit_of_work(store, store_url, moved):
    if moved is by_hand and is_postgres(store):
        pytest.skip("its clock is a function")
    enqueue(store, 2)
    before = written_at(store)
    moved(store, store_url)
    assert HOUR <= written_at(store) - before < HOUR + 600 * SECOND
    assert written_at(store) - now(store) < SECOND


def written_at(store):
    with store.begin() as unit:
        return unit.now()


def test_a_move_that_is_rolled_back_is_none(sqlite):
    enqueue(sqlite)
    with sqlite.transaction() as connection:
        connection.execute("SAVEPOINT trial")
        connection.execute(MOVE.replace("{p}", "mulligan_"))
        connection.execute("ROLLBACK TO SAVEPOINT trial")
    assert abs(written_at(sqlite) - now(sqlite)) < 60 * SECOND
