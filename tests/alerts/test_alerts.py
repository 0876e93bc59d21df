"""Alerts end to end: measured from real jobs, reported once, acted on, resolved."""

from __future__ import annotations

import pytest

from mulligan import Fail, Fixed, Kind, Mulligan, Policy
from mulligan.alerts.chore import AlertChecker
from mulligan.alerts.measures import MEASURES
from mulligan.alerts.readings import Readings, build_count_cache
from mulligan.alerts.rules import AlertDefinition
from mulligan.config import read_settings
from mulligan.core.errors import ConfigError, NotFound
from support.alert_driver import AlertDriver
from support.app_tools import advance
from support.store import close_worker, open_worker

LONG_RETRIES = Policy(max_retries=50, backoff=Fixed(7200))


class Site:
    """A kind whose calls succeed or are rate limited."""

    def __init__(self, app: Mulligan, **options: object) -> None:
        self.app = app

        @app.job(name="fetch", queue="pages", policy=LONG_RETRIES, **options)  # type: ignore[call-overload]
        def fetch(limited: bool) -> Fail | None:
            return Fail("RATE_LIMITED", "slow down") if limited else None

        self.fetch: Kind[[bool], Fail | None] = fetch

    def calls(self, n: int, *, limited: int = 0) -> None:
        self.fetch.enqueue_many({"limited": index < limited} for index in range(n))
        self.app.run_inline(seed=7)


@pytest.fixture
def site(app: Mulligan) -> Site:
    app.queue("pages", concurrency=10)
    return Site(app)


def limit_of(app: Mulligan, queue: str = "pages") -> int | None:
    return app.queues.get(queue).concurrency


# --- A spike of rate limits ---
@pytest.mark.seed("004-64")
def test_rate_limits_reduce_the_concurrency_and_it_recovers_step_by_step(app, site):
    driver = AlertDriver(app)
    site.calls(30, limited=10)
    driver.run()
    assert driver.reported() == [("alert.fired", "rate_limited_queue", "pages")]
    fired = driver.event("alert.fired").data
    assert (fired["action"], fired["limit"], fired["threshold"]) == ("reduce", 7, 0.05)
    assert fired["evidence"] == {"bad": 10, "of": 30}
    changed = driver.event("queue.changed")
    assert (changed.actor, changed.data["before"], changed.data["after"]["concurrency"]) == (
        "alert",
        {},
        7,
    )
    assert limit_of(app) == 7
    site.calls(20, limited=10)
    driver.run()
    assert limit_of(app) == 7, (
        "at most one change in half a minute, so that its effect is measured first"
    )
    site.calls(20, limited=10)
    driver.run(31)
    assert limit_of(app) == 4
    driver.run(240)
    limits = [limit_of(app)]
    for _ in range(7):
        site.calls(20)
        driver.run(61)
        limits.append(limit_of(app))
    assert sorted(limits) == limits, "it only rises without rate limits"
    assert {4, 5, 6, 7, 8, 9, 10} == set(limits)
    assert driver.reported()[-1] == ("alert.resolved", "rate_limited_queue", "pages")
    assert driver.event("queue.changed").data["cleared"]
    assert not app.queues.get("pages").set_by_hand


def test_an_alerts_limit_expires_without_further_evaluation(app, site):
    driver = AlertDriver(app)
    site.calls(30, limited=10)
    driver.run()
    assert limit_of(app) == 7
    advance(app, 901)
    assert limit_of(app) == 10


def test_a_manual_limit_wins_over_an_alert_and_stays(app, site):
    driver = AlertDriver(app)
    app.queues.set("pages", concurrency=8, reason="known")
    site.calls(30, limited=10)
    driver.run()
    assert limit_of(app) == 8
    assert "limit set by" in driver.event("alert.fired").data["did"]
    driver.run(1000)
    assert limit_of(app) == 8


def test_setting_a_rate_does_not_prolong_an_alerts_reduction(app, site):
    driver = AlertDriver(app)
    site.calls(30, limited=10)
    driver.run()
    app.queues.set("pages", rate="5/s")
    assert limit_of(app) == 10


