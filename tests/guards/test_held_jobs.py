"""Jobs that wait for something they use say why, and the system's own jobs stay out of sight."""

from __future__ import annotations

import re

import pytest

from mulligan import Policy, Rule, Table, testing
from mulligan.core.errors import ConfigError, IllegalMove, NotFound
from mulligan.insight.service import _counted
from mulligan.worker import upkeep
from support.store import open_worker

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


@pytest.fixture
def gateway(app):
    """Down until its name is taken out."""
    return {"down"}


@pytest.fixture
def calls(app, gateway):
    @app.job(name="call", uses="gateway", policy=Policy(max_retries=9, backoff=Table([60])))
    def call(number: int) -> int:
        if gateway:
            raise ConnectionRefusedError
        return number

    return call


def bring_down(app, kind, jobs=12):
    made = kind.enqueue_many([{"number": number} for number in range(jobs)])
    app.run_inline()
    assert app.dependencies.get("gateway").state == "open"
    return made


def advance(app, seconds):
    testing.advance(app, seconds, anywhere=True)


def told(app, job):
    return " ".join(one.text for one in app.jobs.explain(job.id).story)


def test_a_job_behind_a_breaker_says_since_when_why_when_it_is_looked_at_and_what_to_type(
    app, calls
):
    held = bring_down(app, calls)[-1].refresh()
    assert held.phase == "held"
    assert re.fullmatch(
        rf"dependency gateway is down since {STAMP}: \d+ of \d+ calls failed .+; next probe {STAMP} \(in .+\); "
        r"look now: mulligan deps probe gateway; let all go: mulligan deps close gateway",
        held.why,
    )
    assert "Look now: mulligan deps probe gateway." in app.jobs.explain(held.id).now


def test_a_job_held_by_a_person_names_them_and_how_to_let_it_go(app, calls):
    job = calls.enqueue(number=1)
    app.dependencies.open("gateway", until=600, reason="their maintenance")
    why = job.refresh().why
    assert re.search(
        rf"is held since {STAMP} by a program .+, until {STAMP} \(in 10 min\): their maintenance; ",
        why,
    )
    assert why.endswith("sooner: mulligan deps close gateway")


def test_an_attempt_that_was_not_charged_and_a_probe_are_told_as_such(app, calls, gateway):
    jobs = bring_down(app, calls)
    spared = next(
        job for job in jobs if any(one.verb == "hold" for one in app.jobs.attempts(job.id))
    )
    assert "No retry charged: gateway is down; the job waits until it recovers." in told(
        app, spared
    )
    gateway.clear()
    advance(app, 600)
    app.run_inline()
    assert app.dependencies.get("gateway").state == "ramping"
    probed = [job for job in jobs if "It was let through alone as a probe" in told(app, job)]
    assert len(probed) == 3
    open_worker(app.store, kinds='["call"]')
    late = next(job for job in jobs if job not in probed and job.refresh().phase == "limited")
    assert re.match(
        r"dependency gateway comes back after an outage: .+ a second may start now",
        late.refresh().why,
    )
    for _ in range(30):
        advance(app, 2)
        app.run_inline()
    assert late.refresh().state == "succeeded"
    assert "dependency gateway was held by its breaker, with the reason" in told(app, late)
    assert "its breaker let it go, with the reason 'answers again after" in told(app, late)


def test_a_due_retry_whose_dependency_bears_no_more_of_them_is_over_budget(app, calls):
    app.dependency("gateway", budget="1/h", min_calls=1000)
    first, second = calls.enqueue_many([{"number": 1}, {"number": 2}])
    app.run_inline()
    advance(app, 61)
    app.run_inline()
    open_worker(app.store, kinds='["call"]')
    (waiting,) = [job for job in (first.refresh(), second.refresh()) if job.phase == "over_budget"]
    assert waiting.why.startswith(
        "dependency gateway bears no more retries now: 1 an hour may start, the next in "
    )
    assert "a larger budget= in app.dependency()" in app.jobs.explain(waiting.id).now
    advance(app, 3700)
    assert waiting.refresh().phase != "over_budget"


def test_fail_fast_ends_jobs_with_the_code_that_a_rule_gives_it_and_a_retry_by_hand_succeeds(
    app, calls, gateway
):
    app.dependency("gateway", mode="fail_fast")
    app.rules.add(
        Rule(
            "gw-breaker",
            verdict="DEPENDENCY_UNAVAILABLE",
            dependency="gateway",
            code="GW_5XX",
            cls="transient",
        )
    )
    bring_down(app, calls)
    refused = calls.enqueue(number=99)
    app.run_inline()
    refused = refused.refresh()
    assert (refused.state, refused.error["code"], refused.error["rule"]) == (
        "dead",
        "GW_5XX",
        "gw-breaker",
    )
    assert refused.error["message"].startswith("Not started: gateway")
    gateway.clear()
    app.dependencies.close("gateway")
    refused = app.jobs.retry(refused.id)
    advance(app, 60)
    app.run_inline()
    assert refused.refresh().state == "succeeded"


