"""Jobs, workers and endings for the tests of the memory: complete, boring, changed only where the story needs it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from random import Random
from typing import Any, TypeVar

from mulligan.config import RetrySection
from mulligan.core.attempt import Cls, Ended, Ending, Lease, Outcome, Verdict
from mulligan.core.durations import SECOND, Micros
from mulligan.core.event import Event
from mulligan.core.ids import new_id
from mulligan.core.job import AttemptRow, JobRow, NewJob, WorkerRow
from mulligan.core.unique import DEFAULT_COVER, unique_hash
from mulligan.retries.effective import EffectivePolicies
from mulligan.retries.policy import Policy
from mulligan.storage import Store, open_store
from mulligan.storage.base import Inserted
from mulligan.storage.url import boot_id
from mulligan.worker import upkeep
from mulligan.worker.claim import Claimer
from mulligan.worker.settle import settle
from support.builders import make_failure

T = TypeVar("T")

HOUR = 3600 * SECOND
KINDS = frozenset({"render", "mail", "report"})
POLICIES = EffectivePolicies(RetrySection(), {})
TABLES = (
    "job",
    "attempt",
    "event",
    "checkpoint",
    "worker",
    "gate",
    "manifest",
    "pruned",
    "limits",
    "meter",
    "schedule",
    "slot",
    "failure_group",
    "batch",
    "batch_progress",
    "operation",
    "operation_item",
    "job_arg",
    "api_key",
    "answer",
    "session",
    "reader",
    "subscription",
    "incident",
    "notified",
    "stat",
    "alert",
)

# One outcome for each way an attempt can end.
RETURNED = Outcome(Ended.RETURNED, result='{"pages":3}')
FAILED = Outcome(Ended.FAILED, failure=make_failure())
FATAL = Outcome(Ended.FAILED, failure=make_failure(Cls.PERMANENT, "BROKEN"))
RETRY = Outcome(Ended.RETRY, after=5 * SECOND, reason="not ready")
SNOOZED = Outcome(Ended.SNOOZED, after=60 * SECOND, reason="later")
PARKED = Outcome(Ended.PARKED, reason="who pays?", choices=("us", "them"))
HELD = Outcome(Ended.HELD, dependency="bucket", after=60 * SECOND)
CANCELLED = Outcome(Ended.CANCELLED, reason="not wanted")
LOST = Outcome(Ended.LOST)
RELEASED = Outcome(Ended.RELEASED)


@contextmanager
def migrated(url: str, **options: Any) -> Iterator[Store]:
    with closing(open_store(url, **options)) as store:
        store.migrate()
        yield store


class _Undone(Exception):
    pass


@contextmanager
def undone(transaction: AbstractContextManager[T]) -> Iterator[T]:
    """A transaction that fails at its end."""
    with suppress(_Undone), transaction as opened:
        yield opened
        raise _Undone


def is_postgres(store: Store) -> bool:
    return store.facts()["store"] == "postgresql"


# -- jobs ----------------------------------------------------------------------------------------
def a_job(**changes: Any) -> NewJob:
    return NewJob(
        **(
            {"id": new_id(), "kind": "render", "queue": "default", "payload": "{}", "owner": "acme"}
            | changes
        )
    )


def jobs(n: int, **changes: Any) -> list[NewJob]:
    return [a_job(**({"payload": f'{{"n":{i}}}'} | changes)) for i in range(n)]


def unique_job(key: str, *, cover: Sequence[str] = DEFAULT_COVER, **changes: Any) -> NewJob:
    job = a_job(**changes)
    return a_job(
        **({"payload": job.payload, "owner": job.owner} | changes),
        unique_key=key,
        unique_hash=unique_hash(job.owner, job.kind, key),
        unique_cover=",".join(cover),
    )


def insert(store: Store, *new: NewJob, announce: bool = True) -> list[Inserted]:
    with store.begin() as unit:
        return unit.insert_jobs(new, announce=announce)


def enqueue(store: Store, n: int = 1, **changes: Any) -> list[str]:
    return [one.id for one in insert(store, *jobs(n, **changes))]


def get(store: Store, job_id: str) -> JobRow:
    with store.read() as unit:
        row = unit.get_job(job_id)
    assert row is not None
    return row


def all_rows(store: Store) -> list[JobRow]:
    with store.read() as unit:
        return unit.list_jobs({}, 1_000_000, None)[::-1]


def state_of(store: Store, job_id: str) -> str:
    return get(store, job_id).state


def attempts(store: Store, job_id: str) -> list[AttemptRow]:
    with store.read() as unit:
        return unit.list_attempts(job_id)


def story(store: Store, job_id: str) -> list[Event]:
    with store.read() as unit:
        return unit.list_events_of_job(job_id)


def told(store: Store, job_id: str) -> list[str]:
    """The types of a job's events in order, without their common beginning."""
    return [event.type.removeprefix("job.") for event in story(store, job_id)]


