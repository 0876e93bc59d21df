"""Deaths in Sentry: the real SDK with a transport that keeps what it would send."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from mulligan import Fail, Mulligan, Policy, Rule, State
from mulligan.core.errors import ConfigError
from mulligan.integrations.sentry import attach
from mulligan.testing import force

NO_RETRIES = Policy(max_retries=0)


class RecordingTransport(Transport):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            self.events.append(event)


@pytest.fixture
def sent() -> Iterator[list[dict[str, Any]]]:
    """Initialise the SDK. Returns the events that it sends."""
    transport = RecordingTransport()
    sentry_sdk.init(dsn="https://key@sentry.invalid/1", transport=transport)
    yield transport.events
    sentry_sdk.get_client().close()
    sentry_sdk.init()


def run(app: Mulligan) -> None:
    app.run_inline()
    app.run_inline()


def test_each_death_is_one_event_with_our_fingerprint_code_class_and_release(
    app: Mulligan, sent: list[dict[str, Any]]
) -> None:
    attach(app)
    app.run_inline()  # a worker declares the reaction

    @app.job(name="charge", policy=NO_RETRIES)
    def charge(order: int) -> None:
        raise KeyError("AT")

    @app.job(name="refund", policy=Policy(max_retries=1))
    def refund() -> None:
        raise ConnectionRefusedError

    app.settings = app.settings.model_copy(update={"release": "r42"})
    jobs = [charge.options(owner="acme").enqueue(order=order) for order in range(3)]
    refund.enqueue()
    run(app)
    groups = {group.fingerprint: group for group in app.failures.groups()}
    assert len(sent) == len(jobs)  # refund waits for its retry
    assert {event["event_id"] for event in sent} == {event["event_id"] for event in sent[:3]}
    assert len({event["event_id"] for event in sent}) == len(jobs)
    assert {tuple(event["fingerprint"]) for event in sent} == {tuple(groups)}
    assert {event["contexts"]["job"]["id"] for event in sent} == {job.id for job in jobs}
    event = sent[0]
    assert event["release"] == "r42"
    assert event["level"] == "error"
    assert event["transaction"] == "charge"
    assert event["user"] == {"id": "acme"}
    assert event["tags"] == {
        "code": "PROGRAMMING_ERROR",
        "class": "permanent",
        "kind": "charge",
        "queue": "default",
        "rule": event["tags"]["rule"],
    }
    [exception] = event["exception"]["values"]
    assert exception["type"] == "KeyError"
    assert exception["value"] == "'AT'"
    frame = exception["stacktrace"]["frames"][-1]
    assert frame["function"].endswith("charge")
    assert frame["in_app"]


def test_the_event_links_to_the_job_and_to_the_runbook_of_its_rule(
    app: Mulligan, sent: list[dict[str, Any]]
) -> None:
    web = app.settings.web.model_copy(update={"public_url": "https://jobs.example.org"})
    app.settings = app.settings.model_copy(update={"web": web})
    runbook = "https://wiki.example.org/x"
    app.rules.add(Rule("x", verdict="X", code="X", cls="permanent", runbook=runbook, alarm="page"))
    attach(app)
    app.run_inline()

    @app.job(policy=NO_RETRIES)
    def work() -> Fail:
        return Fail("X", "password=hunter2 was refused")

    job = work.enqueue()
    run(app)
    [event] = sent
    assert event["level"] == "fatal"
    assert event["contexts"]["job"]["link"] == f"https://jobs.example.org/jobs/{job.id}"
    assert event["contexts"]["job"]["runbook"] == runbook
    assert "hunter2" not in str(event)


def test_a_rule_without_alarm_sends_nothing(app: Mulligan, sent: list[dict[str, Any]]) -> None:
    app.rules.add(Rule("expected", type="LookupError", code="GONE", cls="permanent", alarm="none"))
    attach(app)
    app.run_inline()

    @app.job(policy=NO_RETRIES)
    def work() -> None:
        raise LookupError

    job = work.enqueue()
    run(app)
    assert job.refresh().state is State.DEAD
    assert sent == []


def test_a_death_without_an_attempt_and_a_time_limit_are_reported_too(
    app: Mulligan, sent: list[dict[str, Any]]
) -> None:
    attach(app)
    app.run_inline()

    @app.job(policy=NO_RETRIES)
    def work() -> None:
        pass

    force(app, work, "timeout")
    late = work.enqueue()
    run(app)
    expired = work.reject(Fail("REFUSED", public="Not today."))
    run(app)
    events = {event["contexts"]["job"]["id"]: event for event in sent}
    assert set(events) == {late.id, expired.id}
    assert events[late.id]["tags"]["code"] == "TIMEOUT"
    assert events[expired.id]["message"] == "REFUSED: Not today."


def test_a_repeated_report_has_the_same_event_id(app: Mulligan, sent: list[dict[str, Any]]) -> None:
    attach(app)
    app.run_inline()

    @app.job(policy=NO_RETRIES)
    def work() -> None:
        raise KeyError

    work.enqueue()
    run(app)
    [report] = app.jobs.list("kind:report_to_sentry")
    app.enqueue("report_to_sentry", report.payload)
    run(app)
    assert len(sent) == 2
    assert sent[0]["event_id"] == sent[1]["event_id"]


def test_without_the_extra_one_sentence_names_the_command(
    app: Mulligan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentry_sdk", None)
    with pytest.raises(ConfigError, match=r"pip install 'mulligan\[sentry\]'"):
        attach(app)
