"""Causes keep their identity and their history, on both databases."""

from __future__ import annotations

import pytest

from mulligan.cli.demo_jobs import parse_feed
from mulligan.core.errors import NotFound
from mulligan.failures.capture import capture
from mulligan.failures.facts import SOURCE_MARK
from mulligan.failures.groups import (
    GroupState,
    count_arguments,
    describe_exception,
    parse_frame,
    parse_trace,
)
from mulligan.failures.queries import FailureQueries
from mulligan.worker.upkeep import prune
from support.app_tools import advance, count_events
from support.invoicing import Rates, declare_make_invoice

DAY = 86_400


@pytest.fixture
def rates():
    return Rates()


@pytest.fixture
def make_invoice(app, rates):
    make_invoice = declare_make_invoice(app, rates)
    count_events(app)
    return make_invoice


def die(app, make_invoice, jobs=3, **options):
    made = make_invoice.options(**options).enqueue_many([{"country": "AT"}] * jobs)
    app.run_inline()
    count_events(app)
    return made


def repair(app, rates):
    """Fix the bug and retry every dead job."""
    rates.known = ("AT", "DE")
    app.operations.start("retry", "state:dead", steps=["rest"], rate=1000)
    app.run_inline()
    count_events(app)


def test_a_repaired_cause_keeps_its_title_sample_charts_and_first_death(app, make_invoice, rates):
    die(app, make_invoice)
    (before,) = app.failures.groups()
    repair(app, rates)
    assert app.failures.groups() == []
    after = app.failures.get(before.fingerprint, private=True)
    assert (after.state, after.count, after.recovered, after.retried) == ("recovered", 0, 3, 3)
    assert (after.code, after.cls, after.message) == (before.code, before.cls, before.message)
    assert (after.first_seen, after.last_seen) == (before.first_seen, before.last_seen)
    assert (after.deaths, sum(after.hourly), sum(after.daily)) == (3, 3, 3)
    assert after.title == "KeyError: 'AT'"
    assert after.sample.job == before.sample.job
    assert "in make_invoice" in after.sample.private["trace"]


def test_a_cause_that_recovered_regresses_with_the_next_death_and_is_not_new(
    app, make_invoice, rates
):
    die(app, make_invoice)
    first_seen = app.failures.groups()[0].first_seen
    repair(app, rates)
    rates.known = ()
    advance(app, 60)
    die(app, make_invoice, 1)
    (group,) = app.failures.groups()
    assert (group.state, group.count, group.deaths) == (GroupState.REGRESSED, 1, 4)
    assert group.first_seen == first_seen


def test_a_cause_whose_jobs_were_pruned_is_not_new_at_its_next_death(app, make_invoice):
    die(app, make_invoice)
    (group,) = app.failures.groups()
    advance(app, 91 * DAY)
    prune(app.store, app.settings, {})
    assert app.jobs.list("state:dead") == []
    assert app.failures.get(group.fingerprint).first_seen == group.first_seen
    die(app, make_invoice, 1)
    (again,) = app.failures.groups()
    assert (again.state, again.count, again.first_seen) == ("open", 1, group.first_seen)


def test_a_cause_is_kept_for_a_year_after_its_last_death(app, make_invoice):
    die(app, make_invoice)
    (group,) = app.failures.groups()
    advance(app, 364 * DAY)
    prune(app.store, app.settings, {})
    assert app.failures.get(group.fingerprint).deaths == 3
    advance(app, 2 * DAY)
    prune(app.store, app.settings, {})
    with pytest.raises(NotFound):
        app.failures.get(group.fingerprint)


def test_while_retried_jobs_run_the_cause_has_not_recovered(app, make_invoice, rates):
    die(app, make_invoice)
    (group,) = app.failures.groups()
    for job in app.jobs.list("state:dead"):
        app.jobs.retry(job.id)
    waiting = app.failures.get(group.fingerprint)
    assert (waiting.state, waiting.count, waiting.retrying) == ("open", 0, 3)


def test_the_list_has_recovered_causes_only_if_history_is_included(app, make_invoice, rates):
    die(app, make_invoice)
    repair(app, rates)
    assert app.failures.groups() == []
    (group,) = app.failures.groups(history=True)
    assert (group.state, group.title, group.count) == ("recovered", "KeyError: 'AT'", 0)
    assert group.sample.private is None


def test_deaths_are_counted_once_however_often_the_events_are_read(app, make_invoice):
    die(app, make_invoice, 5)
    count_events(app)
    (group,) = app.failures.groups()
    assert (group.deaths, group.hourly[-1]) == (5, 5)
    advance(app, 3600)
    die(app, make_invoice, 2)
    (group,) = app.failures.groups()
    assert (group.deaths, group.hourly[-2:]) == (7, (5, 2))


def test_operators_see_the_exception_and_owners_only_the_sentence(app, make_invoice):
    die(app, make_invoice, owner="acme")
    (group,) = app.failures.groups()
    assert (group.title, group.location.partition(":")[0]) == ("KeyError: 'AT'", "invoicing.py")
    for view in (
        app.failures.groups(private=False)[0],
        app.failures.groups(owner="acme")[0],
        app.failures.get(group.fingerprint),
        app.failures.get(group.fingerprint, owner="acme", private=True),
    ):
        assert (view.exception, view.location, view.title) == ("", "", group.message)


def test_an_owner_does_not_see_the_history_of_other_owners(app, make_invoice, rates):
    die(app, make_invoice, owner="acme")
    (group,) = app.failures.groups()
    repair(app, rates)
    with pytest.raises(NotFound):
        app.failures.get(group.fingerprint, owner="zenith")
    assert app.failures.get(group.fingerprint, owner="acme").sample is None


