"""`mulligan jobs retry` with overrides, and `mulligan events list`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from mulligan.cli.events import format_changes
from mulligan.manifest.declared import publish_manifest


@pytest.fixture
def repair_app(app):
    """An app with stored kinds: one has editable fields, one refuses retries."""
    from mulligan import Fail, Policy

    once = Policy(max_retries=0)

    @app.job(name="convert", editable=("quality", "token"), policy=once, cost=0.5)
    def convert(path: str, quality: str = "high", token: str = "") -> str | Fail:
        return Fail("TOO_LARGE", final=True) if quality == "high" else quality

    @app.job(name="fixed", policy=once, can_retry=lambda: "never twice")
    def fixed() -> Fail:
        return Fail("X", final=True)

    with app.store.begin() as tx:
        publish_manifest(tx, app.manifest("here"))
    return app


@pytest.fixture
def dead(repair_app):
    job = repair_app.enqueue("convert", {"path": "in.mp4"}, owner="acme")
    repair_app.run_inline()
    return job


def test_retry_applies_and_prints_its_overrides(call, repair_app, dead):
    answer = call(
        "jobs",
        "retry",
        dead.id,
        "--queue",
        "big",
        "--priority",
        "-3",
        "--timeout",
        "10m",
        "--max-retries",
        "5",
        "--set",
        "quality=low",
        "--reason",
        "ticket 4711",
        "-o",
        "json",
    )
    assert answer.code == 0
    record = json.loads(answer.out)
    assert (record["state"], record["queue"], record["priority"], record["max_retries"]) == (
        "queued",
        "big",
        -3,
        5,
    )
    assert (record["payload"]["quality"], record["so_far"]) == ("low", "1 attempt, cost 0.5")
    assert "so far: 1 attempt, cost 0.5" in answer.err
    (event,) = json.loads(call("events", "list", "--type", "job.retried", "-o", "json").out)
    assert (event["actor"].startswith("cli:"), event["data"]["reason"]) == (True, "ticket 4711")
    assert set(event["data"]["changes"]) == {
        "queue",
        "priority",
        "timeout",
        "max_retries",
        "payload.quality",
    }
    repair_app.run_inline()
    assert repair_app.jobs.get(dead.id).result == "low"


@pytest.mark.parametrize("at", ["5m", "300", "time"])
def test_a_retry_can_be_scheduled(call, repair_app, dead, at):
    when = (datetime.now(UTC) + timedelta(minutes=5)).isoformat() if at == "time" else at
    assert call("jobs", "retry", dead.id, "--at", when).code == 0
    wait = repair_app.jobs.get(dead.id).run_at - datetime.now(UTC)
    assert timedelta(minutes=4) < wait < timedelta(minutes=6)


INVALID = [
    (("--at", "soon"), 2, "invalid time"),
    (("--at", "2030-01-01T06:00"), 2, "time zone"),
    (("--set", "quality"), 2, "--set"),
    (("--set", "colour=red"), 2, "allows: quality, token [OVERRIDE_REFUSED]"),
    (("--set", "quality=7"), 2, "quality: expected a string, got 7 [PAYLOAD_REFUSED]"),
    (("--priority", "99"), 2, "[OVERRIDE_REFUSED]"),
    (("--queue", "a b"), 2, "[OVERRIDE_REFUSED]"),
    (("--timeout", "0"), 2, "[OVERRIDE_REFUSED]"),
]


@pytest.mark.parametrize(
    ("options", "code", "expected"), INVALID, ids=[" ".join(options) for options, _, _ in INVALID]
)
def test_invalid_arguments_are_refused_and_change_nothing(
    call, repair_app, dead, options, code, expected
):
    answer = call("jobs", "retry", dead.id, *options)
    assert (answer.code, expected in answer.err) == (code, True), answer.err
    assert repair_app.jobs.get(dead.id).generation == 1


def test_a_dry_run_shows_what_would_change_and_writes_nothing(call, repair_app, dead):
    options = ("--set", "quality=low", "--set", "token=s3cret", "--queue", "big")
    answer = call("jobs", "retry", dead.id, *options, "--dry-run")
    assert (answer.code, answer.out) == (0, f"{dead.id}\tdead\tqueued\n")
    for expected in (
        "queue: default → big",
        "payload.quality: unset → low",
        "nothing was changed",
        "1 attempt, cost 0.5",
    ):
        assert expected in answer.err
    assert "s3cret" not in answer.err
    assert repair_app.jobs.get(dead.id).state == "dead"


def test_a_dry_run_lists_every_obstacle(call, repair_app, dead):
    repair_app.jobs.retry(dead.id)
    answer = call("jobs", "retry", dead.id, "--priority", "99", "--dry-run", "-o", "json")
    assert answer.code == 5
    assert [one["code"] for one in json.loads(answer.out)["refused"]] == [
        "ILLEGAL_MOVE",
        "OVERRIDE_REFUSED",
    ]
    assert "[OVERRIDE_REFUSED]" in answer.err


def test_a_refused_job_does_not_stop_the_others(call, repair_app, dead):
    other = repair_app.enqueue("refuse")
    repair_app.run_inline()
    answer = call("jobs", "retry", other.id, dead.id, "--set", "quality=low")
    assert answer.code == 2
    assert f"{other.id}: payload field quality cannot be changed" in answer.err
    assert repair_app.jobs.get(dead.id).state == "queued"


def test_without_the_app_can_retry_is_checked_when_the_job_runs(call, repair_app):
    job = repair_app.enqueue("fixed")
    repair_app.run_inline()
    assert call("jobs", "retry", job.id).code == 0
    repair_app.run_inline()
    assert repair_app.jobs.get(job.id).error["code"] == "RETRY_REFUSED"
    assert "never twice" in call("jobs", "explain", job.id).out


# --- Who did what ---
def test_events_list_shows_actions_newest_first(call, repair_app, dead):
    call("queues", "pause", "default", "--reason", "the farm moves")
    call("jobs", "discard", dead.id, "--reason", "not wanted")
    rows = [line.split("\t") for line in call("events", "list").out.splitlines()]
    assert [row[3:] for row in rows] == [
        ["job.discarded", dead.id, "not wanted", "state: dead → cancelled"],
        ["queue.paused", "default", "the farm moves", "paused: false → true"],
    ]
    actor = rows[0][2]
    assert actor.startswith("cli:")
    assert len(call("events", "list", "--actor", actor).out.splitlines()) == 2
    assert call("events", "list", "--actor", "cli:nobody").out == ""
    assert len(call("events", "list", "--job", dead.id[:-2]).out.splitlines()) == 1
    assert len(call("events", "list", "--since", "1h", "--owner", "acme").out.splitlines()) == 1
    assert call("events", "list", "--until", "1h").out == ""


def test_a_page_prints_the_cursor_of_the_next(call, repair_app):
    for n in range(3):
        call("queues", "pause", "default", "--reason", str(n))
    first = call("events", "list", "--limit", "2")
    assert len(first.out.splitlines()) == 2
    cursor = first.err.split("--cursor ")[1].split()[0]
    second = call("events", "list", "--limit", "2", "--cursor", cursor)
    assert [line.split("\t")[5] for line in second.out.splitlines()] == ["0"]
    assert second.err == ""


def test_events_list_as_a_table_has_a_header(call, repair_app, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    call("queues", "pause", "default", "--reason", "[red]x[/red]")
    answer = call("events", "list", "-o", "table")
    assert answer.out.split()[:5] == ["AGE", "ACTOR", "TYPE", "WHAT", "REASON"]
    assert "[red]" in answer.out


def test_an_unknown_event_type_suggests_the_nearest(call, repair_app):
    answer = call("events", "list", "--type", "job.retryed")
    assert (answer.code, "Did you mean job.retried?" in answer.err) == (2, True)


def test_events_list_shows_a_drain_request_with_its_reason(call, repair_app):
    from support.store import open_worker

    open_worker(repair_app.store, "w_123456789")
    assert call("workers", "drain", "w_123", "--reason", "old release").code == 0
    (event,) = json.loads(call("events", "list", "-o", "json").out)
    assert (event["type"], event["data"]["reason"]) == ("worker.drain_requested", "old release")


def test_only_changed_fields_are_shown():
    data = {
        "before": {"state": "dead", "generation": 1, "until": None},
        "after": {"state": "queued", "generation": 1, "until": 1_800_000_000_000_000},
        "changes": {"queue": {"before": None, "after": "big"}},
    }
    assert (
        format_changes(data)
        == "state: dead → queued, until: unset → 2027-01-15 08:00:00, queue: unset → big"
    )