def now(store: Store) -> Micros:
    with store.read() as unit:
        return unit.now()


AFTER = {
    "queued": "queued",
    "started": "running",
    "retry_scheduled": "queued",
    "snoozed": "queued",
    "lost": "queued",
    "released": "queued",
    "retried": "queued",
    "succeeded": "succeeded",
    "died": "dead",
    "parked": "parked",
    "cancelled": "cancelled",
    "discarded": "cancelled",
}


def folded(events: Sequence[Event]) -> tuple[str | None, int, int, int]:
    """(state, generation, attempt, token) as the story alone tells them."""
    state, generation, attempt, token = None, 1, 0, 0
    for event in events:
        name = event.type.removeprefix("job.")
        if name in {"stale_refused", "cancel_requested"}:
            continue
        state = AFTER[name]
        if name == "started":
            assert event.token == token + 1
            attempt, token = event.attempt, event.token
        if name == "retried":
            generation, attempt = event.data["generation"], 0
    return state, generation, attempt, token


# -- workers -------------------------------------------------------------------------------------
def a_worker(worker_id: str = "w1", **changes: Any) -> WorkerRow:
    row = WorkerRow(
        id=worker_id,
        host="here",
        pid=4711,
        boot_id=boot_id(),
        lease=30 * SECOND,
        started_at=0,
        renewed_at=0,
        renewed_mono=time.monotonic_ns() // 1000,
        closed_at=None,
        close_reason="",
        lock_path="",
        lock_dev=0,
        lock_ino=0,
        kinds="[]",
        queues="[]",
        concurrency=10,
        release="",
        draining=False,
    )
    return row._replace(**changes)


def open_worker(store: Store, worker_id: str = "w1", **changes: Any) -> str:
    with store.begin() as unit:
        unit.insert_worker(a_worker(worker_id, **changes))
    return worker_id


def close_worker(store: Store, worker_id: str = "w1", reason: str = "gone") -> bool:
    with store.begin() as unit:
        return unit.close_worker(worker_id, reason, last_renewed=None)


def worker_of(store: Store, worker_id: str = "w1") -> WorkerRow:
    with store.read() as unit:
        return next(worker for worker in unit.list_workers(closed=True) if worker.id == worker_id)


# -- claim and settle ----------------------------------------------------------------------------
def claim(
    store: Store, n: int = 1, *, worker: str = "w1", claimer: Claimer | None = None
) -> list[Lease]:
    with store.begin() as unit:
        return (claimer or Claimer(worker, KINDS)).claim(unit, n).leases


def take(store: Store, *ids: str, worker: str = "w1") -> list[Lease]:
    with store.begin() as unit:
        return unit.claim_jobs(worker, ids, len(ids))


def finish(
    store: Store,
    leases: Lease | Sequence[Lease],
    outcome: Outcome = RETURNED,
    *,
    policies: EffectivePolicies = POLICIES,
) -> list[Verdict]:
    found = [leases] if isinstance(leases, Lease) else leases
    with store.begin() as unit:
        return settle(
            unit, [Ending(lease, outcome) for lease in found], policies, unit.now(), Random(7)
        )


def running(store: Store, *, worker: str = "w1", **changes: Any) -> Lease:
    """One job, claimed; its worker is opened where there is none yet."""
    with store.begin() as unit:
        if worker not in {row.id for row in unit.list_workers(closed=True)}:
            unit.insert_worker(a_worker(worker))
        job = changes.pop("job", None) or a_job(**changes)
        unit.insert_jobs([job], announce=True)
        (lease,) = unit.claim_jobs(worker, [job.id], 1)
    return lease


