"""Hooks of the app in real workers: whatever they do, the outcomes of jobs stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mulligan import Job, Mulligan, State
from mulligan.doctor.runtime import runtime_checks
from support.waiting import until
from support.worker import Worker

Run = Callable[..., Worker]
KINDS = ("sync_work", "async_work", "isolated_work")


@pytest.fixture
def run(store_url: str, tmp_path: Path) -> Iterator[Run]:
    """Start a worker of the app with hooks; `hook` says what one of them does."""
    workers: list[Worker] = []

    def begin(hook: str = "") -> Worker:
        worker = Worker(store_url, tmp_path, app="support.hooked:app", environ={"HOOK": hook})
        workers.append(worker)
        return worker.ready()

    yield begin
    for worker in workers:
        worker.process.kill()
        worker.process.wait()


@pytest.fixture
def notes(tmp_path: Path) -> Callable[[], list[str]]:
    """Return what hooks and handlers have noted."""

    def read() -> list[str]:
        witness = tmp_path / "witness"
        return witness.read_text().splitlines() if witness.exists() else []

    return read


def outcomes(app: Mulligan) -> dict[str, tuple[str, str | None, int, int]]:
    """Run each kind once with and once without a failure. Return how the jobs ended."""
    jobs: dict[str, Job] = {}
    for kind in KINDS:
        jobs[kind] = app.enqueue(kind)
        jobs[f"failing {kind}"] = app.enqueue(kind, {"fail": True})
    ended = {name: app.jobs.wait(job.id, 60) for name, job in jobs.items()}
    return {
        name: (job.state, (job.error or {}).get("code"), job.failures, job.losses)
        for name, job in ended.items()
    }


EXPECTED = {
    name: state
    for kind in KINDS
    for name, state in (
        (kind, (State.SUCCEEDED, None, 0, 0)),
        (f"failing {kind}", (State.DEAD, "UNKNOWN_ERROR", 1, 0)),
    )
}


def test_hooks_surround_every_attempt_in_the_order_of_registration(
    app: Mulligan, run: Run, notes: Callable[[], list[str]]
) -> None:
    run()
    for kind, tenant in (("sync_work", "acme"), ("async_work", "acme")):
        job = app.enqueue(kind)
        assert app.jobs.wait(job.id, 20).state is State.SUCCEEDED
        until(lambda kind=kind: f"outer after {kind}" in notes(), 5)
        assert [line for line in notes() if kind in line] == [
            f"outer before {kind}",
            f"inner before {kind}",
            f"handler {kind} {tenant}",
            f"inner after {kind}",
            f"outer after {kind}",
        ]


def test_a_hook_that_swallows_the_exception_of_a_handler_does_not_save_its_job(
    app: Mulligan, run: Run, notes: Callable[[], list[str]]
) -> None:
    run()
    assert outcomes(app) == EXPECTED
    until(lambda: notes().count("failed sync_work 1 UNKNOWN_ERROR") == 1, 5)
    assert notes().count("outer saw ValueError") == len(KINDS)
    assert notes().count("failed async_work 1 UNKNOWN_ERROR") == 1


@pytest.mark.parametrize("place", ["before", "after", "failure"])
@pytest.mark.parametrize("what", ["raises", "hangs", "spins", "exits"])
def test_a_misbehaving_hook_changes_no_outcome_and_doctor_names_it(
    app: Mulligan, run: Run, place: str, what: str
) -> None:
    worker = run(f"{place} {what}")
    assert outcomes(app) == EXPECTED
    hook = "support.hooked.failed" if place == "failure" else "support.hooked.outer"
    until(lambda: _doctor(app, hook), 20)
    [found] = _doctor(app, hook)
    reason = {
        "raises": "RuntimeError: the hook is broken",
        "hangs": "did not return",
        "spins": "did not return",
        "exits": "exit code 3",
    }
    assert reason[what] in found
    assert hook in worker.log.read_text()


def test_failures_that_no_handler_raised_reach_the_hook(
    app: Mulligan, run: Run, notes: Callable[[], list[str]]
) -> None:
    run()
    late = app.enqueue("late_work")
    app.jobs.wait(late.id, 20)
    until(lambda: "failed late_work 1 TIMEOUT" in notes(), 10)
    deadly = app.enqueue("deadly_work")
    app.jobs.wait(deadly.id, 20)
    until(lambda: "failed deadly_work 1 PROCESS_DIED" in notes(), 10)


def _doctor(app: Mulligan, hook: str) -> list[str]:
    checks = runtime_checks(app.store, app.settings)
    return [check.found for check in checks if check.check == "hooks" and hook in check.found]
