"""Many clients of two owners that drop and return while events commit out of order and the server is restarted."""

from __future__ import annotations

import http.client
import random
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from mulligan.core.event import EventType, NewEvent
from mulligan.events.queries import EventQueries
from mulligan.storage import open_store
from support.store import is_postgres, read_event_table, run_concurrently, sql
from support.waiting import until
from support.web_server import StreamClient, get, run_server, serve_in_process

pytestmark = pytest.mark.processes

OWNERS = ("acme", "other")
LAST = EventType.BATCH_READY  # an owner's last event


class Places:
    """Where the server is, or was."""

    def __init__(self):
        self.at = None


class Client:
    """Reads a random number of events, drops, returns with the last id; until it has the owner's last event."""

    def __init__(self, places, key, seed):
        self.places, self.key, self.rng = places, key, random.Random(seed)
        self.heard, self.late, self.returns = [], [], 0

    def run(self, deadline=120.0):
        ends = time.monotonic() + deadline
        while not (self.heard and self.heard[-1].event == LAST):
            assert time.monotonic() < ends, f"{len(self.heard)} heard, {self.returns} returns"
            with suppress(OSError, http.client.HTTPException):
                self._session()

    def _session(self):
        at = self.places.at
        if at is None:
            time.sleep(0.02)
            return
        last = self.heard[-1].id if self.heard else 0
        ear = StreamClient(at, self.key, last=last, timeout=10.0)
        self.returns += 1
        try:
            wanted = self.rng.choice((1, 2, 5, 20, 100, 1000))
            while ear.status == 200 and len(ear.logged) < wanted and ear.read():
                if ear.types[-1:] == [LAST]:
                    break
        finally:
            self.heard += ear.logged  # whatever came before the line broke has been seen
            ear.close()


def write(store, owner, number, pause):
    """A transaction of some events, held open for a moment: on PostgreSQL others overtake it."""
    with store.begin() as tx:
        EventQueries(tx).write_events(
            [NewEvent(EventType.JOB_DIED, owner=owner, data={"kind": "works", "n": number})]
        )
        time.sleep(pause)
        EventQueries(tx).write_events(
            [NewEvent(EventType.JOB_QUEUED, owner=owner, data={"kind": "works", "n": number})]
        )


def writer(url, seed, transactions):
    rng = random.Random(seed)
    store = open_store(url)
    pause = 0.03 if is_postgres(store) else 0.001
    try:
        for number in range(transactions):
            write(store, rng.choice((*OWNERS, "")), number, rng.random() * pause)
    finally:
        store.close()


@contextmanager
def strangers_transaction(url):
    """Somebody else's, in the same database, open all the while."""
    store = open_store(url)
    if not is_postgres(store):
        yield store.close()
        return
    with store.transaction() as connection:
        connection.execute("CREATE TABLE public.etl (n int)")
        connection.execute("INSERT INTO public.etl VALUES (1)")
        yield
        connection.rollback()
    store.close()


def prove(app, clients, writers, transactions, serve=run_server):
    url, places = app.settings.database_url, Places()
    keys = {owner: app.keys.create(owner, "viewer").text for owner in OWNERS}
    crowd = [Client(places, keys[OWNERS[n % 2]], n) for n in range(clients)]
    with strangers_transaction(url):
        threads = [threading.Thread(target=client.run) for client in crowd]
        for thread in threads:
            thread.start()
        half = transactions // 2
        with serve(app.settings) as web:
            places.at = web
            run_concurrently(
                *(lambda seed=seed: writer(url, seed, half) for seed in range(writers))
            )
            web.clients.clear()  # their clients close them
        with serve(app.settings) as web:
            places.at = web
            run_concurrently(
                *(lambda seed=seed: writer(url, -seed - 1, half) for seed in range(writers))
            )
            with app.store.begin() as tx:
                EventQueries(tx).write_events([NewEvent(LAST, owner=owner) for owner in OWNERS])
            for thread in threads:
                thread.join(120)
            web.clients.clear()
    return crowd


def check(app, crowd):
    for place, client in enumerate(crowd):
        owner = OWNERS[place % 2]
        there = [event[0] for event in read_event_table(app.store) if event[5] == owner]
        assert [frame.id for frame in client.heard] == there
        assert {frame.data["owner"] for frame in client.heard} == {owner}


def test_a_few_clients_that_reconnect_receive_all_events_of_their_owner_in_order(app):
    crowd = prove(app, clients=4, writers=2, transactions=30)
    check(app, crowd)
    assert sum(client.returns for client in crowd) > 8


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_fifty_clients_that_reconnect_receive_all_events_of_their_owner_in_order(app):
    crowd = prove(app, clients=50, writers=6, transactions=300, serve=serve_in_process)
    check(app, crowd)
    assert sum(client.returns for client in crowd) > 200


@pytest.mark.timing
def test_an_open_transaction_of_another_program_delays_no_event(app):
    with strangers_transaction(app.settings.database_url), run_server(app.settings) as web:
        ear = StreamClient(web, app.keys.create("acme", "viewer").text).ready()
        until(lambda: web.hub._attached, 10, "a listener")
        for number in range(10):
            began = time.monotonic()
            app.enqueue("works", owner="acme")
            ear.events(number + 1)
            assert time.monotonic() - began < 2.0


@pytest.mark.security("S48")
@pytest.mark.timing
@pytest.mark.timeout(120)
def test_requests_stay_fast_with_two_hundred_idle_streams_which_hold_no_connections(app):
    with run_server(app.settings) as web:
        keys = [app.keys.create("acme", "viewer").text for _ in range(4)]
        for number in range(200):
            StreamClient(web, keys[number % 4]).ready()
        took = []
        for _ in range(20):
            began = time.monotonic()
            assert get(web, "/api/v1/jobs", keys[0])[0] == 200
            took.append(time.monotonic() - began)
        assert sorted(took)[-2] < 1.0
        if is_postgres(app.store):
            (count,) = sql(
                app.store,
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()",
            )[0]
            assert count <= 16 + 1 + 3  # a pool, the hub's ear, and this test's own
        app.enqueue("works", owner="acme")
        for ear in web.clients:
            ear.events(1)
