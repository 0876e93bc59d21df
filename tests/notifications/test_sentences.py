"""Sentences about events and incidents, and the links of messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mulligan.config import Settings
from mulligan.core.errors import Fail
from mulligan.core.event import EventType
from mulligan.failures.classify import classify_facts
from mulligan.failures.matcher import Rulebook
from mulligan.notifications import DELIVERY_RULES
from mulligan.notifications.channels import ReceiverGone
from mulligan.notifications.message import (
    build_cap_message,
    build_event_message,
    build_incident_message,
)
from mulligan.notifications.rules import IncidentFacts
from mulligan.worker.runner.outcomes import outcome_of_request
from support.messages import AT, DATA, LINKED, build_event

BATCH = {"name": "spring", "total": 50, "succeeded": 47, "dead": 3, "cancelled": 0}
ALERT = {
    "rule": "rate_limited",
    "runbook": "alert-rate_limited",
    "key": "gateway",
    "reason": "gateway: 12 % of calls were rate limited",
}


@pytest.mark.parametrize(
    ("type_", "data", "expected"),
    [
        (
            "job.died",
            DATA,
            "render died: A service is not available (HTTP_5XX). No more automatic retries.",
        ),
        (
            "job.retry_scheduled",
            DATA,
            (
                "render failed: A service is not available (HTTP_5XX). "
                "Retry 1 of 3 at 08:00:30 UTC (in 30 s)."
            ),
        ),
        (
            "job.retry_scheduled",
            {"kind": "render"},
            "render failed: unknown cause. It will be retried.",
        ),
        (
            "job.parked",
            {"kind": "pay", "reason": "Twice?"},
            "pay is parked and waits for a decision: Twice?",
        ),
        ("job.succeeded", {"kind": "render", "duration_ms": 1500}, "render succeeded in 1.5 s."),
        (
            "batch.ready",
            BATCH | {"dead": 0, "succeeded": 50},
            "Batch spring is ready: 50 of 50 succeeded.",
        ),
        (
            "batch.partial",
            BATCH,
            "Batch spring is partly done: 47 of 50 succeeded, 3 died. No more automatic retries.",
        ),
        (
            "batch.failed",
            BATCH | {"succeeded": 0},
            "Batch spring failed: 0 of 50 succeeded, 3 died. No more automatic retries.",
        ),
        (
            "dependency.opened",
            {"dependency": "gateway", "reason": "9 of 12 calls failed", "until": AT + 60_000_000},
            "Calls to gateway are on hold until 08:01:00 UTC: 9 of 12 calls failed.",
        ),
        (
            "alert.fired",
            {
                "kind": "draw",
                "jobs": 20,
                "code": "NOT_FOUND",
                "message": "A file the job needs is not there.",
            },
            (
                "20 draw jobs failed in a row with the same cause: "
                "A file the job needs is not there (NOT_FOUND). "
                "The kind is held until you release it."
            ),
        ),
        (
            "alert.fired",
            ALERT,
            "Alert rate_limited: gateway: 12 % of calls were rate limited.",
        ),
        (
            "alert.fired",
            ALERT | {"did": "concurrency 8 → 4"},
            (
                "Alert rate_limited: gateway: 12 % of calls were rate limited. "
                "Action: concurrency 8 → 4."
            ),
        ),
        (
            "alert.resolved",
            ALERT,
            "Alert rate_limited resolved: gateway: 12 % of calls were rate limited.",
        ),
        (
            "subscription.disabled",
            {"name": "acme", "reason": "gone for good"},
            "Subscription acme is disabled and gets no messages: gone for good.",
        ),
        ("unknown.event", {"reason": "new version"}, "unknown.event: new version."),
    ],
)
def test_event_sentences(type_, data, expected):
    assert build_event_message(build_event(type_, data), "sub", LINKED).summary == expected


def test_every_event_type_has_a_complete_sentence():
    for type_ in EventType:
        summary = build_event_message(build_event(type_, {}), "sub", LINKED).summary
        assert summary.endswith((".", "?", "!", "…")), summary
        assert "None" not in summary


INCIDENT = IncidentFacts(
    "inc",
    AT,
    AT + 300_000_000,
    400,
    kind="render",
    code="HTTP_5XX",
    cls="transient",
    message="A service is away.",
    group="v2-9f2a",
    owner="acme",
)


@pytest.mark.parametrize(
    ("incident", "step", "expected"),
    [
        (
            INCIDENT,
            "opened",
            (
                "400 render jobs died of the same cause since 08:00:00 UTC: "
                "A service is away (HTTP_5XX). No more automatic retries."
            ),
        ),
        (
            replace(INCIDENT, count=1),
            "opened",
            (
                "1 render job died since 08:00:00 UTC: A service is away (HTTP_5XX). "
                "No more automatic retries."
            ),
        ),
        (
            INCIDENT,
            "grown:2",
            (
                "Update: 400 render jobs died of the same cause since 08:00:00 UTC: "
                "A service is away (HTTP_5XX). No more automatic retries."
            ),
        ),
        (
            replace(INCIDENT, end_reason="resolved"),
            "over",
            (
                "Over: 400 render jobs died of the same cause: A service is away (HTTP_5XX). "
                "The failure was marked as resolved."
            ),
        ),
        (
            INCIDENT,
            "over",
            (
                "Over: 400 render jobs died of the same cause: A service is away (HTTP_5XX). "
                "No new deaths. Dead jobs stay dead until you retry them."
            ),
        ),
        (
            replace(INCIDENT, group="", batch_id="b1", batch_name="spring", end_reason="recovered"),
            "over",
            (
                "Over: 400 render jobs in batch spring died: A service is away (HTTP_5XX). "
                "The batch is ready."
            ),
        ),
        (
            replace(INCIDENT, count=4, batch_id="b1", batch_name="spring", batch_size=6),
            "grown:1",
            (
                "Update: 4 of 6 render jobs in batch spring died of the same cause since "
                "08:00:00 UTC: A service is away (HTTP_5XX). No more automatic retries."
            ),
        ),
        (
            replace(INCIDENT, count=1, batch_id="b1", batch_name="spring", batch_size=6),
            "opened",
            (
                "1 of 6 render jobs in batch spring died since 08:00:00 UTC: "
                "A service is away (HTTP_5XX). No more automatic retries."
            ),
        ),
        (
            replace(INCIDENT, event_type="job.parked", message="Pay twice?", code=""),
            "opened",
            "400 render jobs wait for a decision: Pay twice?",
        ),
    ],
)
def test_incident_sentences(incident, step, expected):
    assert build_incident_message(incident, step, LINKED).summary == expected


def test_each_step_of_an_incident_has_a_stable_message_id():
    def ids() -> list[str]:
        return [
            build_incident_message(INCIDENT, step, LINKED).id
            for step in ("opened", "grown:1", "grown:2", "over")
        ]

    assert ids() == ids()
    assert len(set(ids())) == 4


def test_suppressed_messages_are_reported_with_a_stable_message():
    message = build_cap_message("sub", "acme", AT, 12, LINKED)
    assert message.summary == (
        "12 incident messages were suppressed in the hour from 2027-01-15 08:00:00 UTC "
        "(limit notify.cap)."
    )
    assert message == build_cap_message("sub", "acme", AT, 12, LINKED)


def test_links_lead_to_the_dashboard_and_the_runbook():
    died = build_event_message(build_event("job.died"), "sub", LINKED)
    assert died.link == "https://jobs.example/jobs/01jobjobjobjobjobjobjobjobjo"
    assert died.runbook == "https://wiki.example/runbook#http_5xx"
    app_code = build_event_message(
        build_event("job.died", DATA | {"code": "GW_5XX"}), "sub", LINKED
    )
    assert app_code.runbook == "https://wiki.example/runbook#class-transient"
    batch = build_event_message(
        build_event("batch.ready", BATCH, job_id=None, batch_id="b1"), "sub", LINKED
    )
    assert (batch.link, batch.runbook) == ("https://jobs.example/?filter=batch%3Ab1", "")
    assert (
        build_incident_message(INCIDENT, "opened", LINKED).link
        == "https://jobs.example/?filter=group%3Av2-9f2a"
    )
    fired = build_event_message(build_event("alert.fired", ALERT, job_id=None), "sub", LINKED)
    assert fired.runbook == "https://wiki.example/runbook#alert-rate_limited"
    without_urls = build_event_message(build_event("job.died"), "sub", Settings())
    assert (without_urls.link, without_urls.runbook) == ("", "")


@pytest.mark.parametrize(
    ("attempt", "failures", "max_retries", "of"),
    [(1, 1, 3, 4), (4, 4, 3, 4), (3, 1, 3, 6), (1, None, 3, 4), (2, 2, None, 0)],
)
def test_a_lost_attempt_raises_the_maximum_number_of_attempts(attempt, failures, max_retries, of):
    data = {
        name: value
        for name, value in (("failures", failures), ("max_retries", max_retries))
        if value is not None
    }
    message = build_event_message(build_event("job.died", data, attempt=attempt), "sub", LINKED)
    assert (message.attempt, message.of) == (attempt, of)


@pytest.mark.parametrize(
    ("failure", "cls", "retries"),
    [
        (Fail("RECEIVER_REFUSED", "404"), "transient", 8),
        (Fail("HTTP_5XX", "503"), "transient", None),
        (Fail("AUTH", "535"), "transient", None),
        (Fail("ADDRESS_REFUSED", "no", final=True), "permanent", None),
        (ReceiverGone("410"), "permanent", None),
    ],
)
def test_delivery_rules_classify_failures(failure, cls, retries):
    judged = outcome_of_request(
        failure, 0, lambda facts: classify_facts(facts, (Rulebook(DELIVERY_RULES),))
    ).failure
    assert judged is not None
    assert (judged.cls, dict(judged.terms or {}).get("max_retries")) == (cls, retries)
