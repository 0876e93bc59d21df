"""Backend for Django's `TASKS` setting: tasks are jobs of Mulligan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from django.core import checks
from django.db import transaction
from django.utils import timezone

from mulligan.app.mulligan import Mulligan
from mulligan.core.durations import to_micros
from mulligan.core.job import NewJob, Unique
from mulligan.integrations.django.api import (
    BaseTaskBackend,
    normalize_json,
    task_enqueued,
)
from mulligan.integrations.django.checks import check_backend
from mulligan.integrations.django.databases import (
    BackendOptions,
    app_of,
    open_transaction,
    read_options,
)
from mulligan.integrations.django.kinds import register_task, remember_task
from mulligan.integrations.django.options import MulliganTask, combine_policy
from mulligan.integrations.django.payloads import build_payload, spread_unique, task_signature
from mulligan.integrations.django.priorities import mulligan_priority
from mulligan.integrations.django.results import django_time, find_task, load_result, new_result


class MulliganBackend(BaseTaskBackend):  # type: ignore[misc]  # Django is not typed
    """Enqueues tasks in Django's open transaction, and reads their results from any process.

    OPTIONS: `database` (an alias in DATABASES), `url` (if Mulligan has another database),
    `settings` (of Mulligan), `policy` (of tasks without one), `modules` (to find tasks in).
    """

    is_mulligan = True
    task_class = MulliganTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.mulligan_options: BackendOptions = read_options(alias, self.options)

    @property
    def app(self) -> Mulligan:
        """The Mulligan app behind this backend."""
        return app_of(self.mulligan_options)

    def validate_task(self, task: Any) -> None:
        """Check a task as Django does. Every task that is made passes here, so note it."""
        super().validate_task(task)
        remember_task(task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a task. It is committed with the open transaction, if there is one."""
        self.validate_task(task)
        app = self.app
        declared = self._register(app, task)
        signature = task_signature(task.func, takes_context=task.takes_context)
        payload = build_payload(
            signature, task.module_path, normalize_json(args), normalize_json(kwargs)
        )
        options = enqueue_options(task, declared)
        connection = open_transaction(self.mulligan_options)
        if connection is None or self.mulligan_options.joins:
            if connection is not None:
                options["connection"] = connection
            job = app.enqueue(task.module_path, payload, **options)
            return self._announce(task, job.id, job.payload, django_time(to_micros(job.created_at)))
        # Two databases: no task if the transaction is rolled back, none before its rows.
        new = app.build_job(task.module_path, payload, **options)
        result = new_result(task, new.id, payload, self.alias, enqueued_at=timezone.now())
        insert = partial(self._insert_later, app, new, result)
        transaction.on_commit(insert, using=self.mulligan_options.database)
        return result

    def _register(self, app: Mulligan, task: Any) -> Any:
        declared = find_task(task.module_path) or task
        register_task(app, declared, self.alias, self.mulligan_options)
        return declared

    def _announce(self, task: Any, job_id: str, payload: Any, enqueued_at: Any) -> Any:
        result = new_result(task, job_id, payload, self.alias, enqueued_at=enqueued_at)
        task_enqueued.send(sender=type(self), task_result=result)
        return result

    def _insert_later(self, app: Mulligan, new: NewJob, result: Any) -> None:
        app.insert([new])
        task_enqueued.send(sender=type(self), task_result=result)

    def get_result(self, result_id: str) -> Any:
        """Return the result of a task, also of one that another process has enqueued."""
        app = self.app
        connection = open_transaction(self.mulligan_options)
        if connection is not None and self.mulligan_options.joins:
            return load_result(app.join_transaction(connection), result_id, self.alias)
        with app.store.read() as tx:
            return load_result(tx, result_id, self.alias)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Return the findings of `manage.py check`."""
        return [*super().check(**kwargs), *check_backend(self.alias, self.mulligan_options)]


def enqueue_options(task: Any, declared: Any) -> dict[str, Any]:
    """Return the options of a job: what `using()` has changed, and queue, priority and time."""
    options: dict[str, Any] = {
        "queue": task.queue_name,
        "priority": mulligan_priority(task.priority),
    }
    if task.run_after is not None:
        options["delay"] = _aware(task.run_after)
    if isinstance(task, MulliganTask):
        options |= _mulligan_options(task, declared)
    return options


def _mulligan_options(task: MulliganTask, declared: Any) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if task.owner:
        options["owner"] = task.owner
    for name in ("deadline", "batch"):
        if getattr(task, name) is not None:
            options[name] = getattr(task, name)
    if not isinstance(declared, MulliganTask):
        declared = None
    policy = combine_policy(task, None)
    if declared is None or policy != combine_policy(declared, None):
        options["policy"] = policy
    if declared is None or task.timeout != declared.timeout:
        options["timeout"] = task.timeout
    unique = task.unique
    if isinstance(unique, Unique):
        signature = task_signature(task.func, takes_context=task.takes_context)
        unique = spread_unique(unique, signature)
    if unique is not None:
        options["unique"] = unique
    return {name: value for name, value in options.items() if value is not None}


def _aware(time: Any) -> Any:
    return time if timezone.is_aware(time) else timezone.make_aware(time)
