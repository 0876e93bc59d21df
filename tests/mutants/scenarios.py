"""Scenarios, run with and without a defect. Each returns the report of the checker.

Conditions that only a correct engine reaches are awaited with `wait_for`, which gives up quietly: a
mutant may never reach them.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mulligan import Webhook
from mulligan.doctor.verify import VerifyReport
from mutants.stage import TESTS, Stage
from support.worker import Worker, is_writable

SKEWED = str(TESTS / "mutants" / "skew")
LEASE = "8"  # seconds: a busy machine must be able to renew it
LONG = 60.0  # seconds after which a scenario continues, whether its condition holds or not
SHORT = 8.0


def wait_for(condition, timeout: float = LONG) -> bool:
    """Wait until the condition holds. Return False after the timeout."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def frozen(stage: Stage) -> VerifyReport:
    """Freeze a worker until its lease is lost and another runs its job; then it reports its ending."""
    one = stage.worker(worker__lease=LEASE)
    gates = stage.folder / "gate"
    job = stage.enqueue("gated", {"gates": str(gates)})
    stage.wait(lambda: stage.started(job), "the first attempt")
    two = stage.worker(worker__lease=LEASE)
    one.freeze(stage.url)
    stage.wait(lambda: stage.started(job, 2), "the second attempt")
    Path(f"{gates}-1").touch()
    one.stop_all(signal.SIGCONT)
    # The first attempt ends without knowing that its lease is lost.
    wait_for(lambda: stage.lines("end"), 2 * SHORT)
    wait_for(lambda: stage.state(job) != "running", SHORT)
    for token in range(2, 9):
        Path(f"{gates}-{token}").touch()
    wait_for(lambda: stage.ended(job))
    wait_for(lambda: len(stage.app.jobs.attempts(job)) >= 2, SHORT)
    two.end()
    for n in range(6):  # the lost worker must not claim these
        stage.enqueue("work", {"n": n})
    wait_for(lambda: len(stage.lines()) >= 8, SHORT)
    return stage.report()


def frozen_with_a_checkpoint(stage: Stage) -> VerifyReport:
    """A checkpoint reaches a frozen supervisor, whose lease is lost when it continues."""
    one = stage.worker(worker__lease=LEASE)
    gates = stage.folder / "gate"
    job = stage.enqueue("gated", {"gates": str(gates), "keep": True})
    stage.wait(lambda: stage.started(job), "the first attempt")
    stage.worker(worker__lease=LEASE)
    stage.wait(
        lambda: _freeze_between_transactions(one, stage.url),
        "the worker, frozen between two transactions",
    )
    Path(f"{gates}-1").touch()
    stage.wait(lambda: stage.started(job, 2), "the second attempt")
    one.signal(signal.SIGCONT)
    wait_for(lambda: stage.sql("SELECT 1 FROM {p}step WHERE job_id = :job", job=job), SHORT)
    Path(f"{gates}-2").touch()
    wait_for(lambda: stage.ended(job))
    return stage.report()


def crowd(stage: Stage) -> VerifyReport:
    """Three idle workers are woken for the same jobs at the same time, repeatedly."""
    workers = [stage.worker() for _ in range(3)]
    for _ in range(8):
        with stage.clients.call(
            "enqueue_many", kind="light", payloads=[{"n": n} for n in range(24)]
        ) as call:
            new = [stage.app.build_job("light", {"n": n}) for n in range(24)]
            jobs = [job.id for job in stage.app.insert(new)]
            call.ok(*jobs)
        wait_for(lambda jobs=jobs: stage.ended(*jobs))
    for worker in workers:
        worker.end()
    return stage.report()


def deadly(stage: Stage) -> VerifyReport:
    """A job that kills its process each time."""
    stage.worker()
    job = stage.enqueue("poison")
    wait_for(lambda: stage.ended(job) or len(stage.lines()) > 4)
    return stage.report()


def failing(stage: Stage) -> VerifyReport:
    """A job that fails each time."""
    stage.worker()
    job = stage.enqueue("work", {"n": 1, "fails": 9})
    wait_for(lambda: stage.ended(job) or len(stage.lines()) > 5)
    return stage.report()


def killed_client(stage: Stage) -> VerifyReport:
    """A client is killed right after its last answer."""
    stage.app.open()
    stage.client("enqueue_and_die", "20")
    return stage.report()


