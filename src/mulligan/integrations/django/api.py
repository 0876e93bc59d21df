"""Django's task API: `django.tasks`, or the backport `django_tasks` on Django 5.2."""

from __future__ import annotations

import django
from django.core.exceptions import ImproperlyConfigured

NO_TASKS = (
    "Django {version} has no django.tasks. Install the backport, pip install django-tasks, or use "
    "Django 6.0 or newer."
)

if django.VERSION >= (6, 0):
    from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
else:
    try:
        from django_tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    except ModuleNotFoundError as error:
        raise ImproperlyConfigured(NO_TASKS.format(version=django.__version__)) from error
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

__all__ = [
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
