"""`Idempotency-Key`: one job per key whatever the database does, and no key stays taken in vain."""

from __future__ import annotations

from contextlib import contextmanager
from time import monotonic

import psycopg
import pytest

from mulligan.access.queries import AccessQueries
from mulligan.core.errors import StoreUnavailable
from mulligan.http import services
from mulligan.http.api import requests
from mulligan.http.api.auth import Caller
from mulligan.http.api.responses import JsonAnswer
from support.store import BackgroundCall, is_postgres, is_waiting_for_lock, sql
from support.waiting import until


@contextmanager
def locked(app, table):
    """Lock a table as a migration does, until the block ends."""
    with psycopg.connect(app.store.dsn) as other:
        other.execute(f'LOCK TABLE "{app.store.schema}".{table} IN ACCESS EXCLUSIVE MODE')
        yield other


@pytest.fixture
def on_postgres(app):
    if not is_postgres(app.store):
        pytest.skip("SQLite locks the whole database")


@pytest.fixture
def order(client, key):
    """Return a function that sends one request for a job, always the same."""
    headers = {**key("acme", "operator"), "Idempotency-Key": "order-7"}

    def send():
        return client.post("/api/v1/jobs", json={"kind": "works"}, headers=headers)

    return send


def answered(send):
    answer = send()
    return answer if answer.status_code == 201 else None


@pytest.mark.usefixtures("on_postgres")
def test_a_long_lock_makes_one_job_of_one_key(app, order, monkeypatch):
    monkeypatch.setattr(services, "QUERY_TIMEOUT", 0.3)
    monkeypatch.setattr(services, "LEASE", 0)
    with locked(app, "job"):
        statuses = [order().status_code for _ in range(3)]
    assert set(statuses) <= {503, 409}
    job = until(lambda: answered(order)).json()
    until(lambda: not is_waiting_for_lock(app.store))
    assert order().json()["id"] == job["id"]
    assert [one.id for one in app.jobs.list()] == [job["id"]]


@pytest.mark.usefixtures("on_postgres")
def test_a_key_is_free_at_once_after_its_connection_died(app, order):
    with locked(app, "job") as other:
        first = BackgroundCall(order)
        until(lambda: is_waiting_for_lock(app.store))
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        assert first.result().status_code == 503
    assert order().status_code == 201
    assert len(app.jobs.list()) == 1


@pytest.mark.usefixtures("on_postgres")
def test_a_second_request_does_not_wait_for_the_first(app, order):
    with locked(app, "job"):
        first = BackgroundCall(order)
        until(lambda: is_waiting_for_lock(app.store))
        begun = monotonic()
        assert order().json()["code"] == "IDEMPOTENCY_IN_FLIGHT"
        assert monotonic() - begun < 2
    assert first.result().status_code == 201


@pytest.fixture
def caller(app, client, key):
    key("acme", "operator")
    return Caller(app.keys.list()[-1], b"", client.app.state.context)


def run(caller, work):
    named = requests.IdempotencyKey(caller.key.id, "cancel-7", "hash")
    return requests._run_claimed(caller, named, work)


def test_a_key_is_free_once_the_database_is_back(app, caller):
    def break_database(_):
        sql(app.store, "ALTER TABLE {p}answer RENAME TO hidden_answer")
        raise StoreUnavailable("the database is gone")

    hidden = "{p}hidden_answer" if is_postgres(app.store) else "hidden_answer"
    with pytest.raises(StoreUnavailable, match="is gone"):
        run(caller, break_database)
    name = "answer" if is_postgres(app.store) else "mulligan_answer"
    sql(app.store, f"ALTER TABLE {hidden} RENAME TO {name}")
    assert run(caller, lambda _: JsonAnswer(200, "done")) == ((200, "done"), False)


def test_a_claim_of_a_server_that_died_is_free_after_its_lease(app, caller, monkeypatch):
    with app.store.begin() as tx:  # as the dead server left it
        assert AccessQueries(tx).claim_idempotency_key(
            caller.key.id, "cancel-7", "hash", "of the dead server", 0
        )
    with pytest.raises(requests.Problem, match="still running"):
        run(caller, lambda _: JsonAnswer(200, "done"))
    monkeypatch.setattr(services, "LEASE", -1)
    assert run(caller, lambda _: JsonAnswer(200, "done")) == ((200, "done"), False)


def test_a_request_that_runs_longer_than_its_lease_keeps_its_key(caller, monkeypatch):
    monkeypatch.setattr(services, "LEASE", 300_000)
    monkeypatch.setattr(services, "RENEW_INTERVAL", 0.05)

    def slow(_):
        begun = monotonic()
        refused = 0
        while monotonic() - begun < 1:
            with pytest.raises(requests.Problem, match="still running"):
                run(caller, lambda _: JsonAnswer(200, "second"))
            refused += 1
        return JsonAnswer(200, refused)

    answer, _ = run(caller, slow)
    assert answer.body
    assert run(caller, slow) == (answer, True)
