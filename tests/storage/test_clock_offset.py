"""On SQLite a connection caches the clock offset until another one commits."""

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


def by_another_and_then_read(store, url):
    by_another(store, url)
    with store.read() as tx:
        tx.now()


def by_hand(store, _):
    sql(store, MOVE)


@pytest.mark.parametrize("moved", [by_this_store, by_another, by_another_and_then_read, by_hand])
def test_the_next_transaction_uses_the_shifted_clock(store, store_url, moved):
    if moved is by_hand and is_postgres(store):
        pytest.skip("its clock is a function")
    enqueue(store, 2)
    before = written_at(store)
    moved(store, store_url)
    assert HOUR <= written_at(store) - before < HOUR + 600 * SECOND
    assert written_at(store) - now(store) < SECOND


def written_at(store):
    with store.begin() as tx:
        return tx.now()


def test_a_rolled_back_shift_has_no_effect(sqlite):
    enqueue(sqlite)
    with sqlite.transaction() as connection:
        connection.execute("SAVEPOINT trial")
        connection.execute(MOVE.replace("{p}", "mulligan_"))
        connection.execute("ROLLBACK TO SAVEPOINT trial")
    assert abs(written_at(sqlite) - now(sqlite)) < 60 * SECOND