def test_limits_by_hand_win_until_they_are_cleared_and_both_stay_apart(app, calls):
    app.dependency("gateway", max_concurrency=8, rate=100)
    calls.enqueue(number=1)
    app.run_inline()
    found = app.dependencies.set("gateway", concurrency=2, until=60, reason="gently")
    assert (found.concurrency, found.rate, found.set_by_hand, found.reason) == (
        2,
        100.0,
        True,
        "gently",
    )
    assert app.dependencies.set("gateway", rate=None).rate is None
    advance(app, 61)
    assert app.dependencies.get("gateway").concurrency == 8
    assert app.dependencies.clear("gateway").set_by_hand is False
    with pytest.raises(NotFound, match="did you mean gateway"):
        app.dependencies.clear("gatewey")


def test_what_is_not_open_cannot_be_probed(app, calls):
    calls.enqueue(number=1)
    with pytest.raises(IllegalMove, match="is not open"):
        app.dependencies.probe("gateway")


def test_to_keep_a_healthy_dependency_closed_does_not_slow_it_down(app, calls, gateway):
    calls.enqueue(number=1)
    kept = app.dependencies.close("gateway", until=600, reason="it is only noisy")
    assert (kept.state, kept.rate, kept.until is not None) == ("closed", None, True)
    calls.enqueue_many([{"number": number} for number in range(30)])
    app.run_inline()
    assert app.dependencies.get("gateway").state == "closed"
    assert app.dependencies.close("gateway").until is None


# -- our own jobs -----------------------------------------------------------------------------------
@pytest.fixture
def probed(app, calls, gateway):
    """A gateway whose health function was called."""
    app.dependency("gateway", probe=lambda: not gateway)
    jobs = bring_down(app, calls)
    advance(app, 600)
    app.run_inline()
    return jobs


def test_probes_are_left_out_of_lists_counts_and_insight_and_shown_to_who_asks(app, probed):
    (probe,) = app.jobs.list("kind:mulligan.probe")
    assert (probe.state, probe.result["healthy"]) == ("succeeded", False)
    assert app.jobs.count("kind:mulligan.probe") == 1
    assert app.jobs.get(probe.id).kind == "mulligan.probe"
    assert {job.kind for job in app.jobs.list()} == {"call"}
    assert app.jobs.count() == len(probed)
    with app.store.read() as unit:
        assert dict(unit.counts(100)) == {
            **dict.fromkeys(dict(unit.counts(1)), 0),
            "queued": len(probed),
        }
    assert [queue.name for queue in app.queues.list()] == ["default"]
    assert app.policy.kinds() == ["call"]
    assert [kind.name for kind in app.kinds.list()] == ["call"]


def test_finished_probes_are_pruned_after_an_hour(app, probed):
    advance(app, 3500)
    upkeep.prune(app.store, app.settings, {})
    assert app.jobs.count("kind:mulligan.probe") == 1
    advance(app, 200)
    upkeep.prune(app.store, app.settings, {})
    assert app.jobs.count("kind:mulligan.probe") == 0
    assert app.jobs.count() == len(probed)


def test_names_that_are_ours_are_refused(app, calls):
    for name in ("mulligan.probe", "Mulligan.mine"):
        with pytest.raises(ConfigError, match="are Mulligan's own"):
            app.job(name=name)(lambda: None)
    with pytest.raises(ConfigError, match="are Mulligan's own"):
        app.queue("mulligan.mail")
    with pytest.raises(ConfigError, match="are Mulligan's own"):
        app.job(name="mine", queue="mulligan.mail")(lambda: None)
    with pytest.raises(ConfigError, match="are Mulligan's own"):
        calls.options(queue="mulligan.mail").enqueue(number=1)


def test_what_was_spared_is_no_failure_in_insight(app, calls, gateway):
    jobs = bring_down(app, calls, 30)
    spared = sum(one.verb == "hold" for job in jobs for one in app.jobs.attempts(job.id))
    charged = sum(one.verb == "retry" for job in jobs for one in app.jobs.attempts(job.id))
    assert spared
    with app.store.read() as unit:
        tally = _counted(unit, unit.now(), 3_600_000_000, None, None)
    assert sum(one.failures for one in tally.failures) == charged
    assert app.policy.backtest([], since=3600).report.failures == charged
