"""Threads for database calls: calls of one key leave threads to the calls of others."""

from __future__ import annotations

import asyncio
import threading

import psycopg
import pytest

from mulligan.http.services import DatabaseThreads, DatabaseUnavailable
from support.store import BackgroundCall, is_postgres, is_waiting_for_lock
from support.waiting import until


def test_calls_of_one_key_leave_threads_to_others():
    async def run():
        threads = DatabaseThreads("test", 4, 2)
        blocked = threading.Event()
        mine = [asyncio.create_task(threads.run(blocked.wait, holder="a")) for _ in range(20)]
        assert await threads.run(lambda: 7, 2, "b") == 7
        blocked.set()
        assert await asyncio.gather(*mine) == [True] * 20
        # A thread keeps its last call, and with it the place, until it waits for the next one.
        until(lambda: not threads._places)
        threads.close()

    asyncio.run(run())


def test_a_call_that_timed_out_keeps_its_place_until_its_thread_is_free():
    async def run():
        threads = DatabaseThreads("test", 4, 1)
        blocked = threading.Event()
        for _ in range(3):
            with pytest.raises(DatabaseUnavailable):
                await threads.run(blocked.wait, 0.05, "a")
        assert await threads.run(lambda: 7, 2, "b") == 7
        blocked.set()
        assert await threads.run(lambda: 8, 2, "a") == 8
        threads.close()

    asyncio.run(run())


def test_a_locked_table_does_not_stop_calls_of_others(app, client, key):
    if not is_postgres(app.store):
        pytest.skip("SQLite locks no tables")
    tenant, other = key("acme", "viewer"), key("*", "viewer")
    with psycopg.connect(app.store.dsn) as connection:
        connection.execute(f'LOCK TABLE "{app.store.schema}".job IN ACCESS EXCLUSIVE MODE')
        calls = [
            BackgroundCall(lambda: client.get("/api/v1/jobs", headers=tenant)) for _ in range(12)
        ]
        until(lambda: is_waiting_for_lock(app.store))
        for path in ("/api/v1/webhooks", "/api/v1/readyz", "/api/v1/alerts"):
            assert client.get(path, headers=other).status_code == 200, path
    assert {call.result().status_code for call in calls} <= {200, 503}
