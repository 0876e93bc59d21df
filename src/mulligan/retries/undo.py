"""Undo of finished steps: why it began, and how the job ends afterwards. Pure.

The settings of a job have the key `undo` once a finished step has an undo function that runs by
itself. Its value is empty, or while the job is undoing the cause: how the job will end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from mulligan.core.attempt import Cls, Decision, Failure, Ground, Verb
from mulligan.core.job import parse_job_settings
from mulligan.core.json import encode

UNDO_KEY = "undo"
_MARK = f'"{UNDO_KEY}"'
LEAVE = "leave the rest"  # choice: end the job without the undo of the other steps
UNDO_POLICY = '{"max_retries":5}'  # of an undo whose step has no policy


class UndoCause(NamedTuple):
    """The end of a job that undoes its steps first."""

    verb: Verb  # die or stop
    ground: Ground
    reason: str
    failure: Failure | None = None


def has_undo(settings: str | None) -> bool:
    """True if the job has steps to undo, or undoes them."""
    return settings is not None and _MARK in settings


def must_undo(settings: str | None) -> bool:
    """True if the job has steps to undo, and does not undo them yet."""
    return has_undo(settings) and read_cause(settings) is None


def mark_undo(settings: str | None) -> str:
    """Return the settings of a job of which a finished step has an undo function."""
    if settings is not None and has_undo(settings):
        return settings
    return encode({**parse_job_settings(settings), UNDO_KEY: {}})


def keep_undo_mark(settings: str | None) -> str | None:
    """Return the settings of a new generation: only that there are steps to undo."""
    return encode({UNDO_KEY: {}}) if has_undo(settings) else None


def begin_undo(settings: str | None, cause: UndoCause) -> str:
    """Return the settings of a job that undoes its steps."""
    record: dict[str, Any] = {"verb": cause.verb, "ground": cause.ground, "reason": cause.reason}
    failure = cause.failure
    if failure is not None:
        record["failure"] = {
            "code": failure.code,
            "cls": failure.cls,
            "public": failure.public,
            "rule": failure.rule,
            "evidence": {**failure.evidence},
            "fingerprint": failure.fingerprint,
        }
    return encode({**parse_job_settings(settings), UNDO_KEY: record})


def read_cause(settings: str | None) -> UndoCause | None:
    """Return how a job will end that undoes its steps; None if it does not."""
    if not has_undo(settings):
        return None
    record = parse_job_settings(settings).get(UNDO_KEY)
    if not isinstance(record, Mapping) or "verb" not in record:
        return None
    stored = record.get("failure")
    failure = None
    if isinstance(stored, Mapping):
        cls = Cls(stored["cls"])
        failure = Failure(**{**stored, "cls": cls}, retryable=False)
    return UndoCause(Verb(record["verb"]), Ground(record["ground"]), record["reason"], failure)


def undo_first(decision: Decision, now: int) -> Decision:
    """Return the decision for a job that must undo its steps before it ends."""
    verb = Verb.DIE if decision.verb is Verb.DIE else Verb.STOP
    cause = UndoCause(verb, decision.ground, decision.reason, decision.failure)
    return decision._replace(
        verb=Verb.UNDO,
        ground=Ground.UNDOING,
        reason=describe_undoing(decision.reason),
        run_at=now,
        settings=begin_undo(decision.settings, cause),
        retry_count="",
    )


def describe_undoing(reason: str) -> str:
    """Return why the steps of a job are undone."""
    return f"undoes its steps before it ends: {reason}"


def end_settings(settings: str | None) -> str:
    """Return the settings of a job that has undone its steps."""
    return encode({**parse_job_settings(settings), UNDO_KEY: {}})


def cause_of_move(verb: Verb, reason: str, failure: Failure | None = None) -> UndoCause:
    """Return the cause of an undo that begins outside of an attempt."""
    ground = Ground.DEADLINE if verb is Verb.DIE else Ground.STOP_REQUESTED
    return UndoCause(verb, ground, reason or "cancelled by hand", failure)


def failure_of_dead(error: str | None, fingerprint: str | None) -> Failure:
    """Return the failure of a dead job from its columns `error` and `died_group`."""
    stored: dict[str, Any] = json.loads(error or "{}")
    public = str(stored.pop("message", ""))
    code = str(stored.pop("code", "UNKNOWN"))
    cls = Cls(stored.pop("class", Cls.UNKNOWN))
    rule = str(stored.pop("rule", ""))
    failure = Failure(code, cls, public, rule, retryable=False, evidence=stored)
    return replace(failure, fingerprint=fingerprint or "")
