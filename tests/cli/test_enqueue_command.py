"""`mulligan enqueue`: arguments, options, and what is refused."""

from __future__ import annotations

import json

import pytest

from mulligan import Unique


def test_values_are_parsed_as_json_or_taken_as_text(call, app):
    pairs = (
        "n=7",
        "yes=true",
        "list=[1, 2]",
        "text=hello there",
        'quoted="7"',
        "empty=",
        "nan=NaN",
        "eq=a=b",
    )
    answer = call("enqueue", "any", *pairs)
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


def test_stdout_has_only_the_id_and_stderr_the_messages(call, app):
    answer = call("enqueue", "add", "a=1", "b=2")
    assert answer.out == f"{app.jobs.list()[0].id}\n"
    assert "mulligan jobs watch" in answer.err


def test_options_set_the_fields_of_the_job(call, app):
    place = ("--queue", "mail", "--priority", "-3", "--owner", "acme")
    rest = ("--delay", "5m", "--unique", "k", "--max-retries", "0", "-o", "json")
    answer = call("enqueue", "add", "--payload", '{"a": 1, "b": 1}', "b=2", *place, *rest)
    record = json.loads(answer.out)
    assert record["payload"] == {"a": 1, "b": 2}
    assert (record["queue"], record["priority"], record["owner"]) == ("mail", -3, "acme")
    assert (record["unique_key"], record["max_retries"], record["phase"]) == ("k", 0, "scheduled")


def test_a_duplicate_returns_the_first_job_and_another_payload_is_refused(call, app):
    first = call("enqueue", "add", "a=1", "b=2", "--unique", "k")
    twin = call("enqueue", "add", "a=1", "b=2", "--unique", "k")
    assert (twin.code, twin.out) == (0, first.out)
    assert "already holds this unique key" in twin.err
    assert call("enqueue", "add", "a=2", "b=2", "--unique", "k").code == 5


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a"], "KEY=VALUE"),
        (["=1"], "KEY=VALUE"),
        (["a=1", "a=2"], "twice"),
        (["--payload", "[1]"], "JSON object"),
        (["--payload", "{"], "not valid JSON"),
        (["--payload", '{"a": NaN}'], "NaN"),
        (["--delay", "soon"], "invalid duration"),
        (["--delay", "-5"], "invalid duration"),
        (["--priority", "10"], "priority"),
        (["--max-retries", "-1"], "max_retries"),
        (["--queue", "a b"], "queue"),
        (["--owner", "x" * 501], "owner"),
    ],
)
def test_bad_input_is_a_usage_error_and_writes_nothing(call, app, arguments, expected):
    answer = call("enqueue", "add", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert expected in answer.err
    assert app.jobs.list() == []


def test_a_kind_that_no_worker_has_is_refused_with_a_suggestion(call, app):
    app.enqueue("add", {"a": 1, "b": 2})
    app.run_inline()
    answer = call("enqueue", "ad", "a=1")
    assert answer.code == 2
    assert "no recent worker has kind ad. Did you mean add?" in answer.err
    assert "--force" in answer.err
    assert app.jobs.count("kind:ad") == 0


def test_force_enqueues_a_kind_that_no_worker_has(call, app):
    app.enqueue("add", {"a": 1, "b": 2})
    app.run_inline()
    answer = call("enqueue", "ad", "a=1", "--force")
    assert answer.code == 0
    assert "The job waits 1 d for one." in answer.err
    assert app.jobs.count("kind:ad") == 1


def test_before_the_first_worker_any_kind_is_enqueued_with_a_warning(call, folder):
    answer = call("enqueue", "ad", "a=1", "--database", f"sqlite:///{folder}/other.db")
    assert answer.code == 0
    assert "no recent worker has kind ad" in answer.err


def test_a_newly_created_file_is_reported(call, folder):
    answer = call("enqueue", "add", "a=1")
    assert answer.code == 0
    assert f"{folder}/mulligan.db did not exist" in answer.err
    assert "did not exist" not in call("enqueue", "add", "a=1").err


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (("a=1", "c=2"), "b: is missing"),
        (("a=1", "b=2", "c=2"), "c: unknown; known: a, b"),
        (("a=1", "b=two"), 'b: expected an integer, got "two"'),
    ],
)
def test_a_payload_that_does_not_fit_the_schema_is_refused(app, call, pairs, message):
    app.run_inline()  # so that the kinds are known
    answer = call("enqueue", "add", *pairs)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert app.jobs.list() == []


def test_a_unique_kind_is_unique_on_the_command_line(app, call):
    @app.job(name="charge", unique=Unique(by="payload.order"))
    def charge(order: int) -> None: ...

    app.run_inline()
    first = call("enqueue", "charge", "order=7")
    twin = call("enqueue", "charge", "order=7")
    assert (twin.code, twin.out) == (0, first.out)
    assert "already holds this unique key" in twin.err


def test_a_kind_that_accepts_any_field_causes_no_warning(app, call):
    @app.job(name="open")
    def anything(**named: int) -> None: ...

    app.run_inline()
    assert "warning" not in call("enqueue", "open", "a=1").err


def test_a_job_with_a_strange_character_can_be_listed(app, call):
    job = app.enqueue("strange", {"text": "a\ud800b\x00"})
    for arguments in (
        ("list", "-o", "json"),
        ("list",),
        ("show", job.id),
        ("show", job.id, "-o", "json"),
    ):
        answer = call("jobs", *arguments)
        assert answer.code == 0, arguments
        assert job.id[:8] in answer.out
