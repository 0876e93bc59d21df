"""Rules of incidents: when it opens, grows and ends, and the hourly limit."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.core.durations import SECOND
from mulligan.core.ids import new_id
from mulligan.notifications import rules
from mulligan.notifications.rules import (
    GROWN,
    HOUR,
    OPENED,
    OVER,
    HourlyCount,
    Incident,
    IncidentDeath,
    IncidentTiming,
)

TIMING = IncidentTiming()


def death(at: float = 0.0, kind: str = "render") -> IncidentDeath:
    return IncidentDeath(round(at * SECOND), new_id(), None, {"kind": kind, "code": "X"})


def incident_of(count: int = 1, at: float = 0.0) -> Incident:
    incident = rules.open_incident("v1-a", "group", death(at))
    for _ in range(count - 1):
        incident = rules.add_death(incident, death(at))
    return incident


def step(incident: Incident, at: float) -> str | None:
    return rules.next_step(incident, round(at * SECOND), TIMING)


def record(incident: Incident, at: float, *, sent: bool = True) -> Incident:
    return rules.record_step(incident, round(at * SECOND), sent=sent)


def test_the_first_message_waits_until_deaths_have_gathered():
    assert step(incident_of(400), 4.9) is None
    assert step(incident_of(400), 5) == OPENED


def test_an_update_needs_a_doubled_count_and_a_minute():
    incident = record(incident_of(10), 5)
    almost = incident
    doubled = incident
    for _ in range(9):
        almost = rules.add_death(almost, death(6))
    for _ in range(10):
        doubled = rules.add_death(doubled, death(6))
    assert step(almost, 70) is None
    assert step(doubled, 64) is None
    assert step(doubled, 65) == GROWN


def test_the_interval_between_updates_doubles():
    incident = record(incident_of(), 5)
    waits = []
    for _ in range(5):
        waits.append(rules.update_interval(incident, TIMING) // SECOND)
        incident = record(incident, 5)
    assert waits == [60, 120, 240, 480, 960]


def test_an_incident_ends_after_15_minutes_without_a_death():
    incident = record(incident_of(3, at=0), 5)
    assert step(incident, 899) is None
    assert step(incident, 900) == OVER


def test_an_incident_resolved_before_its_first_message_sends_none():
    assert step(rules.end_incident(incident_of(), "resolved"), 100) is None
    assert step(rules.end_incident(record(incident_of(), 5), "resolved"), 6) == OVER


def test_an_incident_keeps_its_first_death_and_counts_kinds():
    incident = rules.add_death(incident_of(), death(3, "encode"))
    assert (incident.count, incident.kinds) == (2, {"render": 1, "encode": 1})
    assert incident.data == {"kind": "render", "code": "X"}


def test_an_incident_counts_a_limited_number_of_kinds():
    incident = incident_of()
    for n in range(1000):
        incident = rules.add_death(incident, death(1, f"kind-{n}"))
    assert (incident.count, len(incident.kinds)) == (1001, rules.MAX_KINDS)


def test_an_incident_survives_storage():
    incident = record(incident_of(3), 5)
    assert Incident.from_json(incident.to_json()) == incident


DEATHS = st.lists(st.integers(0, 3 * 3600), min_size=1, max_size=200).map(sorted)


@given(DEATHS)
@settings(max_examples=60, deadline=None)
def test_any_sequence_of_deaths_gives_few_messages_and_ends_with_over(deaths):
    """Evaluated only at `next_check_at`: each evaluation must give a message."""
    steps: list[str] = []
    incident: Incident | None = None
    opened = 0
    times = [*deaths, deaths[-1] + 10_000]
    for at in times:
        while incident is not None and rules.next_check_at(incident, TIMING) <= at * SECOND:
            now = rules.next_check_at(incident, TIMING)
            due_step = rules.next_step(incident, now, TIMING)
            assert due_step is not None, "evaluated without a message"
            steps.append(due_step)
            incident = None if due_step == OVER else rules.record_step(incident, now, sent=True)
        if at != times[-1]:
            opened += incident is None
            incident = (
                rules.open_incident("k", "group", death(at))
                if incident is None
                else rules.add_death(incident, death(at))
            )
    assert incident is None
    assert steps.count(OPENED) == steps.count(OVER) == opened
    assert steps.count(GROWN) <= opened * 8  # 2 to the power of 8 is more than all deaths


def test_messages_above_the_hourly_limit_are_counted():
    hour = None
    results = []
    for _ in range(25):
        allowed, hour = rules.count_message(hour, 0, 20)
        results.append(allowed)
    assert results == [True] * 20 + [False] * 5
    assert hour == HourlyCount(0, 20, 5)


def test_a_new_hour_starts_a_new_count():
    assert rules.count_message(HourlyCount(0, 20), HOUR, 20) == (True, HourlyCount(HOUR, 1))


def test_a_job_that_dies_again_is_not_one_more_job():
    first = death(0)
    incident = rules.open_incident("g", "group", first)
    incident = rules.add_death(incident, first._replace(at=9, retried_by_hand=True))
    incident = rules.add_death(incident, death(1))
    assert (incident.count, len(incident.jobs)) == (2, 2)


def test_an_incident_keeps_the_ids_of_its_first_jobs_only():
    incident = rules.open_incident("g", "group", death(0))
    for _ in range(2 * rules.MAX_JOBS):
        incident = rules.add_death(incident, death(1))
    assert incident.count == 2 * rules.MAX_JOBS + 1
    assert len(incident.jobs) == rules.MAX_JOBS
    again = rules.add_death(incident, death(2)._replace(retried_by_hand=True))
    assert again.count == incident.count
