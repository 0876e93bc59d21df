from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from mulligan.core.errors import Refused
from mulligan.insight import service as engine
from mulligan.storage.stat_queries import MINUTE, StatRow
from support.history import many_lives
from support.store import now


@pytest.fixture
def past(app):
    """Five hundred jobs of the last days: 60 % succeed at once, 20 % after a retry, 20 % die after four attempts."""
    many_lives(app.open().store, 500, now=now(app.store), private=10)
    return app


def test_an_empty_database_says_what_to_do(call, app):
    app.open()
    told = call("insight", "-o", "table")
    assert told.code == 0
    assert "0 jobs enqueued since" in told.out
    assert "mulligan demo" in told.out
    assert "# all kinds and queues" in call("insight", "--kind", "nobody", "-o", "table").out


def test_what_retries_are_worth_is_drawn_and_said(call, past):
    told = call("insight", "-o", "table").out
    for words in (
        "500 jobs enqueued since",
        "900 attempts ended",
        "retry success       █████        50 %  100 of 200, 43–57 %",
        "GW_TIMEOUT (timeout) gateway                   2nd ████████████████████  100 % (100 of 100)",
        "HTTP_5XX (transient) gateway                   4th                         0 % (0 of 100)",
        "by hand             no data",
        "of work in 400 failures, cost 4",
        "attempts for each job that started: 1.80",
        "1. Retries after HTTP_5XX succeed 0 % (0 of 300",
    ):
        assert words in told, told


def test_nothing_is_wider_than_a_terminal(call, past):
    lines = call("insight", "-o", "table").out.split("Advice")[0].splitlines()
    assert max(map(len, lines)) <= 120


def test_as_json_every_share_has_its_counts_and_its_value(call, past):
    told = json.loads(call("insight", "--since", "30d", "-o", "json").out)
    assert told["numbers"]["retry_success"] == {
        "part": 100,
        "whole": 200,
        "low": pytest.approx(0.43, abs=0.01),
        "high": pytest.approx(0.57, abs=0.01),
        "value": 0.5,
    }
    assert told["numbers"]["false_permanent"]["value"] is None
    assert told["numbers"]["chances"][0]["chance"]["trials"] == 100
    assert told["partial"] is False
    assert "Succeeded jobs are kept for 7 d" in told["notes"][0]


def test_in_a_pipe_it_is_lines(call, past):
    lines = [line.split("\t") for line in call("insight").out.splitlines()]
    assert lines[0][:3] == ["rate", "retry success", "0.5000"]
    assert {line[0] for line in lines} == {"rate", "lately", "attempt", "wasted", "advice"}


def test_a_time_that_is_none_is_refused(call, app):
    app.open()
    assert call("insight", "--since", "yesterday").code == 2
    assert call("insight", "--since", "1").code == 2


# -- the same in Python -----------------------------------------------------------------------------
def test_python_asks_with_lengths_and_moments(past):
    for since in (timedelta(days=7), 7 * 86_400, datetime.now(UTC) - timedelta(days=6, hours=23)):
        assert past.insight(since).numbers.jobs == 500
    assert past.insight(timedelta(days=3)).numbers.jobs < 300
    assert past.insight(kind="nobody").numbers.jobs == 0
    assert past.insight(queue="default").numbers.jobs == 500
    with pytest.raises(Refused, match="since must be at least a minute"):
        past.insight(datetime.now(UTC) + timedelta(days=1))


def test_when_there_is_more_than_is_looked_at_it_is_said(past, monkeypatch):
    monkeypatch.setattr(engine, "JOBS", 100)
    found = past.insight()
    assert found.partial
    assert found.numbers.jobs == 100
    assert "More was there than is looked at" in found.notes[0]


def test_jobs_that_have_not_ended_are_named_and_in_no_rate(past):
    past.enqueue("add", {"a": 1, "b": 2})
    found = past.insight()
    assert found.numbers.pending == 1
    assert "1 jobs have not ended yet; they are in no rate, and may change it." in found.notes


def test_the_awaitable_twin_answers_the_same(past):
    assert asyncio.run(past.aio.insight()).numbers.jobs == 500


def test_what_happened_lately_is_told_where_workers_have_counted_it(call, past):
    assert "Lately" not in call("insight", "-o", "table").out
    with past.store.begin() as unit:
        minute = unit.now() // MINUTE
        said = '{"kind":"render","outcome":"%s","queue":"default","try":"%s"}'
        unit.add_stats(
            [
                StatRow(minute, "tries", said % ("succeeded", 2), 8, 0),
                StatRow(minute, "tries", said % ("dead", 1), 2, 0),
            ]
        )
    told = call("insight", "-o", "table").out
    assert (
        "  last 5 minutes  2 of 10, 6–51 % of attempts failed (20 %); 80 % were retries" in told
    ), told
    assert json.loads(call("insight", "-o", "json").out)["lately"][1]["failed"]["value"] == 0.2
