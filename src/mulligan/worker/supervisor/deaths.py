"""Endings of attempts that were stopped or whose runner died.

States facts only; `retries/decide` decides what follows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL

from mulligan.core.attempt import Ended, Ending, Failure, Outcome
from mulligan.core.durations import SECOND, Micros
from mulligan.failures.codes import (
    deadline_passed,
    memory_limit_exceeded,
    process_died,
    stalled,
    timed_out,
)
from mulligan.failures.redact import scrub
from mulligan.failures.step_evidence import add_step
from mulligan.worker.recording import build_log, encode_records
from mulligan.worker.stacks import format_stacks, place_of
from mulligan.worker.supervisor.runner_process import (
    ActiveAttempt,
    KillReason,
    RunnerDeath,
    RunnerProcess,
    StopReason,
)

REFUSED_DELAY = 5 * SECOND  # before a job that its runner could not accept is claimed again


def stopped_ending(
    attempt: ActiveAttempt,
    reason: StopReason,
    now: Micros,
    *,
    cost: float = 0.0,
    started: bool = False,
) -> Ending:
    """Return the ending of an attempt that stopped because the supervisor requested it."""
    outcome = _with_step(attempt, _stopped_outcome(attempt, reason))
    interrupted = started and outcome.ended is Ended.RELEASED
    outcome = outcome._replace(ended_at=now, cost=cost, interrupted=interrupted)
    return Ending(attempt.lease, outcome)


def refused_ending(attempt: ActiveAttempt, now: Micros) -> Ending:
    """Return the ending of an attempt that its runner could not accept.

    It is not charged, but delayed: it must not be claimed and refused in an endless loop.
    """
    outcome = Outcome(
        Ended.RELEASED,
        reason="the runner could not accept the job; queued again after a short pause",
        after=REFUSED_DELAY,
        ended_at=now,
    )
    return Ending(attempt.lease, outcome)


def _stopped_outcome(attempt: ActiveAttempt, reason: StopReason) -> Outcome:
    kind = attempt.lease.kind
    place = place_of(attempt.stacks or ())
    match reason:
        case StopReason.TIMEOUT:
            failure = _timed_out(attempt, place)
            return Outcome(Ended.FAILED, failure=failure)
        case StopReason.STALL:
            failure = stalled((attempt.spec.stall or 0) / SECOND, kind, place)
            return Outcome(Ended.FAILED, failure=failure)
        case StopReason.DEADLINE:
            return Outcome(Ended.FAILED, failure=deadline_passed(), final=True)
        case StopReason.MEMORY:
            failure = memory_limit_exceeded(attempt.memory_limit or 0, attempt.peak_memory, kind)
            return Outcome(Ended.FAILED, failure=failure)
        case StopReason.CANCEL:
            return Outcome(Ended.CANCELLED, reason=attempt.lease.cancel_reason or "cancelled")
        case StopReason.RELEASE:
            return Outcome(Ended.RELEASED, reason="released by its worker")


def _timed_out(attempt: ActiveAttempt, place: Sequence[str]) -> Failure:
    """Return the failure of an attempt that ran over its limit, or over that of its step."""
    kind, late = attempt.lease.kind, attempt.late_step
    if late is None or late.timeout is None:
        return timed_out(attempt.timeout / SECOND, kind, place)
    return timed_out(late.timeout / SECOND, kind, place, step=late.failure.name)


def _with_step(attempt: ActiveAttempt, outcome: Outcome) -> Outcome:
    """Add the step in which an attempt was stopped or died."""
    step = attempt.step_of_end(time.monotonic_ns())
    failure = outcome.failure
    if step is None or failure is None:
        return outcome
    return outcome._replace(step=step, failure=add_step(failure, step.name, attempt.lease.kind))


def endings_after_death(
    attempts: Sequence[ActiveAttempt],
    started: frozenset[int],
    death: RunnerDeath,
    runner: RunnerProcess,
    now: Micros,
    *,
    in_hook: bool = False,
) -> list[Ending]:
    """Return the endings of all attempts of a dead runner. `in_hook`: a hook of the app ran."""
    if in_hook:
        return [_ending_after_hook(attempt, started, now) for attempt in attempts]
    started_count = len([attempt for attempt in attempts if attempt.seq in started])
    oom = death.signal == SIGKILL and oom_count_rose()
    endings = []
    for attempt in attempts:
        runner.read_stacks(attempt)
        failure = _death_failure(attempt, death, oom=oom, shared=started_count > 1)
        ending = _ending_after_death(attempt, started, failure, runner, now)
        records = runner.status_page.records(attempt.seq, attempt.spec.log)
        endings.append(with_log(attempt, ending, encode_records(records)))
    return endings


def with_log(attempt: ActiveAttempt, ending: Ending, records: str) -> Ending:
    """Add the last records and the stacks of an attempt, if it has failed or was cancelled."""
    outcome = ending.outcome
    if outcome.failure is None and outcome.ended is not Ended.CANCELLED:
        return ending
    log = build_log(records, format_stacks(attempt.stacks or ()))
    return ending._replace(outcome=outcome._replace(log=log)) if log else ending


def _ending_after_hook(attempt: ActiveAttempt, started: frozenset[int], now: Micros) -> Ending:
    """Return the ending of an attempt whose runner died while a hook ran: it is not charged.

    Each attempt runs alone next, so that it is certain what ends its process again.
    """
    outcome = Outcome(
        Ended.RELEASED,
        reason="the process ended while a hook of the app ran",
        alone=True,
        ended_at=now,
        interrupted=attempt.seq in started,
    )
    return Ending(attempt.lease, outcome)


def _ending_after_death(
    attempt: ActiveAttempt,
    started: frozenset[int],
    failure: Failure,
    runner: RunnerProcess,
    now: Micros,
) -> Ending:
    if attempt.seq not in started:
        return stopped_ending(attempt, StopReason.RELEASE, now)
    if runner.kill_reason is KillReason.UNRESPONSIVE:
        # It is unknown which attempt blocked the event loop: charge none, run each one alone next.
        outcome = Outcome(
            Ended.RELEASED,
            reason="the runner stopped responding",
            alone=True,
            ended_at=now,
            interrupted=True,
        )
        return Ending(attempt.lease, outcome)
    if runner.kill_reason is not None:
        reason = attempt.stop_reason or StopReason.RELEASE
        return stopped_ending(attempt, reason, now, started=True)
    outcome = Outcome(Ended.LOST, failure=failure, ended_at=now)
    return Ending(attempt.lease, _with_step(attempt, outcome))


def _death_failure(
    attempt: ActiveAttempt, death: RunnerDeath, *, oom: bool, shared: bool
) -> Failure:
    failure = process_died(
        attempt.lease.kind,
        signal=death.signal,
        exit_code=death.exit_code,
        peak_rss=death.peak_rss or None,
        oom=oom,
        shared=shared,
    )
    if not death.stderr.strip():
        return failure
    return replace(failure, private={**failure.private, "stderr": scrub(death.stderr)})


# --- Kills by the kernel for lack of memory, read from the counter of the cgroup ---

_last_counts: dict[str, int] = {}


def oom_count_rose() -> bool:
    """True if the kernel killed for lack of memory since the last call. Call once at start-up."""
    rose = False
    for path in _oom_counter_files():
        value = _read_oom_count(path)
        rose = rose or value > _last_counts.get(str(path), value)
        _last_counts[str(path)] = value
    return rose


def _oom_counter_files() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    files = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            files.append(root / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            files.append(root / "memory" / path.lstrip("/") / "memory.oom_control")
    return [path for path in files if path.exists()]


def _read_oom_count(path: Path) -> int:
    for line in path.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return 0
