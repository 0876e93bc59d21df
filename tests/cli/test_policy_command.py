"""`mulligan policy`: show policies, test errors, back-test rules."""

from __future__ import annotations

import json

import pytest

from mulligan import Fixed, Rule, Then
from mulligan.cli.policy import WINDOW_WIDTH, draw_attempt_window
from mulligan.retries.preview import PlannedAttempt


@pytest.fixture(autouse=True)
def _known(app):
    """A worker was here once."""
    app.run_inline()


def test_show_without_a_kind_lists_the_system_and_every_kind(call):
    answer = call("policy", "show")
    lines = [line.split("\t") for line in answer.out.splitlines()]
    assert answer.code == 0
    assert [line[0] for line in lines] == ["(system)", "add", "ask", "crash", "refuse", "wait_for"]
    assert lines[0][2:4] == ["3", "default"]
    assert "A worker with other settings differs" in answer.err
    assert len(json.loads(call("policy", "show", "-o", "json").out)) == len(lines)


def test_show_prints_fields_classes_and_attempts_of_a_kind(call):
    lines = [line.split("\t") for line in call("policy", "show", "add").out.splitlines()]
    assert {line[0] for line in lines} == {"field", "class", "try"}
    assert ["field", "max_retries", "3", "system", "default"] in lines
    assert [
        "class",
        "auth",
        "no: a retry does not fix failures of class auth",
        "",
        "",
        "",
        "",
        "",
        "",
    ] in lines
    assert [line[2] for line in lines if line[:2] == ["try", "unknown"]] == ["1", "2", "3"]


def test_show_as_json_has_every_field(call):
    record = json.loads(call("policy", "show", "add", "-o", "json").out)
    assert set(record) == {"kind", "queue", "fields", "classes", "rules"}
    unknown = next(one for one in record["classes"] if one["class"] == "unknown")
    assert (unknown["limit"], unknown["limit_origin"], len(unknown["calendar"])) == (
        2,
        "default",
        3,
    )
    assert len(call("policy", "show", "add", "-o", "jsonl").out.splitlines()) == 1


def test_a_table_draws_the_calendar(call, monkeypatch):
    monkeypatch.setenv("MULLIGAN_RETRY__ONLY", "timeout,unknown")
    out = call("policy", "show", "add", "-o", "table").out
    assert "If every attempt fails with timeout:" in out
    assert (
        "not retried: transient, rate_limited, resource (only timeout, unknown may be retried (retry.only))"
        in out
    )
    assert "MULLIGAN_RETRY__ONLY" in out
    assert "●" in out


def test_rules_with_their_own_settings_are_listed_without_secrets(app, call):
    step = Then(queue="big", settings={"model": "small", "api_key": "hunter2hunter2"})
    busy = Rule(
        "busy",
        http_status=503,
        code="BUSY",
        cls="transient",
        max_retries=1,
        backoff=Fixed(7),
        then=step,
    )
    app.rules.add(busy, Rule("named", errno=5, code="NAMED", cls="transient"))
    app.run_inline()
    lines = [line.split("\t") for line in call("policy", "show", "add").out.splitlines()]
    listed = [line[1:] for line in lines if line[0] == "rule"]
    assert listed == [
        [
            "busy",
            "BUSY",
            "transient",
            "1",
            "always 7 s",
            "queue big, api_key=[redacted], model=small",
            "",
        ]
    ]
    plain = json.loads(call("policy", "show", "add", "-o", "json").out)["rules"]
    assert [(rule["id"], rule["max_retries"]) for rule in plain] == [("busy", 1)]
    table = call("policy", "show", "add", "-o", "table").out
    assert "Rules with their own retry settings" in table
    assert "hunter2" not in f"{listed}{plain}{table}"


def test_an_unknown_kind_is_not_found(call):
    answer = call("policy", "show", "ad")
    assert (answer.code, "did you mean 'add'" in answer.err) == (3, True)


def test_the_window_spans_the_possible_start_times():
    found = PlannedAttempt(2, 10, 5, 15, 5, 10, 15)
    assert draw_attempt_window(found, 15) == "·" * 10 + "─" * 11 + "●" + "─" * 10
    assert len(draw_attempt_window(found, 15)) == WINDOW_WIDTH
    assert draw_attempt_window(PlannedAttempt(1, 0, 0, 0, 0, 0, 0), 0) == "●"


def test_a_missing_file_is_a_usage_error(call, tmp_path):
    answer = call("policy", "test", "--jsonl", str(tmp_path / "nobody.jsonl"))
    assert (answer.code, "does not exist" in answer.err) == (2, True)


def test_test_shows_what_the_group_is_made_of(call):
    out = call(
        "policy", "test", "HTTP Error 503: gone", "--exception", "urllib.error.HTTPError"
    ).out
    assert "made of\tclass transient; code HTTP_5XX; " in out
    record = json.loads(call("policy", "test", "order 7 is odd", "-o", "json").out)
    assert record["group_of"] == {
        "version": "v2",
        "class": "unknown",
        "code": "UNKNOWN_ERROR",
        "words": "order * is odd",
    }
    assert record["group"].startswith("v2-")
