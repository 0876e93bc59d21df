"""`mulligan releases`: list and compare them, and hold one that fails more."""

from __future__ import annotations

import json
import shlex

import pytest

from mulligan.alerts.chore import AlertChecker
from mulligan.cli import EXIT_NOT_HEALTHY
from mulligan.config import AlertSection
from support.app_tools import advance
from support.released import add_starts, register_worker, run_as

WITHOUT_HOLD = ({"name": "release_worse", "action": ""},)


@pytest.fixture
def deployed(app):
    """Let `crash` fail under r42 alone, while workers of r41 and r42 are live."""
    for release, failures in (("r41", 20), ("r42", 600)):
        add_starts(app, release, "crash", 1000, failures)
        add_starts(app, release, "add", 1000, 20)
    for release in ("r41", "r42"):
        register_worker(app, f"w_{release}", release, kinds=("add", "crash"))


def test_releases_are_listed_with_what_they_break_and_the_command_that_holds_it(call, deployed):
    answer = call("releases", "list", "-o", "table")
    newest, oldest = (line for line in answer.out.splitlines() if line.startswith("r4"))
    assert newest.split()[:2] == ["r42", "worse"]
    assert "crash 60 % (was 2 %)" in newest
    assert oldest.startswith("r41")
    assert "mulligan releases hold r42 --kind crash" in answer.err
    assert "mulligan releases compare r41 r42" in answer.err
    rows = json.loads(call("releases", "list", "-o", "json").out)
    assert [(row["name"], row["workers"], row["counts"]["starts"]) for row in rows] == [
        ("r42", 1, 2000),
        ("r41", 1, 2000),
    ]


def test_two_releases_are_compared_by_kind_and_cause(call, app):
    app.enqueue("add", {"a": 1, "b": 2})
    run_as(app, "r41")
    advance(app, 60)
    app.enqueue("refuse", {"text": "moov"})
    run_as(app, "r42")
    answer = call("releases", "compare", "r41", "r42", "-o", "table")
    assert "100 % of 1 failed" in answer.out
    assert "new     moov · refuse" in answer.out
    group = app.failures.groups()[0].fingerprint
    assert f"mulligan failures show {group}" in answer.err
    found = json.loads(call("releases", "compare", "r41", "r42", "-o", "json").out)
    add, refuse = found["kinds"]
    assert (add["kind"], add["before"]["starts"], add["after"]["failures"]) == ("add", 1, 0)
    assert (refuse["kind"], refuse["before"]["starts"], refuse["after"]["failures"]) == (
        "refuse",
        0,
        1,
    )
    (cause,) = found["causes"]
    assert (cause["fingerprint"], cause["before"], cause["after"]) == (group, 0, 1)
    only = json.loads(call("releases", "compare", "r41", "r42", "--kind", "add", "-o", "json").out)
    assert [row["kind"] for row in only["kinds"]] == ["add"]


def test_a_hold_says_how_to_undo_it_and_that_no_other_release_is_live(call, app, deployed):
    answer = call("releases", "hold", "r42", "--kind", "crash", "--reason", "codec")
    assert "crash by " in answer.out
    assert "mulligan releases unhold r42 --kind crash" in answer.err
    assert "the held jobs wait" not in answer.err
    (hold,) = app.releases.get("r42").holds
    assert (hold.kind, hold.reason) == ("crash", "codec")
    assert call("releases", "unhold", "r42", "--kind", "crash").code == 0
    assert app.releases.get("r42").holds == ()
    add_starts(app, "r43", "add", 1, 0)
    held = call("releases", "hold", "r43", "--for", "2h")
    assert "all kinds for " in held.out
    assert app.releases.get("r43").holds[0].until is not None


def test_an_unknown_release_is_refused_with_the_known_ones(call, deployed):
    for arguments in (("hold", "r9"), ("unhold", "r9"), ("compare", "r9", "r42")):
        answer = call("releases", *arguments)
        assert answer.code != 0
        assert "unknown release 'r9'. The newest are: r42, r41." in answer.err


def test_without_releases_the_list_says_how_workers_report_one(call, app):
    assert "set MULLIGAN_RELEASE" in call("releases", "list", "-o", "table").err


def test_a_deploy_that_made_it_worse_is_solved_with_two_commands(call, app, deployed):
    AlertChecker(AlertSection(rules=WITHOUT_HOLD)).run_once(app.store)
    answer = call("status")
    assert answer.code == EXIT_NOT_HEALTHY
    assert "crash fails more since release r42: 600 of 1,000 first attempts" in answer.out
    command = "mulligan releases hold r42 --kind crash"
    assert command in answer.out
    crash, add = app.enqueue("crash", {"text": "x"}), app.enqueue("add", {"a": 1, "b": 2})
    assert call(*shlex.split(command)[1:]).code == 0
    run_as(app, "r42")
    assert (crash.refresh().state, add.refresh().state) == ("queued", "succeeded")
    run_as(app, "r41")
    assert crash.refresh().state != "queued"
