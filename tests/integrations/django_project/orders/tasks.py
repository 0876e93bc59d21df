"""Tasks of the shop."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import django

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task

from mulligan import Exponential, Fail, Policy, Snooze, Unique
from mulligan.integrations.django import configure
from orders.models import Order

SLOWLY = Exponential(base=60, jitter="none")
AT_ONCE = Exponential(base=0.01, jitter="none")


@task
def ship(order: int, *, carrier: str = "post") -> str:
    found = Order.objects.get(pk=order)
    Order.objects.filter(pk=order).update(shipped=True)
    return f"{found.item} by {carrier}"


@task(priority=42, queue_name="mail")
def mail(to: str) -> str:
    return to


@task
def collect(first: Any, /, second: Any = 2, *rest: Any, **named: Any) -> list[Any]:
    return [first, second, list(rest), named]


@task
async def look_up(order: int) -> str:
    await asyncio.sleep(0)
    return (await Order.objects.aget(pk=order)).item


@task(takes_context=True)
def count_attempts(context: Any, fail_first: bool) -> dict[str, Any]:
    if fail_first and context.attempt == 1:
        raise ConnectionError("not yet")
    context.mulligan.progress(0.5, "half way")
    return {
        "attempt": context.attempt,
        "id": context.task_result.id,
        "errors": [error.exception_class_path for error in context.task_result.errors],
        "workers": len(context.task_result.worker_ids),
    }


@configure(policy=Policy(max_retries=2, backoff=SLOWLY))
@task
def fail(message: str) -> None:
    raise ConnectionError(message)


@task
def refuse(reason: str) -> None:
    raise ValueError(reason)


@configure(policy=Policy(max_retries=1, max_losses=3, backoff=AT_ONCE), timeout=120)
@task
def wait_for(folder: str) -> str:
    """Note the process of each attempt, and return once the file `go` exists."""
    attempts = Path(folder)
    (attempts / f"{os.getpid()}.pid").touch()
    while not (attempts / "go").exists():
        time.sleep(0.05)
    return "done"


@configure(unique=Unique(), uses="relay-{host}", title="Send to {host}")
@task
def send(host: str, text: str = "") -> str:
    return host


@configure(max_attempts=1)
@task
def try_once() -> None:
    raise ConnectionError("once")


@task
def nap() -> Any:
    return Snooze(3600)


@task
def give_up() -> Any:
    return Fail("NO_STOCK", "sold out", final=True)


@task(backend="reports")
def report(year: int) -> int:
    return year


@task(backend="apart")
def notify(order: int) -> int:
    return order
