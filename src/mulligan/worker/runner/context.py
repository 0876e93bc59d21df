"""What a handler is given beside its arguments."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from mulligan.core.attempt import Cls, Lease
from mulligan.core.durations import length
from mulligan.core.errors import MulliganError, Refused, Seconds
from mulligan.core.format import safe
from mulligan.core.job import SECOND, Job, Micros, PreviousAttempts, State, to_datetime
from mulligan.core.tracing import Ended, Tracer
from mulligan.failures.redact import shown
from mulligan.manifest.arguments import to_json
from mulligan.retries.effective import EffectivePolicies
from mulligan.retries.limits import read_counts
from mulligan.retries.policy import given
from mulligan.worker.liveness import kill_marked
from mulligan.worker.runner.program import Program, in_a_thread

log = logging.getLogger("mulligan.core.job")
MESSAGE_LIMIT = 500
NAME_LIMIT = 200


class Link(Protocol):
    """What a context needs of the process around it: a runner, or `run_inline`."""

    state: Any
    policies: EffectivePolicies
    result_limit: int
    tracer: Tracer

    def progress(self, context: Context, fraction: float | None, message: str) -> None: ...

    def keep(self, context: Context, name: str, value: str) -> bool:
        """Write a checkpoint; blocks until it is durable. False: the lease is lost."""

    async def keep_async(self, context: Context, name: str, value: str) -> bool: ...

    def workdir(self, context: Context) -> Path: ...

    def remove_workdir(self, context: Context) -> None: ...

    def mark(self, context: Context) -> str:
        """The environment mark for processes of this attempt."""


class _JobLog(logging.LoggerAdapter[logging.Logger]):
    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs


class LeaseLost(MulliganError):
    """Somebody else owns this job now; whatever this attempt still does is refused."""

    code = "LEASE_LOST"


class Context:
    """One attempt, seen from inside its handler."""

    # As every attempt begins; here, because most of them never change any of it.
    previous: Mapping[str, Any] | None = None
    spent = 0.0
    asking = ""  # what is asked before the handler is called, while it is
    stop_seen = False
    stop_asked = False
    _checkpoints: Mapping[str, Any] = MappingProxyType({})
    _programs: AbstractSet[Program] = frozenset()
    _started = 0
    _workdir: Path | None = None

    def __init__(
        self, link: Link, seq: int, lease: Lease, memory: PreviousAttempts | None = None
    ) -> None:
        self._link = link
        self.seq = seq
        self.lease = lease
        if memory is not None:
            self._checkpoints = {
                name: json.loads(value) for name, value in memory.checkpoints.items()
            }
            self.previous = memory.previous

    # -- facts ------------------------------------------------------------------------------------
    @property
    def job(self) -> Job:
        """The job as it was when this attempt began."""
        return job_of(self.lease)

    @property
    def attempt(self) -> int:
        return self.lease.attempt

    @property
    def token(self) -> int:
        """Grows with every claim of this job; hand it to systems that can refuse an older one."""
        return self.lease.token

    @property
    def last_attempt(self) -> bool:
        """A hint: one more counted failure of class unknown would end this job."""
        policy = self._link.policies.of(self.lease)
        forbidden = not policy.allows(Cls.UNKNOWN) or policy.retry_unknown is False
        cap = policy.cap_for(Cls.UNKNOWN)
        used = cap is not None and read_counts(self.lease.counts).of_class(Cls.UNKNOWN) >= cap
        return forbidden or used or self.lease.failures >= policy.max_retries

    @property
    def settings(self) -> Mapping[str, Any]:
        """What a step of an escalation (`Then(settings=…)`) gave this attempt; empty at first."""
        return MappingProxyType(given(self.lease.settings).get("settings", {}))

    @property
    def choice(self) -> str | None:
        """What a person decided when this job was released."""
        return self.lease.choice

    @property
    def state(self) -> Any:
        """What `@app.on_start` made in this process."""
        return self._link.state

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry the ids of this attempt, on whatever thread."""
        lease = self.lease
        ids = {
            "job": lease.id,
            "kind": lease.kind,
            "queue": lease.queue,
            "attempt": lease.attempt,
            "token": lease.token,
        }
        return _JobLog(log, ids)

    @property
    def cancelled(self) -> bool:
        """True once somebody asked this attempt to stop (a person, its time limit, a shutdown)."""
        self.stop_seen = self.stop_seen or self.stop_asked
        return self.stop_asked

    @property
    def workdir(self) -> Path:
        """A directory of this attempt alone, removed whatever happens."""
        if self._workdir is None:
            self._workdir = self._link.workdir(self)
        return self._workdir

    @property
    def checkpoints(self) -> Mapping[str, Any]:
        """What earlier attempts, and this one, have kept."""
        return dict(self._checkpoints)

    def key(self, name: str) -> str:
        """A unique key for a child of this job: an attempt that runs again enqueues the same child, once."""
        return f"{self.lease.id}:{name}"

    # -- never wait -------------------------------------------------------------------------------
    def progress(self, fraction: float | None, message: str = "") -> None:
        """How far it is, 0 to 1; the last value within a second wins."""
        if fraction is not None and not math.isfinite(fraction):
            fraction = None
        share = None if fraction is None else min(max(float(fraction), 0.0), 1.0)
        self._link.progress(self, share, shown(str(message), MESSAGE_LIMIT))

    def cost(self, amount: float) -> None:
        """Add to what this attempt has cost, whatever the unit."""
        if not math.isfinite(self.spent + amount) or amount < 0:
            message = f"cost({amount!r}): a cost is a finite number, not below zero"
            raise Refused(message)
        self.spent += float(amount)

    # -- wait -------------------------------------------------------------------------------------
    def checkpoint(self, name: str, value: Any) -> None:
        """Keep a value for later attempts; durable when this returns."""
        _not_in_a_coroutine("checkpoint")
        text = self._keepable(name, value)
        self._kept(name, text, held=self._link.keep(self, name, text))

    async def checkpoint_async(self, name: str, value: Any) -> None:
        text = self._keepable(name, value)
        self._kept(name, text, held=await self._link.keep_async(self, name, text))

    def _keepable(self, name: Any, value: Any) -> str:
        """Refused here, where the handler can hear it, and not by the database."""
        if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT or name != safe(name):
            message = f"checkpoint {name!r:.80}: a name is a text of 1 to {NAME_LIMIT} characters that can be printed"
            raise Refused(message)
        text = to_json(value, f"checkpoint {name!r}")
        if len(text) > self._link.result_limit:
            message = f"checkpoint {name!r} is {len(text)} bytes of JSON, the limit is {self._link.result_limit}"
            raise Refused(message)
        return text

    def _kept(self, name: str, text: str, *, held: bool) -> None:
        if not held:
            message = f"job {self.lease.id}: this attempt no longer holds the job; checkpoint {name!r} was refused"
            raise LeaseLost(message)
        self._own("_checkpoints", dict)[name] = json.loads(text)

    def run(
        self,
        command: Sequence[str | Path],
        *,
        timeout: Seconds | None = None,
        input: str | bytes | None = None,  # noqa: A002 - the contract's name, and subprocess's
        on_line: Callable[[str], None] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Run a program to its end and return what it printed.

        It belongs to the attempt: it dies with it. Raises ProcessFailed with exit code, signal and the tail of
        stderr when it does not end well. With `on_line` of a long output only the last part is returned. `env`: more
        variables for it; those that open Mulligan's database and mail it gets only so.
        """
        _not_in_a_coroutine("run")
        program, given, limit = self._program(command, input, timeout, env)
        return self._run(program, given, limit, on_line)

    async def run_async(
        self,
        command: Sequence[str | Path],
        *,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the program's limit, not the caller's patience
        input: str | bytes | None = None,  # noqa: A002 - same
        on_line: Callable[[str], None] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:
        program, given, limit = self._program(command, input, timeout, env)
        return await in_a_thread(lambda: self._run(program, given, limit, on_line), program.stop)

    def _program(
        self,
        command: Sequence[str | Path],
        given: str | bytes | None,
        timeout: Seconds | None,
        env: Mapping[str, str] | None,
    ) -> tuple[Program, bytes | None, float | None]:
        """Checked before anything is started."""
        if isinstance(command, str | bytes) or not command:
            message = f"run({command!r}): a command is a list, the program first: ['ffprobe', '-v', 'error', path]"
            raise Refused(message)
        data = _bytes(given)
        limit = None if timeout is None else length("timeout", timeout) / SECOND
        self._started += 1
        mark = f"{self._link.mark(self)}/{self._started}"
        given_on = {**self._link.tracer.environment(self.lease), **(env or {})}
        return Program([str(part) for part in command], self.workdir, mark, given_on), data, limit

    def _run(
        self,
        program: Program,
        given: bytes | None,
        timeout: float | None,
        on_line: Callable[[str], None] | None,
    ) -> str:
        programs: set[Program] = self._own("_programs", set)
        programs.add(program)
        try:
            if self.stop_asked:
                program.stop()
            return program.run(given, timeout, on_line)
        finally:
            programs.discard(program)

    def _own(self, name: str, made: Callable[[], Any]) -> Any:
        """Its own instead of everybody's, from when it is first changed; whichever thread comes first."""
        return self.__dict__.setdefault(name, made())

    # -- for the runner ---------------------------------------------------------------------------
    def traced(self) -> AbstractContextManager[Ended]:
        return self._link.tracer.attempt(self.lease)

    def ask_to_stop(self) -> None:
        self.stop_asked = True
        for program in list(self._programs):
            program.stop()

    @property
    def untidy(self) -> bool:
        """Something may be left of this attempt: programs, files."""
        return self._started > 0 or self._workdir is not None

    def tidy(self) -> None:
        """Blocks for as long as it takes to look at every process and to remove every file."""
        if self._started:
            kill_marked(self._link.mark(self))
        if self._workdir is not None:
            self._link.remove_workdir(self)


def _not_in_a_coroutine(name: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    message = f"ctx.{name}() would stop every job on this loop; in an async handler write: await ctx.{name}_async(...)"
    raise RuntimeError(message)


def _bytes(given: str | bytes | None) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    try:
        return given.encode()
    except (AttributeError, UnicodeEncodeError):
        message = f"run(input=...): text or bytes, not {given!r:.80}"
        raise Refused(message) from None


def job_of(lease: Lease) -> Job:
    """A running job as its own handler sees it."""
    return Job(
        id=lease.id,
        kind=lease.kind,
        queue=lease.queue,
        owner=lease.owner,
        state=State.RUNNING,
        phase="running",
        why=f"attempt {lease.attempt} is running",
        payload=json.loads(lease.payload),
        result=None,
        priority=lease.priority,
        progress=None,
        attempt=lease.attempt,
        attempts=lease.attempt,
        failures=lease.failures,
        losses=lease.losses,
        max_retries=lease.max_retries,
        generation=lease.generation,
        token=lease.token,
        batch_id=lease.batch_id,
        unique_key=lease.unique_key,
        uses=tuple(filter(None, lease.uses.split(","))),
        created_at=to_datetime(lease.created_at),
        run_at=to_datetime(lease.run_at),
        started_at=to_datetime(lease.started_at),
        finished_at=None,
        deadline_at=_moment(lease.deadline_at),
        error=None,
        next_retry_at=None,
        deduplicated=False,
        cost=0.0,
    )


def _moment(at: Micros | None) -> datetime | None:
    return None if at is None else to_datetime(at)
