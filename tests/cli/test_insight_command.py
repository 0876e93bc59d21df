"""`mulligan insight`: numbers, advice and output formats."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from mulligan.core.errors import Refused
from mulligan.events.queries import MINUTE, StatQueries, StatRow
from mulligan.insight import service as insight_service
from support.history import insert_finished_jobs
from support.store import now


@pytest.fixture
def past(app):
    """Five hundred jobs of the last days: 60 % succeed at once, 20 % after a retry, 20 % die after four attempts."""
    insert_finished_jobs(app.open().store, 500, now=now(app.store), private=10)
    return app


def test_an_empty_database_prints_suggestions(call, app):
    app.open()
    answer = call("insight", "-o", "table")
    assert answer.code == 0
    assert "0 jobs enqueued since" in answer.out
    assert "mulligan demo" in answer.out
    assert "# all kinds and queues" in call("insight", "--kind", "nobody", "-o", "table").out


def test_the_report_shows_rates_bars_costs_and_advice(call, past):
    output = call("insight", "-o", "table").out
    for expected in (
        "500 jobs enqueued since",
        "900 attempts ended",
        "retry success       █████        50 %  100 of 200, 43–57 %",
        "GW_TIMEOUT (timeout) gateway                   2nd ████████████████████  100 % (100 of 100)",
        "HTTP_5XX (transient) gateway                   4th                         0 % (0 of 100)",
        "by hand             no data",
        "of work in 400 failures, cost 4",
        "attempts for each job that started: 1.80",
        "1. Retries after HTTP_5XX succeed in 0 % of cases (0 of 300",
    ):
        assert expected in output, output


def test_the_report_fits_a_terminal(call, past):
    lines = call("insight", "-o", "table").out.split("Advice")[0].splitlines()
    assert max(map(len, lines)) <= 120


def test_json_has_counts_and_value_of_every_share(call, past):
    record = json.loads(call("insight", "--since", "30d", "-o", "json").out)
    assert record["numbers"]["retry_success"] == {
        "part": 100,
        "whole": 200,
        "low": pytest.approx(0.43, abs=0.01),
        "high": pytest.approx(0.57, abs=0.01),
        "value": 0.5,
    }
    assert record["numbers"]["false_permanent"]["value"] is None
    assert record["numbers"]["chances"][0]["chance"]["trials"] == 100
    assert record["partial"] is False
    assert "Succeeded jobs are stored for 7 d" in record["notes"][0]


def test_a_pipe_gets_tsv_rows(call, past):
    lines = [line.split("\t") for line in call("insight").out.splitlines()]
    assert lines[0][:3] == ["rate", "retry success", "0.5000"]
    assert {line[0] for line in lines} == {"rate", "recent", "attempt", "wasted", "advice"}


def test_an_invalid_duration_is_refused(call, app):
    app.open()
    assert call("insight", "--since", "yesterday").code == 2
    assert call("insight", "--since", "1").code == 2


# --- The same in Python ---
def test_python_accepts_durations_and_times(past):
    for since in (timedelta(days=7), 7 * 86_400, datetime.now(UTC) - timedelta(days=6, hours=23)):
        assert past.insight(since).numbers.jobs == 500
    assert past.insight(timedelta(days=3)).numbers.jobs < 300
    assert past.insight(kind="nobody").numbers.jobs == 0
    assert past.insight(queue="default").numbers.jobs == 500
    with pytest.raises(Refused, match="since must be at least a minute"):
        past.insight(datetime.now(UTC) + timedelta(days=1))


def test_a_truncated_insight_says_so(past, monkeypatch):
    monkeypatch.setattr(insight_service, "MAX_JOBS", 100)
    found = past.insight()
    assert found.partial
    assert found.numbers.jobs == 100
    assert "Only the newest jobs are counted: up to 100 jobs" in found.notes[0]


def test_pending_jobs_are_noted_and_not_part_of_any_rate(past):
    past.enqueue("add", {"a": 1, "b": 2})
    found = past.insight()
    assert found.numbers.pending == 1
    assert (
        "1 job has not ended yet. The rates do not include pending jobs and may change."
        in found.notes
    )


def test_the_async_method_returns_the_same(past):
    assert asyncio.run(past.aio.insight()).numbers.jobs == 500


def test_recent_rates_are_shown_if_workers_have_counted_them(call, past):
    assert "Recently" not in call("insight", "-o", "table").out
    with past.store.begin() as tx:
        minute = tx.now() // MINUTE
        labels = '{"kind":"render","outcome":"%s","queue":"default","try":"%s"}'
        StatQueries(tx).add_stats(
            [
                StatRow(minute, "tries", labels % ("succeeded", 2), 8, 0),
                StatRow(minute, "tries", labels % ("dead", 1), 2, 0),
            ]
        )
    output = call("insight", "-o", "table").out
    assert (
        "  last 5 minutes  2 of 10, 6–51 % of attempts failed (20 %); 80 % were retries" in output
    ), output
    assert json.loads(call("insight", "-o", "json").out)["recent"][1]["failed"]["value"] == 0.2
