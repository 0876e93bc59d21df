"""`mulligan failures …`."""

from __future__ import annotations

import json

import click
import pytest

from mulligan.cli import completion as complete
from mulligan.cli.failures import NO_FAILURES
from mulligan.events.queries import EventQueries
from mulligan.observability.event_counts import EventCounter


@pytest.fixture
def dead(app):
    """Five dead of two causes."""
    jobs = [app.enqueue("refuse", {"text": f"moov atom {n}"}, owner="acme") for n in range(4)]
    jobs.append(app.enqueue("crash", {"text": "secret key"}))
    app.run_inline()
    return jobs


@pytest.fixture
def groups(app, dead):
    return {group.code: group for group in app.failures.groups()}


def rows(answer):
    assert answer.code == 0, answer.err
    return [line.split("\t") for line in answer.out.splitlines()]


def test_list_shows_the_largest_group_first_and_prints_the_next_command(call, groups):
    answer = call("failures", "list")
    first, second = rows(answer)
    assert first[:6] == [
        groups["BAD_FILE"].fingerprint,
        "new",
        "4",
        "BAD_FILE",
        groups["BAD_FILE"].cls,
        "refuse",
    ]
    assert first[9:] == ["This file could not be read.", "moov atom 3", ""]
    assert second[2:6:3] == ["1", "crash"]
    assert second[-2:][0] == "KeyError: 'secret key'"
    assert f"mulligan failures show {first[0]}" in answer.err


def test_list_accepts_job_filters(call, groups):
    assert len(rows(call("failures", "list", "kind:crash"))) == 1
    assert len(rows(call("failures", "list", "owner:acme", "moov atom"))) == 1
    assert len(rows(call("failures", "list", "moov atom"))) == 1
    answer = call("failures", "list", "kind:nobody", "-o", "table")
    assert (answer.out, "No dead job matches" in answer.err) == ("", True)
    answer = call("failures", "list", "state:queued")
    assert (answer.code, "groups are made of dead jobs" in answer.err) == (2, True)
    answer = call("failures", "list", "cod:X")
    assert (answer.code, "did you mean code:?" in answer.err) == (2, True)


def test_an_empty_list_explains_itself(call, app):
    app.open()
    assert NO_FAILURES in call("failures", "list", "-o", "table").err


def test_the_short_name_in_the_table_is_enough(call, groups):
    for group in groups.values():
        assert (
            dict(rows(call("failures", "show", group.fingerprint[:11])))["group"]
            == group.fingerprint
        )


def test_a_table_shows_a_sparkline(call, groups):
    out = call("failures", "list", "-o", "table").out
    head, first, *_ = out.splitlines()
    assert head.split()[:4] == ["GROUP", "STATE", "COUNT", "LAST"]
    assert first.split()[:3] == [groups["BAD_FILE"].fingerprint[:11], "new", "4"]
    assert "▁▁▁▁▁▁▁█" in first
    shown = call("failures", "show", groups["BAD_FILE"].fingerprint[:8], "-o", "table").out
    for expected in ("4", "refuse", "24 h", "14 d", "first seen", "This file could not be read."):
        assert expected in shown
    assert "cause       moov atom 3 · refuse\n" in shown
    assert "KeyError: 'secret key' · crash" in out
    assert "trace (private)" not in shown


def test_show_agrees_with_jobs_list_and_prints_next_commands(call, groups):
    group = groups["BAD_FILE"]
    answer = call("failures", "show", group.fingerprint)
    facts = dict(rows(answer))
    assert (facts["count"], facts["sample"], facts["kinds"]) == ("4", group.sample.job, "refuse")
    expected = f"mulligan jobs list state:dead group:{group.fingerprint}"
    assert expected in answer.err
    assert len(rows(call(*expected.split()[1:]))) == 4
    assert f"mulligan jobs explain {group.sample.job}" in answer.err


def test_private_details_are_shown_only_with_private(call, groups):
    name = groups["BAD_FILE"].fingerprint
    assert "moov atom" in call("failures", "show", name, "--private").out
    plain = json.loads(call("failures", "show", name, "-o", "json").out)
    assert plain["sample"]["private"] is None
    private = json.loads(call("failures", "show", name, "--private", "-o", "json").out)
    assert private["sample"]["private"]["message"].startswith("moov atom")
    assert (private["count"], private["capped"], len(private["hourly"]), len(private["daily"])) == (
        4,
        False,
        24,
        14,
    )


