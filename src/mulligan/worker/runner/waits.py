"""Waits of an attempt: end it without a slot, and continue the next one behind the wait.

A wait is a step, found by its name. Whether its time is over depends only on the start of the
attempt by the store's clock: whoever answers compares with the same time under a lock of the job,
so either the answer or the default wins.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from typing import Any, NoReturn

from mulligan.batches.calls import dump_children
from mulligan.core.attempt import Ended, Lease, Outcome
from mulligan.core.durations import Micros, check_duration_or_time
from mulligan.core.errors import ChildFailed, DurationOrTime
from mulligan.core.job import NewJob, RecordedStep
from mulligan.core.waits import RequestedWait, WaitKind
from mulligan.steps.rules import StepKind, StepRecord, StepState, read_detail
from mulligan.worker.runner.steps import AttemptSteps, SaveRecord

WaitRun = Generator[SaveRecord, bool, Any]


class WaitRequested(BaseException):
    """The attempt ends here; the job continues behind its wait. Do not catch it."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        wait = outcome.wait
        super().__init__("" if wait is None else f"the job waits: {wait.kind} {wait.name!r}")


def sleep(steps: AttemptSteps, lease: Lease, name: str, duration: DurationOrTime) -> WaitRun:
    """Return once the time has passed. Raise WaitRequested before."""
    after, until = check_duration_or_time("duration", duration)
    found = steps.begin(name, StepKind.SLEEP)
    if found is None:
        wait = RequestedWait(WaitKind.SLEEP, name, steps.next_number())
        raise WaitRequested(Outcome(Ended.WAITING, after=after, until=until, wait=wait))
    if found.state != StepState.DONE:
        _wait_until_end(lease, name, found)
        record = _end_of(lease, name, found, None)
        steps.note(record, held=(yield SaveRecord(record)))


def wait_for_answer(
    steps: AttemptSteps, lease: Lease, name: str, timeout: DurationOrTime | None, default: Any
) -> WaitRun:
    """Return the answer, or the default once the time has passed. Raise WaitRequested before."""
    after, until = (None, None) if timeout is None else check_duration_or_time("timeout", timeout)
    text = steps.to_text(f"default of wait {name!r:.80}", default)
    found = steps.begin(name, StepKind.WAIT)
    if found is None:
        wait = RequestedWait(WaitKind.ANSWER, name, steps.next_number())
        reason = f"an answer to {name}"
        raise WaitRequested(
            Outcome(Ended.WAITING, after=after, until=until, reason=reason, wait=wait)
        )
    if found.state == StepState.DONE:
        return json.loads(found.value or "null")
    _wait_until_end(lease, name, found, reason=f"an answer to {name}")
    record = _end_of(lease, name, found, text)
    steps.note(record, held=(yield SaveRecord(record)))
    return json.loads(text)


def gather(
    steps: AttemptSteps, name: str, jobs: Sequence[NewJob], tolerance: str, on_death: str
) -> list[Any]:
    """Return the results of child jobs. Raise WaitRequested until they have ended."""
    found = steps.begin(name, StepKind.CALL)
    if not jobs and found is None:
        return []
    if found is None or found.state == StepState.FORGOTTEN:
        detail = {"tolerance": tolerance, "on_death": on_death, "children": dump_children(jobs)}
        text = steps.to_text(f"the child jobs of {name!r:.80}", detail)
        _request_call(name, len(jobs), steps.next_number(), text)
    elif found.state == StepState.WAITING:
        _request_call(name, read_detail(found.detail)["jobs"], found.number, found.detail)
    children: list[dict[str, Any]] = json.loads(found.value or "[]")
    if found.state == StepState.FAILED:
        raise ChildFailed(name, children)
    return [child.get("result") for child in children]


def _request_call(name: str, jobs: int, number: int, detail: str) -> NoReturn:
    noun = "a child job" if jobs == 1 else f"{jobs:,} child jobs"
    wait = RequestedWait(WaitKind.CALL, name, number, detail)
    reason = f"{noun} ({name})"
    raise WaitRequested(Outcome(Ended.WAITING, reason=reason, wait=wait))


def _wait_until_end(lease: Lease, name: str, found: RecordedStep, reason: str = "") -> None:
    """Raise WaitRequested if the wait was not over when this attempt began."""
    until: Micros | None = read_detail(found.detail)["until"]
    if until is None or lease.started_at < until:
        wait = RequestedWait(found.kind, name, found.number, found.detail)
        raise WaitRequested(Outcome(Ended.WAITING, until=until, reason=reason, wait=wait))


def _end_of(lease: Lease, name: str, found: RecordedStep, value: str | None) -> StepRecord:
    """Return the record of a wait that its time has ended."""
    detail = {**read_detail(found.detail), "by": "time"}
    took = max(0, lease.started_at - detail["since"])
    text = json.dumps(detail)
    return StepRecord(name, found.kind, StepState.DONE, found.number, value, text, took)
