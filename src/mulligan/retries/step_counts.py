"""Counters of failures by step: a step with a policy of its own is charged apart from its job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from mulligan.core.json import encode

STEPS_KEY = "steps"  # in the stored counts of a job
_SHARED = ("spared", "waited")  # of the job as a whole, whatever step has failed


def has_step_counts(counts: str | None) -> bool:
    """True if failures of steps with their own policy were counted."""
    return counts is not None and f'"{STEPS_KEY}"' in counts


class Counters(NamedTuple):
    """The counters that a failure is charged to, and the others of its job."""

    failures: int
    counts: str | None
    step: str  # that they belong to; empty: to the job
    job_failures: int  # without those of steps with their own policy
    job: Mapping[str, Any]  # counts of the job
    steps: Mapping[str, Mapping[str, Any]]  # counts of each step

    def merge(self, failures: int, counts: str | None) -> tuple[int, str | None]:
        """Return the total and the stored counts after the decision has changed these counters."""
        changed = _read(counts)
        if not self.step:
            return failures + _total(self.steps), _encode({**changed, STEPS_KEY: self.steps})
        shared = {name: changed.pop(name) for name in _SHARED if name in changed}
        steps = {**self.steps, self.step: {**changed, "failures": failures}}
        merged = {**self.job, **shared, STEPS_KEY: steps}
        return self.job_failures + _total(steps), _encode(merged)


def read_counters(failures: int, counts: str | None, step: str) -> Counters:
    """Return the counters of a step of a job, or with an empty name those of the job."""
    job = _read(counts)
    steps: dict[str, dict[str, Any]] = job.pop(STEPS_KEY, {})
    job_failures = max(0, failures - _total(steps))
    if not step:
        return Counters(job_failures, _encode(job), "", job_failures, job, steps)
    charged = dict(steps.get(step, {}))
    total = int(charged.pop("failures", 0))
    shared = {name: job[name] for name in _SHARED if name in job}
    return Counters(total, _encode({**charged, **shared}), step, job_failures, job, steps)


def _total(steps: Mapping[str, Mapping[str, Any]]) -> int:
    return sum(int(counts.get("failures", 0)) for counts in steps.values())


def _read(counts: str | None) -> dict[str, Any]:
    """Parse stored counts. Unreadable counts are empty, as in `parse_counts`."""
    try:
        record = json.loads(counts) if counts else {}
    except ValueError:
        return {}
    if not isinstance(record, dict):
        return {}
    steps = record.get(STEPS_KEY, {})
    if not isinstance(steps, dict) or not all(isinstance(one, dict) for one in steps.values()):
        record.pop(STEPS_KEY)
    return record


def _encode(record: Mapping[str, Any]) -> str | None:
    kept = {name: value for name, value in record.items() if value}
    return encode(kept) if kept else None
