"""An incident is one message that grows, and one when it is over."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.core.job import SECOND
from mulligan.notifications import rules
from mulligan.notifications.rules import (
    GROWN,
    HOUR,
    OPENED,
    OVER,
    Hour,
    Incident,
    IncidentDeath,
    IncidentTerms,
)

TERMS = IncidentTerms()


def death(at: float = 0.0, kind: str = "render") -> IncidentDeath:
    return IncidentDeath(round(at * SECOND), "job", None, {"kind": kind, "code": "X"})


def of(count: int = 1, at: float = 0.0) -> Incident:
    incident = rules.begun("v1-a", "group", death(at))
    for _ in range(count - 1):
        incident = rules.joined(incident, death(at))
    return incident


def step(incident: Incident, at: float) -> str | None:
    return rules.step(incident, round(at * SECOND), TERMS)


def told(incident: Incident, at: float, *, sent: bool = True) -> Incident:
    return rules.said(incident, round(at * SECOND), sent=sent)


def test_the_first_message_waits_until_deaths_have_gathered():
    assert step(of(400), 4.9) is None
    assert step(of(400), 5) == OPENED


def test_an_update_comes_when_the_count_has_doubled_and_a_minute_has_passed():
    incident = told(of(10), 5)
    almost, doubled = incident, incident
    for _ in range(9):
        almost = rules.joined(almost, death(6))
    for _ in range(10):
        doubled = rules.joined(doubled, death(6))
    assert step(almost, 70) is None
    assert step(doubled, 64) is None
    assert step(doubled, 65) == GROWN


def test_each_update_takes_twice_the_patience_of_the_one_before():
    incident, waits = told(of(), 5), []
    for _ in range(5):
        waits.append(rules.patience(incident, TERMS) // SECOND)
        incident = told(incident, 5)
    assert waits == [60, 120, 240, 480, 960]


def test_it_is_over_after_a_quarter_of_an_hour_without_another():
    incident = told(of(3, at=0), 5)
    assert step(incident, 899) is None
    assert step(incident, 900) == OVER


def test_what_was_resolved_before_anybody_was_told_is_never_told():
    assert step(rules.ended(of(), "resolved"), 100) is None
    assert step(rules.ended(told(of(), 5), "resolved"), 6) == OVER


def test_it_says_what_its_first_death_was_and_counts_kinds():
    incident = rules.joined(of(), death(3, "encode"))
    assert (incident.count, incident.kinds) == (2, {"render": 1, "encode": 1})
    assert incident.data == {"kind": "render", "code": "X"}


def test_of_hostile_kinds_only_so_many_are_remembered():
    incident = of()
    for n in range(1000):
        incident = rules.joined(incident, death(1, f"kind-{n}"))
    assert (incident.count, len(incident.kinds)) == (1001, rules.MOST_KINDS)


def test_it_comes_back_from_the_database_as_it_was():
    incident = told(of(3), 5)
    assert Incident.from_json(incident.to_json()) == incident


DEATHS = st.lists(st.integers(0, 3 * 3600), min_size=1, max_size=200).map(sorted)


@given(DEATHS)
@settings(max_examples=60, deadline=None)
def test_however_deaths_come_messages_are_few_and_the_last_one_closes(deaths):
    """Looked at only when it asks to be: between two looks there is nothing to say."""
    said: list[str] = []
    incident: Incident | None = None
    opened = 0
    moments = [*deaths, deaths[-1] + 10_000]
    for at in moments:
        while incident is not None and rules.due_at(incident, TERMS) <= at * SECOND:
            now = rules.due_at(incident, TERMS)
            what = rules.step(incident, now, TERMS)
            assert what is not None, "it asked to be looked at, and had nothing to say"
            said.append(what)
            incident = None if what == OVER else rules.said(incident, now, sent=True)
        if at != moments[-1]:
            opened += incident is None
            incident = (
                rules.begun("k", "group", death(at))
                if incident is None
                else rules.joined(incident, death(at))
            )
    assert incident is None
    assert said.count(OPENED) == said.count(OVER) == opened
    assert said.count(GROWN) <= opened * 8  # 2 to the power of 8 is more than all deaths


def test_of_more_than_so_many_messages_in_an_hour_the_rest_is_counted():
    hour, answers = None, []
    for _ in range(25):
        may, hour = rules.counted(hour, 0, 20)
        answers.append(may)
    assert answers == [True] * 20 + [False] * 5
    assert hour == Hour(0, 20, 5)


def test_an_hour_that_is_over_counts_no_more():
    assert rules.counted(Hour(0, 20), HOUR, 20) == (True, Hour(HOUR, 1))
