"""Run a task in an attempt: its arguments, its context, and Django's signals around it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from traceback import format_exception
from typing import Any

from mulligan.app.mulligan import Mulligan
from mulligan.core.attempt import Ended, Failure, Outcome
from mulligan.core.errors import MulliganError, OutcomeRequest, Stopped
from mulligan.failures.adapters import qualified_name
from mulligan.integrations.django.api import (
    TaskContext,
    TaskError,
    TaskResultStatus,
    task_backends,
    task_finished,
    task_started,
)
from mulligan.integrations.django.payloads import split_payload, task_signature
from mulligan.integrations.django.results import (
    build_error,
    django_time,
    is_failed,
    new_result,
)
from mulligan.worker.runner.context import Context
from mulligan.worker.runner.execute import make_classifier
from mulligan.worker.runner.outcomes import outcome_of_exception

log = logging.getLogger("mulligan.django")


@dataclass(frozen=True, slots=True, kw_only=True)
class MulliganTaskContext(TaskContext):  # type: ignore[misc]  # Django is not typed
    """Context of a task with `takes_context=True`. `mulligan` has progress, checkpoints, steps."""

    mulligan: Context


def run_task(
    app: Mulligan, task: Any, alias: str, attempt: Context, payload: Mapping[str, Any]
) -> Any:
    """Run a sync task function. Signals are sent inside `except`, as Django does."""
    run = TaskRun(app, task, alias, attempt)
    run.load_history()
    task_started.send_robust(sender=run.sender, task_result=run.result)
    args, kwargs = run.arguments(payload)
    try:
        value = task.func(*args, **kwargs)
    except BaseException as error:
        if run.fail(error):
            task_finished.send_robust(sender=run.sender, task_result=run.result)
        raise
    if run.end(value):
        task_finished.send_robust(sender=run.sender, task_result=run.result)
    return value


async def run_task_async(
    app: Mulligan, task: Any, alias: str, attempt: Context, payload: Mapping[str, Any]
) -> Any:
    """Run an async task function."""
    run = TaskRun(app, task, alias, attempt)
    await asyncio.to_thread(run.load_history)
    await task_started.asend_robust(sender=run.sender, task_result=run.result)
    args, kwargs = run.arguments(payload)
    try:
        value = await task.func(*args, **kwargs)
    except BaseException as error:
        if run.fail(error):
            await task_finished.asend_robust(sender=run.sender, task_result=run.result)
        raise
    if run.end(value):
        await task_finished.asend_robust(sender=run.sender, task_result=run.result)
    return value


class TaskRun:
    """One attempt of a task, and its TaskResult as far as this process knows it."""

    def __init__(self, app: Mulligan, task: Any, alias: str, attempt: Context) -> None:
        lease = attempt.lease
        self._app = app
        self._task = task
        self._attempt = attempt
        self.sender = type(task_backends[alias])
        self.result = new_result(
            task,
            lease.id,
            json.loads(lease.payload),
            alias,
            status=TaskResultStatus.RUNNING,
            enqueued_at=django_time(lease.created_at),
            started_at=django_time(lease.first_started_at),
            last_attempted_at=django_time(lease.started_at),
            worker_ids=[lease.worker],
        )

    def arguments(self, payload: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of the task function."""
        signature = task_signature(self._task.func, takes_context=self._task.takes_context)
        args, kwargs = split_payload(signature, payload)
        if self._task.takes_context:
            context = MulliganTaskContext(task_result=self.result, mulligan=self._attempt)
            args.insert(0, context)
        return args, kwargs

    def load_history(self) -> None:
        """Add the workers and errors of earlier attempts. A first attempt has none."""
        lease = self._attempt.lease
        if lease.token <= 1:
            return
        try:
            attempts = [one for one in self._app.jobs.attempts(lease.id) if one.has_run]
        except MulliganError:  # the attempt itself may need no database
            log.warning("job %s: cannot read its earlier attempts", lease.id, exc_info=True)
            return
        self.result.worker_ids[:0] = [one.worker for one in attempts]
        self.result.errors.extend(build_error(one) for one in attempts if is_failed(one))

    def end(self, value: Any) -> bool:
        """Note that the function returned. False: the attempt was stopped, so nothing is sent."""
        if isinstance(value, Stopped):
            return False
        if isinstance(value, OutcomeRequest):
            self._note_outcome(value)
            return True
        self._finish(TaskResultStatus.SUCCESSFUL)
        object.__setattr__(self.result, "_return_value", value)
        return True

    def fail(self, error: BaseException) -> bool:
        """Note that the function raised. False: the attempt was stopped, so nothing is sent."""
        if isinstance(error, Stopped | asyncio.CancelledError) or self._attempt.stop_requested:
            return False
        self._note_outcome(error)
        return True

    def _note_outcome(self, error: BaseException) -> None:
        """Add the error, and the status that it most likely leads to.

        The supervisor decides. Only what this process cannot know may lead to another decision:
        the circuit breaker, a deadline, a limit of the operator.
        """
        handler = self._app.registry.handlers[self._attempt.lease.kind]
        classify = make_classifier(handler, self._attempt.lease.uses)
        outcome = outcome_of_exception(error, time.time_ns() // 1000, classify)
        if outcome.ended is Ended.FAILED:
            path = qualified_name(type(error))
            text = "".join(format_exception(error))
            self.result.errors.append(TaskError(exception_class_path=path, traceback=text))
        final = outcome.ended is Ended.CANCELLED or self._is_final(outcome, outcome.failure)
        self._finish(TaskResultStatus.FAILED if final else TaskResultStatus.READY)

    def _is_final(self, outcome: Outcome, failure: Failure | None) -> bool:
        if outcome.ended is not Ended.FAILED or failure is None:
            return False
        return outcome.final or not failure.retryable or self._attempt.ends_after(failure.cls)

    def _finish(self, status: Any) -> None:
        object.__setattr__(self.result, "status", status)
        if status != TaskResultStatus.READY:
            now = django_time(time.time_ns() // 1000)
            object.__setattr__(self.result, "finished_at", now)