def killed_dispatcher(stage: Stage) -> VerifyReport:
    """The worker is killed after it has dispatched an event that matches a subscription."""
    stage.app.notify(
        on="job.succeeded", to=Webhook("https://hooks.invalid/x"), stored=True, form="each"
    )
    worker = stage.worker()
    job = stage.enqueue("work", {"n": 1})
    stage.wait(lambda: stage.ended(job), "the job")
    event = stage.app.jobs.history(job)[-1].id
    is_read = "SELECT 1 FROM {p}reader WHERE name = 'dispatch' AND cursor >= :event"
    stage.wait(lambda: stage.sql(is_read, event=event), "the dispatcher")
    worker.kill()
    return stage.report()


def members_retried(stage: Stage) -> VerifyReport:
    """A batch whose first members are retried while the last one is not due yet."""
    batch = stage.app.batch("all of them")
    jobs = [stage.enqueue("work", {"n": n, "fails": 2}, batch=batch) for n in range(2)]
    stage.enqueue("work", {"n": 9}, batch=batch, delay=900)
    batch.seal()
    stage.worker()
    wait_for(lambda: stage.ended(*jobs))
    return stage.report()


def ticking(stage: Stage) -> VerifyReport:
    """Two workers and a schedule that fires every two seconds."""
    stage.extra["MUTANT_CRON"] = "*/2 * * * * *"
    workers = [stage.worker() for _ in range(2)]
    alone = len(stage.lines())  # before the second worker was ready
    wait_for(lambda: len(stage.lines()) >= alone + 8)
    for worker in workers:
        worker.end()
    return stage.report()


def cut_off(stage: Stage) -> VerifyReport:
    """The server terminates every connection repeatedly while jobs end."""
    worker = stage.worker()
    # Long enough that jobs end during all of the time in which connections are cut.
    jobs = [stage.enqueue("work", {"n": n, "seconds": 0.4}) for n in range(150)]
    stage.wait(lambda: stage.started(jobs[0]), "the first job")
    until = time.monotonic() + 6
    with stage.connection() as connection:
        connection.autocommit = True
        while time.monotonic() < until:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            time.sleep(0.1)
    wait_for(lambda: stage.ended(*jobs))
    time.sleep(1)
    report = stage.report(settled=True, slack=3)
    worker.end()
    return report


def wrong_clock(stage: Stage) -> VerifyReport:
    """The clock of one worker is 15 minutes late; another worker sweeps."""
    path = f"{SKEWED}:{stage.environ['PYTHONPATH']}"
    stage.worker({"PYTHONPATH": path, "MUTANT_SKEW": "-900"}, worker__lease=LEASE)
    job = stage.enqueue("work", {"n": 1, "seconds": 9.0})
    stage.wait(lambda: stage.started(job), "the job")
    stage.worker(worker__lease=LEASE)
    wait_for(lambda: stage.ended(job))
    return stage.report()


def late_commit(stage: Stage) -> VerifyReport:
    """An event waits to be committed while later events are dispatched."""
    stage.app.notify(
        on="job.cancelled", to=Webhook("https://hooks.invalid/x"), stored=True, form="each"
    )
    batch = stage.app.batch("held")
    member = stage.enqueue("work", {"n": 1}, delay=600, batch=batch)
    other = stage.enqueue("work", {"n": 2}, delay=600)
    stage.worker()
    with stage.connection() as connection:
        connection.execute(
            "SELECT 1 FROM mulligan.batch_progress WHERE id = %s FOR UPDATE", (batch.id,)
        )
        slow = threading.Thread(target=lambda: stage.move("cancel", member, stage.app.jobs.cancel))
        slow.start()
        stage.wait(lambda: _waits_for_lock(stage), "the waiting transaction")
        stage.move("cancel", other, stage.app.jobs.cancel)
        wait_for(
            lambda: stage.sql("SELECT 1 FROM {p}job WHERE kind LIKE 'mulligan.deliver%' LIMIT 1"), 4
        )
        connection.rollback()
    slow.join()
    wait_for(
        lambda: len(stage.sql("SELECT 1 FROM {p}job WHERE kind LIKE 'mulligan.deliver%'")) >= 2, 6
    )
    return stage.report()


def _waits_for_lock(stage: Stage) -> bool:
    from support.store import is_waiting_for_lock

    return is_waiting_for_lock(stage.app.store)


def same_keys(stage: Stage) -> VerifyReport:
    """Eight threads enqueue the same unique keys at once."""
    stage.app.open()
    stage.client("same_keys", "15", "8")
    return stage.report()


def retried_at_once(stage: Stage) -> VerifyReport:
    """Eight threads retry the same job at once."""
    worker = stage.worker()
    jobs = [stage.enqueue("dies", {"n": n}) for n in range(3)]
    stage.wait(lambda: stage.ended(*jobs), "the deaths")
    worker.end()
    for job in jobs:
        stage.client("retry_at_once", job, "8")
    return stage.report()


