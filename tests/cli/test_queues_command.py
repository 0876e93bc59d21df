"""`mulligan queues`: list, pause, resume and limit queues."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(autouse=True)
def _some_work(app):
    app.enqueue("add", {"a": 1, "b": 2})
    app.enqueue("add", {"a": 1, "b": 2}, queue="mail", delay=60)


def rows(answer):
    assert answer.code == 0, answer.err
    return [line.split("\t") for line in answer.out.splitlines()]


def test_list_shows_waiting_jobs_per_queue(call):
    assert [row[:6] for row in rows(call("queues", "list"))] == [
        ["default", "running", "1", "0", "0", "0"],
        ["mail", "running", "0", "0", "1", "0"],
    ]
    assert [queue["ready"] for queue in json.loads(call("queues", "list", "-o", "json").out)] == [
        1,
        0,
    ]


@pytest.mark.parametrize(
    "command", [("queues", "pause"), ("queues", "set", "--rate", "5"), ("kinds", "hold")]
)
def test_a_name_that_nothing_uses_is_refused_unless_it_is_new(call, app, command):
    app.enqueue("add", {"a": 1, "b": 2})
    app.run_inline()
    typo = {"queues": "defualt", "kinds": "ad"}[command[0]]
    answer = call(*command, typo)
    assert answer.code == 3
    assert "--new" in answer.err
    assert call(*command, typo, "--new").code == 0


def test_pause_and_resume_record_actor_and_reason_and_print_the_next_command(call, app):
    paused = call("queues", "pause", "mail", "--for", "2h", "--reason", "the relay is down")
    (row,) = rows(paused)
    assert row[1] == "paused, resumes in 2 h"
    assert row[-1].startswith("the relay is down (cli:")
    assert "mulligan queues resume mail" in paused.err
    assert app.queues.get("mail").paused
    assert rows(call("queues", "resume", "mail"))[0][1] == "running"
    assert not app.queues.get("mail").paused


def test_set_changes_one_limit_until_cleared(call, app):
    call("queues", "set", "mail", "--concurrency", "3", "--reason", "gently")
    assert rows(call("queues", "set", "mail", "--rate", "100/m"))[0][7:9] == ["3", "1.7 a second"]
    record = json.loads(call("queues", "set", "mail", "--concurrency", "none", "-o", "json").out)
    assert (record["concurrency"], record["set_by_hand"]) == (None, True)
    assert rows(call("queues", "set", "mail", "--clear"))[0][1] == "running"
    assert app.queues.get("mail").rate is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("set", "mail"), "concurrency=, rate= or both"),
        (("set", "mail", "--concurrency", "few"), "few"),
        (("set", "mail", "--concurrency", "0"), "pause"),
        (("set", "mail", "--rate", "often"), "5/s"),
        (("set", "mail", "--clear", "--rate", "1"), "--clear cannot be combined"),
        (("pause", "two words"), "without spaces"),
        (("pause", "mail", "--for", "soon"), "2h"),
    ],
)
def test_invalid_arguments_are_refused_and_change_nothing(call, app, arguments, expected):
    answer = call("queues", *arguments)
    assert answer.code == 2
    assert expected in answer.err
    assert app.queues.get("mail").set_by_hand is False
