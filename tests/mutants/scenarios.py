"""What is done to the engine, with and without a defect. Each ends with the checker's report.

They wait for moments of the histories, never for what only a right engine would do: a mutant need not come that far.
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
from support.worker import Worker, _writable

SKEWED = str(TESTS / "mutants" / "skew")
LEASE = "8"  # seconds: a busy machine must be able to renew it
LONG, SHORT = (
    60.0,
    8.0,
)  # seconds after which a scenario goes on, whether what it hopes for has come or not


def hoped(moment, patience: float = LONG) -> bool:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if moment():
            return True
        time.sleep(0.05)
    return False


def frozen(stage: Stage) -> VerifyReport:
    """A worker is frozen until its lease is lost and another runs its job; then it thaws and says how it ended."""
    one = stage.worker(worker__lease=LEASE)
    gates = stage.folder / "gate"
    job = stage.enqueue("gated", {"gates": str(gates)})
    stage.wait(lambda: stage.started(job), "the first attempt")
    two = stage.worker(worker__lease=LEASE)
    one.freeze(stage.url)
    stage.wait(lambda: stage.started(job, 2), "the second attempt")
    Path(f"{gates}-1").touch()
    one.stop_all(signal.SIGCONT)
    hoped(
        lambda: stage.lines("end"), 2 * SHORT
    )  # of the first: its lease is lost, and it does not know
    hoped(lambda: stage.state(job) != "running", SHORT)
    for token in range(2, 9):
        Path(f"{gates}-{token}").touch()
    hoped(lambda: stage.ended(job))
    hoped(lambda: len(stage.app.jobs.attempts(job)) >= 2, SHORT)
    two.end()
    for n in range(6):  # does the one that was lost take more?
        stage.enqueue("work", {"n": n})
    hoped(lambda: len(stage.lines()) >= 8, SHORT)
    return stage.report()


def frozen_with_a_checkpoint(stage: Stage) -> VerifyReport:
    """What a handler keeps reaches its supervisor, which is frozen; by the time it thaws its lease is lost."""
    one = stage.worker(worker__lease=LEASE)
    gates = stage.folder / "gate"
    job = stage.enqueue("gated", {"gates": str(gates), "keep": True})
    stage.wait(lambda: stage.started(job), "the first attempt")
    stage.worker(worker__lease=LEASE)
    stage.wait(lambda: _held_still(one, stage.url), "the worker, held between two transactions")
    Path(f"{gates}-1").touch()
    stage.wait(lambda: stage.started(job, 2), "the second attempt")
    one.signal(signal.SIGCONT)
    kept = lambda: stage.sql("SELECT 1 FROM {p}checkpoint WHERE job_id = :job", job=job)  # noqa: E731
    hoped(kept, SHORT)
    Path(f"{gates}-2").touch()
    hoped(lambda: stage.ended(job))
    return stage.report()


def crowd(stage: Stage) -> VerifyReport:
    """Three idle workers hear of the same jobs at the same moment, a few times."""
    workers = [stage.worker() for _ in range(3)]
    for _ in range(8):
        with stage.clients.call(
            "enqueue_many", kind="light", payloads=[{"n": n} for n in range(24)]
        ) as call:
            new = [stage.app.prepared("light", {"n": n}) for n in range(24)]
            jobs = [job.id for job in stage.app.insert(new)]
            call.ok(*jobs)
        hoped(lambda jobs=jobs: stage.ended(*jobs))
    for worker in workers:
        worker.end()
    return stage.report()


def deadly(stage: Stage) -> VerifyReport:
    """A job that kills its process each time."""
    stage.worker()
    job = stage.enqueue("poison")
    hoped(lambda: stage.ended(job) or len(stage.lines()) > 4)
    return stage.report()


def failing(stage: Stage) -> VerifyReport:
    """A job that fails each time."""
    stage.worker()
    job = stage.enqueue("work", {"n": 1, "fails": 9})
    hoped(lambda: stage.ended(job) or len(stage.lines()) > 5)
    return stage.report()


def killed_client(stage: Stage) -> VerifyReport:
    """A client dies as soon as it was answered."""
    stage.app.open()
    stage.client("enqueue_and_die", "20")
    return stage.report()


def killed_teller(stage: Stage) -> VerifyReport:
    """The worker is killed when it has read the event that somebody hears of."""
    stage.app.notify(
        on="job.succeeded", to=Webhook("https://hooks.invalid/x"), stored=True, form="each"
    )
    worker = stage.worker()
    job = stage.enqueue("work", {"n": 1})
    stage.wait(lambda: stage.ended(job), "the job")
    event = stage.app.jobs.history(job)[-1].id
    read = lambda: stage.sql(
        "SELECT 1 FROM {p}reader WHERE name = 'dispatch' AND cursor >= :event", event=event
    )  # noqa: E731
    stage.wait(read, "the reader of the log")
    worker.kill()
    return stage.report()


def members_tried_again(stage: Stage) -> VerifyReport:
    """A batch whose first members fail a few times while the time of the last has not come."""
    batch = stage.app.batch("all of them")
    jobs = [stage.enqueue("work", {"n": n, "fails": 2}, batch=batch) for n in range(2)]
    stage.enqueue("work", {"n": 9}, batch=batch, delay=900)
    batch.seal()
    stage.worker()
    hoped(lambda: stage.ended(*jobs))
    return stage.report()


def ticking(stage: Stage) -> VerifyReport:
    """Two workers and a schedule that fires every two seconds."""
    stage.extra["MUTANT_CRON"] = "*/2 * * * * *"
    workers = [stage.worker() for _ in range(2)]
    alone = len(stage.lines())  # while the second was still starting
    hoped(lambda: len(stage.lines()) >= alone + 8)
    for worker in workers:
        worker.end()
    return stage.report()


def cut_off(stage: Stage) -> VerifyReport:
    """The server ends every connection, again and again, while jobs end."""
    worker = stage.worker()
    jobs = [stage.enqueue("work", {"n": n, "seconds": 0.05}) for n in range(150)]
    until = time.monotonic() + 6
    with stage.connection() as connection:
        connection.autocommit = True
        while time.monotonic() < until:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            time.sleep(0.1)
    hoped(lambda: stage.ended(*jobs))
    time.sleep(1)
    report = stage.report(settled=True, slack=3)
    worker.end()
    return report


def wrong_clock(stage: Stage) -> VerifyReport:
    """The clock of one worker is a quarter of an hour late; another one watches."""
    path = f"{SKEWED}:{stage.environ['PYTHONPATH']}"
    stage.worker({"PYTHONPATH": path, "MUTANT_SKEW": "-900"}, worker__lease=LEASE)
    job = stage.enqueue("work", {"n": 1, "seconds": 9.0})
    stage.wait(lambda: stage.started(job), "the job")
    stage.worker(worker__lease=LEASE)
    hoped(lambda: stage.ended(job))
    return stage.report()


def late_commit(stage: Stage) -> VerifyReport:
    """Somebody's event is written, and waits to be committed, while others are told of."""
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
        slow = threading.Thread(target=lambda: stage.told("cancel", member, stage.app.jobs.cancel))
        slow.start()
        stage.wait(lambda: _waits(stage), "the one that waits")
        stage.told("cancel", other, stage.app.jobs.cancel)
        hoped(
            lambda: stage.sql("SELECT 1 FROM {p}job WHERE kind LIKE 'mulligan.deliver%' LIMIT 1"), 4
        )
        connection.rollback()
    slow.join()
    hoped(
        lambda: len(stage.sql("SELECT 1 FROM {p}job WHERE kind LIKE 'mulligan.deliver%'")) >= 2, 6
    )
    return stage.report()


