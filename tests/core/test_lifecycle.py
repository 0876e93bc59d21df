"""The table of moves: which are legal, and its diagram."""

from __future__ import annotations

import itertools

import pytest

from mulligan.core import lifecycle
from mulligan.core.attempt import Verb
from mulligan.core.errors import IllegalMove
from mulligan.core.event import EventType
from mulligan.core.job import State

LEGAL = """
claim          queued    running
succeed        running   succeeded
retry          running   queued
snooze         running   queued
wait           running   queued
hold           running   queued
lose           running   queued
give back      running   queued
die            running   dead
park           running   parked
stop           running   cancelled
undo           running   queued
undo           queued    queued
undo           parked    queued
cancel         queued    cancelled
cancel         parked    cancelled
expire         queued    dead
expire         parked    dead
release        parked    queued
retry by hand  dead      queued
retry by hand  parked    queued
retry by hand  cancelled queued
discard        dead      cancelled
discard        parked    cancelled
undo discard   cancelled dead
undo discard of a parked job cancelled parked
move           queued    queued
"""
ROWS = [line.rsplit(maxsplit=2) for line in LEGAL.strip().splitlines()]
PAIRS = {(verb.strip(), start): end for verb, start, end in ROWS}


@pytest.mark.parametrize(("verb", "start"), list(itertools.product(Verb, State)))
def test_exactly_the_transitions_of_the_design_are_legal(verb, start):
    if (verb, start) in PAIRS:
        assert lifecycle.next_state(verb, start) == PAIRS[verb, start]
    else:
        with pytest.raises(IllegalMove):
            lifecycle.next_state(verb, start)


def test_a_refusal_names_the_verb_the_state_and_the_legal_verbs():
    with pytest.raises(
        IllegalMove,
        match=r"cannot release: the job is dead\. Possible now: retry, discard\.",
    ):
        lifecycle.next_state(Verb.RELEASE, State.DEAD)


def test_a_refusal_lists_only_what_a_person_can_do():
    with pytest.raises(
        IllegalMove, match=r"cannot retry: the job is running\. Possible now: cancel\.$"
    ):
        lifecycle.next_state(Verb.RETRY_BY_HAND, State.RUNNING)


def test_no_verb_is_legal_from_succeeded():
    with pytest.raises(IllegalMove, match="succeeded, which is final"):
        lifecycle.next_state(Verb.RETRY_BY_HAND, State.SUCCEEDED)


def test_only_manual_actions_leave_a_terminal_state():
    manual = {Verb.RETRY_BY_HAND, Verb.DISCARD, Verb.UNDISCARD, Verb.UNDISCARD_PARKED}
    assert {verb for state in lifecycle.TERMINAL for verb in lifecycle.legal_verbs(state)} == manual


@pytest.mark.parametrize(
    ("verb", "event"),
    [
        (Verb.CLAIM, EventType.JOB_STARTED),
        (Verb.HOLD, EventType.JOB_SNOOZED),
        (Verb.GIVE_BACK, EventType.JOB_RELEASED),
        (Verb.EXPIRE, EventType.JOB_DIED),
        (Verb.STOP, EventType.JOB_CANCELLED),
        (Verb.RETRY_BY_HAND, EventType.JOB_RETRIED),
    ],
)
def test_each_transition_is_recorded_by_its_event(verb, event):
    assert lifecycle.EVENTS[verb] == event


def test_every_verb_has_an_event_and_a_transition():
    assert all(lifecycle.EVENTS[verb] for verb in Verb)
    assert {verb for verb, _ in lifecycle.MOVES} == set(Verb)


def test_the_diagram_shows_every_transition():
    text = lifecycle.diagram()
    assert text.startswith("stateDiagram-v2\n    [*] --> queued: enqueue\n")
    assert "    running --> queued: retry, snooze, wait, hold, lose, give back, undo" in text
    arrows = {tuple(line.split(":")[0].split(" --> ")) for line in text.splitlines()[2:]}
    assert arrows == {(f"    {start}", end) for (_, start), end in PAIRS.items()}
