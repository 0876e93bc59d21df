"""The steps of a job on its page: a table in the order in which they ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mulligan.core.durations import Micros, to_micros
from mulligan.core.format import format_duration
from mulligan.core.job import State
from mulligan.failures.redact import scrub
from mulligan.http.dashboard.renderer import JobStory
from mulligan.http.dashboard.view_models import Badge, TimeLabel, time_label
from mulligan.http.services import VisitorServices
from mulligan.steps.rules import StepKind, StepState
from mulligan.steps.view import IN_DOUBT, RUNS_AGAIN, JobStep

MAX_VALUE = 2_000  # characters
BADGES: Mapping[str, Badge] = {
    StepState.DONE: Badge("circle-check", "done", "good"),
    StepState.FAILED: Badge("circle-x", "failed", "bad"),
    StepState.WAITING: Badge("clock", "waiting", "calm"),
    StepState.UNDONE: Badge("history", "undone", "calm"),
    "running": Badge("play", "running", "busy"),
    IN_DOUBT: Badge("circle-question-mark", IN_DOUBT, "warn"),
    RUNS_AGAIN: Badge("rotate-cw", RUNS_AGAIN, "calm"),
}
WORDS = {StepKind.SLEEP: "sleep", StepKind.WAIT: "wait for an answer"}
CONTINUES = frozenset({State.DEAD, State.PARKED, State.CANCELLED})


def step_rows(services: VisitorServices, story: JobStory) -> list[dict[str, Any]]:
    """Return a row for each step of a job."""
    steps = services.jobs.steps(story.job.id)
    longest = max((step.seconds or 0 for step in steps), default=0)
    numbers = {row.token: row.attempt for row in story.attempts}
    private = services.visitor.may_see_private
    may_continue = story.job.state in CONTINUES
    return [
        {
            "name": step.name,
            "what": WORDS.get(StepKind(step.kind), ""),
            "badge": BADGES[step.state],
            "code": step.code,
            "took": format_duration(step.seconds) if step.seconds else "",
            "share": _share(step, longest),
            "attempt": numbers.get(step.token),
            "until": _until(step, story.now),
            "by": step.actor,
            "value": _format_value(step) if private else "",
            "may_continue": may_continue and step.may_continue_here,
        }
        for step in steps
    ]


def _share(step: JobStep, longest: float) -> int:
    """Return how long a step took, in percent of the longest."""
    if not longest or step.kind != StepKind.STEP:
        return 0
    return round(100 * (step.seconds or 0) / longest)


def _until(step: JobStep, now: Micros) -> TimeLabel | None:
    return None if step.until is None else time_label(to_micros(step.until), now)


def _format_value(step: JobStep) -> str:
    if step.value is None:
        return ""
    text = scrub(json.dumps(step.value, indent=2, ensure_ascii=False))
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]} …"