def ended(store: Store, outcome: Outcome, **changes: Any) -> str:
    """The id of a job that ran once and ended so."""
    lease = running(store, **changes)
    finish(store, lease, outcome)
    return lease.id


def once_more(store: Store, job_id: str, *, worker: str = "w1") -> Lease:
    """Claim a job that waits, after its time has come."""
    wait = get(store, job_id).run_at - now(store)
    if wait > 0:
        store.shift_clock(wait + SECOND)
    (lease,) = take(store, job_id, worker=worker)
    return lease


def policies(**system: Any) -> EffectivePolicies:
    return EffectivePolicies(RetrySection(**system), {})


def without_retries() -> str:
    return Policy(max_retries=0).to_json()


def sweep(store: Store) -> list[Verdict]:
    """Settle what closed workers left behind."""
    return upkeep.settle_orphans(store, RetrySection(), Random(7))


# -- SQL by hand ---------------------------------------------------------------------------------
def prefix(store: Store) -> str:
    return getattr(store, "prefix", "mulligan_")


def sql(
    store: Store, statement: str, params: Mapping[str, Any] | None = None
) -> list[tuple[Any, ...]]:
    """One statement on a connection of the store's: `{p}` is the prefix, `:name` a parameter."""
    text = statement.replace("{p}", prefix(store))
    with store.transaction() as connection:
        if is_postgres(store):
            for name in params or {}:
                text = text.replace(f":{name}", f"%({name})s")
            cursor = connection.execute(text, params or None)
            return cursor.fetchall() if cursor.description else []
        return [tuple(row) for row in connection.execute(text, params or {}).fetchall()]


# Every attempt, also of jobs that succeeded at once, whose rows tell it.
ATTEMPTS = f"""(
  SELECT {", ".join(AttemptRow._fields)} FROM {{p}}attempt
  UNION ALL
  SELECT id, 1, generation, attempt, succeeded_by, succeeded_by, started_at, finished_at, 'returned', 'succeed',
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'returned', 0.0, NULL
  FROM {{p}}job WHERE succeeded_by IS NOT NULL
) AS attempt"""  # noqa: S608
LOG = "SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data, bundle FROM {p}event ORDER BY id"


def log_of(store: Store) -> list[tuple[Any, ...]]:
    """Everything that was ever told, read from the table itself: `data` is a text."""
    return unbundled(sql(store, LOG))


def unbundled(rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Rows of LOG, those that tell of many jobs taken apart."""
    found: list[tuple[Any, ...]] = []
    for last, at, kind, *rest, data, bundle in rows:
        if bundle is None:
            found.append((last, at, kind, *rest, data))
            continue
        said, number = "", last - bundle
        for line in data.split("\n"):
            if line[0] == "{":
                said = line
                continue
            number += 1
            found.append((number, at, kind, *json.loads(line), "", said))
        assert number == last
    return found


def wipe(store: Store) -> None:
    with store.transaction() as connection:
        for table in TABLES:
            connection.execute(f"DELETE FROM {prefix(store)}{table}")  # noqa: S608


# -- threads -------------------------------------------------------------------------------------
def together(*works: Callable[[], T]) -> list[T]:
    """Run all at once, each in a thread of its own; their answers in order, or the first error."""
    answers: list[Any] = [None] * len(works)
    errors: list[BaseException] = []
    gate = threading.Barrier(len(works))

    def run(place: int, work: Callable[[], T]) -> None:
        try:
            gate.wait(30)
            answers[place] = work()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return answers


class Background:
    """A call in a thread, whose answer or error is asked for later."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._answer: Any = None
        self._error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._work()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self._error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def answer(self, timeout: float = 30) -> Any:
        self._thread.join(timeout)
        assert self.done, "still at work"
        if self._error is not None:
            raise self._error
        return self._answer


def waits_for_a_lock(store: Store) -> bool:
    """Is a session of this PostgreSQL database waiting for another's row, key or transaction?"""
    return bool(
        sql(
            store,
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
    )
