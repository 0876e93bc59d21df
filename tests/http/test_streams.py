"""Streams of events: whole, in order, for whom they are, and ended when they must."""

from __future__ import annotations

import time

import pytest

from mulligan.config import read_settings
from mulligan.core.event import EventType, NewEvent
from mulligan.events.queries import EventQueries
from mulligan.http.api import event_hub as hubs
from mulligan.http.api import event_stream as streams
from mulligan.http.api.event_hub import frame
from mulligan.worker.queries import LeaseQueries, WorkerQueries
from support.store import sql
from support.waiting import until
from support.web_server import StreamClient, get, run_server

pytestmark = pytest.mark.processes


@pytest.fixture
def web(app):
    with run_server(app.settings) as web:
        yield web


def text(app, scope="*", role="admin"):
    return app.keys.create(scope, role).text


def test_a_stream_delivers_events_and_a_reconnect_continues_after_the_last_one(app, web):
    key = text(app)
    ear = StreamClient(web, key).ready()
    job = app.enqueue("works")
    app.run_inline()
    heard = ear.events(4)
    assert ear.types == ["job.queued", "worker.started", "job.started", "job.succeeded"]
    assert heard[0].data["job_id"] == job.id
    ear.close()
    app.enqueue("works")
    app.run_inline()
    again = StreamClient(web, key, last=heard[0].id)
    rest = again.events(6)
    assert [frame.id for frame in rest[:3]] == [frame.id for frame in heard[1:]]
    assert [frame.id for frame in rest] == sorted({frame.id for frame in rest})


@pytest.mark.any_store
def test_only_logged_events_have_an_id_and_comments_keep_the_connection_open(app, web, monkeypatch):
    monkeypatch.setattr(streams, "HEARTBEAT_INTERVAL", 0.2)
    ear = StreamClient(web, text(app), query="?after=0")
    app.enqueue("works")
    ear.events(1)
    ear.read_until(lambda ear: ear.raw.count(b": still here\n\n") >= 2)
    blocks = [block for block in ear.raw.decode().split("\n\n") if block]
    assert blocks[0] == "retry: 2000"
    assert all(("id: " in block) == ("event: " in block) for block in blocks)
    assert ear.answer.headers["x-accel-buffering"] == "no"
    assert ear.answer.headers["content-type"].startswith("text/event-stream")


@pytest.mark.security("S11", "S14")
def test_an_owner_receives_only_its_own_events_and_their_public_part(app, web):
    mine = StreamClient(web, text(app, "acme", "viewer"), query="?after=0")
    app.enqueue("works", {"text": "B-7f3"}, owner="other")
    app.enqueue("works", {"text": "B-7f3"})
    app.queues.pause("pdf", reason="B-7f3")
    job = app.enqueue("fails", {"text": "secret"}, owner="acme")
    app.run_inline()
    app.jobs.retry(job.id, reason="x")
    mine.events(4)
    assert {frame.data["owner"] for frame in mine.logged} == {"acme"}
    assert mine.types == ["job.queued", "job.started", "job.died", "job.retried"]
    assert b"B-7f3" not in mine.raw
    assert b"private" not in mine.raw
    died, retried = mine.logged[2:4]
    assert died.data["data"]["message"] == "This file could not be read."
    assert retried.data["actor"] == "python"
    assert "before" not in retried.data["data"]
    theirs = StreamClient(web, text(app, "acme", "operator"), query="?after=0")
    assert theirs.events(4)[3].data == retried.data
    operator = StreamClient(web, text(app, "*", "operator"), query="?after=0")
    operator.read_until(lambda ear: "job.retried" in ear.types)
    assert {"queue.paused", "key.created"} <= set(operator.types)
    assert "before" in operator.logged[-1].data["data"]


@pytest.mark.any_store
def test_events_of_internal_jobs_are_left_out(app, web):
    with app.store.begin() as tx:
        for kind in ("mulligan.deliver", "works"):
            EventQueries(tx).write_events(
                [NewEvent(EventType.JOB_DIED, owner="acme", data={"kind": kind})]
            )
    ear = StreamClient(web, text(app, "acme"), query="?after=0")
    assert [frame.data["data"]["kind"] for frame in ear.events(1)] == ["works"]


@pytest.mark.any_store
@pytest.mark.parametrize(
    ("words", "types"),
    [
        ("type:job.died", ["job.died"]),
        ("type:job.*,queue.paused code:BAD_FILE", ["job.died"]),
        ("kind:works type:job.succeeded,job.died", ["job.succeeded"]),
        ("class:invalid_input", ["job.died"]),
    ],
)
def test_a_stream_takes_the_filters_of_events_tail(app, web, words, types):
    app.enqueue("fails")
    app.enqueue("works")
    app.run_inline()
    ear = StreamClient(web, text(app), query=f"?after=0&filter={words.replace(' ', '%20')}")
    assert [frame.event for frame in ear.events(len(types))] == types


@pytest.mark.any_store
@pytest.mark.parametrize(
    "query", ["?filter=nope:1", "?filter=type:job.deid", "?after=-1", "?after=x", "?after=1e3"]
)
def test_an_invalid_filter_is_refused(app, web, query):
    status, problem = get(web, f"/api/v1/events{query}", text(app))
    assert (status, problem["status"], problem["retryable"]) == (422, 422, False)


