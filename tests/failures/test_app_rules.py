"""Rules of an app and of a kind."""

from __future__ import annotations

import json

import pytest

from mulligan import Context, Fixed, Policy, Retry, Rule, Then
from mulligan.core.errors import ConfigError
from mulligan.failures.codes import timed_out
from mulligan.failures.matcher import apply_verdict_rules
from mulligan.retries.effective import EffectivePolicies
from support.app_tools import advance

GIVE_UP = Rule(
    "gw.gone",
    http_status=503,
    code="GW_GONE",
    cls="permanent",
    public="The gateway is gone ({http_status}).",
)


class Status(Exception):
    def __init__(self, status_code):
        super().__init__(f"status {status_code}")
        self.status_code = status_code


def test_rules_of_a_kind_win_over_rules_of_the_app_and_are_recorded_on_the_attempt(app):
    app.rules.add(Rule("app.503", http_status=503, code="APP", cls="quota"))

    @app.job(rules=[GIVE_UP])
    def fetch() -> None:
        raise Status(503)

    @app.job
    def other() -> None:
        raise Status(503)

    mine, theirs = fetch.enqueue(), other.enqueue()
    app.run_inline()
    error = mine.refresh().error
    assert (error["code"], error["rule"], error["message"]) == (
        "GW_GONE",
        "gw.gone",
        "The gateway is gone (503).",
    )
    assert theirs.refresh().error["rule"] == "app.503"
    attempt = app.jobs.explain(mine.id).attempts[0]
    assert attempt.rule == "gw.gone"
    assert '"table"' in attempt.judged


def test_a_rule_may_set_backoff_and_max_retries(app):
    rule = Rule(
        "slow", http_status=503, code="SLOW", cls="transient", max_retries=1, backoff=Fixed(7)
    )

    @app.job(policy=Policy(max_retries=5), rules=rule)
    def fetch() -> None:
        raise Status(503)

    job = fetch.enqueue()
    app.run_inline(until_idle=False)
    job = job.refresh()
    assert job.state == "queued"
    assert "in 7 s" in job.why or "7 s" in job.why
    assert round((job.run_at - job.created_at).total_seconds()) in {7, 8}


def test_a_rule_about_a_verdict_may_rename_a_timeout(app):
    late = Rule(
        "late",
        verdict="TIMEOUT",
        code="RENDER_TIMEOUT",
        cls="timeout",
        public="Rendering took too long.",
    )

    @app.job(name="render", rules=late)
    def render() -> None: ...

    layers = EffectivePolicies(app.settings.retry, app.manifest().kinds_with_rules)
    failure = apply_verdict_rules(timed_out(5), layers.rulebooks("render"))
    assert (failure.code, failure.public) == ("RENDER_TIMEOUT", "Rendering took too long.")


def test_a_shadow_rule_is_recorded_but_does_not_decide(app):
    @app.job(rules=Rule("new", http_status=503, code="GIVE_UP", cls="permanent", shadow=True))
    def fetch() -> None:
        raise Status(503)

    job = fetch.enqueue()
    app.run_inline(until_idle=False)
    assert job.refresh().state == "queued"
    assert '"GIVE_UP"' in app.jobs.explain(job.id).attempts[0].judged


def test_duplicate_rule_ids_and_other_types_are_refused(app):
    app.rules.add(GIVE_UP)
    with pytest.raises(ConfigError, match="already exists"):
        app.rules.add(GIVE_UP)
    with pytest.raises(ConfigError, match="takes Rule"):
        app.rules.add({"id": "x"})
    with pytest.raises(ConfigError, match="takes Rule"):
        app.job(rules=["x"])(lambda: None)
    with pytest.raises(ConfigError, match="defined twice"):
        app.job(rules=[GIVE_UP, GIVE_UP])(lambda: None)


def test_a_backtest_counts_known_outcomes_and_bounds_unknown_ones(app):
    tries = {}

    @app.job(policy=Policy(max_retries=3, backoff=Fixed(0)))
    def fetch(n: int) -> None:
        tries[n] = tries.get(n, 0) + 1
        if n < 3 and tries[n] == 1:
            raise Status(503)  # succeeds at the second attempt
        if n == 3:
            raise Status(503)  # never succeeds
        if n == 4:
            raise Status(404)  # not retried

    for n in range(5):
        fetch.enqueue(n=n)
    app.run_inline()
    unchanged = app.policy.backtest()
    assert (unchanged.report.changed, unchanged.report.jobs) == (0, 5)
    gives_up = Rule("a", http_status=503, code="A", cls="permanent")
    found = app.policy.backtest([gives_up, Rule("b", http_status=404, code="B", cls="transient")])
    report = found.report
    assert (report.saved, report.lost, report.rescued, report.tried) == (3 + 3, 3, 3, 1)
    assert "between 0 and 1 of them would have succeeded" in " ".join(found.text)
    assert not app.policy.backtest([GIVE_UP], kind="nobody").report.jobs


