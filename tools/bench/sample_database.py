"""Insert a million jobs, like those of some days of use, directly into the tables.

Nine tenths succeeded. 60,000 are dead of 300 causes, one of which has more than are counted; 15,000 wait (half for
later, a quarter before a retry, a quarter for a dependency that is down), 4,000 are parked, 15,000 cancelled. A dozen
kinds in five queues, two hundred owners, 5,000 batches. Dead jobs and the newest 120,000 have attempts and events,
failed ones with a trace.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from bench.world import World

from mulligan.core.ids import first_id
from mulligan.core.job import FailureGroupRow, Gate
from mulligan.failures.queries import FailureQueries
from mulligan.guards.queries import GuardQueries
from mulligan.manifest.queries import ManifestQueries
from mulligan.manifest.specs import KindSpec, Manifest
from mulligan.observability.event_counts import EventCounter
from mulligan.storage.base import Store
from support.store import is_postgres, prefix, sql

DAY = 86_400_000_000
SPAN = 5 * DAY
LATER = 3650 * DAY
CAUSES = 300
RECENT = 120_000
KINDS = {
    **{f"render{n}": KindSpec(f"render{n}", queue="render") for n in range(6)},
    **{f"mail{n}": KindSpec(f"mail{n}", queue="mail") for n in range(4)},
    "bill": KindSpec("bill", queue="money", index=("customer",)),
    "held": KindSpec("held", queue="default", uses="gateway"),
}
NAMES = [*KINDS]
CLASSES = ("transient", "timeout", "permanent", "invalid_input", "rate_limited", "unknown")
TRACE = (
    "Traceback (most recent call last):\n"
    + '  File "app/steps.py", line 7, in step\n    call(next)\n' * 16
)
Row = tuple[Any, ...]
JOB = (
    "id",
    "kind",
    "queue",
    "owner",
    "lane",
    "uses",
    "run_at",
    "created_at",
    "batch_id",
    "payload",
    "state",
    "attempt",
    "token",
    "generation",
    "failures",
    "started_at",
    "first_started_at",
    "finished_at",
    "error",
    "result",
    "announced",
    "died_code",
    "died_class",
    "died_group",
    "choices",
    "reason",
)
ATTEMPT = (
    "job_id",
    "token",
    "generation",
    "attempt",
    "worker",
    "settled_by",
    "started_at",
    "ended_at",
    "ended",
    "verb",
    "code",
    "cls",
    "rule",
    "public",
    "private",
    "fingerprint",
)
EVENT = ("at", "type", "job_id", "batch_id", "owner", "attempt", "token", "data")


class SampleJob(NamedTuple):
    """One generated job."""

    i: int
    id: str
    at: int
    kind: str
    queue: str
    owner: str
    state: str
    waits: str  # later, retry, held; of those that are queued
    batch: str | None
    cause: int
    generation: int


def sample_jobs(jobs: int, now: int) -> Iterator[SampleJob]:
    return (_sample_job(i, jobs, now) for i in range(jobs))


def _sample_job(i: int, jobs: int, now: int) -> SampleJob:
    chance, at = _chance(i), now - SPAN + i * (SPAN // jobs)
    block = i // 50
    batch = _id(block, now - SPAN + block * 50 * (SPAN // jobs)) if block % 4 == 0 else None
    state = _state(chance, ended=batch is not None and block % 160 != 0)
    waits = ("later", "held", "later", "retry")[i % 4] if state == "queued" else ""
    kind = "held" if waits == "held" else NAMES[i * 7 % 11]
    cause = int(CAUSES * _chance(-i) ** 4)
    generation = 2 if state in {"succeeded", "dead"} and i % 997 == 0 else 1
    return SampleJob(
        i,
        _id(i, at),
        at,
        kind,
        KINDS[kind].queue,
        f"owner{i // 7 % 200}",
        state,
        waits,
        batch,
        cause,
        generation,
    )


def _chance(i: int) -> float:
    """Return a reproducible number from 0 to 1, evenly spread."""
    mixed = (i + 1) * 0x9E3779B97F4A7C15 % 2**64
    mixed = (mixed ^ mixed >> 31) * 0xBF58476D1CE4E5B9 % 2**64
    return (mixed ^ mixed >> 29) / 2**64


def _state(chance: float, *, ended: bool) -> str:
    for bound, state in ((0.06, "dead"), (0.08, "queued"), (0.085, "parked"), (0.1, "cancelled")):
        if chance < bound:
            return "succeeded" if ended and state in {"queued", "parked"} else state
    return "succeeded"


def _id(i: int, at: int) -> str:
    return f"{first_id(at // 1000)[:20]}{i:08}"


# -- rows ----------------------------------------------------------------------------------------
def job_rows(found: Iterator[SampleJob], now: int) -> Iterator[Row]:
    for one in found:
        ran = one.waits in {"", "retry"}
        uses = "gateway" if one.waits == "held" else ""
        dead = one.state == "dead"
        ended = one.at + 1_000_000 if one.state in {"succeeded", "dead", "cancelled"} else None
        yield (
            one.id,
            one.kind,
            one.queue,
            one.owner,
            f"{one.queue}|{one.kind}|{uses}|{int(one.waits == 'retry')}",
            uses,
            now + LATER if one.waits in {"later", "retry"} else one.at,
            one.at,
            one.batch,
            f'{{"customer":{one.i % 5000},"note":"{"x" * 120}","n":{one.i}}}',
            one.state,
            int(ran),
            int(ran) * one.generation,
            one.generation,
            int(one.waits == "retry" or dead),
            one.at + 1000 if ran else None,
            one.at + 1000 if ran else None,
            ended,
            json.dumps(_error(one.cause)) if dead else None,
            '{"pages":7}' if one.state == "succeeded" else None,
            True,
            *((_code(one.cause), _class(one.cause), _group(one.cause)) if dead else (None,) * 3),
            '["again","never"]' if one.state == "parked" else None,
            "Somebody must decide." if one.state == "parked" else "",
        )


def _error(cause: int) -> dict[str, str]:
    return {
        "code": _code(cause),
        "class": _class(cause),
        "message": f"Step {cause} of the work could not be done.",
    }


def _code(cause: int) -> str:
    return f"CODE_{cause % 40:02}"


def _class(cause: int) -> str:
    return CLASSES[cause % len(CLASSES)]


def _group(cause: int) -> str:
    return f"v2-{hashlib.sha256(str(cause).encode()).hexdigest()[:12]}"


def attempt_rows(found: Iterator[SampleJob], jobs: int) -> Iterator[Row]:
    for one in found:
        fate = one.at + 1000, one.at + 1_000_000
        if one.state == "dead":
            for generation in range(1, one.generation + 1):
                yield (
                    one.id,
                    generation,
                    generation,
                    1,
                    "w",
                    "w",
                    *fate,
                    "failed",
                    "die",
                    *_failure_columns(one.cause),
                )
        elif one.generation > 1:
            yield (one.id, 1, 1, 1, "w", "w", *fate, "failed", "die", *_failure_columns(one.cause))
            yield (one.id, 2, 2, 1, "w", "w", *fate, "returned", "succeed", *(None,) * 6)
        elif one.waits == "retry":
            yield (
                one.id,
                1,
                1,
                1,
                "w",
                "w",
                *fate,
                "failed",
                "retry",
                *_failure_columns(one.cause),
            )
        elif one.state == "succeeded" and one.i >= jobs - RECENT:
            yield (one.id, 1, 1, 1, "w", "w", *fate, "returned", "succeed", *(None,) * 6)


def _failure_columns(cause: int) -> Row:
    error = _error(cause)
    private = json.dumps({"message": f"step {cause} said no, in private", "trace": TRACE})
    return error["code"], error["class"], "bench.rule", error["message"], private, _group(cause)


def event_rows(found: Iterator[SampleJob], jobs: int) -> Iterator[Row]:
    for one in found:
        if one.i < jobs - RECENT:
            continue
        yield (
            one.at,
            "job.queued",
            one.id,
            one.batch,
            one.owner,
            None,
            None,
            json.dumps(_about(one)),
        )
        how = {**_about(one), "duration_ms": 999, "wait_ms": 1}
        ended = (one.id, one.batch, one.owner, 1, 1)
        if one.state == "succeeded":
            yield (one.at + 1_000_000, "job.succeeded", *ended, json.dumps(how))
        elif one.state == "dead":
            yield (one.at + 1_000_000, "job.died", *ended, json.dumps(how | _error(one.cause)))


def _about(one: SampleJob) -> dict[str, str]:
    return {"kind": one.kind, "queue": one.queue}


def batch_rows(found: Iterator[SampleJob]) -> tuple[list[Row], list[Row]]:
    """Return the rows of batches and of their progress."""
    members: dict[str, list[SampleJob]] = {}
    for one in found:
        if one.batch is not None:
            members.setdefault(one.batch, []).append(one)
    rows = [
        (batch, f"campaign {of[0].i // 50}", of[0].owner, of[0].at, of[0].at + 1_000_000)
        for batch, of in members.items()
    ]
    outcomes = {batch: _outcome([one.state for one in of]) for batch, of in members.items()}
    ends = {batch: of[-1].at + 2_000_000 for batch, of in members.items()}
    return rows, [
        (batch, outcome, None if outcome is None else ends[batch])
        for batch, outcome in outcomes.items()
    ]


def _outcome(states: Sequence[str]) -> str | None:
    if "queued" in states or "parked" in states:
        return None
    return "ready" if set(states) == {"succeeded"} else "partial"


# -- a database ----------------------------------------------------------------------------------
def fill(place: World, jobs: int) -> None:
    store = place.app.open().store
    with store.begin() as tx:
        now = tx.now()
        GuardQueries(tx).close_gate(
            Gate("dependency", "gateway", now, None, "it does not answer", "bench")
        )
        for cause in range(0, CAUSES, 9):
            state, at = (("muted", None), ("resolved", now), ("open", None))[cause // 9 % 3]
            FailureQueries(tx).write_group_state(
                FailureGroupRow(_group(cause), "*", state, None, "", "bench", now, at)
            )
    EventCounter(0).run_once(store)  # starts counting here
    made = _without_indexes(store)
    _write(store, "job", JOB, job_rows(sample_jobs(jobs, now), now))
    _write(store, "attempt", ATTEMPT, attempt_rows(sample_jobs(jobs, now), jobs))
    _write(store, "event", EVENT, event_rows(sample_jobs(jobs, now), jobs))
    billed = (one for one in sample_jobs(jobs, now) if one.kind == "bill")
    _write(
        store,
        "job_arg",
        ("name", "value", "job_id", "kind"),
        (("customer", str(one.i % 5000), one.id, "bill") for one in billed),
    )
    definitions, progress = batch_rows(sample_jobs(jobs, now))
    _write(store, "batch", ("id", "name", "owner", "created_at", "sealed_at"), definitions)
    _write(store, "batch_progress", ("id", "outcome", "outcome_at"), progress)
    for statement in made:
        sql(store, statement)
    _fold_and_analyze(place, store)


def _fold_and_analyze(place: World, store: Store) -> None:
    """Count all events and update the planner statistics."""
    fold = EventCounter(0)
    while fold.run_once(store):
        pass
    if is_postgres(store):
        with psycopg.connect(place.url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")


def store_manifest(place: World) -> None:
    """Store the manifest of these kinds, as if their app had just run."""
    manifest = Manifest("crowd", "1", KINDS)
    with place.app.open().store.begin() as tx:
        ManifestQueries(tx).store_manifest(
            manifest.id, manifest.app, manifest.release, manifest.to_json()
        )


def _without_indexes(store: Store) -> list[str]:
    """Drop the indexes of the large tables. Return the statements that create them again."""
    if is_postgres(store):
        found = sql(
            store,
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'mulligan' AND indexname NOT LIKE '%pkey'"
            " AND tablename IN ('job', 'attempt', 'event', 'job_arg')",
        )
    else:
        found = sql(
            store,
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL AND tbl_name IN"
            " ('mulligan_job', 'mulligan_attempt', 'mulligan_event', 'mulligan_job_arg')",
        )
    for name, _ in found:
        sql(
            store,
            f'DROP INDEX "mulligan"."{name}"' if is_postgres(store) else f'DROP INDEX "{name}"',
        )
    return [made for _, made in found]


def _write(
    store: Store, table: str, columns: tuple[str, ...], found: Iterator[Row] | list[Row]
) -> None:
    name, listed = f"{prefix(store)}{table}", ", ".join(columns)
    with store.transaction() as connection:
        if is_postgres(store):
            with (
                connection.cursor() as cursor,
                cursor.copy(f"COPY {name} ({listed}) FROM STDIN") as copy,
            ):
                for row in found:
                    copy.write_row(row)
        else:
            marks = ", ".join("?" * len(columns))
            connection.executemany(f"INSERT INTO {name} ({listed}) VALUES ({marks})", found)  # noqa: S608 - ours


def digest() -> str:
    """Return a digest of this file, which names the cached copy."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:10]
