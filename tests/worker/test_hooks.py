"""Hooks in `run_inline` and `mulligan.testing`, and how they are registered."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from mulligan import Context, Mulligan, Policy, State
from mulligan.core.errors import ConfigError
from mulligan.doctor.runtime import runtime_checks


@pytest.mark.parametrize("is_async", [False, True])
def test_hooks_nest_around_a_handler_in_the_order_of_registration(
    app: Mulligan, is_async: bool
) -> None:
    seen: list[str] = []

    @app.around
    def first(ctx: Context) -> Iterator[None]:
        seen.append(f"first {ctx.job.kind} {ctx.attempt}")
        yield
        seen.append("first left")

    @app.around
    @asynccontextmanager
    async def second() -> AsyncIterator[None]:
        seen.append("second")
        yield
        seen.append("second left")

    @app.around(timeout=5)
    @contextmanager
    def third(ctx: Context) -> Iterator[None]:
        seen.append("third")
        yield
        seen.append("third left")

    if is_async:

        @app.job(name="work")
        async def work_async() -> None:
            seen.append("handler")

    else:

        @app.job(name="work")
        def work() -> None:
            seen.append("handler")

    job = app.enqueue("work")
    app.run_inline()
    assert job.refresh().state is State.SUCCEEDED
    assert seen == [
        "first work 1",
        "second",
        "third",
        "handler",
        "third left",
        "second left",
        "first left",
    ]


def test_a_hook_sees_what_the_handler_raised_and_cannot_change_it(app: Mulligan) -> None:
    seen: list[BaseException] = []

    @app.around
    def swallow() -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            seen.append(error)

    @app.around
    def replace() -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            message = "another error"
            raise OSError(message) from error

    @app.job(policy=Policy(max_retries=0))
    def work() -> None:
        raise KeyError("AT")

    job = work.enqueue()
    app.run_inline()
    assert [repr(error) for error in seen] == ["KeyError('AT')"]
    dead = job.refresh()
    assert dead.state is State.DEAD
    assert "KeyError" in app.jobs.attempts(job.id)[0].private
    [found] = _doctor(app)
    assert "replace" in found
    assert "failed once" in found
    assert "OSError: another error" in found


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failure_hook_gets_the_job_the_attempt_and_the_classified_failure(
    app: Mulligan, is_async: bool
) -> None:
    seen: list[Any] = []

    if is_async:

        @app.on_failure
        async def note_async(job: Any, attempt: int, failure: Any) -> None:
            seen.append((job.id, job.owner, attempt, failure.code, failure.cls))

    else:

        @app.on_failure
        def note(job: Any, attempt: int, failure: Any) -> None:
            seen.append((job.id, job.owner, attempt, failure.code, failure.cls))

    @app.job(policy=Policy(max_retries=0))
    def work(fail: bool) -> None:
        if fail:
            raise ConnectionRefusedError

    job = work.options(owner="acme").enqueue(fail=True)
    work.enqueue(fail=False)
    app.run_inline()
    assert seen == [(job.id, "acme", 1, "CONNECTION", "transient")]


def test_a_failure_hook_that_raises_is_counted_and_changes_nothing(app: Mulligan) -> None:
    @app.on_failure
    def broken(job: Any, attempt: int, failure: Any) -> None:
        raise SystemExit(3)

    @app.job(policy=Policy(max_retries=0))
    async def work() -> None:
        raise ConnectionRefusedError

    jobs = [work.enqueue() for _ in range(3)]
    app.run_inline()
    assert {job.refresh().error["code"] for job in jobs} == {"CONNECTION"}
    [found] = _doctor(app)
    assert "failed 3 times" in found
    assert "SystemExit: 3" in found


def test_an_async_hook_that_hangs_is_cancelled_after_its_time_limit(app: Mulligan) -> None:
    @app.around(timeout=0.05)
    async def hang() -> AsyncIterator[None]:
        await _forever()
        yield

    @app.job
    async def work() -> str:
        return "done"

    @app.job
    def sync_work() -> str:
        return "done"

    jobs = [work.enqueue(), sync_work.enqueue()]
    app.run_inline()
    assert {job.refresh().state for job in jobs} == {State.SUCCEEDED}
    assert "did not return within 0.05 s" in _doctor(app)[0]


async def _forever() -> None:
    import asyncio

    await asyncio.Event().wait()


def test_a_sync_hook_runs_on_the_thread_of_its_sync_handler(app: Mulligan) -> None:
    threads: set[int] = set()

    @app.around
    def note() -> Iterator[None]:
        threads.add(threading.get_ident())
        yield

    @app.job
    def work() -> None:
        threads.add(threading.get_ident())

    work.enqueue()
    app.run_inline()
    assert len(threads) == 1


def test_deliveries_and_probes_have_no_hooks(app: Mulligan) -> None:
    seen: list[str] = []

    @app.around
    def note(ctx: Context) -> Iterator[None]:
        seen.append(ctx.job.kind)
        yield

    @app.on("job.succeeded", filter="kind:work")
    def react(event: Any) -> None:
        pass

    app.dependency("gateway", probe=lambda: True)

    @app.job(name="work", uses="gateway")
    def work() -> None:
        pass

    work.enqueue()
    app.run_inline()
    assert {kind.rpartition(".")[2] for kind in seen} == {"work", "react"}


def test_functions_that_are_no_hooks_are_refused(app: Mulligan) -> None:
    async def coroutine() -> None:
        pass

    with pytest.raises(ConfigError, match="is a coroutine function"):
        app.around(coroutine)
    with pytest.raises(ConfigError, match="one argument: the Context"):
        app.around(lambda a, b: None)
    with pytest.raises(ConfigError, match="three arguments: job, attempt and failure"):
        app.on_failure(lambda job: None)
    with pytest.raises(ConfigError, match="takes a function, not 3"):
        app.around(3)  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="longer than 0"):
        app.around(timeout=0)(contextmanager(lambda: iter([None])))


def _doctor(app: Mulligan) -> list[str]:
    checks = runtime_checks(app.store, app.settings)
    return [check.found for check in checks if check.check == "hooks"]