def test_a_backtest_with_the_same_rules_changes_nothing(app):
    """Stored facts get the verdict that the live exception got."""

    @app.job(policy=Policy(max_retries=0))
    def fail(how: int) -> None:
        if how == 0:
            raise KeyError("x")
        if how == 1:
            try:
                raise ConnectionResetError("peer")
            except ConnectionResetError as error:
                raise RuntimeError("wrapped") from error
        if how == 2:
            raise ExceptionGroup("many", [ValueError("a"), TimeoutError("b")])
        if how == 3:
            raise Status(429)
        raise RuntimeError("upload failed: No space left on device")

    for how in range(5):
        fail.enqueue(how=how)
    app.run_inline()
    report = app.policy.backtest().report
    assert (report.failures, report.changed, report.unreadable) == (5, 0, 0)


def test_a_backtest_changes_system_failures_only_by_rules_about_verdicts(app):
    """Their messages are not error texts, and a requested retry is not an unreadable failure."""

    @app.job(name="no_json", policy=Policy(max_retries=0))
    def no_json() -> object:
        return object()

    @app.job(name="again", policy=Policy(max_retries=1, backoff=Fixed(0)))
    def again() -> Retry:
        return Retry()

    for kind in ("no_json", "again"):
        app.enqueue(kind, {})
    app.run_inline()
    same = app.policy.backtest()
    assert (same.report.failures, same.report.changed, same.report.unreadable) == (3, 0, 0), (
        same.report.changes
    )
    assert "No decision would have been different." in same.text
    other = app.policy.backtest(
        [Rule("odd", verdict="RESULT_NOT_JSON", code="ODD", cls="transient")]
    )
    assert [(change.effect, times) for change, times in other.report.changes.items()] == [
        ("tried again", 1)
    ]


def test_an_escalation_step_of_a_rule_applies_to_the_next_attempt(app):
    rule = Rule(
        "big",
        http_status=507,
        code="FULL",
        cls="resource",
        backoff=Fixed(0),
        then=Then(queue="big", settings={"tier": 2}),
    )
    seen = []

    @app.job(rules=rule, policy=Policy(max_retries=2))
    def fetch(ctx: Context) -> None:
        seen.append((ctx.job.queue, dict(ctx.settings)))
        if len(seen) == 1:
            raise Status(507)

    job = fetch.enqueue()
    app.run_inline()
    assert job.refresh().state == "succeeded"
    assert seen == [("default", {}), ("big", {"tier": 2})]


def test_a_shadow_policy_records_what_it_would_have_decided(app):
    @app.job(
        policy=Policy(max_retries=2, backoff=Fixed(0)),
        shadow=Policy(max_retries=1, backoff=Fixed(60)),
    )
    def fetch() -> None:
        raise Status(503)

    job = fetch.enqueue()
    app.run_inline()
    attempts = app.jobs.explain(job.id).attempts
    assert len(attempts) == 3
    would = [json.loads(attempt.judged)["shadow_policy"] for attempt in attempts]
    assert [decision["verb"] for decision in would] == ["retry", "die", "die"]
    assert would[0]["wait"] == 60
    assert would[1]["reason"] == "1 of 1 retries used"


def test_a_promise_is_shown_until_the_last_retry_is_used(app):
    busy = Rule(
        "busy",
        http_status=503,
        code="BUSY",
        cls="transient",
        public="It is busy.",
        promise="We’ll try again.",
        max_retries=1,
        backoff=Fixed(60),
    )

    @app.job(rules=busy)
    def fetch() -> None:
        raise Status(503)

    job = fetch.enqueue()
    app.run_inline(until_idle=False)
    assert job.refresh().error["message"] == "It is busy. We’ll try again."
    assert app.jobs.history(job.id)[-1].data["message"] == "It is busy. We’ll try again."
    advance(app, 61)
    app.run_inline(until_idle=False)
    assert job.refresh().state == "dead"
    assert job.refresh().error["message"] == "It is busy."
    assert app.jobs.history(job.id)[-1].data["message"] == "It is busy."


def test_a_promise_survives_the_manifest():
    rule = Rule("busy", http_status=503, code="BUSY", cls="transient", promise="Soon.")
    assert Rule.from_dict(rule.to_dict()) == rule
