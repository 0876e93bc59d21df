"""`mulligan ops …`, and other commands that start operations."""

from __future__ import annotations

import json
import signal
import threading

import pytest

from mulligan.cli import ops
from mulligan.cli.ops import NO_MATCHING_JOBS, NO_OPERATIONS
from mulligan.operations import chore as operate


@pytest.fixture
def dead(app):
    """Four jobs that died of one cause, and one of another."""
    jobs = [app.enqueue("refuse", {"text": f"moov atom {n}"}, owner="acme") for n in range(4)]
    jobs.append(app.enqueue("crash", {"text": "secret key"}))
    app.run_inline()
    return jobs


@pytest.fixture
def worker(app):
    """Run operations and jobs inline until the test ends."""
    over = threading.Event()

    def work():
        while not over.wait(0.02):
            app.run_inline()

    thread = threading.Thread(target=work)
    thread.start()
    yield
    over.set()
    thread.join()


def rows(answer):
    assert answer.code == 0, answer.err
    return [line.split("\t") for line in answer.out.splitlines()]


def facts(answer):
    return dict(line.split("\t") for line in answer.out.splitlines())


def test_a_dry_run_shows_the_preview_and_changes_nothing(call, app, dead):
    answer = call("ops", "start", "retry", "code:BAD_FILE", "--dry-run")
    shown = facts(answer)
    assert answer.code == 0
    assert (shown["jobs"], shown["codes"], shown["kinds"], shown["owners"]) == (
        "4",
        "BAD_FILE 4",
        "refuse 4",
        "acme 4",
    )
    assert (shown["steps"], shown["chance"]) == (
        "1, 3",
        "unknown: no job with these causes was retried before",
    )
    assert "would retry 4; nothing was changed" in answer.err
    assert app.operations.list() == []
    record = json.loads(
        call("ops", "start", "retry", "code:BAD_FILE", "--dry-run", "-o", "json").out
    )
    assert (record["count"], record["codes"], record["chance"]) == (4, {"BAD_FILE": 4}, None)


def test_start_watches_and_exits_with_6_when_the_operation_stops(call, app, dead, worker):
    answer = call(
        "ops", "start", "retry", "code:BAD_FILE", "--reason", "perhaps", "--stop-if", "50%"
    )
    assert answer.code == 6
    shown = facts(answer)
    assert (shown["state"], shown["untouched"], shown["reason"]) == ("stopped", "3", "perhaps")
    assert (
        "Stopped at step 1 of 2: 1 of 1 retried jobs failed again with BAD_FILE (limit 50 %)."
        in answer.err
    )
    assert "mulligan ops items" in answer.err
    assert app.operations.list()[0].actor.startswith("cli:")


def test_watch_exits_with_0_when_the_operation_finishes(call, app, dead):
    answer = call("ops", "start", "discard", "code:BAD_FILE", "--reason", "no", "--no-wait")
    assert (answer.code, facts(answer)["state"]) == (0, "running")
    operate.run_operations(app.store)
    one = app.operations.list()[0]
    answer = call("ops", "show", one.id[:20], "--watch")
    assert (answer.code, facts(answer)["state"], facts(answer)["ended"]) == (
        0,
        "finished",
        "4 done",
    )


def test_list_show_and_items(call, app, dead):
    assert NO_OPERATIONS in call("ops", "list", "-o", "table").err
    one = app.operations.start("retry", "code:BAD_FILE")
    app.run_inline()
    (row,) = rows(call("ops", "list"))
    assert row[:4] == [one.id, "retry", "stopped", "1/4"]
    assert call("ops", "list", "-o", "table").out.split()[:3] == ["ID", "ACTION", "STATUS"]
    assert json.loads(call("ops", "show", one.id, "-o", "json").out)["counts"]["same"] == 1
    items = rows(call("ops", "items", one.id))
    assert [item[3] for item in items] == ["ended", "waiting", "waiting", "waiting"]
    assert rows(call("ops", "items", one.id, "--outcome", "same"))[0][4:6] == ["same", "BAD_FILE"]
    page = call("ops", "items", one.id, "--limit", "2")
    assert f"mulligan ops items {one.id} --after 2" in page.err
    assert call("ops", "show", "zzz").code == 3


def test_pause_resume_abort(call, app, dead):
    one = app.operations.start("retry", "code:BAD_FILE")
    assert facts(call("ops", "pause", one.id, "--reason", "lunch"))["state"] == "paused"
    assert facts(call("ops", "resume", one.id))["state"] == "running"
    answer = call("ops", "abort", one.id, "--reason", "no")
    assert (facts(answer)["state"], "4 of 4 jobs are untouched" in answer.err) == ("aborted", True)
    assert call("ops", "resume", one.id).code == 5