def test_with_actions_disabled_an_alert_reports_and_does_nothing(make_app):
    app = make_app(alerts__act="false")
    app.queue("pages", concurrency=10)
    site, driver = Site(app), AlertDriver(app)
    site.calls(30, limited=10)
    driver.run()
    assert "disabled by alerts.act" in driver.event("alert.fired").data["did"]
    assert limit_of(app) == 10


def test_calls_to_a_dependency_are_throttled_by_its_guard_not_by_the_alert(app):
    app.dependency("gateway", max_concurrency=10)
    site, driver = Site(app, uses="gateway"), AlertDriver(app)
    site.calls(30, limited=10)
    driver.run()
    assert driver.reported() == [("alert.fired", "rate_limited", "gateway")]
    assert limit_of(app) is None


# --- Other rules ---
def test_an_unknown_error_fires_once(app):
    @app.job(name="odd", policy=Policy(max_retries=0))
    def odd() -> None:
        raise RuntimeError("the flux capacitor is out of plutonium")

    driver = AlertDriver(app)
    odd.enqueue()
    app.run_inline()
    driver.run()
    fired = driver.event("alert.fired").data
    assert (fired["rule"], fired["evidence"]["kind"], fired["evidence"]["class"]) == (
        "unknown_error",
        "odd",
        "unknown",
    )
    odd.enqueue()
    app.run_inline()
    driver.run()
    driver.run(1000)
    assert [reported[:2] for reported in driver.reported()] == [("alert.fired", "unknown_error")]


def test_an_ageing_queue_fires_unless_it_is_paused(app):
    @app.job(name="slow", queue="slow")
    def slow() -> None: ...

    slow.enqueue_many({} for _ in range(120))
    driver = AlertDriver(app)
    driver.run(302)
    driver.run(302)
    assert ("alert.fired", "queue_ageing", "slow") in driver.reported()
    app.queues.pause("slow")
    driver.run()
    assert ("alert.resolved", "queue_ageing", "slow") in driver.reported()


def test_an_unserved_kind_and_a_silent_worker_fire(app):
    @app.job(name="unserved")
    def unserved() -> None: ...

    unserved.enqueue()
    open_worker(app.store, "w_silent")
    driver = AlertDriver(app)
    driver.run(62)
    assert {
        ("alert.fired", "no_worker", "unserved"),
        ("alert.fired", "no_heartbeat", "w_silent"),
    } <= set(driver.reported())
    close_worker(app.store, "w_silent")
    app.run_inline()
    driver.run()
    assert {
        ("alert.resolved", "no_worker", "unserved"),
        ("alert.resolved", "no_heartbeat", "w_silent"),
    } <= set(driver.reported())


def test_a_dependency_on_hold_for_long_fires(app):
    app.dependencies.open("gateway", reason="it is down")
    driver = AlertDriver(app)
    driver.run(601)
    assert driver.reported() == [("alert.fired", "breaker_open", "gateway")]
    assert driver.event("alert.fired").data["evidence"]["reason"] == "it is down"


def test_custom_rules_pause_a_queue_and_open_a_breaker_for_a_limited_time(
    make_app, tmp_path, store_url
):
    file = tmp_path / "alerts.toml"
    file.write_text("""
[[alerts.rules]]
name = "stop the queue"
measure = "failed_share_by_queue"
above = 0.5
least = 10
action = "pause"

[[alerts.rules]]
name = "hold the gateway"
measure = "failed_share_by_dependency"
above = 0.5
least = 10
action = "open"
""")
    app = Mulligan(settings=read_settings({"database_url": store_url}, environ={}, file=file))
    app.dependency("gateway", max_concurrency=10)
    site, driver = Site(app, uses="gateway"), AlertDriver(app)
    site.calls(20, limited=15)
    driver.run()
    queue, gateway = app.queues.get("pages"), app.dependencies.get("gateway")
    assert (queue.paused, queue.actor, gateway.state, gateway.actor) == (
        True,
        "alert",
        "open",
        "alert",
    )
    assert queue.paused_until is not None
    assert gateway.until is not None
    assert driver.event("queue.paused").actor == "alert"
    advance(app, 901)
    assert not app.queues.get("pages").paused
    assert app.dependencies.get("gateway").state != "open"
    app.close()