def test_mute_resolve_and_reopen_record_actor_and_reason(call, app, groups):
    name = groups["BAD_FILE"].fingerprint
    answer = call("failures", "mute", name, "--for", "2h", "--reason", "known", "-o", "json")
    (muted,) = json.loads(answer.out)
    assert (muted["state"], muted["note"], muted["actor"][:4]) == ("muted", "known", "cli:")
    assert f"mulligan failures reopen {name}" in answer.err
    assert "muted for 2 h, set by" in call("failures", "show", name).out
    answer = call("failures", "resolve", name, "--note", "fixed in 2026-03")
    assert rows(answer)[0][1] == "resolved"
    assert f"mulligan failures retry {name}" in answer.err
    assert rows(call("failures", "reopen", name))[0][1] == "open"
    with app.store.read() as tx:
        events = [
            event
            for event in EventQueries(tx).list_events_after(0, 10_000)
            if event.type.startswith("failure.")
        ]
    assert [event.type for event in events] == [
        "failure.muted",
        "failure.resolved",
        "failure.reopened",
    ]
    assert "failure.resolved" in call("events", "tail").out


def test_an_unknown_or_ambiguous_group_is_not_found(call, groups):
    for verb in ("show", "mute", "resolve", "reopen", "retry"):
        assert call("failures", verb, "v2-zzz").code == 3
    answer = call("failures", "show", "v2-")
    assert (answer.code, "begins more than one group" in answer.err) == (3, True)
    assert call("failures", "show", "").code == 3


def test_the_shell_completes_groups_and_filters(app, groups):
    context = click.Context(click.Command("x"))
    context.params = {"database": app.settings.database_url}
    name = groups["BAD_FILE"].fingerprint
    assert name in complete.complete_groups(context, click.Argument(["group"]), "v2-")
    assert complete.complete_filters(context, click.Argument(["f"]), "cl") == ["class:"]
    assert complete.complete_filters(context, click.Argument(["f"]), "state:d") == ["state:dead"]
    assert f"group:{name}" in complete.complete_filters(context, click.Argument(["f"]), "group:v2")
    assert complete.complete_filters(context, click.Argument(["f"]), "kind:x") == []


def test_jobs_list_and_watch_accept_code_and_owner(call, groups):
    assert len(rows(call("jobs", "list", "code:BAD_FILE"))) == 4
    assert len(rows(call("jobs", "list", "state:dead,queued", "owner:acme"))) == 4
    answer = call("jobs", "list", "arg.text:x")
    assert (answer.code, "indexed by no kind" in answer.err) == (2, True)
    answer = call("jobs", "watch", "code:BAD_FILE")
    assert answer.code == 6
    assert "4" in answer.out


def test_a_cause_for_which_a_kind_is_held_is_listed_although_no_job_is_dead(call, app):
    for number in range(12):
        app.enqueue("crash", {"text": "secret key"}, owner=f"owner{number % 3}")
    app.run_inline()
    for job in app.jobs.list("state:dead"):
        app.jobs.discard(job.id, reason="not needed")
    waiting = app.jobs.count("state:queued")
    assert waiting > 0
    answer = call("failures", "list", "-o", "table")
    (row,) = answer.out.splitlines()[1:]
    assert row.split()[1:3] == ["held", "0"]
    assert f"crash is held, {waiting} wait" in row
    (record,) = json.loads(call("failures", "list", "-o", "json").out)
    assert record["held"] == {"crash": waiting}
    shown = call("failures", "show", record["fingerprint"], "--private", "-o", "table")
    assert "KeyError: 'secret key' · crash" in shown.out
    assert "trace (private)" in shown.out
    assert "mulligan kinds release crash" in shown.err


def test_all_also_lists_causes_without_a_dead_job(call, app):
    app.open()
    counter = EventCounter(every=0)
    counter.run_once(app.store)
    app.enqueue("refuse", {"text": "moov atom"})
    app.enqueue("crash", {"text": "secret key"})
    app.run_inline()
    counter.run_once(app.store)
    for job in app.jobs.list("state:dead kind:refuse"):
        app.jobs.discard(job.id, reason="not needed")
    assert [row[3] for row in rows(call("failures", "list"))] == ["PROGRAMMING_ERROR"]
    listed = {row[3]: row[2] for row in rows(call("failures", "list", "--all"))}
    assert listed == {"PROGRAMMING_ERROR": "1", "BAD_FILE": "0"}
