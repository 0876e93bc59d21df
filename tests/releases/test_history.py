"""Attempts, counters and causes know the release that ran them, on both databases."""

from __future__ import annotations

import pytest

from mulligan import Policy, Retry
from mulligan.core.errors import Refused
from mulligan.events.queries import EventQueries
from mulligan.releases.queries import ReleaseQueries
from support.app_tools import advance, count_events
from support.released import run_as


@pytest.fixture
def broken():
    return set()


@pytest.fixture
def render(app, broken):
    @app.job(name="render", policy=Policy(max_retries=0))
    def render(clip: int) -> int:
        if app.settings.release in broken:
            raise KeyError("AT")
        return clip

    app.open()
    count_events(app)
    return render


def run_release(app, render, release, jobs):
    made = render.enqueue_many([{"clip": clip} for clip in range(jobs)])
    run_as(app, release)
    advance(app, 60)
    return made


def counters(app):
    with app.store.read() as tx:
        return {row.release: row for row in ReleaseQueries(tx).list_counts()}


def test_an_attempt_keeps_its_release_also_if_the_first_one_succeeded(app, render, broken):
    broken.add("r42")
    (good,) = run_release(app, render, "r41", 1)
    (bad,) = run_release(app, render, "r42", 1)
    assert [row.release for row in app.jobs.attempts(good.id)] == ["r41"]
    assert [row.release for row in app.jobs.attempts(bad.id)] == ["r42"]


def test_a_job_names_the_release_of_its_latest_attempt(app, render, broken):
    broken.add("r42")
    waiting = render.enqueue(clip=0)
    assert waiting.release == ""
    run_as(app, "r41")
    (bad,) = run_release(app, render, "r42", 1)
    assert (waiting.refresh().release, bad.refresh().release) == ("r41", "r42")
    bad.retry()
    run_as(app, "r43")
    assert bad.refresh().release == "r43"


def test_attempts_are_counted_by_release(app, render, broken):
    broken.add("r42")
    run_release(app, render, "r41", 7)
    run_release(app, render, "r42", 3)
    rows = counters(app)
    assert rows["r41"][4:8] == (7, 0, 7, 0)
    assert rows["r42"][4:11] == (3, 3, 3, 3, 7, 7, 0)


def test_retries_count_as_attempts_but_not_as_starts(app):
    @app.job(name="flaky", policy=Policy(max_retries=2))
    def flaky() -> None:
        raise ConnectionError

    app.open()
    flaky.enqueue()
    for _ in range(3):
        run_as(app, "r41")
        advance(app, 7200)
    row = counters(app)["r41"]
    assert (row.attempts, row.deaths, row.starts, row.failures) == (3, 1, 1, 1)


def test_a_retry_that_the_handler_asks_for_is_no_success(app):
    @app.job(name="poll")
    def poll() -> object:
        return Retry(after=60)

    app.open()
    poll.enqueue()
    run_as(app, "r41")
    row = counters(app)["r41"]
    assert (row.attempts, row.starts - row.failures) == (1, 0)


def test_a_cause_names_the_release_with_which_it_began(app, render, broken):
    broken.add("r42")
    run_release(app, render, "r41", 40)
    run_release(app, render, "r42", 8)
    (group,) = app.failures.groups()
    found = app.failures.get(group.fingerprint)
    assert [(row.release, row.deaths, row.attempts) for row in found.releases] == [
        ("r41", 0, 40),
        ("r42", 8, 8),
    ]
    assert found.suspect.sentence == "began with r42: 0 of 40 attempts before, 8 of 8 since"


def test_owners_do_not_see_releases(app, render, broken):
    broken.add("r42")
    run_release(app, render, "r41", 40)
    render.options(owner="acme").enqueue_many([{"clip": 1}] * 8)
    run_as(app, "r42")
    (group,) = app.failures.groups()
    found = app.failures.get(group.fingerprint, owner="acme")
    assert (found.releases, found.suspect) == ((), None)


# --- Resolved in a release ---


def regressions(app):
    with app.store.read() as tx:
        return list(EventQueries(tx).list_events_of_types(["failure.regressed"], 0, 10**9, 100))


@pytest.fixture
def resolved(app, render, broken):
    """Return a cause of r42 that is resolved in the next release."""
    broken.update({"r42", "r44"})
    run_release(app, render, "r42", 3)
    name = app.failures.groups()[0].fingerprint
    group = app.failures.resolve(name, in_release="next", note="AT is known")
    assert (group.state, group.in_release) == ("resolved", "next")
    advance(app, 60)
    return name


def test_a_death_under_the_old_release_after_resolved_in_next_stays_resolved(app, render, resolved):
    run_release(app, render, "r42", 2)
    assert app.failures.get(resolved).state == "resolved"
    assert regressions(app) == []


def test_a_death_under_a_newer_release_regresses_once(app, render, resolved):
    run_release(app, render, "r43", 2)
    assert app.failures.get(resolved).state == "resolved"
    run_release(app, render, "r44", 2)
    run_release(app, render, "r44", 2)
    group = app.failures.get(resolved)
    assert (group.state, group.count) == ("regressed", 7)
    (event,) = regressions(app)
    assert event.data["release"] == "r44"
    assert (event.data["in_release"], event.data["note"]) == ("next", "AT is known")
    assert event.data["resolved_by"] == "python"


def test_a_group_that_is_resolved_again_can_regress_again(app, render, resolved):
    run_release(app, render, "r44", 1)
    app.failures.resolve(resolved)
    advance(app, 60)
    assert app.failures.get(resolved).state == "resolved"
    run_release(app, render, "r44", 1)
    assert app.failures.get(resolved).state == "regressed"
    assert len(regressions(app)) == 2


def test_an_older_release_that_returns_after_the_fix_is_no_regression(app, render, resolved):
    run_release(app, render, "r43", 1)
    run_release(app, render, "r42", 1)
    assert app.failures.get(resolved).state == "resolved"


def test_a_release_that_nobody_has_reported_cannot_be_named(app):
    typed: dict = {}
    # Code without a file has no release.
    exec("def work() -> None:\n    raise KeyError(1)", typed)  # noqa: S102 - in a test
    work = app.job(name="work", policy=Policy(max_retries=0))(typed["work"])
    app.open()
    work.enqueue()
    run_as(app, "")
    name = app.failures.groups()[0].fingerprint
    with pytest.raises(Refused, match="no worker has reported a release"):
        app.failures.resolve(name, in_release="next")
