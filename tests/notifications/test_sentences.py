"""Sentences for somebody who is woken by them, and where their links lead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mulligan.config import Settings
from mulligan.core.errors import Fail
from mulligan.core.event import EventType
from mulligan.failures.classify import classify_facts as judge
from mulligan.failures.matcher import Rulebook
from mulligan.notifications.channels import Gone
from mulligan.notifications.deliveries import RULES
from mulligan.notifications.message import message_of, message_of_cap, message_of_incident
from mulligan.notifications.rules import IncidentFacts
from mulligan.worker.runner.outcomes import outcome_of
from support.messages import AT, DATA, LINKED, event

BATCH = {"name": "spring", "total": 50, "succeeded": 47, "dead": 3, "cancelled": 0}
ALERT = {
    "rule": "rate_limited",
    "key": "gateway",
    "reason": "gateway: 12 % of its calls were told to slow down",
}


@pytest.mark.parametrize(
    ("type_", "data", "said"),
    [
        (
            "job.died",
            DATA,
            "render died: A service is not available (HTTP_5XX); nothing more is tried: it needs you.",
        ),
        (
            "job.retry_scheduled",
            DATA,
            "render failed: A service is not available (HTTP_5XX); retry 1 of 3 at 08:00:30 UTC (in 30 s).",
        ),
        (
            "job.retry_scheduled",
            {"kind": "render"},
            "render failed: no reason is known; it is tried again.",
        ),
        (
            "job.parked",
            {"kind": "pay", "reason": "Twice?"},
            "pay waits for a person to decide: Twice?",
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
            "Batch spring is only partly done: 47 of 50 succeeded, 3 died; those need you.",
        ),
        (
            "batch.failed",
            BATCH | {"succeeded": 0},
            "Batch spring failed: 0 of 50 succeeded, 3 died; it needs you.",
        ),
        (
            "dependency.opened",
            {"dependency": "gateway", "reason": "9 of 12 calls failed", "until": AT + 60_000_000},
            "gateway is held, and jobs that use it wait until 08:01:00 UTC: 9 of 12 calls failed.",
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
                "20 draw jobs died of one cause and none succeeded: A file the job needs is not there (NOT_FOUND); "
                "the kind is held until you release it."
            ),
        ),
        (
            "alert.fired",
            ALERT,
            "Alert rate_limited: gateway: 12 % of its calls were told to slow down.",
        ),
        (
            "alert.fired",
            ALERT | {"did": "4 instead of 8 at a time"},
            (
                "Alert rate_limited: gateway: 12 % of its calls were told to slow down; "
                "done about it: 4 instead of 8 at a time."
            ),
        ),
        (
            "alert.resolved",
            ALERT,
            "The alert rate_limited is over: gateway: 12 % of its calls were told to slow down.",
        ),
        (
            "subscription.disabled",
            {"name": "acme", "reason": "gone for good"},
            "Subscription acme is switched off, and nothing is sent to it: gone for good.",
        ),
        ("of.tomorrow", {"reason": "who knows"}, "of.tomorrow: who knows."),
    ],
)
def test_what_is_said(type_, data, said):
    assert message_of(event(type_, data), "sub", LINKED).summary == said


def test_every_event_has_a_sentence_with_an_end():
    for type_ in EventType:
        said = message_of(event(type_, {}), "sub", LINKED).summary
        assert said.endswith((".", "?", "!", "…")), said
        assert "None" not in said


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
    ("incident", "step", "said"),
    [
        (
            INCIDENT,
            "opened",
            (
                "400 render jobs died of one cause since 08:00:00 UTC: A service is away (HTTP_5XX); "
                "nothing more is tried: they need you."
            ),
        ),
        (
            replace(INCIDENT, count=1),
            "opened",
            "1 render job died since 08:00:00 UTC: A service is away (HTTP_5XX); nothing more is tried: it needs you.",
        ),
        (
            INCIDENT,
            "grown:2",
            (
                "Now 400 render jobs died of one cause since 08:00:00 UTC: A service is away (HTTP_5XX); "
                "nothing more is tried: they need you."
            ),
        ),
        (
            replace(INCIDENT, why="resolved"),
            "over",
            "Over: 400 render jobs died of one cause: A service is away (HTTP_5XX); somebody has called it resolved.",
        ),
        (
            INCIDENT,
            "over",
            (
                "Over: 400 render jobs died of one cause: A service is away (HTTP_5XX); it has been quiet since, "
                "and what died stays dead until you retry it."
            ),
        ),
        (
            replace(INCIDENT, batch_id="b1", batch_name="spring", why="recovered"),
            "over",
            "Over: 400 render jobs in batch spring died: A service is away (HTTP_5XX); the batch is ready.",
        ),
        (
            replace(INCIDENT, of="job.parked", message="Pay twice?", code=""),
            "opened",
            "400 render jobs wait for a person: Pay twice?; they wait until you decide.",
        ),
    ],
)
def test_what_is_said_of_an_incident(incident, step, said):
    assert message_of_incident(incident, step, LINKED).summary == said


def test_steps_of_an_incident_are_messages_of_their_own_and_always_the_same():
    def ids() -> list[str]:
        return [
            message_of_incident(INCIDENT, step, LINKED).id
            for step in ("opened", "grown:1", "grown:2", "over")
        ]

    assert ids() == ids()
    assert len(set(ids())) == 4


def test_what_a_limit_kept_back_is_told_once():
    told = message_of_cap("sub", "acme", AT, 12, LINKED)
    assert told.summary == (
        "12 more messages about incidents were kept back in the hour from 2027-01-15 08:00:00 UTC, "
        "because of the limit notify.cap."
    )
    assert told == message_of_cap("sub", "acme", AT, 12, LINKED)


def test_links_lead_to_what_is_told_and_to_what_to_do():
    died = message_of(event("job.died"), "sub", LINKED)
    assert died.link == "https://jobs.example/jobs/01jobjobjobjobjobjobjobjobjo"
    assert died.runbook == "https://wiki.example/runbook#http_5xx"
    own = message_of(event("job.died", DATA | {"code": "GW_5XX"}), "sub", LINKED)
    assert own.runbook == "https://wiki.example/runbook#class-transient"
    batch = message_of(event("batch.ready", BATCH, job_id=None, batch_id="b1"), "sub", LINKED)
    assert (batch.link, batch.runbook) == ("https://jobs.example/?filter=batch%3Ab1", "")
    assert (
        message_of_incident(INCIDENT, "opened", LINKED).link
        == "https://jobs.example/?filter=group%3Av2-9f2a"
    )
    fired = message_of(event("alert.fired", ALERT, job_id=None), "sub", LINKED)
    assert fired.runbook == "https://wiki.example/runbook#alert-rate_limited"
    plain = message_of(event("job.died"), "sub", Settings())
    assert (plain.link, plain.runbook) == ("", "")


@pytest.mark.parametrize(
    ("attempt", "failures", "most", "of"),
    [(1, 1, 3, 4), (4, 4, 3, 4), (3, 1, 3, 6), (1, None, 3, 4), (2, 2, None, 0)],
)
def test_a_lost_attempt_is_one_more_that_there_may_be(attempt, failures, most, of):
    said = {
        name: value
        for name, value in (("failures", failures), ("max_retries", most))
        if value is not None
    }
    message = message_of(event("job.died", said, attempt=attempt), "sub", LINKED)
    assert (message.attempt, message.of) == (attempt, of)


@pytest.mark.parametrize(
    ("failure", "cls", "retries"),
    [
        (Fail("RECEIVER_REFUSED", "404"), "transient", 5),
        (Fail("HTTP_5XX", "503"), "transient", None),
        (Fail("AUTH", "535"), "transient", None),
        (Fail("ADDRESS_REFUSED", "no", final=True), "permanent", None),
        (Gone("410"), "permanent", None),
    ],
)
def test_what_deliveries_make_of_a_failure(failure, cls, retries):
    judged = outcome_of(failure, 0, lambda facts: judge(facts, (Rulebook(RULES),))).failure
    assert judged is not None
    assert (judged.cls, dict(judged.terms or {}).get("max_retries")) == (cls, retries)