def cancel_requested(stage: Stage) -> VerifyReport:
    """A job fails before its frozen worker learns of the cancel request."""
    worker = stage.worker()
    gate = stage.folder / "gate"
    job = stage.enqueue("fails_at_gate", {"gate": str(gate)})
    stage.wait(lambda: stage.started(job), "the job")
    stage.wait(
        lambda: _freeze_between_transactions(worker, stage.url),
        "the worker, frozen between two transactions",
    )
    stage.move("cancel", job, stage.app.jobs.cancel)
    gate.touch()
    wait_for(lambda: stage.lines("fail"))
    worker.signal(signal.SIGCONT)
    wait_for(lambda: stage.state(job) != "running")
    return stage.report()


def _freeze_between_transactions(worker: Worker, url: str) -> bool:
    """Freeze the supervisor, but not while it holds the write lock of SQLite."""
    worker.signal(signal.SIGSTOP)
    if is_writable(url):
        return True
    worker.signal(signal.SIGCONT)
    return False


def not_due(stage: Stage) -> VerifyReport:
    """Jobs that are not due yet, and one that is."""
    stage.worker()
    later = [stage.enqueue("work", {"n": n}, delay=300) for n in range(3)]
    now = stage.enqueue("work", {"n": 9})
    stage.wait(lambda: stage.ended(now), "the due job")
    wait_for(lambda: stage.ended(*later), 2)
    return stage.report()


def paused(stage: Stage) -> VerifyReport:
    """Jobs are enqueued while their queue is paused."""
    worker = stage.worker()
    first = stage.enqueue("work", {"n": 0})
    stage.wait(lambda: stage.ended(first), "the first")
    stage.app.queues.pause("default", reason="deploy")
    jobs = [stage.enqueue("work", {"n": n}) for n in range(3)]
    wait_for(lambda: stage.ended(*jobs), SHORT)
    stage.app.queues.resume("default")
    wait_for(lambda: stage.ended(*jobs))
    worker.end()
    return stage.report()


def deadline(stage: Stage) -> VerifyReport:
    """A deadline passes before the job is due."""
    stage.worker()
    job = stage.enqueue("work", {"n": 1}, delay=300, deadline=1)
    wait_for(lambda: stage.ended(job))
    return stage.report()


def many_at_once(stage: Stage) -> VerifyReport:
    """Many jobs end at the same time on one runner."""
    jobs = [stage.enqueue("light", {"n": n}) for n in range(80)]
    worker = stage.worker()
    wait_for(lambda: stage.ended(*jobs))
    with suppress(Exception):
        worker.end()
    return stage.report()


class Trial(NamedTuple):
    """A defect, the scenario and store that expose it, and the invariants it may break."""

    mutant: str
    scenario: object
    store: str
    caught_by: frozenset[str]


def _trial(mutant: str, scenario, store: str, *invariants: str) -> Trial:
    return Trial(mutant, scenario, store, frozenset(invariants))


TRIALS = (
    _trial("finish-without-token", frozen, "sqlite", "S7", "S2", "S8", "S9", "S18"),
    _trial("claim-without-recheck", crowd, "postgres", "S6"),
    _trial("renewal-without-fence", frozen, "sqlite", "S10"),
    _trial("loss-not-counted", deadly, "sqlite", "S12"),
    _trial("failure-not-counted", failing, "sqlite", "S12"),
    _trial("answer-before-commit", killed_client, "sqlite", "S1"),
    _trial("notification-from-memory", killed_dispatcher, "sqlite", "N1"),
    _trial("batch-by-counter", members_retried, "sqlite", "B2", "B3"),
    _trial("schedule-without-slot-key", ticking, "sqlite", "C1"),
    _trial("swallowed-error-on-settle", cut_off, "postgres", "S6", "L1"),
    _trial("lease-by-worker-clock", wrong_clock, "postgres", "S10"),
    _trial("cursor-by-max-id", late_commit, "postgres", "N1"),
    _trial("unique-by-select-then-insert", same_keys, "postgres", "U1"),
    _trial("retry-without-compare", retried_at_once, "sqlite", "S2", "S4"),
    _trial("cancel-forgotten-at-the-end", cancel_requested, "sqlite", "S16"),
    _trial("start-before-its-time", not_due, "sqlite", "S13"),
    _trial("paused-queue-goes-on", paused, "sqlite", "S13"),
    _trial("checkpoint-without-token", frozen_with_a_checkpoint, "postgres", "S7"),
    _trial("results-mixed-up", many_at_once, "sqlite", "S9"),
    _trial("move-without-its-event", deadline, "sqlite", "S18"),
)
