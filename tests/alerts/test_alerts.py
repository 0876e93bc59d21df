"""Alerts in the product: measured from what happened, told once, acted on, and given back."""

from __future__ import annotations

import pytest

from mulligan import Fail, Fixed, Kind, Mulligan, Policy
from mulligan.alerts.chore import AlertChecker
from mulligan.alerts.measures import MEASURES
from mulligan.alerts.readings import Gauges, tallies_for
from mulligan.alerts.rules import AlertDefinition
from mulligan.config import read_settings
from mulligan.core.errors import ConfigError, NotFound
from support.app_tools import advance
from support.desk import Desk
from support.store import close_worker, open_worker

PATIENT = Policy(max_retries=50, backoff=Fixed(7200))


class Site:
    """A kind whose calls are answered, or told to slow down."""

    def __init__(self, app: Mulligan, **said: object) -> None:
        self.app = app

        @app.job(name="fetch", queue="pages", policy=PATIENT, **said)  # type: ignore[call-overload]
        def fetch(limited: bool) -> Fail | None:
            return Fail("RATE_LIMITED", "slow down") if limited else None

        self.fetch: Kind[[bool], Fail | None] = fetch

    def calls(self, n: int, *, limited: int = 0) -> None:
        self.fetch.enqueue_many({"limited": place < limited} for place in range(n))
        self.app.run_inline(seed=7)


@pytest.fixture
def site(app: Mulligan) -> Site:
    app.queue("pages", concurrency=10)
    return Site(app)


def limit_of(app: Mulligan, queue: str = "pages") -> int | None:
    return app.queues.get(queue).concurrency


# -- a rate-limit spike -------------------------------------------------------------------------------
@pytest.mark.seed("004-64")
def test_a_spike_of_rate_limits_lowers_concurrency_and_gives_it_back_step_by_step(app, site):
    desk = Desk(app)
    site.calls(30, limited=10)
    desk.look()
    assert desk.told() == [("alert.fired", "rate_limited_queue", "pages")]
    fired = desk.event("alert.fired").data
    assert (fired["action"], fired["limit"], fired["threshold"]) == ("reduce", 7, 0.05)
    assert fired["evidence"] == {"bad": 10, "of": 30}
    changed = desk.event("queue.changed")
    assert (changed.actor, changed.data["before"], changed.data["after"]["concurrency"]) == (
        "alert",
        {},
        7,
    )
    assert limit_of(app) == 7
    site.calls(20, limited=10)
    desk.look()
    assert limit_of(app) == 7, "one change in half a minute, or it acts on what it has not seen yet"
    site.calls(20, limited=10)
    desk.look(31)
    assert limit_of(app) == 4
    desk.look(240)
    seen = [limit_of(app)]
    for _ in range(7):
        site.calls(20)
        desk.look(61)
        seen.append(limit_of(app))
    assert sorted(seen) == seen, "never down again while all is well"
    assert {4, 5, 6, 7, 8, 9, 10} == set(seen)
    assert desk.told()[-1] == ("alert.resolved", "rate_limited_queue", "pages")
    assert desk.event("queue.changed").data["cleared"]
    assert not app.queues.get("pages").set_by_hand


def test_what_an_alert_has_set_ends_by_itself_when_nobody_looks_any_more(app, site):
    desk = Desk(app)
    site.calls(30, limited=10)
    desk.look()
    assert limit_of(app) == 7
    advance(app, 901)
    assert limit_of(app) == 10


def test_a_persons_limit_wins_and_stays_when_the_spike_is_over(app, site):
    desk = Desk(app)
    app.queues.set("pages", concurrency=8, reason="we know")
    site.calls(30, limited=10)
    desk.look()
    assert limit_of(app) == 8
    assert "has set its limit" in desk.event("alert.fired").data["did"]
    desk.look(1000)
    assert limit_of(app) == 8


def test_a_person_who_sets_a_rate_does_not_make_the_reduction_last(app, site):
    desk = Desk(app)
    site.calls(30, limited=10)
    desk.look()
    app.queues.set("pages", rate="5/s")
    assert limit_of(app) == 10


def test_in_dry_run_it_tells_what_it_would_do_and_does_nothing(make_app):
    app = make_app(alerts__act="false")
    app.queue("pages", concurrency=10)
    site, desk = Site(app), Desk(app)
    site.calls(30, limited=10)
    desk.look()
    assert "not done" in desk.event("alert.fired").data["did"]
    assert limit_of(app) == 10


def test_of_what_uses_a_dependency_its_guard_sees_to_it_and_the_alert_tells(app):
    app.dependency("gateway", max_concurrency=10)
    site, desk = Site(app, uses="gateway"), Desk(app)
    site.calls(30, limited=10)
    desk.look()
    assert desk.told() == [("alert.fired", "rate_limited", "gateway")]
    assert limit_of(app) is None


# -- other rules --------------------------------------------------------------------------------------
def test_an_error_nobody_knows_is_told_once(app):
    @app.job(name="odd", policy=Policy(max_retries=0))
    def odd() -> None:
        raise RuntimeError("the flux capacitor is out of plutonium")

    desk = Desk(app)
    odd.enqueue()
    app.run_inline()
    desk.look()
    fired = desk.event("alert.fired").data
    assert (fired["rule"], fired["evidence"]["kind"], fired["evidence"]["class"]) == (
        "unknown_error",
        "odd",
        "unknown",
    )
    odd.enqueue()
    app.run_inline()
    desk.look()
    desk.look(1000)
    assert [told[:2] for told in desk.told()] == [("alert.fired", "unknown_error")]


