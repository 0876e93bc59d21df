"""`mulligan jobs`: list, show, explain, watch and repair jobs."""

from __future__ import annotations

import json
import logging
import threading

import pytest

from mulligan import Context, Fixed, Policy

ESC = "\x1b[31m"


@pytest.fixture
def dead(app):
    job = app.enqueue("refuse", {"text": "row 17"})
    app.run_inline()
    return job


@pytest.fixture
def parked(app):
    job = app.enqueue("ask")
    app.run_inline()
    return job


# --- Read ---
def test_list_is_tsv_when_piped_newest_first(call, app):
    first, second = app.enqueue("add", {"a": 1, "b": 2}), app.enqueue("refuse")
    answer = call("jobs", "list")
    rows = [line.split("\t") for line in answer.out.splitlines()]
    assert answer.code == 0
    assert [row[0] for row in rows] == [second.id, first.id]
    assert {len(row) for row in rows} == {9}
    assert rows[0][1:4] == ["queued", "no_worker", "refuse"]


def test_list_as_json_and_jsonl_carries_every_field(call, app):
    job = app.enqueue("add", {"a": 1, "b": 2}, owner="acme")
    (record,) = json.loads(call("jobs", "list", "-o", "json").out)
    assert (record["id"], record["payload"], record["owner"]) == (job.id, {"a": 1, "b": 2}, "acme")
    (line,) = call("jobs", "list", "-o", "jsonl").out.splitlines()
    assert json.loads(line) == record


