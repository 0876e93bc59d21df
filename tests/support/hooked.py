"""An app whose hooks note what they see, and misbehave as the variable HOOK says."""

from __future__ import annotations

import os
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from mulligan import Context, Mulligan, Policy

app = Mulligan()
HOOK = os.environ.get("HOOK", "")
tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


def note(*words: object) -> None:
    with Path(os.environ["WITNESS"]).open("a", encoding="utf-8") as witness:
        witness.write(" ".join(map(str, words)) + "\n")


def misbehave(place: str) -> None:
    """Do what HOOK says, if it names this place: "before raises"."""
    where, _, what = HOOK.partition(" ")
    if where != place:
        return
    if what == "raises":
        message = "the hook is broken"
        raise RuntimeError(message)
    if what == "hangs":
        time.sleep(3600)
    if what == "spins":
        re.match(r"(a+)+$", "a" * 60 + "b")  # holds the GIL
    if what == "exits":
        os._exit(3)


@app.around(timeout=0.5)
@contextmanager
def outer(ctx: Context) -> Iterator[None]:
    note("outer before", ctx.job.kind)
    tenant.set("acme")
    misbehave("before")
    try:
        yield
    except ValueError:
        note("outer saw ValueError")  # swallowed
    finally:
        misbehave("after")
        note("outer after", ctx.job.kind)


@app.around(timeout=0.5)
async def inner(ctx: Context) -> AsyncIterator[None]:
    note("inner before", ctx.job.kind)
    yield
    note("inner after", ctx.job.kind)


@app.on_failure(timeout=0.5)
def failed(job: Any, attempt: int, failure: Any) -> None:
    note("failed", job.kind, attempt, failure.code)
    misbehave("failure")


@app.job(policy=Policy(max_retries=0, max_losses=0), timeout=20)
def sync_work(fail: bool = False) -> str:
    note("handler sync_work", tenant.get())
    if fail:
        message = "no"
        raise ValueError(message)
    return "done"


@app.job(policy=Policy(max_retries=0, max_losses=0), timeout=20)
async def async_work(fail: bool = False) -> str:
    note("handler async_work", tenant.get())
    if fail:
        message = "no"
        raise ValueError(message)
    return "done"


@app.job(policy=Policy(max_retries=0, max_losses=0), timeout=20, isolate=True)
def isolated_work(fail: bool = False) -> str:
    return sync_work(fail=fail)


@app.job(policy=Policy(max_retries=0), timeout=0.5)
def late_work() -> None:
    time.sleep(3600)


@app.job(policy=Policy(max_retries=0, max_losses=0))
def deadly_work() -> None:
    os._exit(9)
