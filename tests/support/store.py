"""Builders of jobs, workers and settlements for tests that use a store."""

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
from mulligan.core.job import DEFAULT_COVER, AttemptRow, JobRow, NewJob, WorkerRow, unique_hash
from mulligan.events.queries import EventQueries
from mulligan.jobs.queries import Inserted, JobQueries, SearchQueries
from mulligan.retries.effective import EffectivePolicies
from mulligan.retries.policy import Policy
from mulligan.steps.queries import StepQueries, step_write
from mulligan.steps.rules import StepKind, StepRecord, StepState
from mulligan.storage import Store, open_store
from mulligan.worker import upkeep
from mulligan.worker.claim import Claimer
from mulligan.worker.queries import LeaseQueries, WorkerQueries, boot_id
from mulligan.worker.settle import SettleContext, settle
from support.builders import make_failure

T = TypeVar("T")

HOUR = 3600 * SECOND
KINDS = frozenset({"render", "mail", "report"})
POLICIES = EffectivePolicies(RetrySection(), {})
TABLES = (
    "job",
    "attempt",
    "event",
    "step",
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
def rolled_back(transaction: AbstractContextManager[T]) -> Iterator[T]:
    """Run a block in a transaction that is rolled back at its end."""
    with suppress(_Undone), transaction as opened:
        yield opened
        raise _Undone


def is_postgres(store: Store) -> bool:
    return store.facts()["store"] == "postgresql"


# --- Jobs ---
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
    with store.begin() as tx:
        return JobQueries(tx).insert_jobs(new, announce=announce)


def enqueue(store: Store, n: int = 1, **changes: Any) -> list[str]:
    return [one.id for one in insert(store, *jobs(n, **changes))]


def get(store: Store, job_id: str) -> JobRow:
    with store.read() as tx:
        row = JobQueries(tx).get_job(job_id)
    assert row is not None
    return row


def all_rows(store: Store) -> list[JobRow]:
    with store.read() as tx:
        return SearchQueries(tx).list_jobs({}, 1_000_000, None)[::-1]


def state_of(store: Store, job_id: str) -> str:
    return get(store, job_id).state


def attempts(store: Store, job_id: str) -> list[AttemptRow]:
    with store.read() as tx:
        return JobQueries(tx).list_attempts(job_id)


def job_events(store: Store, job_id: str) -> list[Event]:
    with store.read() as tx:
        return EventQueries(tx).list_events_of_job(job_id)


def event_types(store: Store, job_id: str) -> list[str]:
    """Return the types of a job's events in order, without the prefix `job.`."""
    return [event.type.removeprefix("job.") for event in job_events(store, job_id)]


def now(store: Store) -> Micros:
    with store.read() as tx:
        return tx.now()


STATE_AFTER_EVENT = {
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


def replay(events: Sequence[Event]) -> tuple[str | None, int, int, int]:
    """Compute (state, generation, attempt, token) of a job from its events."""
    state, generation, attempt, token = None, 1, 0, 0
    for event in events:
        name = event.type.removeprefix("job.")
        if name in {"stale_refused", "cancel_requested"}:
            continue
        state = STATE_AFTER_EVENT[name]
        if name == "started":
            assert event.token == token + 1
            attempt, token = event.attempt, event.token
        if name == "retried":
            generation, attempt = event.data["generation"], 0
    return state, generation, attempt, token


# --- Workers ---
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
    with store.begin() as tx:
        WorkerQueries(tx).insert_worker(a_worker(worker_id, **changes))
    return worker_id


def close_worker(store: Store, worker_id: str = "w1", reason: str = "gone") -> bool:
    with store.begin() as tx:
        return WorkerQueries(tx).close_worker(worker_id, reason, last_renewed=None)


def worker_of(store: Store, worker_id: str = "w1") -> WorkerRow:
    with store.read() as tx:
        return next(
            worker
            for worker in WorkerQueries(tx).list_workers(closed=True)
            if worker.id == worker_id
        )


# --- Claim and settle ---
def claim(
    store: Store, n: int = 1, *, worker: str = "w1", claimer: Claimer | None = None
) -> list[Lease]:
    with store.begin() as tx:
        return (claimer or Claimer(worker, KINDS)).claim(tx, n).leases


def claim_by_id(store: Store, *ids: str, worker: str = "w1") -> list[Lease]:
    with store.begin() as tx:
        return LeaseQueries(tx).claim_jobs(worker, ids, len(ids))


def settle_leases(
    store: Store,
    leases: Lease | Sequence[Lease],
    outcome: Outcome = RETURNED,
    *,
    policies: EffectivePolicies = POLICIES,
) -> list[Verdict]:
    found = [leases] if isinstance(leases, Lease) else leases
    with store.begin() as tx:
        return settle(
            tx,
            [Ending(lease, outcome) for lease in found],
            SettleContext(policies, tx.now(), Random(7)),
        )


def claim_new_job(store: Store, *, worker: str = "w1", **changes: Any) -> Lease:
    """Insert and claim one job. Inserts its worker if there is none."""
    with store.begin() as tx:
        if worker not in {row.id for row in WorkerQueries(tx).list_workers(closed=True)}:
            WorkerQueries(tx).insert_worker(a_worker(worker))
        job = changes.pop("job", None) or a_job(**changes)
        JobQueries(tx).insert_jobs([job], announce=True)
        (lease,) = LeaseQueries(tx).claim_jobs(worker, [job.id], 1)
    return lease


def run_once(store: Store, outcome: Outcome, **changes: Any) -> str:
    """Insert, claim and settle one job. Return its id."""
    lease = claim_new_job(store, **changes)
    settle_leases(store, lease, outcome)
    return lease.id


def claim_when_due(store: Store, job_id: str, *, worker: str = "w1") -> Lease:
    """Claim a waiting job after shifting the clock to its due time."""
    wait = get(store, job_id).run_at - now(store)
    if wait > 0:
        store.shift_clock(wait + SECOND)
    (lease,) = claim_by_id(store, job_id, worker=worker)
    return lease


def policies(**system: Any) -> EffectivePolicies:
    return EffectivePolicies(RetrySection(**system), {})


def no_retries_policy() -> str:
    return Policy(max_retries=0).to_json()


def settle_orphans(store: Store) -> list[Verdict]:
    """Settle running jobs of closed workers as lost."""
    return upkeep.settle_orphans(store, RetrySection(), Random(7))


# --- Raw SQL ---
def prefix(store: Store) -> str:
    return getattr(store, "prefix", "mulligan_")


def sql(
    store: Store, statement: str, params: Mapping[str, Any] | None = None
) -> list[tuple[Any, ...]]:
    """Run a statement on the store. `{p}` is the prefix of tables, `:name` a parameter."""
    text = statement.replace("{p}", prefix(store))
    with store.transaction() as connection:
        if is_postgres(store):
            for name in params or {}:
                text = text.replace(f":{name}", f"%({name})s")
            cursor = connection.execute(text, params or None)
            return cursor.fetchall() if cursor.description else []
        return [tuple(row) for row in connection.execute(text, params or {}).fetchall()]


# All attempts, including those of jobs that succeeded with their first attempt.
ATTEMPT_QUERY = f"""(
  SELECT {", ".join(AttemptRow._fields)} FROM {{p}}attempt
  UNION ALL
  SELECT id, 1, generation, attempt, succeeded_by, succeeded_by, started_at, finished_at, 'returned', 'succeed',
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'returned', 0.0, NULL, ''
  FROM {{p}}job WHERE succeeded_by IS NOT NULL
) AS attempt"""  # noqa: S608
EVENT_QUERY = "SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data, bundle FROM {p}event ORDER BY id"


def read_event_table(store: Store) -> list[tuple[Any, ...]]:
    """Read all events from the table. `data` is text."""
    return unbundled(sql(store, EVENT_QUERY))


def unbundled(rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Unpack the bundles among rows of EVENT_QUERY."""
    found: list[tuple[Any, ...]] = []
    for last, at, kind, *rest, data, bundle in rows:
        if bundle is None:
            found.append((last, at, kind, *rest, data))
            continue
        event_data = ""
        number = last - bundle
        for line in data.split("\n"):
            if line[0] == "{":
                event_data = line
                continue
            number += 1
            found.append((number, at, kind, *json.loads(line), "", event_data))
        assert number == last
    return found


def wipe(store: Store) -> None:
    with store.transaction() as connection:
        for table in TABLES:
            connection.execute(f"DELETE FROM {prefix(store)}{table}")  # noqa: S608


# --- Threads ---
def run_concurrently(*works: Callable[[], T]) -> list[T]:
    """Run functions at once in threads. Return their results in order, or raise the first error."""
    results: list[Any] = [None] * len(works)
    errors: list[BaseException] = []
    gate = threading.Barrier(len(works))

    def run(place: int, work: Callable[[], T]) -> None:
        try:
            gate.wait(30)
            results[place] = work()
        except BaseException as error:  # noqa: BLE001 - raised in the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return results


class BackgroundCall:
    """Call in a thread whose result or error is fetched later."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - raised in the test
            self._error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, timeout: float = 30) -> Any:
        self._thread.join(timeout)
        assert self.done, "still running"
        if self._error is not None:
            raise self._error
        return self._result


def is_waiting_for_lock(store: Store) -> bool:
    """True if a session of this PostgreSQL database is waiting for a lock."""
    return bool(
        sql(
            store,
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
    )


# --- Steps ---
def save_checkpoint(tx: Any, lease: Lease, name: str, value: str) -> bool:
    """Save a checkpoint of an attempt. False: it has lost its lease."""
    record = StepRecord(name, StepKind.CHECKPOINT, StepState.DONE, 0, value)
    return bool(StepQueries(tx).save([step_write(lease, record)]))