def test_events_removed_by_retention_and_unknown_ids_are_reported_as_a_gap(app, web, monkeypatch):
    monkeypatch.setattr(streams, "ID_WAIT", 0.25)
    for _ in range(3):
        app.enqueue("works")
    with app.store.begin() as tx:
        EventQueries(tx).prune_events(tx.now() + 1, 2)
    app.enqueue("works")
    ear = StreamClient(web, text(app), last=0)
    ear.events(2)
    assert [frame.event for frame in ear.frames[:1]] == ["gap"]
    assert ear.frames[0].id is None
    ear = StreamClient(web, text(app), last=10**9)
    ear.read_until(lambda ear: ear.frames)
    assert ear.frames[0].data["why"] == "not of this database"
    app.enqueue("works")
    assert ear.events(1)[0].event in {"key.created", "job.queued"}


def test_a_slow_client_loses_nothing(app, web, monkeypatch):
    monkeypatch.setattr(hubs, "MAX_PENDING", 3)
    key = text(app)
    ear = StreamClient(web, key).ready()
    until(lambda: web.hub._attached, 10, "a listener")
    with app.store.begin() as tx:
        for number in range(50):
            EventQueries(tx).write_events(
                [NewEvent(EventType.JOB_DIED, owner="acme", data={"n": number})]
            )
    heard = [frame.data["data"]["n"] for frame in ear.events(50)]
    assert heard == list(range(50))


@pytest.mark.security("S05")
@pytest.mark.any_store
def test_a_revoked_key_ends_its_streams_and_no_others(app, web, monkeypatch):
    monkeypatch.setattr(hubs, "KEY_CHECK_INTERVAL", 0.2)
    made, other = app.keys.create("acme", "viewer"), text(app)
    ear, stays = StreamClient(web, made.text).ready(), StreamClient(web, other).ready()
    app.keys.revoke(made.key.id)
    until(lambda: not ear.read(), 10, "the end of the stream")
    assert get(web, "/api/v1/events", made.text)[0] == 401
    app.enqueue("works")
    assert stays.read_until(lambda ear: "job.queued" in ear.types)


@pytest.mark.security("S48")
@pytest.mark.any_store
def test_a_key_may_open_another_stream_after_one_is_closed(app):
    settings = read_settings(
        {"database_url": app.settings.database_url, "web.streams_per_key": 2, "web.streams": 3}
    )
    with run_server(settings) as web:
        key = text(app)
        first, _second = StreamClient(web, key).ready(), StreamClient(web, key).ready()
        status, problem = get(web, "/api/v1/events", key)
        assert (status, problem["code"], problem["retryable"]) == (429, "TOO_MANY_STREAMS", True)
        other = text(app)
        StreamClient(web, other).ready()
        assert get(web, "/api/v1/events", other)[0] == 503
        first.close()
        until(lambda: web.hub._streams.total() == 2, 10, "room")
        assert StreamClient(web, key).status == 200


@pytest.mark.any_store
def test_a_server_that_stops_ends_its_streams_itself(app):
    """A stream that stayed open would keep the server for its whole grace period."""
    with run_server(app.settings, grace=600) as web:
        ears = [StreamClient(web, text(app)).ready() for _ in range(5)]
        web.stop()
        for ear in ears:
            until(lambda ear=ear: not ear.read(), 5, "the end of the stream")


@pytest.mark.any_store
def test_the_hub_reads_only_while_somebody_listens(app, web):
    ear = StreamClient(web, text(app)).ready()
    until(lambda: web.hub._attached, 10, "a listener")
    ear.close()
    until(lambda: web.hub._reader is None and not web.hub._open, 10, "the end of the reader")


def test_progress_events_have_no_id(app, web, monkeypatch):
    monkeypatch.setattr(hubs, "PROGRESS_INTERVAL", 0.1)
    from support.store import open_worker

    job = app.enqueue("works", owner="acme")
    open_worker(app.store, "w_9")
    with app.store.begin() as tx:
        (lease,) = LeaseQueries(tx).claim_jobs("w_9", [job.id], 1)
    ear = StreamClient(web, text(app, "acme"), query=f"?filter=job:{job.id}").ready()
    stranger = StreamClient(web, text(app, "other"), query=f"?filter=job:{job.id}").ready()
    until(lambda: len(web.hub._attached) == 2, 10, "listeners")
    with app.store.begin() as tx:
        WorkerQueries(tx).update_progress("w_9", [(job.id, lease.token, 0.25, "a quarter\nid: 7")])
    ear.read_until(lambda ear: ear.frames)
    assert (ear.frames[0].id, ear.frames[0].event) == (None, "job.progress")
    assert (ear.frames[0].data["job_id"], ear.frames[0].data["progress"]) == (job.id, 0.25)
    assert stranger.frames == []


@pytest.mark.security("A30")
@pytest.mark.any_store
def test_data_of_several_lines_is_one_frame():
    assert frame("a\r\nid: 7", {"x": "one\ntwo\u2028\r"}, 5) == (
        b'id: 5\nevent: a id: 7\ndata: {"x":"one\\ntwo\\u2028\\r"}\n\n'
    )


@pytest.mark.any_store
def test_head_answers_without_a_stream(app, web, client, key):
    answer = client.head("/api/v1/events", headers=key())
    assert (answer.status_code, answer.content) == (200, b"")


MANY_EVENTS = """INSERT INTO {p}event (at, type, owner, actor, data)
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
SELECT 1, 'queue.paused', 'globex', '', '{}' FROM n"""


def test_streams_of_one_key_do_not_delay_a_new_stream_of_another(app, web):
    sql(app.store, MANY_EVENTS)
    tenant = text(app, "acme", "viewer")
    for _ in range(100):
        StreamClient(web, tenant, query="?after=0")
    begun = time.monotonic()
    admin = StreamClient(web, text(app)).ready()
    app.enqueue("works")
    assert admin.events(1)[0].event == "job.queued"
    assert time.monotonic() - begun < 5