def test_list_as_a_table_has_a_header_and_does_not_interpret_markup(call, app, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    app.enqueue("[red]evil[/red]")
    answer = call("jobs", "list", "-o", "table")
    assert answer.out.split()[:3] == ["ID", "PHASE", "JOB"]
    assert "[red]" in answer.out


@pytest.mark.parametrize("width", [80, 100, 160])
def test_a_table_fits_its_terminal_and_cuts_nothing_without_a_mark(call, app, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    job = app.enqueue("add", {"a": 1, "b": 2})
    app.enqueue("a_kind_with_a_long_name_that_nobody_can_read", {"a": "x" * 200})
    answer = call("jobs", "list", "-o", "table")
    lines = answer.out.splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= width
    long, short = lines[1:]
    assert "…" in long.removeprefix("…")
    assert "add a 1 · b 2" in short
    assert json.loads(call("jobs", "show", short.split()[0], "-o", "json").out)["id"] == job.id


def test_list_takes_a_filter_and_a_limit(call, app, dead):
    for _ in range(3):
        app.enqueue("add", {"a": 1, "b": 2})
    assert [
        line.split("\t")[0] for line in call("jobs", "list", "state:dead").out.splitlines()
    ] == [dead.id]
    limited = call("jobs", "list", "kind:add", "--limit", "2")
    assert len(limited.out.splitlines()) == 2
    assert "3 in all" in limited.err


def test_each_page_prints_the_command_for_the_next(call, app):
    ids = [app.enqueue("add", {"a": 1, "b": n}).id for n in range(5)]
    listed: list[str] = []
    command = ["jobs", "list", "kind:add", "--limit", "2"]
    while command:
        answer = call(*command)
        listed += [line.split("\t")[0] for line in answer.out.splitlines()]
        command = (
            [*answer.err.rpartition("mulligan ")[2].split(), "--limit", "2"]
            if "--cursor" in answer.err
            else []
        )
    assert listed == ids[::-1]
    assert call("jobs", "list", "--cursor", "nonsense").code == 2


def test_since_filters_by_age(call, app):
    old = app.enqueue("add", {"a": 1, "b": 2})
    app.store.shift_clock(3 * 3600 * 1_000_000)
    new = app.enqueue("add", {"a": 1, "b": 2})
    assert [line.split("\t")[0] for line in call("jobs", "list", "since:2h").out.splitlines()] == [
        new.id
    ]
    assert {line.split("\t")[0] for line in call("jobs", "list", "since:1d").out.splitlines()} == {
        old.id,
        new.id,
    }
    answer = call("jobs", "list", "since:yesterday")
    assert answer.code == 2
    assert "since:2h" in answer.err


def test_counts_stop_at_their_cap(app, call):
    for _ in range(3):
        app.enqueue("add", {"a": 1, "b": 2})
    assert (
        app.jobs.count("kind:add"),
        app.jobs.count("kind:add", cap=2),
        app.jobs.count("kind:ask"),
    ) == (3, 2, 0)


@pytest.mark.parametrize("expected", ["state:ded", "colour:red", "dead", 'kind:"x'])
def test_an_invalid_filter_is_a_usage_error(call, app, expected):
    app.enqueue("ask")
    answer = call("jobs", "list", expected)
    assert (answer.code, answer.out) == (2, "")
    assert "[REFUSED]" in answer.err


def test_show_prints_fields_attempts_private_details_and_events(call, app):
    job = app.enqueue("crash", {"text": f"{ESC}boom"})
    app.run_inline()
    answer = call("jobs", "show", job.id)
    assert answer.code == 0
    for expected in (
        "PROGRAMMING_ERROR",
        "ATTEMPTS (1)",
        "private trace",
        "in crash",
        "job.died",
        "why:",
    ):
        assert expected in answer.out
    assert "\x1b" not in answer.out


def test_show_as_json_includes_attempts_and_events(call, dead):
    record = json.loads(call("jobs", "show", dead.id, "-o", "json").out)
    assert record["state"] == "dead"
    assert record["attempts_made"][0]["code"] == "BAD_FILE"
    assert [event["type"] for event in record["events"]] == [
        "job.queued",
        "job.started",
        "job.died",
    ]


def test_a_unique_prefix_of_an_id_is_enough(call, dead):
    assert dead.id in call("jobs", "show", dead.id[:-3]).out


def test_an_unknown_id_is_not_found(call, app, dead):
    for verb in (
        ("show",),
        ("cancel",),
        ("retry",),
        ("release",),
        ("discard", "--reason", "x"),
        ("watch",),
    ):
        answer = call("jobs", *verb, "zzzz")
        assert (answer.code, answer.out) == (3, "")
        assert (
            answer.err
            == "mulligan: unknown job 'zzzz'. Run \"mulligan jobs list\" to see the jobs. [NOT_FOUND]\n"
        )


def test_an_ambiguous_prefix_is_refused(call, app):
    first, _ = app.enqueue("ask"), app.enqueue("ask")
    second = app.jobs.list()[0]
    answer = call("jobs", "show", first.id[:2])
    assert answer.code == 3
    assert "more than one" in answer.err
    assert f"{first.id}, {second.id}" in answer.err


# --- Repair ---
def test_cancel_ends_a_waiting_job_and_a_second_cancel_is_refused(call, app):
    job = app.enqueue("ask")
    answer = call("jobs", "cancel", job.id, "--reason", "not wanted")
    assert (answer.code, answer.out) == (0, f"{job.id}\tcancelled\tcancelled\n")
    assert call("jobs", "cancel", job.id).code == 5
    assert app.jobs.history(job.id)[-1].actor.startswith("cli:")


def test_retry_requeues_a_dead_job(call, app, dead):
    answer = call("jobs", "retry", dead.id, "--max-retries", "7", "-o", "json")
    record = json.loads(answer.out)
    assert (answer.code, record["state"], record["generation"], record["max_retries"]) == (
        0,
        "queued",
        2,
        7,
    )
    assert call("jobs", "retry", dead.id).code == 5


def test_release_passes_the_choice_to_the_handler(call, app, parked):
    assert call("jobs", "release", parked.id, "--choice", "left").code == 0
    app.run_inline()
    assert app.jobs.get(parked.id).result == "left"


def test_discard_needs_a_reason(call, app, dead):
    assert call("jobs", "discard", dead.id).code == 2
    assert call("jobs", "discard", dead.id, "--reason", "customer left").code == 0
    assert app.jobs.get(dead.id).state == "cancelled"


# --- Watch ---
def test_the_exit_code_of_watch_says_whether_the_job_succeeded(call, app, dead, parked):
    good = app.enqueue("add", {"a": 1, "b": 2})
    app.run_inline()
    assert call("jobs", "watch", good.id).code == 0
    assert call("jobs", "watch", dead.id).code == 6
    assert call("jobs", "watch", parked.id).code == 6


def test_watch_gives_up_after_its_timeout(call, app):
    job = app.enqueue("ask")
    answer = call("jobs", "watch", job.id, "--timeout", "0.1s")
    assert answer.code == 1
    assert "[WAIT_TIMEOUT]" in answer.err


# --- The database ---
def test_reading_commands_create_no_database(call, folder):
    answer = call("jobs", "list")
    assert answer.code == 1
    assert str(folder / "mulligan.db") in answer.err
    assert not (folder / "mulligan.db").exists()


def test_an_unreachable_database_is_reported_in_one_line(call, impatient):
    answer = call(
        "jobs",
        "list",
        "--database",
        "postgresql://nobody:s3cret@127.0.0.1:1/none?connect_timeout=1",
    )
    assert answer.code == 1
    assert len(answer.err.splitlines()) == 1
    assert "s3cret" not in answer.err


@pytest.mark.parametrize(
    "command",
    [("jobs", "cancel"), ("jobs", "show"), ("workers", "drain"), ("workers", "check", "--id")],
)
def test_an_empty_id_is_refused(call, app, command):
    """An unset variable in a shell must not mean the only one there is."""
    job = app.enqueue("add", {"a": 1, "b": 2})
    answer = call(*command, "")
    assert answer.code != 0
    assert "empty" in answer.out + answer.err
    assert job.refresh().state == "queued"


def test_json_escapes_terminal_control_characters(call, app):
    strange = "\x9b31m \x7f \u202e half \ud800 é 🎈"
    app.enqueue("echo", {"a": strange})
    answer = call("jobs", "export")
    assert answer.code == 0
    assert json.loads(answer.out.splitlines()[0])["payload"]["a"] == strange
    assert not {"\x9b", "\x7f", "\u202e"} & set(answer.out)
    assert "é 🎈" in answer.out


# --- Log ---
@pytest.fixture
def logged(app):
    @app.job(name="logs", policy=Policy(max_retries=1, backoff=Fixed(0)))
    def logs(ctx: Context):
        logging.getLogger("shop").warning("attempt %d password=hunter2", ctx.attempt)
        raise ValueError("end")

    return app.enqueue("logs")


def test_show_prints_the_log_of_a_failed_attempt(call, app, logged):
    app.run_inline()
    assert call("jobs", "show", logged.id, "--log").out.endswith("attempt 2 password=[redacted]\n")
    answer = call("jobs", "show", logged.id, "--log", "--attempt", "1", "-o", "json")
    log = json.loads(answer.out)
    assert (log["token"], log["stacks"]) == (1, "")
    assert log["records"][0]["message"] == "attempt 1 password=[redacted]"


def test_show_says_that_there_is_no_log(call, app, dead):
    answer = call("jobs", "show", dead.id, "--log")
    assert (answer.code, answer.out) == (3, "")
    assert "A log is kept with attempts that failed" in answer.err
    assert call("jobs", "show", dead.id, "--attempt", "1").code == 2


def test_watch_prints_the_log_of_each_attempt_that_fails_meanwhile(call, app, logged):
    worker = threading.Timer(0.5, app.run_inline)
    worker.start()
    answer = call("jobs", "watch", logged.id, "--log")
    worker.join()
    assert answer.code == 6
    lines = answer.out.splitlines()
    assert lines[0].endswith("attempt 1 password=[redacted]")
    assert lines[1].endswith("attempt 2 password=[redacted]")
    assert call("jobs", "watch", "state:dead", "--log").code == 2
