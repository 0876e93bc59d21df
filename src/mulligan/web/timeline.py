"""A job's life on one line, drawn to scale: waits hatched, runs solid, deaths marked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mulligan.job import SECOND, Ended, Micros, State
from mulligan.policy.phrase import duration, moment
from mulligan.web.reading import Story

WIDTH = 1000
LEAST = 6  # a run of milliseconds must still be seen
MOST = 200  # attempts drawn


class Segment(NamedTuple):
    x: float
    width: float
    tone: str
    words: str


class Timeline(NamedTuple):
    segments: list[Segment]
    begins: str
    ends: str
    length: str


def timeline(found: Story) -> Timeline:
    row = found.row
    begins = row.created_at
    ends = max(begins + 1, row.finished_at or found.now)
    scale = WIDTH / (ends - begins)
    segments = [_segment(run, begins, scale) for run in _runs(found)]
    now = "now" if row.finished_at is None else moment(ends)
    return Timeline(segments, moment(begins), now, duration((ends - begins) / SECOND))


class _Run(NamedTuple):
    start: Micros
    end: Micros
    tone: str
    words: str


def _runs(found: Story) -> Iterable[_Run]:
    for attempt in found.attempts[-MOST:]:
        ran = duration(max(0, attempt.ended_at - attempt.started_at) / SECOND)
        words = f"attempt {attempt.attempt}: {attempt.ended} {attempt.code or ''} after {ran}"
        yield _Run(attempt.started_at, attempt.ended_at, _tone(attempt.ended), " ".join(words.split()))
    row = found.row
    if row.state == State.RUNNING and row.started_at is not None:
        yield _Run(row.started_at, found.now, "busy", f"attempt {row.attempt} is running")


def _tone(ended: str) -> str:
    if ended == Ended.RETURNED:
        return "good"
    if ended == Ended.LOST:
        return "lost"
    return "bad" if ended in {Ended.FAILED, Ended.REFUSED} else "calm"


def _segment(run: _Run, begins: Micros, scale: float) -> Segment:
    width = max(float(LEAST), (run.end - run.start) * scale)
    x = min(max(0.0, (run.start - begins) * scale), WIDTH - width)
    return Segment(round(x, 1), round(width, 1), run.tone, run.words)
