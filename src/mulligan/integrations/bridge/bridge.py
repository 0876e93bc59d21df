"""Connect a host queue and an app: which tasks, what their jobs do, and how reports are made."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

from mulligan.app.mulligan import Mulligan
from mulligan.config import RetrySection
from mulligan.core.attempt import Failure
from mulligan.core.durations import SECOND, Micros, check_duration
from mulligan.core.errors import ConfigError, Duration, Fail, HandedOver, PayloadRefused
from mulligan.core.job import Unique
from mulligan.failures.rules import Rule
from mulligan.integrations.bridge.decider import Decider, HostOrder, call_within
from mulligan.integrations.bridge.recorder import ALL_STATES, RecordContext, Recorded, record
from mulligan.integrations.bridge.report import RunEnd, TaskReport, kind_name, new_report_id
from mulligan.integrations.bridge.spool import Courier, Spool
from mulligan.jobs.options import MAX_RETRIES_LIMIT
from mulligan.manifest.arguments import to_json
from mulligan.manifest.specs import Handler
from mulligan.retries.effective import EffectivePolicies
from mulligan.retries.policy import Policy
from mulligan.worker.liveness import state_folder
from mulligan.worker.runner.context import Context
from mulligan.worker.runner.execute import make_classifier
from mulligan.worker.runner.outcomes import outcome_of_exception

log = logging.getLogger("mulligan.bridge")

WATCH, DECIDE = "watch", "decide"
MODES = (WATCH, DECIDE)
DEFAULT_WAIT = 0.2  # seconds that a task of the host may be kept
DEFAULT_SILENT_AFTER = 86_400  # seconds without an outcome
MARK = "mulligan"  # header of a task that was sent again: the generation of its job
HOST_SILENT = "HOST_SILENT"


class Host(Protocol):
    """A job queue that a bridge is attached to."""

    name: str

    def task_names(self) -> Iterable[str]:
        """Return the names of all tasks, loading their modules."""

    def send(self, payload: Mapping[str, Any], generation: int) -> None:
        """Send a task again, under its id, marked with the generation of its job."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Tasks that one call of `attach` is about, and what it says about them."""

    mode: str
    only: tuple[str, ...]
    options: Mapping[str, Any]  # of @app.job: uses, policy, rules

    def covers(self, task: str) -> bool:
        return any(fnmatchcase(task, pattern) for pattern in self.only)


