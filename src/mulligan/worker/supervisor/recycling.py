"""When a shared runner is replaced: after a number of jobs, or above an amount of memory.

It protects against leaks in handlers and libraries. A successor is started before the limit of jobs
is reached, so that slots are not idle while it imports the app. A runner above the limit of memory
takes jobs until its successor is ready. Nothing is charged: jobs that a runner has end there.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass

from mulligan.config import WorkerSection
from mulligan.core.format import format_size
from mulligan.worker.liveness import resident_memory
from mulligan.worker.supervisor.runner_process import RunnerProcess

log = logging.getLogger("mulligan.worker")

SUCCESSOR_SHARE = 0.9  # of the limit of jobs, at which the successor is started


@dataclass(slots=True)
class Recycling:
    """Limits of one worker; 0: none."""

    max_jobs: int
    max_memory: int  # bytes

    @classmethod
    def from_settings(cls, settings: WorkerSection) -> Recycling:
        """Return the limits of `worker.max_jobs_per_runner` and `worker.max_memory_per_runner`."""
        return cls(settings.max_jobs_per_runner, settings.max_memory_per_runner)

    def free_jobs(self, runner: RunnerProcess) -> int:
        """Return how many more jobs a runner may get."""
        return max(0, self.max_jobs - runner.jobs_given) if self.max_jobs else sys.maxsize

    def is_near(self, runner: RunnerProcess) -> bool:
        """True if a runner will soon have got as many jobs as it may."""
        return bool(self.max_jobs) and runner.jobs_given >= self.max_jobs * SUCCESSOR_SHARE

    def find_memory_excess(self, runner: RunnerProcess) -> str:
        """Return how much memory a runner uses if that is more than it may; else an empty text."""
        used = resident_memory(runner.pid) if self.max_memory and runner.jobs_given else 0
        if used <= self.max_memory:
            return ""
        return f"it uses {format_size(used)}, more than {format_size(self.max_memory)}"

    def note_ready(self, runner: RunnerProcess) -> None:
        """Ignore a limit of memory that the app exceeds before its first job.

        Otherwise runners would be replaced without end.
        """
        used = resident_memory(runner.pid) if self.max_memory and not runner.single_use else 0
        if used > self.max_memory:
            log.warning(
                "worker.max_memory_per_runner (%s) is ignored: the app alone uses %s",
                format_size(self.max_memory),
                format_size(used),
            )
            self.max_memory = 0
