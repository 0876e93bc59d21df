"""What it means for each job when an attempt was stopped or its runner died. Facts only; `decide` decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mulligan.core.attempt import Ended, Ending, Failure, Outcome
from mulligan.core.job import SECOND, Micros
from mulligan.failures.codes import deadline_passed, memory_limit, process_died, timed_out
from mulligan.failures.redact import scrub
from mulligan.worker.supervisor.runner_process import Flight, RunnerDeath, RunnerProcess, StopReason

# Did the kernel kill for lack of memory? Asked of the cgroup's own counter, never guessed from a signal.

_last: dict[str, int] = {}


def oom_killed() -> bool:
    """Has the counter risen since we last looked? Call once at start to set the mark."""
    rose = False
    for path in _counters():
        value = _read(path)
        rose = rose or value > _last.get(str(path), value)
        _last[str(path)] = value
    return rose


def _counters() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found.append(root / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            found.append(root / "memory" / path.lstrip("/") / "memory.oom_control")
    return [path for path in found if path.exists()]


def _read(path: Path) -> int:
    for line in path.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return 0


# What it means for each job when an attempt was stopped or its runner died. Facts only; `decide` decides.

REFUSED_PAUSE = 5 * SECOND


def when_stopped(flight: Flight, why: StopReason, now: Micros, *, cost: float = 0.0) -> Ending:
    """The code has stopped because we asked it to."""
    outcome = _stopped(flight, why)
    return Ending(flight.lease, outcome._replace(ended_at=now, cost=cost))


def when_refused(flight: Flight, now: Micros) -> Ending:
    """Its runner could not even begin. Nobody is charged, but it must not come straight back for ever either."""
    reason = "the runner could not accept the job; queued again after a short pause"
    return Ending(
        flight.lease, Outcome(Ended.RELEASED, reason=reason, after=REFUSED_PAUSE, ended_at=now)
    )


def _stopped(flight: Flight, why: StopReason) -> Outcome:
    match why:
        case StopReason.TIMEOUT:
            return Outcome(Ended.FAILED, failure=timed_out(flight.timeout / SECOND))
        case StopReason.DEADLINE:
            return Outcome(Ended.FAILED, failure=deadline_passed(), final=True)
        case StopReason.MEMORY:
            return Outcome(
                Ended.FAILED, failure=memory_limit(flight.memory_limit or 0, flight.peak)
            )
        case StopReason.CANCEL:
            return Outcome(Ended.CANCELLED, reason=flight.lease.cancel_reason or "cancelled")
        case StopReason.RELEASE:
            return Outcome(Ended.RELEASED, reason="released by its worker")


def after_death(
    flights: Sequence[Flight],
    started: frozenset[int],
    death: RunnerDeath,
    child: RunnerProcess,
    now: Micros,
) -> list[Ending]:
    """Every job of a dead runner, settled with what its death tells."""
    shared = len([flight for flight in flights if flight.seq in started]) > 1
    failure = _death(death, shared=shared)
    return [_of_one(flight, started, failure, child, now) for flight in flights]


def _of_one(
    flight: Flight, started: frozenset[int], failure: Failure, child: RunnerProcess, now: Micros
) -> Ending:
    if flight.seq not in started:
        return when_stopped(flight, StopReason.RELEASE, now)
    if child.killed == "unresponsive":
        # Nobody can tell which of them held the loop: nobody is charged, and each goes on alone.
        outcome = Outcome(
            Ended.RELEASED, reason="the runner stopped responding", alone=True, ended_at=now
        )
        return Ending(flight.lease, outcome)
    if child.killed:
        return when_stopped(flight, flight.asked or StopReason.RELEASE, now)
    return Ending(flight.lease, Outcome(Ended.LOST, failure=failure, ended_at=now))


def _death(death: RunnerDeath, *, shared: bool) -> Failure:
    oom = death.signal == 9 and oom_killed()
    failure = process_died(
        signal=death.signal,
        exit_code=death.exit_code,
        peak_rss=death.peak_rss or None,
        oom=oom,
        shared=shared,
    )
    if not death.stderr.strip():
        return failure
    return replace(failure, private={**failure.private, "stderr": scrub(death.stderr)})