def test_measures_match_the_counters_of_real_jobs(app):
    """Names and labels of all measures are those that the event counter writes."""

    @app.job(
        name="pay",
        queue="money",
        uses="bank",
        cost=2.0,
        policy=Policy(max_retries=1, backoff=Fixed(10)),
    )
    def pay(n: int) -> None:
        if n:
            raise RuntimeError("the flux capacitor is out of plutonium")

    driver = AlertDriver(app)
    pay.enqueue_many({"n": n} for n in (0, 0, 0, 1))
    app.run_inline()
    advance(app, 11)
    app.run_inline()
    driver.run()
    with app.store.read() as tx:
        readings = Readings(
            tx, tx.now(), build_count_cache([a_rule(name) for name in MEASURES]), {}
        )
        found = {
            name: {one.key: one.value for one in readings.samples(a_rule(name))}
            for name in MEASURES
        }
    assert found["dead_share"] == {"": 0.25}
    assert found["dead_share_by_kind"] == {"pay": 0.25}
    assert found["dead_share_by_queue"] == {"money": 0.25}
    assert found["failed_share"] == {"pay": 0.4}
    assert found["failed_share_by_queue"] == {"money": 0.4}
    assert found["failed_share_by_dependency"] == {"bank": 0.4}
    assert (found["rate_limited_share"], found["rate_limited_share_by_queue"]) == (
        {"bank": 0.0},
        {},
    )
    assert found["unknown_share"] == {"": 1.0}
    assert (found["dead"], found["dead_by_kind"], found["restarts"]) == (
        {"": 1},
        {"pay": 1},
        {"": 0},
    )
    assert (found["dead_letters"], found["dead_letters_by_kind"]) == ({"": 1}, {"pay": 1})
    assert 0 <= found["duration_p95"]["pay"] < 5
    assert found["retry_ratio"] == {"": 0.25}
    assert found["retry_cost"] == {"": 0.5}


def a_rule(measure: str) -> AlertDefinition:
    return AlertDefinition(measure, measure, 0.0, "", window=600)


# --- Silences and lists ---
def test_a_silenced_alert_does_nothing_and_fires_afterwards(app, site):
    driver = AlertDriver(app)
    assert app.alerts.silence("rate_limited_queue", 60, reason="known").silenced_until is not None
    assert driver.event("alert.silenced").actor == "python"
    site.calls(30, limited=10)
    driver.run()
    assert (driver.reported(), limit_of(app)) == ([], 10)
    alert = next(one for one in app.alerts.list() if one.rule == "rate_limited_queue")
    assert (alert.state, alert.silenced_until is not None) == ("pending", True)
    app.alerts.unsilence("rate_limited_queue")
    driver.run()
    assert limit_of(app) == 7
    with pytest.raises(NotFound, match="Did you mean rate_limited"):
        app.alerts.silence("rate_limted", 60)


def test_the_list_includes_alerts_their_actions_and_held_kinds(app, site):
    @app.job(name="odd")
    def odd() -> None:
        raise KeyError("the flux capacitor is out of plutonium")

    driver = AlertDriver(app)
    site.calls(30, limited=10)
    for owner in ("acme", "zenith") * 3:
        odd.options(owner=owner).enqueue()
    app.run_inline()
    driver.run()
    found = {alert.rule: alert for alert in app.alerts.list()}
    assert (found["rate_limited_queue"].limit, found["rate_limited_queue"].action) == (7, "reduce")
    assert (found["same_cause"].key, found["same_cause"].state) == ("odd", "firing")
    assert {rule.name for rule in app.alerts.rules()} >= {"rate_limited_queue", "failures_fast"}


def test_an_invalid_rule_is_refused_at_start(tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text('[[alerts.rules]]\nname = "slow_jobs"\nabov = 3\n')
    with pytest.raises(ConfigError, match="Did you mean 'above'"):
        AlertChecker(read_settings(environ={}, file=file).alerts)


def test_two_workers_evaluate_once(app, site):
    driver = AlertDriver(app)
    other = AlertChecker(app.settings.alerts)
    site.calls(30, limited=10)
    driver.run()
    other.run_once(app.store)
    advance(app, 6)
    other.run_once(app.store)
    assert len(driver.reported()) == 1
