from __future__ import annotations

import json

import pytest

from mulligan import Fixed, Rule, Then
from mulligan.cli.policy import BAR, bar
from mulligan.retries.preview import Try


@pytest.fixture(autouse=True)
def _known(app):
    """A worker was here once."""
    app.run_inline()


def test_without_a_kind_there_is_a_line_for_each_and_one_for_the_system(call):
    answer = call("policy", "show")
    lines = [line.split("\t") for line in answer.out.splitlines()]
    assert answer.code == 0
    assert [line[0] for line in lines] == ["(system)", "add", "ask", "crash", "refuse", "wait_for"]
    assert lines[0][2:4] == ["3", "default"]
    assert "a worker with other settings has another" in answer.err
    assert len(json.loads(call("policy", "show", "-o", "json").out)) == len(lines)


def test_a_kind_is_told_in_fields_classes_and_tries(call):
    lines = [line.split("\t") for line in call("policy", "show", "add").out.splitlines()]
    assert {line[0] for line in lines} == {"field", "class", "try"}
    assert ["field", "max_retries", "3", "system", "default"] in lines
    assert [
        "class",
        "auth",
        "no: such failures do not go away by themselves",
        "",
        "",
        "",
        "",
        "",
        "",
    ] in lines
    assert [line[2] for line in lines if line[:2] == ["try", "unknown"]] == ["1", "2", "3"]


def test_json_has_the_whole_of_it(call):
    told = json.loads(call("policy", "show", "add", "-o", "json").out)
    assert set(told) == {"kind", "queue", "fields", "classes", "rules"}
    unknown = next(one for one in told["classes"] if one["class"] == "unknown")
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


def test_rules_with_terms_of_their_own_are_listed_and_their_secrets_are_not(app, call):
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
    assert "Rules with terms of their own" in table
    assert "hunter2" not in f"{listed}{plain}{table}"


def test_an_unknown_kind_is_not_found(call):
    answer = call("policy", "show", "ad")
    assert (answer.code, "did you mean 'add'" in answer.err) == (3, True)


def test_a_bar_spans_what_is_possible():
    found = Try(2, 10, 5, 15, 5, 10, 15)
    assert bar(found, 15) == "·" * 10 + "─" * 11 + "●" + "─" * 10
    assert len(bar(found, 15)) == BAR
    assert bar(Try(1, 0, 0, 0, 0, 0, 0), 0) == "●"


def test_a_file_that_is_not_there_is_a_mistake_of_the_caller(call, tmp_path):
    answer = call("policy", "test", "--jsonl", str(tmp_path / "nobody.jsonl"))
    assert (answer.code, "does not exist" in answer.err) == (2, True)


def test_a_verdict_says_what_the_name_of_its_group_is_made_of(call):
    out = call(
        "policy", "test", "HTTP Error 503: gone", "--exception", "urllib.error.HTTPError"
    ).out
    assert "made of\tclass transient; code HTTP_5XX; " in out
    told = json.loads(call("policy", "test", "order 7 is odd", "-o", "json").out)
    assert told["group_of"] == {
        "version": "v2",
        "class": "unknown",
        "code": "UNKNOWN_ERROR",
        "words": "order * is odd",
    }
    assert told["group"].startswith("v2-")