def _waits(stage: Stage) -> bool:
    from support.store import waits_for_a_lock

    return waits_for_a_lock(stage.app.store)


def same_keys(stage: Stage) -> VerifyReport:
    """Eight threads want the same keys at once."""
    stage.app.open()
    stage.client("same_keys", "15", "8")
    return stage.report()


def pressed(stage: Stage) -> VerifyReport:
    """Eight people press retry at once."""
    worker = stage.worker()
    jobs = [stage.enqueue("dies", {"n": n}) for n in range(3)]
    stage.wait(lambda: stage.ended(*jobs), "the deaths")
    worker.end()
    for job in jobs:
        stage.client("press", job, "8")
    return stage.report()


def asked_to_stop(stage: Stage) -> VerifyReport:
    """A job fails before its worker, which is slow to hear, knows that somebody wants it to stop."""
    worker = stage.worker()
    gate = stage.folder / "gate"
    job = stage.enqueue("fails_when_let", {"gate": str(gate)})
    stage.wait(lambda: stage.started(job), "the job")
    stage.wait(lambda: _held_still(worker, stage.url), "the worker, held between two transactions")
    stage.told("cancel", job, stage.app.jobs.cancel)
    gate.touch()
    hoped(lambda: stage.lines("fail"))
    worker.signal(signal.SIGCONT)
    hoped(lambda: stage.state(job) != "running")
    return stage.report()


