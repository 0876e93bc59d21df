"""Limits of the attempts in runners: time, progress, deadline, memory, and the grace period.

An attempt past a limit is asked to stop first. If it does not stop within `kill_grace`, its runner
is killed; the other jobs of the runner may finish first, for at most `neighbour_grace`.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from mulligan.config import WorkerSection
from mulligan.core.durations import Micros
from mulligan.worker.liveness import session_memory
from mulligan.worker.status_page import Running
from mulligan.worker.supervisor.runner_process import (
    ActiveAttempt,
    KillReason,
    RunnerProcess,
    StopReason,
)

PREFETCH_LIMIT_NS = 2_000_000_000  # a job that waits longer in a runner is recalled
DUMP_DELAY_NS = 300_000_000  # until a runner that sends no stacks is made to write them


class RunnerLimits:
    """Enforce the limits of the attempts in a runner."""

    def __init__(
        self,
        settings: WorkerSection,
        clock: Callable[[], Micros],
        recall: Callable[[RunnerProcess, ActiveAttempt], None],
        retire: Callable[[RunnerProcess, int], None],
    ) -> None:
        self._kill_grace_ns = int(settings.kill_grace * 1e9)
        self._neighbour_grace_ns = int(settings.neighbour_grace * 1e9)
        self._clock = clock  # the store's clock, estimated
        self._recall = recall  # take back a job that did not start
        self._retire = retire  # give a runner no more jobs

    def enforce(self, runner: RunnerProcess, now_ns: int, *, check_memory: bool) -> None:
        """Ask attempts past a limit to stop, and kill the runner of one that does not."""
        if runner.kill_reason is not None:
            return
        if runner.is_overdue(now_ns):
            runner.kill(KillReason.OVERDUE)
            return
        if runner.hooks and runner.has_late_hook(now_ns):
            runner.kill(KillReason.HOOK)
            return
        started = runner.running()
        for running in started.values():
            attempt = runner.attempts[running.seq]
            self._check_time_limit(runner, attempt, running, now_ns)
            _collect_stacks(runner, attempt, running, now_ns)
        self._check_prefetched(runner, started, now_ns)
        if check_memory and runner.single_use:
            _check_memory(runner)
        self._check_grace(runner, now_ns)

    def _check_time_limit(
        self, runner: RunnerProcess, attempt: ActiveAttempt, running: Running, now_ns: int
    ) -> None:
        if attempt.stop_reason is not None:
            return
        deadline_at = attempt.lease.deadline_at
        since_ns = max(running.since_ns, attempt.sent_ns)
        stall = attempt.spec.stall
        is_late = (now_ns - since_ns) // 1000 >= attempt.timeout
        if is_late or (attempt.steps and attempt.find_late_step(now_ns)):
            runner.request_stop(attempt, StopReason.TIMEOUT)
        elif stall is not None and (now_ns - max(since_ns, running.progress_ns)) // 1000 >= stall:
            runner.request_stop(attempt, StopReason.STALL)
        elif deadline_at is not None and self._clock() >= deadline_at:
            runner.request_stop(attempt, StopReason.DEADLINE)

    def _check_prefetched(
        self, runner: RunnerProcess, started: Container[int], now_ns: int
    ) -> None:
        """Recall jobs that wait too long for a slot."""
        if runner.single_use:
            return
        in_hooks = runner.before_handler()
        for attempt in list(runner.attempts.values()):
            if attempt.seq in in_hooks:
                continue
            if attempt.seq not in started and now_ns - attempt.sent_ns > PREFETCH_LIMIT_NS:
                self._recall(runner, attempt)

    def _check_grace(self, runner: RunnerProcess, now_ns: int) -> None:
        """Kill a runner whose attempt did not stop in time. Its other jobs may finish first."""
        started = runner.running()
        late = [
            attempt
            for attempt in runner.attempts.values()
            if attempt.seq in started
            and attempt.stop_reason is not None
            and now_ns - attempt.stop_requested_ns > self._kill_grace_ns
            and not attempt.awaits_stacks(now_ns)
        ]
        if not late:
            return
        neighbours = [seq for seq in started if runner.attempts[seq].stop_reason is None]
        if not runner.is_responsive():
            has_one_suspect = len(started) == 1
            reason = KillReason.TIME_LIMIT if has_one_suspect else KillReason.UNRESPONSIVE
            runner.kill(reason)
        elif not neighbours:
            runner.kill(KillReason.TIME_LIMIT)
        elif not runner.retiring_since_ns:
            self._retire(runner, now_ns)
        elif now_ns - runner.retiring_since_ns > self._neighbour_grace_ns:
            runner.kill(KillReason.TIME_LIMIT)


def _check_memory(runner: RunnerProcess) -> None:
    for attempt in runner.attempts.values():
        if attempt.memory_limit is None:
            continue
        attempt.peak_memory = max(attempt.peak_memory, session_memory(runner.pid))
        if attempt.peak_memory > attempt.memory_limit:
            attempt.stop_reason = StopReason.MEMORY
            runner.kill(KillReason.MEMORY_LIMIT)


def _collect_stacks(
    runner: RunnerProcess, attempt: ActiveAttempt, running: Running, now_ns: int
) -> None:
    """Get the stacks of an attempt that must stop from a runner that does not send them."""
    if attempt.dump_requested_ns:
        runner.read_stacks(attempt)
    elif attempt.awaits_stacks(now_ns) and now_ns - attempt.stop_requested_ns > DUMP_DELAY_NS:
        attempt.dump_requested_ns = now_ns
        attempt.thread = running.thread
        runner.request_dump()
