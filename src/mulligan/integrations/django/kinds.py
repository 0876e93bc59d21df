"""Tasks as kinds of Mulligan: which tasks there are, and the handler of each.

A kind is named after the path of its task function. The task that the module holds under this name
is its declaration, so that `configure()` may replace what `@task` has made.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from django.apps import apps
from django.utils.module_loading import autodiscover_modules

from mulligan.app.mulligan import Mulligan
from mulligan.core.job import Unique
from mulligan.integrations.django.api import Task
from mulligan.integrations.django.databases import BackendOptions
from mulligan.integrations.django.options import MulliganTask, combine_policy
from mulligan.integrations.django.payloads import POSITIONAL, spread_unique, task_signature
from mulligan.integrations.django.priorities import mulligan_priority
from mulligan.integrations.django.results import find_task
from mulligan.integrations.django.task_run import run_task, run_task_async
from mulligan.worker.runner.context import Context

# Paths of all task functions that were declared or enqueued in this process.
_declared: dict[str, Any] = {}


def remember_task(task: Any) -> None:
    """Note that a task exists. Django calls the backend for every task that is made."""
    _declared.setdefault(task.module_path, task)


def discover_tasks(app: Mulligan, backends: Mapping[str, BackendOptions]) -> None:
    """Import the task modules of all installed apps, and register their tasks."""
    modules = sorted({name for options in backends.values() for name in options.modules})
    autodiscover_modules(*modules)
    found = {**_declared, **dict(_tasks_in_modules(modules))}
    for path, task in found.items():
        declared = find_task(path) or task
        alias = declared.backend if declared.backend in backends else next(iter(backends))
        register_task(app, declared, alias, backends[alias])


def _tasks_in_modules(modules: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the tasks of another backend too: `using(backend=…)` may enqueue them here."""
    for config in apps.get_app_configs():
        for name in modules:
            module = sys.modules.get(f"{config.name}.{name}")
            for value in list(vars(module).values()) if module is not None else ():
                if isinstance(value, Task):
                    yield value.module_path, value


def register_task(app: Mulligan, task: Any, alias: str, options: BackendOptions) -> None:
    """Register the kind of a task, unless this process has registered it already."""
    name = task.module_path
    if name in app.registry.handlers:
        return
    chosen: dict[str, Any] = {}
    policy = options.policy
    if isinstance(task, MulliganTask):
        chosen = task.declared_options
        policy = combine_policy(task, options.policy)
        chosen.pop("max_attempts", None)
    signature = task_signature(task.func, takes_context=task.takes_context)
    if isinstance(chosen.get("unique"), Unique):
        chosen["unique"] = spread_unique(chosen["unique"], signature)
    chosen |= {
        "name": name,
        "queue": task.queue_name,
        "priority": mulligan_priority(task.priority),
        "policy": policy,
    }
    app.job(**chosen)(build_function(app, task, alias))


# --- Handlers ---

ATTEMPT = "_attempt"  # parameter of the handler


def build_function(app: Mulligan, task: Any, alias: str) -> Callable[..., Any]:
    """Return the handler of a task: the task function, with Django's signals around it."""

    def handle(*, _attempt: Context, **payload: Any) -> Any:
        return run_task(app, task, alias, _attempt, payload)

    async def handle_async(*, _attempt: Context, **payload: Any) -> Any:
        return await run_task_async(app, task, alias, _attempt, payload)

    is_async = inspect.iscoroutinefunction(task.func)
    handler: Any = handle_async if is_async else handle
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(handler, name, getattr(task.func, name))
    handler.__annotations__ = {ATTEMPT: Context}
    handler.__wrapped__ = task.func  # releases are found by its source file
    handler.__signature__ = _handler_signature(task)
    function: Callable[..., Any] = handler
    return function


def _handler_signature(task: Any) -> inspect.Signature:
    """Return the parameters of a handler: the attempt, and the task's arguments by name.

    They have no annotations: Django passes JSON values to a task unchanged.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(ATTEMPT, keyword, annotation=Context)]
    last = []
    signature = task_signature(task.func, takes_context=task.takes_context)
    for parameter in signature.parameters.values():
        bare = parameter.replace(annotation=inspect.Parameter.empty)
        if parameter.kind is parameter.VAR_KEYWORD:
            last = [bare]
        elif parameter.kind is parameter.VAR_POSITIONAL:
            parameters.append(bare.replace(kind=keyword, default=()))
        else:
            parameters.append(bare.replace(kind=keyword))
    parameters.append(inspect.Parameter(POSITIONAL, keyword, default=0))
    return inspect.Signature([*parameters, *last])
