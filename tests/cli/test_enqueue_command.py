from __future__ import annotations

import json

import pytest


def test_values_are_json_where_they_are_json_else_text(call, app):
    given = (
        "n=7",
        "yes=true",
        "list=[1, 2]",
        "text=hello there",
        'quoted="7"',
        "empty=",
        "nan=NaN",
        "eq=a=b",
    )
    answer = call("enqueue", "any", *given)
    assert answer.code == 0
    assert app.jobs.get(answer.out.strip()).payload == {
        "n": 7,
        "yes": True,
        "list": [1, 2],
        "text": "hello there",
        "quoted": "7",
        "empty": "",
        "nan": "NaN",
        "eq": "a=b",
    }


def test_stdout_is_the_id_alone_and_the_talk_is_on_stderr(call, app):
    answer = call("enqueue", "add", "a=1", "b=2")
    assert answer.out == f"{app.jobs.list()[0].id}\n"
    assert "mulligan jobs watch" in answer.err


def test_what_is_said_about_the_job_arrives(call, app):
    place = ("--queue", "mail", "--priority", "-3", "--owner", "acme")
    rest = ("--delay", "5m", "--unique", "k", "--max-retries", "0", "-o", "json")
    answer = call("enqueue", "add", "--payload", '{"a": 1, "b": 1}', "b=2", *place, *rest)
    record = json.loads(answer.out)
    assert record["payload"] == {"a": 1, "b": 2}
    assert (record["queue"], record["priority"], record["owner"]) == ("mail", -3, "acme")
    assert (record["unique_key"], record["max_retries"], record["phase"]) == ("k", 0, "scheduled")


def test_a_twin_is_the_first_job_and_another_payload_a_conflict(call, app):
    first = call("enqueue", "add", "a=1", "b=2", "--unique", "k")
    twin = call("enqueue", "add", "a=1", "b=2", "--unique", "k")
    assert (twin.code, twin.out) == (0, first.out)
    assert "there already" in twin.err
    assert call("enqueue", "add", "a=2", "b=2", "--unique", "k").code == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a"], "KEY=VALUE"),
        (["=1"], "KEY=VALUE"),
        (["a=1", "a=2"], "twice"),
        (["--payload", "[1]"], "JSON object"),
        (["--payload", "{"], "not valid JSON"),
        (["--payload", '{"a": NaN}'], "NaN"),
        (["--delay", "soon"], "length of time"),
        (["--delay", "-5"], "length of time"),
        (["--priority", "10"], "priority"),
        (["--max-retries", "-1"], "max_retries"),
        (["--queue", "a b"], "queue"),
        (["--owner", "x" * 501], "owner"),
    ],
)
def test_bad_input_is_a_usage_error_and_writes_nothing(call, app, arguments, words):
    answer = call("enqueue", "add", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err
    assert app.jobs.list() == []


def test_a_kind_nobody_knows_is_enqueued_with_a_warning_and_the_nearest_name(call, app):
    app.enqueue("add", {"a": 1, "b": 2})
    app.run_inline()
    answer = call("enqueue", "ad", "a=1")
    assert answer.code == 0
    assert "no worker has ever named kind ad" in answer.err
    assert "Did you mean add?" in answer.err


def test_a_file_made_just_now_is_said_aloud(call, folder):
    answer = call("enqueue", "add", "a=1")
    assert answer.code == 0
    assert f"{folder}/mulligan.db did not exist" in answer.err
    assert "did not exist" not in call("enqueue", "add", "a=1").err


@pytest.mark.parametrize(
    ("pairs", "told"),
    [
        (("a=1", "b=2"), ""),
        (("a=1", "c=2"), "add lacks b and does not take c; it takes a, b"),
        (("a=1",), "add lacks b; it takes a, b"),
    ],
)
def test_a_payload_whose_names_do_not_fit_is_said_at_once(app, call, pairs, told):
    app.run_inline()  # so that the kinds are known
    queued = call("enqueue", "add", *pairs)
    assert queued.code == 0
    assert ("warning" in queued.err, told in queued.err) == (bool(told), True)


def test_a_kind_that_takes_any_name_is_left_alone(app, call):
    @app.job(name="open")
    def anything(**named: int) -> None: ...

    app.run_inline()
    assert "warning" not in call("enqueue", "open", "a=1").err
