"""`mulligan schedules`: list them, show the next runs, run one now."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def nightly(app):
    app.schedule(
        "nightly", "30 2 * * *", "add", {"a": 1, "b": 2}, timezone="Europe/Berlin", owner="acme"
    )
    app.schedule("weekly", "0 9 * * MON", "refuse", missed="skip")
    app.run_inline()
    return app


def test_list_is_tsv_when_piped_by_name(call, nightly):
    answer = call("schedules", "list")
    rows = [line.split("\t") for line in answer.out.splitlines()]
    assert answer.code == 0
    assert [row[:5] for row in rows] == [
        ["nightly", "30 2 * * *", "Europe/Berlin", "add", "latest"],
        ["weekly", "0 9 * * MON", "UTC", "refuse", "skip"],
    ]
    assert {len(row) for row in rows} == {10}
    assert "T02:30:00+0" in rows[0][5]


def test_list_as_json_and_jsonl_carries_every_field(call, nightly):
    first, _ = json.loads(call("schedules", "list", "-o", "json").out)
    assert (first["payload"], first["owner"], first["last_job_id"]) == (
        {"a": 1, "b": 2},
        "acme",
        None,
    )
    assert json.loads(call("schedules", "list", "-o", "jsonl").out.splitlines()[0]) == first


def test_list_as_a_table_has_a_header(call, nightly, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    assert call("schedules", "list", "-o", "table").out.split()[:3] == ["NAME", "CRON", "NEXT"]


def test_an_empty_list_prints_a_hint(call, app):
    app.run_inline()
    answer = call("schedules", "list", "-o", "table")
    assert (answer.code, answer.out) == (0, "")
    assert "app.schedule(" in answer.err


def test_next_prints_the_requested_number_of_runs_in_both_zones(call, nightly):
    rows = [
        line.split("\t")
        for line in call("schedules", "next", "nightly", "-n", "3").out.splitlines()
    ]
    assert len(rows) == 3
    assert all(local[11:16] == "02:30" and utc.endswith("+00:00") for local, utc in rows)
    table = call("schedules", "next", "nightly", "-o", "table")
    assert table.out.split()[:3] == ["AT", "UTC", "IN"]
    assert len(table.out.splitlines()) == 6
    assert call("schedules", "next", "nightly", "-n", "0").code == 2


def test_run_prints_the_job_and_records_actor_and_reason(call, nightly):
    answer = call("schedules", "run", "nightly", "--reason", "disk was full")
    job = nightly.jobs.get(answer.out.strip())
    assert (answer.code, job.kind, job.payload) == (0, "add", {"a": 1, "b": 2})
    assert "jobs watch" in answer.err
    shown = call("jobs", "show", job.id).out
    assert "job.queued by cli:" in shown
    assert "schedule=nightly reason=disk was full" in shown
    assert json.loads(call("schedules", "run", "weekly", "-o", "json").out)["kind"] == "refuse"


@pytest.mark.parametrize("command", ["next", "run"])
def test_an_unknown_schedule_is_not_found(call, nightly, command):
    answer = call("schedules", command, "nightli")
    assert (answer.code, answer.out) == (3, "")
    assert "did you mean nightly? [NOT_FOUND]" in answer.err


def test_a_schedule_is_paused_and_resumed_with_a_reason(call, nightly):
    answer = call("schedules", "pause", "nightly", "--for", "2h", "--reason", "moving house")
    assert answer.code == 0
    assert "moving house" in answer.err
    assert nightly.schedules.get("nightly").paused
    assert call("schedules", "list").out.splitlines()[0].split("\t")[8] == "true"
    assert "Resumed. Next run: " in call("schedules", "resume", "nightly").err
    assert not nightly.schedules.get("nightly").paused
    assert call("schedules", "pause", "nobody").code == 3
