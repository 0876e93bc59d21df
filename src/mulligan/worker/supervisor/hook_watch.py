"""Watch the hooks of the app: which of them end runners, and which failures runners cannot see.

The supervisor calls no hook. It reads on the status pages which ones run, and passes failures that
it has found itself, such as a time limit, to a runner, which calls `@app.on_failure`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from mulligan.core.attempt import Ending, Failure, Lease
from mulligan.core.durations import Micros
from mulligan.manifest.specs import SYSTEM_PREFIX
from mulligan.worker.protocol import HookFault, failure_to_wire, leases_to_wire
from mulligan.worker.supervisor.runner_process import (
    KillReason,
    RunnerCommand,
    RunnerDeath,
    RunnerProcess,
    describe_death,
)

log = logging.getLogger("mulligan.worker")

MAX_DEATHS = 2  # runners that a hook ended, until it is called no more
MAX_PENDING = 1000  # failures that wait for a runner


class HookWatch:
    """Hooks of the app in all runners of one worker."""

    def __init__(self, command: RunnerCommand, processes: Sequence[RunnerProcess]) -> None:
        """`processes`: the list of all runners, which the owner keeps up to date."""
        self.on_faults: Callable[[list[HookFault]], None] = lambda _: None
        self._command = command
        self._processes = processes
        self._deaths: Counter[str] = Counter()  # runners that each hook has ended
        self._needed = False  # a runner has asked for failures
        self._pending: list[tuple[Lease, Failure, Micros | None]] = []

    def on_message(self, runner: RunnerProcess, message: list[Any]) -> None:
        """Handle what a runner reports about its hooks."""
        match message:
            case ["hooks", hooks, traces]:
                runner.hooks = [(str(name), float(limit)) for name, limit in hooks]
                runner.needs_failures = bool(hooks or traces)
            case ["hook_faults", faults]:
                self.on_faults([HookFault(*fault) for fault in faults])

    # --- Hooks that end their runner ---

    def suspects(self, runner: RunnerProcess, death: RunnerDeath) -> list[str]:
        """Return the hooks that ran when a runner died. One that ended two runners is turned off.

        Only a hook that ran alone has certainly ended the process: other attempts run alone next.
        """
        if runner.kill_reason not in {None, KillReason.HOOK}:
            return []
        found = [*runner.running_hooks()]
        if found and runner.busy_slots() == 1:
            how = runner.kill_reason or f"its process ended with {describe_death(death)}"
            self._count_death(found[0], how)
        return found

    def _count_death(self, hook: str, how: str) -> None:
        self._deaths[hook] += 1
        if self._deaths[hook] == MAX_DEATHS:
            how += "; this worker does not call it any more"
            self._command.hooks_off.append(hook)
            for runner in self._processes:
                runner.send(["hooks_off", [hook]])
        log.error("hook %s: %s. The outcomes of jobs are not affected.", hook, how)
        self.on_faults([HookFault(hook, 1, how)])

    # --- Failures that the supervisor has found ---

    def notify(self, endings: Sequence[Ending], *, killed_at: Micros | None = None) -> None:
        """Pass failures to a runner that needs them; to the next one if none is ready.

        `killed_at`: when the process of the attempts was killed.
        """
        if not self._is_needed():
            return
        self._pending += [
            (ending.lease, ending.outcome.failure, killed_at)
            for ending in endings
            if ending.outcome.failure is not None
            and not ending.lease.kind.startswith(SYSTEM_PREFIX)
        ]
        del self._pending[:-MAX_PENDING]
        self.send_pending()

    def _is_needed(self) -> bool:
        self._needed = self._needed or any(runner.needs_failures for runner in self._processes)
        return self._needed

    def send_pending(self) -> None:
        """Send failures to a shared runner that is ready."""
        if not self._pending:
            return
        for runner in self._processes:
            if runner.needs_failures and runner.is_available and not runner.single_use:
                pending, self._pending = self._pending, []
                for lease, failure, killed_at in pending:
                    columns = leases_to_wire([0], [lease], {})
                    runner.send(["failed", columns[2], failure_to_wire(failure), killed_at])
                return