class Bridge:
    """The failure layer of an app on a host queue."""

    def __init__(self, host: Host, app: Mulligan) -> None:
        self.host = host
        self.app = app
        self.scopes: list[Scope] = []  # the newest first
        self.silent_after: float = DEFAULT_SILENT_AFTER
        self._kinds: dict[str, Handler] = {}  # by task
        self._registering = threading.RLock()
        self.decider = Decider(app, self.context_of)
        self.courier = Courier(
            Spool(self._spool_folder()), self._deliver, self.decider.flush, DEFAULT_WAIT
        )
        app.registry.late_declarations.append(self.register_tasks)

    def _spool_folder(self) -> Path:
        settings = self.app.settings
        identity = hashlib.sha256(settings.database_url.encode()).hexdigest()[:16]
        folder = state_folder(settings.worker.state_dir, "", identity)
        return folder / f"spool-{self.host.name}"

    def add_scope(self, scope: Scope) -> None:
        """Add the tasks of one call of `attach`. The newest call that covers a task counts."""
        with self._registering:
            for handler in self._kinds.values():
                self.app.registry.handlers.pop(handler.spec.name, None)
            self._kinds.clear()
            self.scopes.insert(0, scope)

    def scope_of(self, task: str) -> Scope | None:
        """Return the scope of a task; None if it is not attached."""
        return next((scope for scope in self.scopes if scope.covers(task)), None)

    def decides(self, task: str) -> bool:
        """True if Mulligan decides about the retries of a task."""
        scope = self.scope_of(task)
        return scope is not None and scope.mode == DECIDE

    # --- Kinds ---

    def register_tasks(self) -> None:
        """Register a kind for each task, so that workers can send it again."""
        for task in self.host.task_names():
            if self.scope_of(task) is not None:
                self.handler_of(task)

    def handler_of(self, task: str) -> Handler:
        """Return the handler of a task's kind. Register it on first use."""
        with self._registering:
            handler = self._kinds.get(task)
            if handler is None:
                handler = self._kinds[task] = self._register(task)
            return handler

    def _register(self, task: str) -> Handler:
        scope = self.scope_of(task)
        kind = self.app.job(
            name=kind_name(self.host.name, task),
            title=f"{task} {{task_id}}",
            queue=self.host.name,
            timeout=60,
            unique=Unique(by="payload.task_id", while_=ALL_STATES),
            index=("task_id",),
            can_retry=refuse_unsendable,
            **({} if scope is None else scope.options),
        )(self._make_handler())
        # A worker only sends it: how that ends says nothing about a dependency.
        handler = replace(kind.handler, spec=replace(kind.handler.spec, hosted=True))
        self.app.registry.handlers[kind.name] = handler
        return handler

    def _make_handler(self) -> Callable[..., HandedOver | Fail]:
        def send_again(
            ctx: Context,
            task: str,
            task_id: str,
            args: list[Any] | None = None,
            kwargs: dict[str, Any] | None = None,
            options: dict[str, Any] | None = None,
            unsendable: str = "",  # noqa: ARG001 - can_retry= reads it
        ) -> HandedOver | Fail:
            payload = {
                "task": task,
                "task_id": task_id,
                "args": args or [],
                "kwargs": kwargs or {},
                "options": options or {},
            }
            return self._hand_over(ctx, payload)

        return send_again

    def _hand_over(self, ctx: Context, payload: Mapping[str, Any]) -> HandedOver | Fail:
        """Send the task once per manual retry, then wait for the host to report its end."""
        job, name = ctx.job, self.host.name
        mark = f"{name}-{job.generation}-{job.failures}"
        if mark in ctx.checkpoints:
            hours = self.silent_after / 3600
            public = f"{name} reported no outcome of the task for {hours:g} h."
            return Fail(HOST_SILENT, public=public, final=True)
        if job.generation > 1 and not job.failures:
            self.host.send(payload, job.generation)
        ctx.checkpoint(mark, True)
        return HandedOver(self.silent_after, f"{name} runs the task; waiting for its outcome")

    # --- Reports ---

    def capture(self, task: str, error: BaseException) -> Failure:
        """Classify what a task raised, as a runner does. Never raises."""
        handler = self.handler_of(task)
        classify = make_classifier(handler, handler.spec.uses)
        failure = outcome_of_exception(error, self.now(), classify).failure
        if failure is None:  # an outcome of Mulligan that is no failure, such as Snooze
            failure = outcome_of_exception(RuntimeError(repr(error)), self.now(), classify).failure
        assert failure is not None  # noqa: S101 - a RuntimeError is a failure
        return failure

    def publish(self, task: str, task_id: str, end: RunEnd, **facts: Any) -> None:
        """Report a run of a task. The host waits for at most `wait` seconds. Never raises."""
        try:
            report = self.build_report(task, task_id, end, **facts)
            if not self.courier.send(report):
                log.warning("the report of task %s is not written yet", task_id)
        except Exception:
            log.exception("task %s was not reported", task_id)

    def quietly(self, call: Callable[[], None]) -> None:
        """Call, and log what it raises: the host must not notice it."""
        try:
            call()
        except Exception:
            log.exception("%s was not observed", self.host.name)

    def decide(self, task: str, task_id: str, **facts: Any) -> HostOrder | None:
        """Record a failure and return what the host must do; None: as it does without us.

        Takes at most `wait` seconds and never raises.
        """
        try:
            report = self.build_report(task, task_id, RunEnd.RETRYING, **facts)
            return call_within(self.courier.wait, lambda: self.decider.decide(report))
        except Exception:
            log.exception("task %s was not decided", task_id)
            return None

    def postpone(self, task: str) -> float:
        """Return for how many seconds a task must not run, because a gate is closed."""
        try:
            spec = self.handler_of(task).spec
            found = call_within(self.courier.wait, lambda: self.decider.closed_for(spec))
        except Exception:
            log.exception("the gates of task %s are unknown", task)
            return 0.0
        return found or 0.0

    def succeeded(self, task: str) -> None:
        """Count a success of a task that Mulligan decides about. Never raises."""
        try:
            self.decider.count_success(self.handler_of(task).spec)
        except Exception:
            log.exception("a success of task %s was not counted", task)

    def build_report(  # noqa: PLR0913 - one argument per fact
        self,
        task: str,
        task_id: str,
        end: RunEnd,
        *,
        error: BaseException | None = None,
        payload: Mapping[str, Any] | None = None,
        retry_at: Micros | None = None,
        max_retries: int | None = None,
        run: int | None = None,
        generation: int | None = None,
        worker: str = "",
    ) -> TaskReport:
        """Build a report about a task."""
        if payload is not None:
            payload = self._bounded({"task": task, "task_id": task_id, **payload})
        return TaskReport(
            id=new_report_id(),
            host=self.host.name,
            task=task,
            task_id=task_id,
            end=end,
            at=self.now(),
            worker=worker,
            payload=payload,
            failure=None if error is None else self.capture(task, error),
            retry_at=retry_at,
            max_retries=max_retries,
            run=run,
            generation=generation,
        )

    def _bounded(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the payload, without its arguments if they are too large to store."""
        try:
            self.app.build_job(self.handler_of(payload["task"]).spec.name, payload)
        except PayloadRefused as refused:
            return {
                "task": payload["task"],
                "task_id": payload["task_id"],
                "unsendable": f"{refused}"[:500],
            }
        return payload

    def _deliver(self, report: TaskReport) -> bool:
        """Record a report of the spool. False: its job is busy; try again."""
        result, _ = record(self.app.store, report, self.context_of(report, decide=False))
        return result is not Recorded.BUSY

    def context_of(self, report: TaskReport, *, decide: bool) -> RecordContext:
        """Return what recording a report depends on."""
        spec = self.handler_of(report.task).spec
        payload = report.payload or {"task": report.task, "task_id": report.task_id}
        max_retries = None
        if not self.decides(report.task):
            max_retries = MAX_RETRIES_LIMIT if report.max_retries is None else report.max_retries
        new = self.app.build_job(spec.name, payload, max_retries=max_retries)
        retry = self.app.settings.retry if decide else RetrySection()
        policies = EffectivePolicies(retry, {spec.name: spec})
        return RecordContext(new, policies, self.decider.observer if decide else None)

    def now(self) -> Micros:
        return time.time_ns() // 1000


def storable_arguments(args: Any, kwargs: Any, options: Any) -> dict[str, Any]:
    """Return the arguments of a task for its payload, if they are JSON."""
    arguments = {"args": args, "kwargs": kwargs, "options": options}
    try:
        to_json(arguments, "the task")
    except PayloadRefused as refused:
        return {"unsendable": str(refused)[:500]}
    return arguments


def refuse_unsendable(unsendable: str = "") -> str | None:
    """Refuse to send a task again whose arguments were not stored."""
    if not unsendable:
        return None
    return f"the arguments of the task were not stored: {unsendable}"


# --- attach ---

_bridges: dict[tuple[str, int, int], Bridge] = {}


def find_bridge(host: Host, host_app: Any, app: Mulligan) -> tuple[Bridge, bool]:
    """Return the bridge of two apps, and whether it is new."""
    key = (host.name, id(host_app), id(app))
    if key in _bridges:
        return _bridges[key], False
    _bridges[key] = Bridge(host, app)
    return _bridges[key], True


def make_scope(
    mode: str,
    only: str | Sequence[str],
    uses: Any,
    policy: Policy | None,
    rules: Rule | Sequence[Rule],
) -> Scope:
    """Check the options of `attach`."""
    if mode not in MODES:
        raise ConfigError(f'unknown mode {mode!r}. Use "watch" or "decide".')
    patterns = (only,) if isinstance(only, str) else tuple(only)
    if not patterns or not all(patterns):
        raise ConfigError(f'only={only!r}: use patterns of task names, such as ["billing.*"]')
    options = {"uses": uses, "policy": policy, "rules": rules}
    return Scope(mode, patterns, options)


def check_seconds(name: str, value: Duration) -> float:
    """Return a duration in seconds."""
    return check_duration(name, value) / SECOND


def all_bridges() -> list[Bridge]:
    """Return the bridges of this process."""
    return list(_bridges.values())