def test_the_exception_is_known_before_the_events_are_counted(app, make_invoice):
    make_invoice.enqueue(country="AT")
    app.run_inline()
    assert app.failures.groups()[0].title == "KeyError: 'AT'"


def test_another_dead_job_of_the_group_can_be_the_sample(app, make_invoice):
    jobs = die(app, make_invoice)
    (group,) = app.failures.groups()
    for job in jobs:
        found = app.failures.get(group.fingerprint, private=True, sample=job.id)
        assert (found.sample.job, found.sample.private["message"]) == (job.id, "'AT'")
    other = app.failures.get(group.fingerprint, sample="unknown")
    assert other.sample.job == group.sample.job


def test_a_group_counts_its_dead_jobs_by_owner(app, make_invoice):
    die(app, make_invoice, 2, owner="acme")
    die(app, make_invoice, 1, owner="zenith")
    (group,) = app.failures.groups()
    assert app.failures.get(group.fingerprint).owners == {"acme": 2, "zenith": 1}


def test_the_place_is_the_innermost_frame_of_the_job():
    trace = """builtins.KeyError: 'AT'
  /srv/venv/lib/python3.12/site-packages/mulligan/worker/runner/execute.py:121 in _execute_sync
  /srv/shop/jobs.py:41 in make_invoice
  /srv/shop/tax.py:18 in rate_for
    | return RATES[country]
  /srv/venv/lib/python3.12/site-packages/tables/lookup.py:7 in get
caused by builtins.OSError: no
  /srv/shop/other.py:1 in read"""
    private = {"exception": "builtins.KeyError", "message": "'AT'\nmore", "trace": trace}
    assert describe_exception(private) == ("KeyError: 'AT' more", "tax.py:18")
    assert describe_exception({}) == ("", "")
    assert parse_frame("builtins.KeyError: 'AT'") is None
    frames = [part for part in parse_trace(trace.split("\n")) if not isinstance(part, str)]
    assert [frame.source for frame in frames] == ["", "", "return RATES[country]", "", ""]


def test_arguments_that_many_jobs_share_are_counted_and_others_are_not():
    payloads = [f'{{"order": {n}, "country": "AT", "api_key": "k"}}' for n in range(9)]
    payloads.append('{"order": 9, "country": "CH", "api_key": "k", "lines": [1]}')
    counts = count_arguments(payloads)
    assert counts["country"] == {"AT": 9, "CH": 1}
    assert "order" not in counts
    assert "lines" not in counts
    assert "k" not in counts.get("api_key", {})
    assert count_arguments([]) == {}


def test_the_members_of_a_group_name_their_worker_and_their_arguments(app, make_invoice):
    die(app, make_invoice, 2, owner="acme")
    die(app, make_invoice, 1, owner="zenith")
    (group,) = app.failures.groups()
    assert group.owners == {"acme": 2, "zenith": 1}
    with app.store.read() as tx:
        members = FailureQueries(tx).list_group_members(group.fingerprint, {}, 10)
        own = FailureQueries(tx).list_group_members(group.fingerprint, {"owner": "acme"}, 10)
    assert len(members) == 3
    assert len(own) == 2
    assert all(member.worker and "AT" in member.payload for member in members)


def test_a_cause_for_which_a_kind_is_held_is_listed_with_its_waiting_jobs(app, make_invoice):
    jobs = die(app, make_invoice, 4, owner="acme") + die(app, make_invoice, 6, owner="zenith")
    (group,) = app.failures.groups()
    waiting = app.jobs.count("state:queued")
    assert (group.count, group.held) == (10 - waiting, {"make_invoice": waiting})
    assert waiting >= 5
    for job in jobs:
        if job.refresh().state == "dead":
            app.jobs.discard(job.id, reason="not needed")
    (group,) = app.failures.groups()
    assert (group.count, group.held, group.title) == (
        0,
        {"make_invoice": waiting},
        "KeyError: 'AT'",
    )
    assert group.subject.startswith("make_invoice · invoicing.py:")
    (kind,) = [kind for kind in app.kinds.list() if kind.held]
    assert "failed in a row with PROGRAMMING_ERROR" in kind.reason
    assert "died" not in kind.reason


def test_a_held_cause_of_which_no_job_died_is_a_full_group(app, make_invoice):
    for owner in ("acme", "zenith"):
        make_invoice.options(owner=owner).enqueue_many([{"country": "AT"}] * 10)
    app.run_inline()
    for job in app.jobs.list("state:dead"):
        app.jobs.discard(job.id, reason="not needed")
    (listed,) = app.failures.groups()
    found = app.failures.get(listed.fingerprint, private=True)
    assert (found.state, found.count, found.code) == ("new", 0, "PROGRAMMING_ERROR")
    assert found.title == "KeyError: 'AT'"
    assert found.message
    assert "in make_invoice" in found.sample.private["trace"]
    assert app.failures.complete_fingerprint(listed.fingerprint[:6]) == listed.fingerprint
    assert app.failures.groups(owner="acme") == []


def test_frames_of_the_sample_jobs_belong_to_the_job():
    installed = "/venv/lib/python3.12/site-packages/mulligan/"
    for path in ("cli/demo_jobs.py", "apps/render/jobs.py"):
        frame = parse_frame(f"  {installed}{path}:78 in parse_feed")
        assert frame is not None
        assert not frame.is_library
    engine = parse_frame(f"  {installed}worker/inline.py:1 in run")
    assert engine is not None
    assert engine.is_library


def test_a_sample_job_shows_its_line_of_code():
    with pytest.raises(KeyError) as raised:
        parse_feed("feed-1", "AT")
    assert f"{SOURCE_MARK}return TAX_RATES[country]" in capture(raised.value).trace
