"""`mulligan events`: filters, output formats and following."""

from __future__ import annotations

import json
import signal
from contextlib import closing

from mulligan import Mulligan
from mulligan.cli import events as events_command
from mulligan.core.errors import StoreUnavailable
from support.waiting import until


def test_tail_prints_the_newest_events_oldest_first(call, app):
    app.enqueue("refuse")
    app.run_inline()
    events = [
        json.loads(line)
        for line in call("events", "tail", "-o", "jsonl", "--type", "job.*").out.splitlines()
    ]
    assert [event["type"] for event in events] == ["job.queued", "job.started", "job.died"]
    assert json.loads(call("events", "tail", "-n", "1", "-o", "json").out) == [events[-1]]
    assert len(call("events", "tail").out.splitlines()[0].split("\t")) == len(
        events_command.TAIL_COLUMNS
    )


def test_tail_filters_by_job_type_owner_and_code(call, app):
    first, second = app.enqueue("refuse", owner="acme"), app.enqueue("add", {"a": 1, "b": 2})
    app.run_inline()

    def types(*options):
        return [
            json.loads(line)["type"]
            for line in call("events", "tail", "-o", "jsonl", *options).out.splitlines()
        ]

    assert types("--job", second.id) == ["job.queued", "job.started", "job.succeeded"]
    assert types("--filter", "owner:acme") == ["job.queued", "job.started", "job.died"]
    assert types("--filter", "code:BAD_FILE class:invalid_input") == ["job.died"]
    assert types("--type", "job.died", "--type", "job.succeeded", "--job", first.id) == ["job.died"]


def test_tail_searches_backwards_up_to_a_limit(call, app, monkeypatch):
    monkeypatch.setattr(events_command, "WINDOW", 3)
    job = app.enqueue("refuse")
    for _ in range(10):
        app.enqueue("ask")
    (line,) = call("events", "tail", "--job", job.id, "-o", "jsonl").out.splitlines()
    assert json.loads(line)["type"] == "job.queued"
    monkeypatch.setattr(events_command, "MAX_LOOKBACK", 3)
    answer = call("events", "tail", "--job", job.id)
    assert answer.out == ""
    assert "events were searched" in answer.err


def test_follow_continues_until_interrupted(start, app):
    app.enqueue("ask")
    tail = start("events", "tail", "-f", "-n", "1", "--type", "job.queued", "-o", "jsonl")
    tail.wait_for_output("job.queued")
    later = app.enqueue("ask")
    tail.wait_for_output(later.id)
    tail.signal(signal.SIGINT)
    assert tail.wait_for_exit().code == 130


def test_a_wrong_name_suggests_the_nearest(call, app):
    app.enqueue("ask")
    answer = call("events", "tail", "--type", "job.deid")
    assert answer.code == 2
    assert "Did you mean job.died?" in answer.err
    answer = call("events", "tail", "--filter", "ownr:acme")
    assert answer.code == 2
    assert "Did you mean owner?" in answer.err


def test_follow_waits_for_an_unreachable_database(start, postgres_server, postgres_url, folder):
    with closing(Mulligan(postgres_url)) as app:
        app.enqueue("ask")
        tail = start("events", "tail", "-f", "-o", "jsonl", "--database", postgres_url)
        tail.wait_for_output("job.queued")
        postgres_server.stop()
        tail.wait_for_output("waiting for it", 30)
        postgres_server.start()
        later = until(lambda: try_enqueue(app), 20)
        tail.wait_for_output(later.id, 30)


def try_enqueue(app):
    try:
        return app.enqueue("ask")
    except StoreUnavailable:
        return None
