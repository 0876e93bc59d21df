"""A job's life on one line, drawn to scale: waits hatched, runs solid, deaths marked, holds told apart from waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mulligan.core.attempt import Ended, Verb
from mulligan.event import EventType
from mulligan.job import SECOND, AttemptRow, Micros, State
from mulligan.policy.phrase import clock, duration, moment
from mulligan.web.reading import Story

WIDTH = 1000
LEAST = 6.0  # a run of milliseconds must still be seen
MOST = 200  # attempts drawn
HELD = ("held", "over_budget", "limited")

# What a job waits for after an attempt that came to this.
AFTER = {
    Verb.RETRY: ("backoff", "waits before its next try"),
    Verb.SNOOZE: ("put-off", "put off by its own code"),
    Verb.HOLD: ("held", "held: what it uses is down"),
    Verb.PARK: ("parked", "parked: a person must decide"),
    Verb.DIE: ("over", "dead"),
    Verb.STOP: ("over", "cancelled"),
    Verb.SUCCEED: ("over", "succeeded"),
}
TURN = ("waiting", "waits for its turn")
LEGEND = (
    ("good", "returned"), ("bad", "failed"), ("lost", "process died"), ("calm", "put off or stopped"),
    ("busy", "running"), ("waiting", "waits for its turn"), ("backoff", "waits before a retry"),
    ("put-off", "put off"), ("held", "held"), ("parked", "parked"), ("death", "given up here"),
)  # fmt: skip
RUNS = frozenset({"good", "bad", "lost", "calm", "busy"})


class Segment(NamedTuple):
    x: float
    width: float
    tone: str
    words: str
    run: bool  # solid; else a wait, hatched


class Mark(NamedTuple):
    x: float
    words: str


class Timeline(NamedTuple):
    segments: list[Segment]
    deaths: list[Mark]
    ticks: list[str]  # evenly apart
    length: str
    legend: list[tuple[str, str]]  # of what is there


def timeline(found: Story) -> Timeline:
    row = found.row
    begins = row.created_at
    ends = max(begins + 1, row.finished_at or found.now)
    scale = WIDTH / (ends - begins)
    stretches = [one for one in _stretches(found, begins, ends) if one.end > one.start]
    segments = [_segment(one, begins, scale) for one in stretches]
    deaths = [Mark(_x(one.end, begins, scale), one.words) for one in stretches if one.died]
    there = {one.tone for one in stretches} | ({"death"} if deaths else set())
    legend = [(tone, word) for tone, word in LEGEND if tone in there]
    return Timeline(segments, deaths, _ticks(found, begins, ends), duration((ends - begins) / SECOND), legend)


def _ticks(found: Story, begins: Micros, ends: Micros) -> list[str]:
    last = "now" if found.row.finished_at is None else clock(ends, begins)
    return [moment(begins), clock((begins + ends) // 2, begins), last]


class _Stretch(NamedTuple):
    start: Micros
    end: Micros
    tone: str
    words: str
    died: bool = False


def _stretches(found: Story, begins: Micros, ends: Micros) -> Iterator[_Stretch]:
    """In order, without gaps."""
    at, after = begins, TURN
    due = found.row.run_at if not found.attempts else begins
    for attempt in found.attempts[-MOST:]:
        yield from _waited(found, at, attempt.started_at, after, due)
        yield _ran(attempt)
        at, due = attempt.ended_at, attempt.next_run_at or attempt.ended_at
        after = AFTER.get(Verb(attempt.verb), TURN)
    row = found.row
    if row.state == State.RUNNING and row.started_at is not None:
        yield from _waited(found, at, row.started_at, after, due)
        yield _Stretch(row.started_at, found.now, "busy", f"attempt {row.attempt} is running")
    else:
        yield from _waited(found, at, ends, after if row.state != State.QUEUED else _now(found, after), due)


def _now(found: Story, after: tuple[str, str]) -> tuple[str, str]:
    """What waits now says itself what it waits for."""
    if found.job.phase in HELD:
        return "held", found.job.why
    return after if after[0] not in {"over", "parked"} else TURN


def _waited(found: Story, start: Micros, end: Micros, after: tuple[str, str], due: Micros) -> Iterator[_Stretch]:
    """What it waited for first, and from when it was due, or somebody let it go, for its turn."""
    tone, words = after
    until = _let_go(found, start, end) if tone in {"parked", "over"} else min(end, max(start, due))
    if tone in {"backoff", "put-off", "parked", "over"}:
        yield _wait(start, until, tone, words)
        yield _wait(until, end, *TURN)
    else:
        yield _wait(start, end, tone, words)


def _wait(start: Micros, end: Micros, tone: str, words: str) -> _Stretch:
    return _Stretch(start, end, tone, f"{words}: {duration(max(0, end - start) / SECOND)}")


def _let_go(found: Story, start: Micros, end: Micros) -> Micros:
    """When a person retried or released it."""
    by_hand = (EventType.JOB_RETRIED, EventType.JOB_RELEASED)
    times = [event.at for event in found.events if event.type in by_hand and start <= event.at <= end]
    return min(times, default=end)


def _ran(attempt: AttemptRow) -> _Stretch:
    ran = duration(max(0, attempt.ended_at - attempt.started_at) / SECOND)
    words = f"attempt {attempt.attempt} ran {ran}: {attempt.ended} {attempt.code or ''}".strip()
    end = max(attempt.ended_at, attempt.started_at + 1)
    return _Stretch(attempt.started_at, end, _tone(attempt.ended), words, attempt.verb == Verb.DIE)


def _tone(ended: str) -> str:
    if ended == Ended.RETURNED:
        return "good"
    if ended == Ended.LOST:
        return "lost"
    return "bad" if ended in {Ended.FAILED, Ended.REFUSED} else "calm"


def _x(at: Micros, begins: Micros, scale: float) -> float:
    return round(min(max(0.0, (at - begins) * scale), WIDTH), 1)


def _segment(one: _Stretch, begins: Micros, scale: float) -> Segment:
    run = one.tone in RUNS
    width = max(LEAST if run else 0.0, (one.end - one.start) * scale)
    x = min(max(0.0, (one.start - begins) * scale), WIDTH - width)
    return Segment(round(x, 1), round(width, 1), one.tone, one.words, run)
