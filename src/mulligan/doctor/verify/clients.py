"""Compare the database with what handlers and clients recorded.

Handlers: S6, S8, S9. Clients: S1, S17, U2, U3.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mulligan.core.attempt import Verb
from mulligan.core.event import EventType
from mulligan.core.job import AttemptRow, State
from mulligan.doctor.verify.case import (
    Findings,
    JobCase,
    VerifyContext,
    format_attempt,
    format_call,
    format_events,
    format_witness,
)
from mulligan.doctor.verify.queries import VerifyQueries
from mulligan.doctor.verify.records import (
    END,
    FAIL,
    OK,
    ROLLED_BACK,
    START,
    SUBMITS,
    RecordIndex,
    digest,
)
from mulligan.jobs.queries import JobQueries
from mulligan.storage.base import Store

# --- Handlers: S6, S8, S9 ---

# Attempts that the database ended without knowing whether their handler had stopped.
HANDLER_MAY_STILL_RUN = frozenset({"lost", "released"})


class HandlerRun(NamedTuple):
    """One call of a handler, from its witness lines."""

    token: int
    start: Mapping[str, Any]
    end: Mapping[str, Any] | None


def check_handlers(
    case: JobCase, context: VerifyContext, findings: Findings, *, is_witnessed: bool
) -> None:
    """Check the witness lines of a job.

    `is_witnessed`: handlers of this kind write witness lines, so a missing line is a finding.
    """
    runs = _handler_runs(case)
    _check_tokens(case, runs, findings)
    _check_overlaps(case, runs, findings)
    if is_witnessed and case.row.state == State.SUCCEEDED:
        _check_success(case, context, findings)


def _handler_runs(case: JobCase) -> list[HandlerRun]:
    starts = [line for line in case.witness_lines if line["what"] == START]
    ends = {}
    for line in case.witness_lines:
        if line["what"] in (END, FAIL):
            ends[line["token"]] = line
    return [HandlerRun(start["token"], start, ends.get(start["token"])) for start in starts]


def _check_tokens(case: JobCase, runs: list[HandlerRun], findings: Findings) -> None:
    """Check that each run belongs to a claim, and that each claim was run once."""
    claimed_tokens = {event.token for event in case.events if event.type == EventType.JOB_STARTED}
    first_runs: dict[int, HandlerRun] = {}
    for run in runs:
        first = first_runs.setdefault(run.token, run)
        if first is not run:
            lines = [format_witness(first.start), format_witness(run.start)]
            findings.add("S6", f"token {run.token} was run twice", case.id, witness=lines)
        if case.is_complete and run.token not in claimed_tokens:
            findings.add(
                "S6",
                f"a handler ran with token {run.token}, which was never claimed",
                case.id,
                witness=[format_witness(run.start)],
                store=format_events(case.events),
            )


def _check_overlaps(case: JobCase, runs: list[HandlerRun], findings: Findings) -> None:
    attempts = {row.token: row for row in case.attempts}
    for earlier in runs:
        if earlier.end is None:
            continue
        attempt = attempts.get(earlier.token)
        if attempt is not None and attempt.ended in HANDLER_MAY_STILL_RUN:
            continue
        stored = [] if attempt is None else [format_attempt(attempt)]
        for later in runs:
            if later.token > earlier.token and later.start["ns"] < earlier.end["ns"]:
                lines = (earlier.start, later.start, earlier.end)
                findings.add(
                    "S8",
                    f"token {later.token} started before token {earlier.token} had ended",
                    case.id,
                    witness=[format_witness(line) for line in lines],
                    store=stored,
                )


def _check_success(case: JobCase, context: VerifyContext, findings: Findings) -> None:
    attempt = _successful_attempt(case)
    # The files were read before the database, so they cannot know about a later success.
    if attempt is None or attempt.ended_at >= context.now:
        return
    evidence = {
        "store": [format_attempt(attempt)],
        "witness": [format_witness(line) for line in case.witness_lines],
    }
    end = _find_end_line(case, attempt.token)
    if end is None:
        what = f"it succeeded with token {attempt.token}, but its handler never finished"
        findings.add("S9", what, case.id, **evidence)
    elif "result" in end and digest(json.loads(case.row.result or "null")) != end["result"]:
        what = f"the stored result is not the one that token {attempt.token} returned"
        findings.add("S9", what, case.id, **evidence)


def _successful_attempt(case: JobCase) -> AttemptRow | None:
    """Return the attempt that made the job succeed, unless `done=` skipped its handler."""
    for attempt in case.attempts:
        if attempt.token == case.row.token and attempt.verb == Verb.SUCCEED:
            is_skipped = "skipped" in json.loads(attempt.judged or "{}")
            return None if is_skipped else attempt
    return None


def _find_end_line(case: JobCase, token: int) -> Mapping[str, Any] | None:
    for line in case.witness_lines:
        if line["token"] == token and line["what"] == END:
            return line
    return None


# --- Clients: S1, S17, U2, U3 ---

# Events that a successful call of this type leaves, one per call.
EVENTS_OF_CALL = {
    "retry": (EventType.JOB_RETRIED,),
    "release": (EventType.JOB_RELEASED, EventType.JOB_RETRIED),
    "cancel": (EventType.JOB_CANCELLED, EventType.JOB_CANCEL_REQUESTED),
    "discard": (EventType.JOB_DISCARDED,),
}
IDEMPOTENT_CALLS = frozenset({"cancel"})  # a repeated call succeeds without an event

MISSING_JOBS = f"""
SELECT call_job.job, call.what, call.client, request, begin_ns, end_ns, answer, error FROM call_job
JOIN call ON call.id = call_job.call WHERE call.answer = ? AND call.what IN {SUBMITS}
AND NOT EXISTS (SELECT 1 FROM existing WHERE existing.job = call_job.job) GROUP BY call_job.job
"""
MISSING_COLUMNS = ("job", "what", "client", "request", "begin_ns", "end_ns", "answer", "error")


def check_calls(case: JobCase, findings: Findings) -> None:
    """Check the answers that clients got about a job that exists."""
    if case.is_complete:
        _check_moves(case, findings)
    for call in case.calls:
        if call["answer"] == ROLLED_BACK:
            what = "its transaction was rolled back, but it exists"
            _report(findings, case, "S17", what, call["what"])
        if call["answer"] == OK and call["what"] in SUBMITS and "key" in call["request"]:
            _check_key(case, call, findings)


def _check_moves(case: JobCase, findings: Findings) -> None:
    accepted = Counter(call["what"] for call in case.calls if call["answer"] == OK)
    event_counts = Counter(event.type for event in case.events)
    for call_type, event_types in EVENTS_OF_CALL.items():
        expected = accepted[call_type]
        if call_type in IDEMPOTENT_CALLS:
            expected = min(expected, 1)
        found = sum(event_counts[event_type] for event_type in event_types)
        if found < expected:
            what = f"{call_type} was accepted {expected} times, but has only {found} events"
            _report(findings, case, "S1", what, call_type)


def _check_key(case: JobCase, call: Mapping[str, Any], findings: Findings) -> None:
    request = call["request"]
    key = request["key"]
    if case.row.unique_key != key:
        what = f"an enqueue with key {key!r} returned a job with key {case.row.unique_key!r}"
        _report(findings, case, "U3", what, call["what"])
    elif (
        "payloads" in request
        and case.row.generation == 1  # a manual retry may change the payload
        and _payload_digest(case) not in request["payloads"]
    ):
        what = f"an enqueue with key {key!r} returned a job with another payload"
        _report(findings, case, "U3", what, call["what"])


def _payload_digest(case: JobCase) -> str:
    return digest(json.loads(case.row.payload))


def _report(findings: Findings, case: JobCase, invariant: str, what: str, call_type: str) -> None:
    calls = [format_call(call) for call in case.calls if call["what"] == call_type]
    findings.add(invariant, what, case.id, clients=calls, store=format_events(case.events))


def find_unrequested(case: JobCase, records: RecordIndex) -> tuple[str, str, str] | None:
    """Return (kind, payload digest, id) of a job that no accepted call explains, else None.

    Only for kinds that clients enqueue, and not for jobs that Mulligan itself enqueued.
    """
    if case.row.kind not in records.requested_kinds or not case.is_complete:
        return None
    if any(call["answer"] == OK and call["what"] in SUBMITS for call in case.calls):
        return None
    for event in case.events:
        if event.type == EventType.JOB_QUEUED:
            if event.actor:
                return None
            break
    return case.row.kind, _payload_digest(case), case.id


def check_missing(
    store: Store, records: RecordIndex, findings: Findings, page_size: int = 500
) -> None:
    """Report accepted jobs that do not exist and were not removed by retention: S1, U2."""
    for rows in _split_pages(records.query(MISSING_JOBS, OK), page_size):
        with store.snapshot() as tx:
            for row in rows:
                call = dict(zip(MISSING_COLUMNS, row, strict=True))
                job_id = call["job"]
                if JobQueries(tx).get_job(job_id) is None and not VerifyQueries(
                    tx
                ).find_prune_records(job_id):
                    _report_missing(call, findings)


def _report_missing(call: Mapping[str, Any], findings: Findings) -> None:
    invariant = "U2" if "key" in json.loads(call["request"]) else "S1"
    what = f"the enqueue by {call['client']} was accepted, but the job does not exist"
    findings.add(invariant, what, call["job"], clients=[format_call(call)])


def _split_pages(rows: Iterator[tuple[Any, ...]], size: int) -> Iterator[Sequence[tuple[Any, ...]]]:
    page: list[tuple[Any, ...]] = []
    for row in rows:
        page.append(row)
        if len(page) == size:
            yield page
            page = []
    if page:
        yield page


def check_unrequested(records: RecordIndex, findings: Findings) -> None:
    """Report jobs that no call explains: S1.

    An unknown submit explains as many jobs as it requested, with the payloads it recorded.
    """
    allowed = _count_unknown_submits(records)
    for kind, payload, job in records.query(
        "SELECT kind, payload, job FROM unrequested ORDER BY job"
    ):
        if _use_one(allowed, kind, payload):
            continue
        if records.exists("SELECT 1 FROM child WHERE job = ?", job):
            continue
        what = f"no client requested this job of kind {kind}, and no call with unknown answer did"
        findings.add("S1", what, job)


def _count_unknown_submits(records: RecordIndex) -> Counter[tuple[str, str]]:
    """Count the jobs that unknown submits may have created, by kind and payload.

    The payload is empty if the submit did not record it.
    """
    allowed: Counter[tuple[str, str]] = Counter()
    for request in records.unknown_submits():
        kind = str(request.get("kind", ""))
        for payload in request.get("payloads", ()):
            allowed[kind, payload] += 1
        if "payloads" not in request:
            allowed[kind, ""] += int(request.get("count", 1))
    return allowed


def _use_one(allowed: Counter[tuple[str, str]], kind: str, payload: str) -> bool:
    for key in ((kind, payload), (kind, "")):
        if allowed[key] > 0:
            allowed[key] -= 1
            return True
    return False