def test_a_queue_that_ages_is_told_but_not_one_that_is_paused(app):
    @app.job(name="slow", queue="slow")
    def slow() -> None: ...

    slow.enqueue_many({} for _ in range(120))
    desk = Desk(app)
    desk.look(302)
    desk.look(302)
    assert ("alert.fired", "queue_ageing", "slow") in desk.told()
    app.queues.pause("slow")
    desk.look()
    assert ("alert.resolved", "queue_ageing", "slow") in desk.told()


def test_a_kind_that_no_worker_runs_and_a_worker_that_is_silent_are_told(app):
    @app.job(name="lonely")
    def lonely() -> None: ...

    lonely.enqueue()
    open_worker(app.store, "w_silent")
    desk = Desk(app)
    desk.look(62)
    assert {
        ("alert.fired", "no_worker", "lonely"),
        ("alert.fired", "no_heartbeat", "w_silent"),
    } <= set(desk.told())
    close_worker(app.store, "w_silent")
    app.run_inline()
    desk.look()
    assert {
        ("alert.resolved", "no_worker", "lonely"),
        ("alert.resolved", "no_heartbeat", "w_silent"),
    } <= set(desk.told())


def test_a_dependency_that_is_held_for_long_is_told(app):
    app.dependencies.open("gateway", reason="they are down")
    desk = Desk(app)
    desk.look(601)
    assert desk.told() == [("alert.fired", "breaker_open", "gateway")]
    assert desk.event("alert.fired").data["evidence"]["reason"] == "they are down"


def test_own_rules_pause_a_queue_and_open_a_breaker_each_with_an_end(make_app, tmp_path, store_url):
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
    site, desk = Site(app, uses="gateway"), Desk(app)
    site.calls(20, limited=15)
    desk.look()
    queue, gateway = app.queues.get("pages"), app.dependencies.get("gateway")
    assert (queue.paused, queue.actor, gateway.state, gateway.actor) == (
        True,
        "alert",
        "open",
        "alert",
    )
    assert queue.paused_until is not None
    assert gateway.until is not None
    assert desk.event("queue.paused").actor == "alert"
    advance(app, 901)
    assert not app.queues.get("pages").paused
    assert app.dependencies.get("gateway").state != "open"
    app.close()


def test_what_is_measured_is_what_is_counted(app):
    """Every share, number, duration and cost sees real jobs: names and labels are those of the fold."""

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

    desk = Desk(app)
    pay.enqueue_many({"n": n} for n in (0, 0, 0, 1))
    app.run_inline()
    advance(app, 11)
    app.run_inline()
    desk.look()
    with app.store.read() as unit:
        gauges = Gauges(unit, unit.now(), tallies_for([a_rule(name) for name in MEASURES]), {})
        found = {
            name: {one.key: one.value for one in gauges.samples(a_rule(name))} for name in MEASURES
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
    assert 0 < found["duration_p95"]["pay"] < 5
    assert found["retry_ratio"] == {"": 0.25}
    assert found["retry_cost"] == {"": 0.5}


def a_rule(measure: str) -> AlertDefinition:
    return AlertDefinition(measure, measure, 0.0, "", window=600)


# -- by hand ------------------------------------------------------------------------------------------
def test_a_silenced_alert_neither_tells_nor_acts_and_fires_afterwards_if_it_still_holds(app, site):
    desk = Desk(app)
    assert app.alerts.silence("rate_limited_queue", 60, reason="we know").silenced_until is not None
    assert desk.event("alert.silenced").actor == "python"
    site.calls(30, limited=10)
    desk.look()
    assert (desk.told(), limit_of(app)) == ([], 10)
    alert = next(one for one in app.alerts.list() if one.rule == "rate_limited_queue")
    assert (alert.state, alert.silenced_until is not None) == ("pending", True)
    app.alerts.unsilence("rate_limited_queue")
    desk.look()
    assert limit_of(app) == 7
    with pytest.raises(NotFound, match="did you mean rate_limited"):
        app.alerts.silence("rate_limted", 60)


def test_the_list_shows_what_fires_what_it_did_and_kinds_that_a_guard_holds(app, site):
    @app.job(name="odd")
    def odd() -> None:
        raise KeyError("the flux capacitor is out of plutonium")

    desk = Desk(app)
    site.calls(30, limited=10)
    for owner in ("acme", "zenith") * 3:
        odd.options(owner=owner).enqueue()
    app.run_inline()
    desk.look()
    found = {alert.rule: alert for alert in app.alerts.list()}
    assert (found["rate_limited_queue"].limit, found["rate_limited_queue"].action) == (7, "reduce")
    assert (found["same_cause"].key, found["same_cause"].state) == ("odd", "firing")
    assert {rule.name for rule in app.alerts.rules()} >= {"rate_limited_queue", "failures_fast"}


def test_nonsense_in_a_rule_is_refused_at_start(tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text('[[alerts.rules]]\nname = "slow_jobs"\nabov = 3\n')
    with pytest.raises(ConfigError, match="did you mean 'above'"):
        AlertChecker(read_settings(environ={}, file=file).alerts)


def test_two_workers_that_look_at_once_tell_once(app, site):
    desk = Desk(app)
    other = AlertChecker(app.settings.alerts)
    site.calls(30, limited=10)
    desk.look()
    other.turn(app.store)
    advance(app, 6)
    other.turn(app.store)
    assert len(desk.told()) == 1
