"""`mulligan status`, `top`, `open` and `audit`."""

from __future__ import annotations

import json

import pytest

from mulligan.cli import EXIT_NOT_HEALTHY
from mulligan.worker.queries import LeaseQueries
from support.store import open_worker


@pytest.fixture
def dead(app):
    """Four dead jobs of one cause."""
    jobs = [app.enqueue("refuse", {"text": f"moov atom {n}"}, owner="acme") for n in range(4)]
    app.run_inline()
    return jobs


@pytest.fixture
def live_worker(app):
    return open_worker(app.store, concurrency=4)


def texts(answer):
    return [problem["text"] for problem in json.loads(answer.out)["problems"]]


def test_a_database_without_a_worker_needs_attention(call, app):
    app.enqueue("add", {"a": 1, "b": 2})
    answer = call("status")
    assert answer.code == EXIT_NOT_HEALTHY
    assert "No worker is live: 1 job waits" in answer.out
    assert "1 ready (oldest " in answer.out
    assert "Start one: mulligan worker APP" in answer.out


def test_a_system_without_problems_exits_with_0(call, app, live_worker):
    answer = call("status")
    assert answer.code == 0, answer.out
    assert "Nothing is broken" in answer.out
    assert "1 live, 0 of 4 places taken" in answer.out


def test_each_problem_has_the_command_that_shows_or_repairs_it(call, app, live_worker, dead):
    app.queues.pause("default", reason="deploy")
    app.kinds.hold("add", reason="wrong results")
    found = json.loads(call("status", "-o", "json").out)
    group = app.failures.groups()[0].fingerprint
    assert [(one["what"], one["command"]) for one in found["problems"]] == [
        ("kind", "mulligan kinds release add"),
        ("queue", "mulligan queues resume default"),
        ("cause", f"mulligan failures show {group}"),
    ]
    assert found["jobs"]["dead"] == 4


def test_a_muted_cause_is_no_problem(call, app, live_worker, dead):
    assert texts(call("status", "-o", "json")) == ["4 dead jobs: moov atom 3 · refuse"]
    app.failures.mute(app.failures.groups()[0].fingerprint)
    assert call("status").code == 0


@pytest.mark.parametrize("width", [60, 80])
def test_the_screen_fits_the_terminal(call, app, dead, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    app.kinds.hold("add", reason="x" * 300)
    lines = call("status").out.splitlines()
    problems = [line for line in lines if line.startswith("  ") and "mulligan" not in line]
    assert problems
    assert max(map(len, problems)) <= width


def test_top_shows_who_holds_the_places_the_longest_first(call, app, live_worker, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    first, second = (app.enqueue("add", {"a": n, "b": 2}) for n in (1, 2))
    with app.store.begin() as tx:
        LeaseQueries(tx).claim_jobs(live_worker, [second.id], 1)
    with app.store.begin() as tx:
        LeaseQueries(tx).claim_jobs(live_worker, [first.id], 1)
    rows = json.loads(call("top", "-o", "json").out)
    assert [row["id"] for row in rows] == [second.id, first.id]
    assert rows[0]["job"] == "add a 2 · b 2"
    assert "2 of 4 places taken: add 2" in call("top", "-o", "table").out


def test_open_prints_the_address_of_a_job(call, app):
    job = app.enqueue("add", {"a": 1, "b": 2})
    answer = call("open", "--print", job.id[-8:])
    assert answer.out.strip().endswith(f"/jobs/{job.id}")
    assert call("open", "--print", "0000000000").code == 3


def test_audit_lists_who_did_what(call, app):
    app.enqueue("add", {"a": 1, "b": 2})
    call("queues", "pause", "default", "--reason", "deploy")
    assert "queue.paused" in call("audit").out
