"""What went wrong, from facts to a Failure. Structure is read before text.

    who ended it → declared by the handler → exception type, errno, exit code, status, link by link of the
    cause chain → unknown

Facts are captured, made safe and redacted elsewhere; what is judged here is what is stored.
"""

from __future__ import annotations

from collections.abc import Iterator

from mulligan.job import Failure
from mulligan.policy.ends import (
    Evidence,
    bad_outcome,
    deadline_passed,
    memory_limit,
    payload_refused,
    process_died,
    result_refused,
    retry_requested,
    timed_out,
    unknown_kind,
    worker_lost,
)
from mulligan.policy.facts import Facts
from mulligan.policy.fingerprint import fingerprint
from mulligan.policy.table import (
    BY_CODE,
    BY_ERRNO,
    BY_EXIT,
    BY_SIGNAL,
    BY_STATUS,
    BY_TYPE,
    PROCESS_FAILED,
    UNKNOWN,
    Row,
)

__all__ = [
    "Facts",
    "bad_outcome",
    "classify",
    "deadline_passed",
    "memory_limit",
    "payload_refused",
    "process_died",
    "result_refused",
    "retry_requested",
    "timed_out",
    "unknown_kind",
    "worker_lost",
]


def classify(facts: Facts) -> Failure:
    """The one verdict about `facts`; never raises, whatever they hold."""
    if facts.ended_by:
        return _failure(facts, facts, BY_CODE.get(facts.ended_by, UNKNOWN), code=facts.ended_by)
    if facts.code:
        return _declared(facts)
    judged = _judge_chain(facts)
    return _failure(facts, *judged) if judged else _failure(facts, facts, UNKNOWN)


def _declared(facts: Facts) -> Failure:
    known = BY_CODE.get(facts.code, UNKNOWN)
    public = known.public if known is not UNKNOWN else f"The job failed with {facts.code}."
    row = Row("handler.declared", facts.code, known.cls, facts.public or public)
    return _failure(facts, facts, row)


def _judge_chain(facts: Facts) -> tuple[Facts, Row] | None:
    """The nearest link that tells something.

    `except KeyError: fetch()` leaves a KeyError in the context of whatever fetch raises. So an implied link may
    explain why a retry makes sense, but never forbid one.
    """
    for link in (facts, *facts.causes):
        judged = _judge_group(link) if link.leaves else _judge(link)
        if judged is not None and (judged[1].retryable or not link.implied):
            return judged
    return None


def _judge_group(group: Facts) -> tuple[Facts, Row]:
    """A group is as hopeful as its most hopeful leaf: a job wrongly given up is lost, a wrong retry is not."""
    judged = [_judge_chain(leaf) or (leaf, UNKNOWN) for leaf in group.leaves]
    return next((verdict for verdict in judged if verdict[1].retryable), judged[0])


def _judge(link: Facts) -> tuple[Facts, Row] | None:
    row = _by_type(link) or _by_process(link) or _by_number(link)
    return None if row is None else (link, row)


def _by_type(link: Facts) -> Row | None:
    for name in link.exception_types:
        row = BY_TYPE.get(name)
        if row is not None:
            return row
    return None


def _by_process(link: Facts) -> Row | None:
    if link.timed_out:
        return BY_EXIT[124]
    if link.signal is not None:
        return BY_SIGNAL.get(link.signal, PROCESS_FAILED)
    if link.exit_code is not None:
        return BY_EXIT.get(link.exit_code, PROCESS_FAILED)
    return None


def _by_number(link: Facts) -> Row | None:
    if link.errno is not None and link.errno in BY_ERRNO:
        return BY_ERRNO[link.errno]
    return None if link.http_status is None else BY_STATUS.get(link.http_status)


def _failure(facts: Facts, link: Facts, row: Row, *, code: str = "") -> Failure:
    evidence = _evidence(facts, link)
    exception = facts.exception_types[0] if facts.exception_types else ""
    return Failure(
        code=code or row.code,
        cls=row.cls,
        public=facts.public or row.public,
        rule=row.id,
        retryable=row.retryable,
        retry_after=facts.retry_after,
        evidence=evidence,
        private=dict(_private(facts, exception)),
        fingerprint=fingerprint(facts, code or row.code, row.cls, link),
    )


def _evidence(facts: Facts, link: Facts) -> Evidence:
    """Numbers and a program's name: fit for an owner's eyes. Types and texts are not."""
    found: Evidence = {}
    for source in (link, facts):
        for name in ("exit_code", "signal", "errno", "http_status"):
            value = getattr(source, name)
            if value is not None:
                found.setdefault(name, value)
        if source.program:
            found.setdefault("program", source.program)
        if source.timed_out:
            found.setdefault("timed_out", True)
    return found


def _private(facts: Facts, exception: str) -> Iterator[tuple[str, str]]:
    texts = (("exception", exception), ("message", facts.message), ("detail", facts.detail))
    for name, text in (*texts, ("trace", facts.trace), ("stderr", facts.stderr)):
        if text:
            yield name, text
