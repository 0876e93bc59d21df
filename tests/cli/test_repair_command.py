"""`mulligan jobs retry` with something said about it, and `mulligan events list`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from mulligan.cli.events import change_of
from mulligan.manifest.declared import speak


@pytest.fixture
def spoken(app):
    """Kinds that a worker has told of: one may be edited, one refuses, one has no schema to check by."""
    from mulligan import Fail, Policy

    once = Policy(max_retries=0)

    @app.job(name="convert", editable=("quality", "token"), policy=once, cost=0.5)
    def convert(path: str, quality: str = "high", token: str = "") -> str | Fail:
        return Fail("TOO_LARGE", final=True) if quality == "high" else quality

    @app.job(name="fixed", policy=once, can_retry=lambda: "never twice")
    def fixed() -> Fail:
        return Fail("X", final=True)

    with app.store.begin() as unit:
        speak(unit, app.manifest("here"))
    return app


@pytest.fixture
def dead(spoken):
    job = spoken.enqueue("convert", {"path": "in.mp4"}, owner="acme")
    spoken.run_inline()
    return job


def test_what_is_said_with_a_retry_is_done_and_told(call, spoken, dead):
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
    spoken.run_inline()
    assert spoken.jobs.get(dead.id).result == "low"


@pytest.mark.parametrize("at", ["5m", "300", "moment"])
def test_a_retry_may_be_set_for_later(call, spoken, dead, at):
    moment = (datetime.now(UTC) + timedelta(minutes=5)).isoformat() if at == "moment" else at
    assert call("jobs", "retry", dead.id, "--at", moment).code == 0
    wait = spoken.jobs.get(dead.id).run_at - datetime.now(UTC)
    assert timedelta(minutes=4) < wait < timedelta(minutes=6)


WRONG = [
    (("--at", "soon"), 2, "neither a length"),
    (("--at", "2030-01-01T06:00"), 2, "time zone"),
    (("--set", "quality"), 2, "--set"),
    (("--set", "colour=red"), 2, "allows: quality, token [OVERRIDE_REFUSED]"),
    (("--set", "quality=7"), 2, "quality: 7 is not of type 'string' [PAYLOAD_REFUSED]"),
    (("--priority", "99"), 2, "[OVERRIDE_REFUSED]"),
    (("--queue", "a b"), 2, "[OVERRIDE_REFUSED]"),
    (("--timeout", "0"), 2, "[OVERRIDE_REFUSED]"),
]


@pytest.mark.parametrize(
    ("said", "code", "words"), WRONG, ids=[" ".join(said) for said, _, _ in WRONG]
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(call, spoken, dead, said, code, words):
    answer = call("jobs", "retry", dead.id, *said)
    assert (answer.code, words in answer.err) == (code, True), answer.err
    assert spoken.jobs.get(dead.id).generation == 1


def test_a_dry_run_shows_what_would_change_and_writes_nothing(call, spoken, dead):
    said = ("--set", "quality=low", "--set", "token=s3cret", "--queue", "big")
    answer = call("jobs", "retry", dead.id, *said, "--dry-run")
    assert (answer.code, answer.out) == (0, f"{dead.id}\tdead\tqueued\n")
    for words in (
        "queue: default → big",
        "payload.quality: unset → low",
        "nothing was changed",
        "1 attempt, cost 0.5",
    ):
        assert words in answer.err
    assert "s3cret" not in answer.err
    assert spoken.jobs.get(dead.id).state == "dead"


def test_a_dry_run_names_all_that_is_in_the_way(call, spoken, dead):
    spoken.jobs.retry(dead.id)
    answer = call("jobs", "retry", dead.id, "--priority", "99", "--dry-run", "-o", "json")
    assert answer.code == 5
    assert [one["code"] for one in json.loads(answer.out)["refused"]] == [
        "ILLEGAL_MOVE",
        "OVERRIDE_REFUSED",
    ]
    assert "[OVERRIDE_REFUSED]" in answer.err


def test_one_that_is_refused_does_not_keep_the_others(call, spoken, dead):
    other = spoken.enqueue("refuse")
    spoken.run_inline()
    answer = call("jobs", "retry", other.id, dead.id, "--set", "quality=low")
    assert answer.code == 2
    assert f"{other.id}: payload field quality cannot be changed" in answer.err
    assert spoken.jobs.get(dead.id).state == "queued"


def test_where_the_app_is_not_at_hand_its_no_comes_as_the_end_of_the_job(call, spoken):
    job = spoken.enqueue("fixed")
    spoken.run_inline()
    assert call("jobs", "retry", job.id).code == 0
    spoken.run_inline()
    assert spoken.jobs.get(job.id).error["code"] == "RETRY_REFUSED"
    assert "never twice" in call("jobs", "explain", job.id).out


# -- who did what -------------------------------------------------------------------------------------
def test_who_did_what_newest_first(call, spoken, dead):
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


def test_a_page_names_the_next_one(call, spoken):
    for n in range(3):
        call("queues", "pause", "default", "--reason", str(n))
    first = call("events", "list", "--limit", "2")
    assert len(first.out.splitlines()) == 2
    cursor = first.err.split("--cursor ")[1].split()[0]
    second = call("events", "list", "--limit", "2", "--cursor", cursor)
    assert [line.split("\t")[5] for line in second.out.splitlines()] == ["0"]
    assert second.err == ""


def test_as_a_table_it_has_a_header(call, spoken, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    call("queues", "pause", "default", "--reason", "[red]x[/red]")
    answer = call("events", "list", "-o", "table")
    assert answer.out.split()[:5] == ["AT", "ACTOR", "TYPE", "WHAT", "REASON"]
    assert "[red]" in answer.out


def test_a_type_that_does_not_exist_gets_the_nearest(call, spoken):
    answer = call("events", "list", "--type", "job.retryed")
    assert (answer.code, "did you mean job.retried?" in answer.err) == (2, True)


def test_a_drained_worker_is_told_with_who_and_why(call, spoken):
    from support.store import open_worker

    open_worker(spoken.store, "w_123456789")
    assert call("workers", "drain", "w_123", "--reason", "old release").code == 0
    (event,) = json.loads(call("events", "list", "-o", "json").out)
    assert (event["type"], event["data"]["reason"]) == ("worker.drain_requested", "old release")


def test_only_what_is_different_is_shown():
    data = {
        "before": {"state": "dead", "generation": 1, "until": None},
        "after": {"state": "queued", "generation": 1, "until": 1_800_000_000_000_000},
        "changes": {"queue": {"before": None, "after": "big"}},
    }
    assert (
        change_of(data)
        == "state: dead → queued, until: unset → 2027-01-15 08:00:00, queue: unset → big"
    )
