"""Mulligan's options of a Django task: `@task(policy=…)`, `configure(…)` and `using(…)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from mulligan.core.errors import Duration, DurationOrTime
from mulligan.core.job import Unique
from mulligan.core.suggest import describe_unknown
from mulligan.failures.rules import Rule
from mulligan.integrations.django.api import InvalidTask, Task
from mulligan.retries.policy import Policy

Uses = str | Sequence[str] | Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MulliganTask(Task):  # type: ignore[misc]  # Django is not typed
    """Task with the options of `@app.job`, and those of one enqueue. None: the default."""

    # Options are not hashed, because lists and policies have no hash.
    # Of the task: part of its declaration.
    title: str = field(default="", hash=False, repr=False)
    uses: str | Sequence[str] | Callable[[Any], Any] | None = field(
        default=None, hash=False, repr=False
    )
    isolate: bool = field(default=False, hash=False, repr=False)
    once: bool = field(default=False, hash=False, repr=False)
    memory_limit: int | None = field(default=None, hash=False, repr=False)
    stall: Duration | None = field(default=None, hash=False, repr=False)
    log: int | None = field(default=None, hash=False, repr=False)
    rules: Rule | Sequence[Rule] = field(default=(), hash=False, repr=False)
    shadow: Policy | None = field(default=None, hash=False, repr=False)
    retention: Duration | None = field(default=None, hash=False, repr=False)
    cost: float | None = field(default=None, hash=False, repr=False)
    editable: str | Sequence[str] = field(default=(), hash=False, repr=False)
    index: str | Sequence[str] = field(default=(), hash=False, repr=False)
    version: int = field(default=1, hash=False, repr=False)
    upcast: Mapping[int, Any] | None = field(default=None, hash=False, repr=False)
    # Of the task, or of one enqueue: `send.using(timeout=60)`.
    policy: Policy | None = field(default=None, hash=False, repr=False)
    max_attempts: int | None = field(default=None, hash=False, repr=False)
    timeout: Duration | None = field(default=None, hash=False, repr=False)
    unique: str | Unique | None = field(default=None, hash=False, repr=False)
    # Of one enqueue.
    owner: str = field(default="", hash=False, repr=False)
    deadline: DurationOrTime | None = field(default=None, hash=False, repr=False)
    batch: Any = field(default=None, hash=False, repr=False)

    def using(self, **changes: Any) -> MulliganTask:
        """Return the task with other values, of Django's fields or of these options."""
        _check_names(changes, {*USING_FIELDS, *ENQUEUE_OPTIONS}, "using()")
        changed: MulliganTask = replace(self, **changes)
        return changed

    @property
    def declared_options(self) -> dict[str, Any]:
        """Options that differ from their defaults."""
        return {
            spec.name: getattr(self, spec.name)
            for spec in fields(self)
            if spec.name in TASK_OPTIONS and getattr(self, spec.name) != spec.default
        }


DJANGO_FIELDS = frozenset(spec.name for spec in fields(Task))
USING_FIELDS = ("priority", "queue_name", "run_after", "backend")
# Options of an enqueue that a declaration may have too, and the others.
SHARED_OPTIONS = ("policy", "max_attempts", "timeout", "unique")
ENQUEUE_OPTIONS = (*SHARED_OPTIONS, "owner", "deadline", "batch")
TASK_OPTIONS = frozenset(
    spec.name
    for spec in fields(MulliganTask)
    if spec.name not in DJANGO_FIELDS and spec.default is not MISSING
)


def configure(task: Any = None, /, **options: Any) -> Any:
    """Return a task with Mulligan's options, for example `configure(send, policy=…)`.

    Also a decorator, above `@task`: `@configure(policy=…, uses="relay")`. For Django 6.0, whose
    `@task` takes no further options. A task of another backend is returned unchanged, so that
    tests can use Django's own backends.
    """
    _check_names(options, TASK_OPTIONS, "configure()")
    if task is None:
        return lambda declared: configure(declared, **options)
    if not isinstance(task, Task):
        message = f"configure() takes a task, not {task!r:.80}. Write @configure(…) above @task."
        raise InvalidTask(message)
    if not isinstance(task, MulliganTask):
        return task
    return replace(task, **options)


def _check_names(options: Mapping[str, Any], known: Any, where: str) -> None:
    for name in options:
        if name not in known:
            raise InvalidTask(describe_unknown(where, name, sorted(known)))


def combine_policy(task: MulliganTask, default: Policy | None) -> Policy | None:
    """Return the policy of a task. `max_attempts` counts the first attempt too, as in Django."""
    policy = task.policy if task.policy is not None else default
    if task.max_attempts is None:
        return policy
    if isinstance(task.max_attempts, bool) or not isinstance(task.max_attempts, int):
        message = f"max_attempts must be a whole number, not {task.max_attempts!r:.80}"
        raise InvalidTask(message)
    if task.max_attempts < 1:
        message = f"max_attempts must be at least 1, not {task.max_attempts}"
        raise InvalidTask(message)
    retries = task.max_attempts - 1
    return Policy(max_retries=retries) if policy is None else replace(policy, max_retries=retries)
