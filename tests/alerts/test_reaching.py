"""Built-in alerts fire by real jobs and reach the channel that an app declares for its operators."""

from __future__ import annotations

import time
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from mulligan import Fail, Fixed, Mulligan, Policy, Rule
from mulligan.doctor.runtime import runtime_checks
from mulligan.notifications.message import Message
from mulligan.worker import upkeep
from support.alert_driver import AlertDriver
from support.app_tools import advance
from support.store import open_worker


class Pager:
    """A channel that records what operators get."""

    kind = "webhook"
    storable = False
    endpoint = "pager"

    def __init__(self) -> None:
        self.received: list[Message] = []

    async def send(self, message: Message, _context: Any) -> dict[str, Any]:
        self.received.append(message)
        return {}

    def to_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def fired(self) -> set[str]:
        return {one.data["rule"] for one in self.received if one.type == "alert.fired"}


RUNBOOK = "https://wiki.example/odd"


class Clock:
    """The clock by which attempts are timed. A job takes as long as it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._added = 0.0
        clock = SimpleNamespace(**vars(time))
        clock.monotonic = lambda: time.monotonic() + self._added
        monkeypatch.setattr("mulligan.worker.inline.time", clock)

    def take(self, seconds: float) -> None:
        self._added += seconds


@pytest.fixture
def pager(app: Mulligan) -> Pager:
    """Subscribe operators to all alerts, in one line, before anything happens."""
    pager = Pager()
    app.notify("alert.*", to=pager)
    app.run_inline()
    return pager


@pytest.fixture
def driver(app: Mulligan, pager: Pager) -> AlertDriver:
    return AlertDriver(app)


def report(app: Mulligan, driver: AlertDriver, seconds: float = 61) -> None:
    """Evaluate the rules and deliver what they report.

    Counts of an hour are read once a minute, those of a day every ten minutes.
    """
    driver.run(seconds)
    app.run_inline()


def run_failing(app: Mulligan, n: int, code: str = "BROKEN", works: int = 0) -> None:
    """Run jobs that die, and others that succeed."""

    @app.job(name="encode", policy=Policy(max_retries=0))
    def encode(fails: bool) -> Fail | None:
        return Fail(code, final=True) if fails else None

    encode.enqueue_many({"fails": True} for _ in range(n))
    encode.enqueue_many({"fails": False} for _ in range(works))
    app.run_inline()


def test_dead_letters_count_jobs_that_died_of_their_input(app, pager, driver):
    run_failing(app, 11, "INVALID_INPUT")
    assert {job.error["class"] for job in app.jobs.list("state:dead")} == {"invalid_input"}
    report(app, driver)
    assert "dead_letters" in pager.fired
    (message,) = [one for one in pager.received if one.data["rule"] == "dead_letters"]
    assert "11 jobs died" in message.summary


def test_deaths_that_operators_expect_fire_no_alert_and_name_the_runbook_of_others(
    app, pager, driver
):
    app.rules.add(Rule("gone", verdict="GONE", code="GONE", cls="permanent", alarm="none"))
    app.rules.add(Rule("x", verdict="ODD", code="ODD", cls="permanent", runbook=RUNBOOK))
    run_failing(app, 20, "GONE")
    report(app, driver)
    assert pager.fired == set()

    @app.job(name="odd", policy=Policy(max_retries=0))
    def odd() -> Fail:
        return Fail("ODD", final=True)

    odd.enqueue_many({} for _ in range(12))
    app.run_inline()
    report(app, driver)
    (message,) = [one for one in pager.received if one.data["rule"] == "new_failure"]
    assert message.runbook == RUNBOOK


def test_an_alert_about_a_code_that_only_a_handler_declares_is_true(app, pager, driver):
    run_failing(app, 1, "OWN_CODE")
    (job,) = app.jobs.list("state:dead")
    assert (job.error["code"], job.error["class"]) == ("OWN_CODE", "unknown")
    report(app, driver)
    (message,) = [one for one in pager.received if one.data["rule"] == "unknown_error"]
    assert "OWN_CODE" in message.summary
    assert "died of a failure of class unknown" in message.summary


def test_few_dead_letters_do_not_fire(app, pager, driver):
    run_failing(app, 10, "INVALID_INPUT")
    report(app, driver)
    assert "dead_letters" not in pager.fired


@pytest.mark.parametrize(
    ("limit", "seconds", "expected"),
    [
        (300, 200, set()),
        (300, 290, {"slow_jobs"}),
        (7200, 600, set()),
        (7200, 7100, {"slow_jobs"}),
    ],
)
def test_slow_jobs_fires_near_the_time_limit_of_a_kind(
    app, pager, driver, monkeypatch, limit, seconds, expected
):
    clock = Clock(monkeypatch)

    @app.job(name="transcribe", timeout=limit)
    def transcribe() -> None:
        clock.take(seconds)

    transcribe.enqueue_many({} for _ in range(20))
    app.run_inline()
    report(app, driver)
    assert pager.fired == expected
    if expected:
        assert pager.received[0].data["threshold"] == 0.8 * limit


def test_a_threshold_of_slow_jobs_that_somebody_chose_holds_for_every_kind(make_app, monkeypatch):
    app = make_app()
    rules = ({"name": "slow_jobs", "above": 30},)
    app.settings = app.settings.model_copy(
        update={"alerts": app.settings.alerts.model_copy(update={"rules": rules})}
    )
    pager = Pager()
    app.notify("alert.*", to=pager)
    app.run_inline()
    driver = AlertDriver(app)
    clock = Clock(monkeypatch)

    @app.job(name="transcribe", timeout=7200)
    def transcribe() -> None:
        clock.take(100)

    transcribe.enqueue_many({} for _ in range(20))
    app.run_inline()
    report(app, driver)
    assert pager.fired == {"slow_jobs"}


def test_the_share_of_failed_attempts_fires_after_five_minutes(app, pager, driver):
    @app.job(name="encode", policy=Policy(max_retries=9, backoff=Fixed(7200)))
    def encode(fails: bool) -> Fail | None:
        return Fail("HTTP_5XX") if fails else None

    for _ in range(6):
        encode.enqueue_many({"fails": n < 10} for n in range(40))
        app.run_inline()
        report(app, driver, 61)
    assert "failure_share" in pager.fired


def test_a_hundred_jobs_that_wait_for_five_minutes_fire(app, pager, driver):
    @app.job(name="encode", queue="videos")
    def encode() -> None: ...

    app.queues.set("videos", rate=0.001)  # nearly nothing starts
    encode.enqueue_many({} for _ in range(101))
    for _ in range(11):
        report(app, driver, 60)
    assert "queue_ageing" in pager.fired


def test_four_lost_workers_in_an_hour_fire(app, pager, driver):
    for n in range(4):
        open_worker(app.store, f"w{n}")
    detector = upkeep.LossDetector("me", "this boot", lambda _: True)
    upkeep.close_lost_workers(app.store, detector, app.settings.retry, Random(1))
    report(app, driver)
    assert "worker_restarts" in pager.fired


@pytest.mark.seed("001-78")
def test_a_spike_of_deaths_fires(app, pager, driver):
    run_failing(app, 1, works=400)
    advance(app, 600)
    driver.run()
    run_failing_again(app, 15)
    report(app, driver)
    assert "failure_spike" in pager.fired


def run_failing_again(app: Mulligan, n: int) -> None:
    for _ in range(n):
        app.enqueue("encode", {"fails": True})
    app.run_inline()


def test_many_dead_jobs_use_up_the_error_budget(app, pager, driver):
    run_failing(app, 12, works=12)
    report(app, driver)
    assert pager.fired & {"failures_fast"} == {"failures_fast"}


def test_expensive_retries_fire(app, pager, driver):
    @app.job(name="render", cost=1.0, policy=Policy(max_retries=1, backoff=Fixed(1)))
    def render() -> Fail:
        return Fail("HTTP_5XX")

    render.enqueue_many({} for _ in range(20))
    app.run_inline()
    advance(app, 2)
    app.run_inline()
    report(app, driver, 601)
    assert "retry_cost" in pager.fired


@pytest.mark.parametrize(
    ("runbook", "expected"),
    [
        ("", "https://wiki.example/runbook#alert-dead_letters"),
        ("letters", "https://wiki.example/runbook#alert-letters"),
        ("https://pages.example/letters", "https://pages.example/letters"),
    ],
)
def test_a_message_about_an_alert_links_to_its_runbook(make_app, runbook, expected):
    app = make_app(notify__runbook_url="https://wiki.example/runbook")
    rules = ({"name": "dead_letters", "runbook": runbook},)
    app.settings = app.settings.model_copy(
        update={"alerts": app.settings.alerts.model_copy(update={"rules": rules})}
    )
    pager = Pager()
    app.notify("alert.*", to=pager)
    app.run_inline()
    driver = AlertDriver(app)
    run_failing(app, 11, "INVALID_INPUT")
    report(app, driver)
    (message,) = [one for one in pager.received if one.data["rule"] == "dead_letters"]
    assert message.runbook == expected


def test_doctor_warns_of_alerts_without_a_receiver(app):
    driver = AlertDriver(app)
    run_failing(app, 11, "INVALID_INPUT")
    report(app, driver)
    (warning,) = [one for one in runtime_checks(app.store, app.settings) if one.check == "alerts"]
    assert warning.status == "warn"
    assert "dead_letters" in warning.found
    app.notify("alert.*", to=Pager())
    app.run_inline()
    checks = runtime_checks(app.store, app.settings)
    assert [one for one in checks if one.check == "alerts"] == []
