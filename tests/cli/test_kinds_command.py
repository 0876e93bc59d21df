"""`mulligan kinds …`."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(autouse=True)
def _some_work(app):
    app.enqueue("add", {"a": 1, "b": 2})


@pytest.fixture
def held(app):
    """A kind that the guard holds: five jobs of two owners died of one cause."""
    jobs = [app.enqueue("crash", {"text": str(n)}, owner=f"owner{n % 2}") for n in range(8)]
    app.run_inline()
    return jobs


def rows(answer):
    assert answer.code == 0, answer.err
    return [line.split("\t") for line in answer.out.splitlines()]


def test_list_shows_held_kinds_first_with_reason_age_counts_and_sample(call, held):
    first, *others = rows(call("kinds", "list"))
    assert first[:5] == ["crash", "held", "0", "4", "0"]
    assert first[5].endswith("ago")
    assert first[6] == held[4].id
    assert first[7].startswith("5 jobs of 2 owners failed in a row with PROGRAMMING_ERROR")
    assert first[7].endswith("(guard)")
    assert {row[1] for row in others} == {"running"}
    assert [row[0] for row in rows(call("kinds", "list", "--held"))] == ["crash"]
    record = json.loads(call("kinds", "list", "--held", "-o", "json").out)[0]
    assert (record["jobs"], record["owners"], record["held_jobs"], record["job"]) == (
        5,
        2,
        4,
        held[4].id,
    )
    assert record["message"]
    assert record["fingerprint"]


def test_release_reopens_a_kind_and_prints_how_to_list_the_dead_jobs(call, app, held):
    answer = call("kinds", "try", "crash", "--reason", "is it fixed?")
    assert "held, trial waiting" in answer.out
    assert "mulligan kinds release crash" in answer.err
    answer = call("kinds", "release", "crash", "--reason", "fixed")
    assert rows(answer)[0][:3] == ["crash", "running", "4"]
    assert "mulligan jobs list kind:crash state:dead" in answer.err
    assert not app.kinds.get("crash").held
    assert call("jobs", "list", "kind:crash", "state:dead").out.count(held[0].id) == 1


def test_hold_and_release_record_actor_and_reason(call, app):
    answer = call("kinds", "hold", "add", "--for", "2h", "--reason", "the table is migrated")
    (row,) = rows(answer)
    assert row[1] == "held, released in 2 h"
    assert row[-1].startswith("the table is migrated (cli:")
    assert "mulligan kinds release add" in answer.err
    assert app.kinds.get("add").held
    assert json.loads(call("kinds", "release", "add", "-o", "json").out)["held"] is False


def test_list_held_is_empty_if_nothing_is_held(call):
    assert rows(call("kinds", "list", "--held")) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(("hold", "two words"), "without spaces"), (("hold", "add", "--for", "soon"), "2h")],
)
def test_invalid_arguments_are_refused(call, arguments, expected):
    answer = call("kinds", *arguments)
    assert answer.code == 2
    assert expected in answer.err


def test_doctor_reports_held_kinds(call, held):
    answer = call("doctor")
    assert "kind crash is held by its guard since" in answer.out
    assert "mulligan kinds release crash" in answer.out
    assert held