def _held_still(worker: Worker, url: str) -> bool:
    """The supervisor alone; not with SQLite's one write lock in its hand."""
    worker.signal(signal.SIGSTOP)
    if _writable(url):
        return True
    worker.signal(signal.SIGCONT)
    return False


def not_yet(stage: Stage) -> VerifyReport:
    """Jobs whose time has not come, beside one whose has."""
    stage.worker()
    later = [stage.enqueue("work", {"n": n}, delay=300) for n in range(3)]
    now = stage.enqueue("work", {"n": 9})
    stage.wait(lambda: stage.ended(now), "the one that is due")
    hoped(lambda: stage.ended(*later), 2)
    return stage.report()


def paused(stage: Stage) -> VerifyReport:
    """A queue is paused, and work comes in."""
    worker = stage.worker()
    first = stage.enqueue("work", {"n": 0})
    stage.wait(lambda: stage.ended(first), "the first")
    stage.app.queues.pause("default", reason="deploy")
    jobs = [stage.enqueue("work", {"n": n}) for n in range(3)]
    hoped(lambda: stage.ended(*jobs), SHORT)
    stage.app.queues.resume("default")
    hoped(lambda: stage.ended(*jobs))
    worker.end()
    return stage.report()


def deadline(stage: Stage) -> VerifyReport:
    """A deadline passes while nobody may start the job."""
    stage.worker()
    job = stage.enqueue("work", {"n": 1}, delay=300, deadline=1)
    hoped(lambda: stage.ended(job))
    return stage.report()


def side_by_side(stage: Stage) -> VerifyReport:
    """Many jobs end at the same moment on one runner."""
    jobs = [stage.enqueue("light", {"n": n}) for n in range(80)]
    worker = stage.worker()
    hoped(lambda: stage.ended(*jobs))
    with suppress(Exception):
        worker.end()
    return stage.report()


class Trial(NamedTuple):
    """A defect, what brings it out, where, and which invariants it may break."""

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
    _trial("notification-from-memory", killed_teller, "sqlite", "N1"),
    _trial("batch-by-counter", members_tried_again, "sqlite", "B2", "B3"),
    _trial("schedule-without-slot-key", ticking, "sqlite", "C1"),
    _trial("swallowed-error-on-settle", cut_off, "postgres", "S6", "L1"),
    _trial("lease-by-worker-clock", wrong_clock, "postgres", "S10"),
    _trial("cursor-by-max-id", late_commit, "postgres", "N1"),
    _trial("unique-by-select-then-insert", same_keys, "postgres", "U1"),
    _trial("retry-without-compare", pressed, "sqlite", "S2", "S4"),
    _trial("cancel-forgotten-at-the-end", asked_to_stop, "sqlite", "S16"),
    _trial("start-before-its-time", not_yet, "sqlite", "S13"),
    _trial("paused-queue-goes-on", paused, "sqlite", "S13"),
    _trial("checkpoint-without-token", frozen_with_a_checkpoint, "postgres", "S7"),
    _trial("results-mixed-up", side_by_side, "sqlite", "S9"),
    _trial("move-without-its-event", deadline, "sqlite", "S18"),
)
