from __future__ import annotations

import json
import signal
from contextlib import closing

from mulligan import Mulligan
from mulligan.cli import events as tailing
from mulligan.core.errors import StoreUnavailable
from support.waiting import until


def test_the_newest_events_come_oldest_first(call, app):
    app.enqueue("refuse")
    app.run_inline()
    events = [
        json.loads(line)
        for line in call("events", "tail", "-o", "jsonl", "--type", "job.*").out.splitlines()
    ]
    assert [event["type"] for event in events] == ["job.queued", "job.started", "job.died"]
    assert json.loads(call("events", "tail", "-n", "1", "-o", "json").out) == [events[-1]]
    assert len(call("events", "tail").out.splitlines()[0].split("\t")) == len(tailing.TAIL_COLUMNS)


def test_only_those_of_a_job_a_type_an_owner_or_a_code(call, app):
    first, second = app.enqueue("refuse", owner="acme"), app.enqueue("add", {"a": 1, "b": 2})
    app.run_inline()

    def types(*said):
        return [
            json.loads(line)["type"]
            for line in call("events", "tail", "-o", "jsonl", *said).out.splitlines()
        ]

    assert types("--job", second.id) == ["job.queued", "job.started", "job.succeeded"]
    assert types("--filter", "owner:acme") == ["job.queued", "job.started", "job.died"]
    assert types("--filter", "code:BAD_FILE class:invalid_input") == ["job.died"]
    assert types("--type", "job.died", "--type", "job.succeeded", "--job", first.id) == ["job.died"]


def test_far_back_is_looked_window_by_window(call, app, monkeypatch):
    monkeypatch.setattr(tailing, "WINDOW", 3)
    job = app.enqueue("refuse")
    for _ in range(10):
        app.enqueue("ask")
    (line,) = call("events", "tail", "--job", job.id, "-o", "jsonl").out.splitlines()
    assert json.loads(line)["type"] == "job.queued"
    monkeypatch.setattr(tailing, "LOOKED_AT", 3)
    answer = call("events", "tail", "--job", job.id)
    assert answer.out == ""
    assert "were looked at" in answer.err


def test_following_goes_on_until_it_is_interrupted(start, app):
    app.enqueue("ask")
    tail = start("events", "tail", "-f", "-n", "1", "--type", "job.queued", "-o", "jsonl")
    tail.says("job.queued")
    later = app.enqueue("ask")
    tail.says(later.id)
    tail.signal(signal.SIGINT)
    assert tail.ended().code == 130


def test_wrong_names_get_the_nearest_right_one(call, app):
    app.enqueue("ask")
    answer = call("events", "tail", "--type", "job.deid")
    assert answer.code == 2
    assert "did you mean job.died?" in answer.err
    answer = call("events", "tail", "--filter", "ownr:acme")
    assert answer.code == 2
    assert "did you mean owner?" in answer.err


def test_following_waits_for_a_database_that_is_away(start, postgres_server, postgres_url, folder):
    with closing(Mulligan(postgres_url)) as app:
        app.enqueue("ask")
        tail = start("events", "tail", "-f", "-o", "jsonl", "--database", postgres_url)
        tail.says("job.queued")
        postgres_server.stop()
        tail.says("waiting for it", 30)
        postgres_server.start()
        later = until(lambda: enqueued(app), 20)
        tail.says(later.id, 30)


def enqueued(app):
    try:
        return app.enqueue("ask")
    except StoreUnavailable:
        return None