def test_failures_retry_and_jobs_with_a_filter_start_operations(call, app, dead):
    group = next(group for group in app.failures.groups() if group.code == "BAD_FILE")
    first = facts(call("failures", "retry", group.fingerprint[:8], "--no-wait"))
    assert (first["filter"], first["total"]) == (f"group:{group.fingerprint}", "4")
    assert (
        facts(call("failures", "retry", group.fingerprint, "owner:acme", "--dry-run"))["jobs"]
        == "4"
    )
    again = facts(
        call("jobs", "retry", "--filter", f"state:dead group:{group.fingerprint}", "--dry-run")
    )
    assert again["jobs"] == "4"
    assert (
        facts(call("jobs", "discard", "--filter", "kind:crash", "--reason", "no", "--dry-run"))[
            "action"
        ]
        == "discard"
    )
    assert (
        facts(call("jobs", "cancel", "--filter", "kind:crash state:queued", "--dry-run"))["jobs"]
        == "0"
    )


def test_ids_and_a_filter_cannot_be_combined(call, app, dead):
    for arguments in ((), (dead[0].id, "--filter", "state:dead")):
        answer = call("jobs", "retry", *arguments)
        assert (answer.code, "--filter FILTER" in answer.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("retry",), 2, "needs a filter"),
        (("retry", "cod:X"), 2, "did you mean code:?"),
        (("retry", "state:running"), 5, "retry applies to jobs"),
        (("retry", "state:dead", "--steps", "rest,1"), 2, "must be the last step"),
        (("retry", "state:dead", "--steps", "1,x"), 2, "steps: each must be"),
        (("retry", "state:dead", "--stop-if", "often"), 2, "invalid share"),
        (("retry", "state:dead", "--stop-if", "200%"), 2, "stop_if"),
        (("retry", "state:dead", "--rate", "0"), 2, "rate"),
        (("discard", "state:dead"), 2, "needs a reason"),
        (("move", "state:queued"), 2, "needs the queue"),
        (("burn", "state:dead"), 2, "burn"),
    ],
)
def test_invalid_arguments_are_refused(call, app, dead, arguments, code, expected):
    answer = call("ops", "start", *arguments)
    assert (answer.code, expected in answer.err) == (code, True), answer.err
    assert app.operations.list() == []


def test_a_filter_without_matches_starts_no_operation(call, app, dead):
    answer = call("ops", "start", "retry", "code:NEVER")
    assert (answer.code, NO_MATCHING_JOBS in answer.err, app.operations.list()) == (0, True, [])


@pytest.fixture
def many(app):
    """101 dead jobs."""
    for n in range(101):
        app.enqueue("refuse", {"text": f"part {n}"})
    app.run_inline()


@pytest.mark.parametrize(
    ("keys", "code", "begun"), [("101\n", 0, 1), ("yes\n", 130, 0), ("\n", 130, 0)]
)
def test_on_a_terminal_many_jobs_need_confirmation_by_their_number(
    terminal, app, many, keys, code, begun
):
    answer = terminal("ops", "start", "retry", "state:dead", "--no-wait", keys=keys)
    assert "Type 101 to confirm" in answer.out
    assert "BAD_FILE 101" in answer.out
    assert (answer.code, len(app.operations.list())) == (code, begun)


def test_few_jobs_or_yes_need_no_confirmation(terminal, app, many):
    assert "Type" not in terminal("ops", "start", "retry", "state:dead", "--no-wait", "--yes").out
    app.enqueue("crash", {"text": "x"})
    app.run_inline()
    assert "Type" not in terminal("ops", "start", "retry", "kind:crash", "--no-wait").out
    assert len(app.operations.list()) == 2


def test_ctrl_c_leaves_the_operation_running_and_prints_how_to_follow_it(
    start, app, dead, store_url
):
    program = start("ops", "start", "retry", "code:BAD_FILE", MULLIGAN_DATABASE_URL=store_url)
    program.wait_for_output("0 of 4")
    program.signal(signal.SIGINT)
    answer = program.wait_for_exit()
    (one,) = app.operations.list()
    assert (answer.code, one.state) == (130, "running")
    assert (
        f"The operation continues. Follow it with: mulligan ops show {one.id} --watch" in answer.err
    )


def test_a_missing_worker_is_reported_and_a_timeout_ends_the_watch(call, app, dead, monkeypatch):
    monkeypatch.setattr(ops, "NO_WORKER_AFTER", 0.0)
    answer = call("ops", "start", "retry", "code:BAD_FILE", "--timeout", "0.5")
    assert answer.code == 1
    assert ops.NO_LIVE_WORKER in answer.err
    assert "The operation continues" in answer.err
    assert "is still running after 0.5 s [WAIT_TIMEOUT]" in answer.err


def test_a_progress_bar_is_shown_on_a_terminal(terminal, app, dead, worker):
    answer = terminal("ops", "start", "retry", "code:BAD_FILE", "--stop-if", "1")
    assert (answer.code, "4 of 4" in answer.out or "step" in answer.out) == (0, True)
    assert "Retry of 4 jobs: 4 failed again." in answer.out
