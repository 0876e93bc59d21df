"""Why of jobs that wait for a dependency, and visibility of probe jobs."""

from __future__ import annotations

import re

import pytest

from mulligan import Policy, Rule, Table, testing
from mulligan.core.errors import ConfigError, IllegalMove, NotFound
from mulligan.insight.service import _load_counts
from mulligan.jobs.queries import SearchQueries
from mulligan.worker import upkeep
from support.store import open_worker

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


@pytest.fixture
def gateway(app):
    """Return a set of dependencies that are down; a test removes a key to repair one."""
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


def story_text(app, job):
    return " ".join(one.text for one in app.jobs.explain(job.id).story)


def test_why_of_a_job_behind_a_breaker(app, calls):
    held = bring_down(app, calls)[-1].refresh()
    assert held.phase == "held"
    assert re.fullmatch(
        rf"dependency gateway is down since {STAMP}: \d+ of \d+ calls failed .+; next probe {STAMP} \(in .+\); "
        r"probe now: mulligan deps probe gateway; release all jobs: mulligan deps close gateway",
        held.why,
    )
    assert "To probe it now: mulligan deps probe gateway." in app.jobs.explain(held.id).now


def test_why_of_a_job_held_by_an_operator(app, calls):
    job = calls.enqueue(number=1)
    app.dependencies.open("gateway", until=600, reason="their maintenance")
    why = job.refresh().why
    assert re.search(
        rf"is held since {STAMP} by a Python program, until {STAMP} \(in 10 min\): their maintenance; ",
        why,
    )
    assert why.endswith("sooner: mulligan deps close gateway")


def test_explain_mentions_uncharged_attempts_and_probes(app, calls, gateway):
    jobs = bring_down(app, calls)
    uncharged = next(
        job for job in jobs if any(one.verb == "hold" for one in app.jobs.attempts(job.id))
    )
    assert "No retry charged: gateway is down; the job waits until it recovers." in story_text(
        app, uncharged
    )
    gateway.clear()
    advance(app, 600)
    app.run_inline()
    assert app.dependencies.get("gateway").state == "ramping"
    probed = [job for job in jobs if "Started alone as a probe" in story_text(app, job)]
    assert len(probed) == 3
    open_worker(app.store, kinds='["call"]')
    late = next(job for job in jobs if job not in probed and job.refresh().phase == "limited")
    assert re.match(
        r"dependency gateway is recovering from an outage: .+ a second may start now",
        late.refresh().why,
    )
    for _ in range(30):
        advance(app, 2)
        app.run_inline()
    assert late.refresh().state == "succeeded"
    assert "dependency gateway was held by its breaker, with the reason" in story_text(app, late)
    assert "its breaker released it, with the reason 'responds again after" in story_text(app, late)


def test_due_retry_without_budget_is_over_budget(app, calls):
    app.dependency("gateway", budget="1/h", min_calls=1000)
    first, second = calls.enqueue_many([{"number": 1}, {"number": 2}])
    app.run_inline()
    advance(app, 61)
    app.run_inline()
    open_worker(app.store, kinds='["call"]')
    (waiting,) = [job for job in (first.refresh(), second.refresh()) if job.phase == "over_budget"]
    assert waiting.why.startswith(
        "the retry budget of dependency gateway is used up: 1 an hour may start; next retry in about "
    )
    assert "To allow more, raise budget= in app.dependency()." in app.jobs.explain(waiting.id).now
    advance(app, 3700)
    assert waiting.refresh().phase != "over_budget"


def test_rule_may_set_the_fail_fast_code_and_manual_retry_succeeds(app, calls, gateway):
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


def test_operator_limits_win_until_cleared(app, calls):
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
    with pytest.raises(NotFound, match="Did you mean gateway"):
        app.dependencies.clear("gatewey")


def test_closed_dependency_cannot_be_probed(app, calls):
    calls.enqueue(number=1)
    with pytest.raises(IllegalMove, match="is not open"):
        app.dependencies.probe("gateway")


def test_keeping_a_healthy_dependency_closed_starts_no_ramp(app, calls, gateway):
    calls.enqueue(number=1)
    closed = app.dependencies.close("gateway", until=600, reason="it is only noisy")
    assert (closed.state, closed.rate, closed.until is not None) == ("closed", None, True)
    calls.enqueue_many([{"number": number} for number in range(30)])
    app.run_inline()
    assert app.dependencies.get("gateway").state == "closed"
    assert app.dependencies.close("gateway").until is None


# -- probe jobs --------------------------------------------------------------------------------
@pytest.fixture
def probed(app, calls, gateway):
    """Run a probe of the gateway with a health check."""
    app.dependency("gateway", probe=lambda: not gateway)
    jobs = bring_down(app, calls)
    advance(app, 600)
    app.run_inline()
    return jobs


def test_probe_jobs_are_hidden_by_default(app, probed):
    (probe,) = app.jobs.list("kind:mulligan.probe")
    assert (probe.state, probe.result["healthy"]) == ("succeeded", False)
    assert app.jobs.count("kind:mulligan.probe") == 1
    assert app.jobs.get(probe.id).kind == "mulligan.probe"
    assert {job.kind for job in app.jobs.list()} == {"call"}
    assert app.jobs.count() == len(probed)
    with app.store.read() as tx:
        assert dict(SearchQueries(tx).count_jobs_by_state(100)) == {
            **dict.fromkeys(dict(SearchQueries(tx).count_jobs_by_state(1)), 0),
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


def test_reserved_names_are_refused(app, calls):
    for name in ("mulligan.probe", "Mulligan.mine"):
        with pytest.raises(ConfigError, match="is reserved"):
            app.job(name=name)(lambda: None)
    with pytest.raises(ConfigError, match="is reserved"):
        app.queue("mulligan.mail")
    with pytest.raises(ConfigError, match="is reserved"):
        app.job(name="mine", queue="mulligan.mail")(lambda: None)
    with pytest.raises(ConfigError, match="is reserved"):
        calls.options(queue="mulligan.mail").enqueue(number=1)


def test_uncharged_failures_are_not_failures_in_insight(app, calls, gateway):
    jobs = bring_down(app, calls, 30)
    uncharged = sum(one.verb == "hold" for job in jobs for one in app.jobs.attempts(job.id))
    charged = sum(one.verb == "retry" for job in jobs for one in app.jobs.attempts(job.id))
    assert uncharged
    with app.store.read() as tx:
        tally = _load_counts(tx, tx.now(), 3_600_000_000, None, None)
    assert sum(one.failures for one in tally.failures) == charged
    assert app.policy.backtest([], since=3600).report.failures == charged
