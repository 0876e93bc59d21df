"""Invariants that must hold after every step. They are read from the tables, not through the engine.

The names are those of `doctor --verify`: S safety of a job, U uniqueness, C schedules, B batches,
N messages. O is operations, W is workers.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mulligan.batches.rules import BatchCounts, compute_outcome
from mulligan.core.attempt import Lease
from mulligan.core.durations import Micros
from mulligan.core.job import Gate, State
from mulligan.core.lifecycle import EVENTS, MOVES, TERMINAL
from mulligan.guards.lanes import is_closed
from mulligan.guards.limits import merge_limits
from mulligan.guards.queries import GuardQueries
from mulligan.manifest.specs import SYSTEM_PREFIX
from mulligan.operations.rules import ItemCounts, sum_counts
from support.store import ATTEMPT_QUERY, EVENT_QUERY, prefix, unbundled

if TYPE_CHECKING:
    from simulation.world import World

NO_MOVE = frozenset({"job.stale_refused", "job.cancel_requested"})
ENDS_ATTEMPT = frozenset(
    EVENTS[verb].value for (verb, state) in MOVES if state is State.RUNNING
)  # some of these events are also written for other moves, without a token
OUTCOMES = {"batch.ready": "ready", "batch.partial": "partial", "batch.failed": "failed"}
MAX_LOSSES = 1  # of every kind of the shop


def _legal() -> dict[tuple[str, str], set[str]]:
    """Return (event type, state) → possible next states, from the table of moves."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for (verb, start), end in MOVES.items():
        found[EVENTS[verb].value, start.value].add(end.value)
    return found


LEGAL = _legal()


class Broken(AssertionError):
    """An invariant does not hold."""


def check_invariant(holds: object, name: str, *evidence: object) -> None:
    """Raise Broken with the evidence, unless the invariant holds."""
    if not holds:
        raise Broken(f"{name}: {' '.join(map(str, evidence))}")


class Row(NamedTuple):
    id: str
    kind: str
    queue: str
    owner: str
    state: str
    uses: str
    worker: str | None
    token: int
    generation: int
    attempt: int
    failures: int
    losses: int
    snoozes: int
    announced: int
    unique_key: str | None
    unique_hash: str | None
    unique_cover: str | None
    unique_until: Micros | None
    batch_id: str | None
    result: str | None
    error: str | None
    finished_at: Micros | None
    started_at: Micros | None
    run_at: Micros
    cost: float
    must_have: int


class Ended(NamedTuple):
    job_id: str
    token: int
    generation: int
    attempt: int
    ended: str
    verb: str
    cost: float


class LogEvent(NamedTuple):
    id: int
    at: Micros
    type: str
    job_id: str | None
    batch_id: str | None
    attempt: int | None
    token: int | None
    actor: str
    data: str


class Life:
    """State of a job, replayed from its events."""

    __slots__ = ("attempt", "ends", "generation", "state", "token")

    def __init__(self) -> None:
        self.state: str | None = None
        self.generation, self.attempt, self.token = 1, 0, 0
        self.ends = 0  # of this generation

    def apply(self, event: LogEvent) -> None:
        name = event.type
        if name in NO_MOVE:
            return
        self._apply_move(event)
        if name == "job.started":
            check_invariant(event.token == self.token + 1, "S5 tokens grow by one", event)
            check_invariant(event.attempt == self.attempt + 1, "S5 attempts are 1, 2, 3", event)
            self.attempt, self.token = event.attempt or 0, event.token or 0
        elif event.token is not None:
            check_invariant(
                event.token == self.token, "S7 an ending carries the current token", event
            )
        if name == "job.retried":
            check_invariant(event.actor, "S2 a generation has an actor", event)
            self.generation, self.attempt, self.ends = self.generation + 1, 0, 0
        elif self.state in TERMINAL and name != "job.discarded":
            self.ends += 1
            check_invariant(self.ends == 1, "S2 one end in a generation", event)

    def _apply_move(self, event: LogEvent) -> None:
        """Set the state after a legal move."""
        if event.type == "job.queued":
            check_invariant(self.state is None, "S4 queued once", event)
            self.state = "queued"
            return
        ends = LEGAL.get((event.type, self.state or ""), set())
        if event.type == "job.died":  # of an attempt, or of a deadline while it waits
            check_invariant(
                (self.state == "running") == (event.token is not None),
                "S4 a death in an attempt has its token",
                event,
            )
        check_invariant(ends, "S3/S4 a legal move", event, "of a job that was", self.state)
        check_invariant(len(ends) == 1, "S4 an event leads to one state", event, ends)
        self.state = next(iter(ends))


class Ledger:
    """Everything that the events and the answers of calls have reported so far."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._store = world.store
        self._prefix = prefix(world.store)
        self._cursor = 0
        self.lives: dict[str, Life] = {}
        self.rows: dict[str, Row] = {}
        self._accepted: set[str] = set()
        self._rolled_back: set[str] = set()
        self._ended: dict[tuple[str, int], str] = {}  # batch, generation → outcome
        self._sealed: set[str] = set()
        self._slots: dict[tuple[str, int], str] = {}
        self.event_counts: Counter[str] = Counter()  # without built-in kinds
        self.messages: Counter[str] = Counter()
        self._kinds: dict[str, str] = {}

    def query(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        with self._store.read() as tx:
            if hasattr(tx, "_handle"):
                return tx._handle.execute(text.replace("{p}", self._prefix))
            return tx._connection.execute(text.replace("{p}", self._prefix)).fetchall()

    # --- Answers of calls ---
    def add_accepted(self, ids: Iterable[str]) -> None:
        self._accepted |= set(ids)

    def add_rolled_back(self, ids: Iterable[str]) -> None:
        self._rolled_back |= set(ids)

    # --- After every step ---
    def check(self) -> None:
        before = self.rows
        columns = ", ".join(Row._fields)
        rows = self.query(f"SELECT {columns} FROM {{p}}job")  # noqa: S608
        self.rows = {row[0]: Row(*row) for row in rows}
        self._read_events()
        self._world.jobs = sorted(self.rows)
        self._check_accepted(before)
        self._check_replay()
        self._attempts()
        self._columns()
        self._unique()
        self._batches()
        self._operations()

    def _read_events(self) -> None:
        found = self.query(EVENT_QUERY.replace("ORDER BY", f"WHERE id > {self._cursor} ORDER BY"))
        for number, at, kind, job_id, batch_id, _, *rest in unbundled(found):
            event = LogEvent(number, at, kind, job_id, batch_id, *rest)
            self._cursor = event.id
            if event.job_id is not None and event.type.startswith("job."):
                self.lives.setdefault(event.job_id, Life()).apply(event)
            self._count_event(event)

    def _count_event(self, event: LogEvent) -> None:
        if event.type == "job.queued":
            self._queued(event, json.loads(event.data))
        elif event.type == "job.retry_scheduled":
            data = json.loads(event.data)
            check_invariant(
                data["failures"] <= data["max_retries"], "S12 no more retries than allowed", event
            )
        elif event.type == "batch.sealed":
            check_invariant(event.batch_id not in self._sealed, "B2 sealed once", event)
            self._sealed.add(event.batch_id or "")
        elif event.type in OUTCOMES:
            self._outcome(event, json.loads(event.data))
        if event.type in {"job.died", *OUTCOMES} and not self._is_system_kind(event.job_id):
            self.event_counts[event.type] += 1

    def _is_system_kind(self, job_id: str | None) -> bool:
        return self._kinds.get(job_id or "", "").startswith(SYSTEM_PREFIX)

    def _queued(self, event: LogEvent, data: Mapping[str, Any]) -> None:
        self._kinds[event.job_id or ""] = data["kind"]
        self.messages[data["kind"]] += 1
        if "slot_at" in data:
            slot = (data["schedule"], data["slot_at"])
            check_invariant(slot not in self._slots, "C1 one job in a slot", event)
            self._slots[slot] = event.job_id or ""

    def _outcome(self, event: LogEvent, data: Mapping[str, Any]) -> None:
        key = (event.batch_id or "", data["generation"])
        check_invariant(event.batch_id in self._sealed, "B2 no outcome before the seal", event)
        check_invariant(key not in self._ended, "B2 one outcome in a generation", event)
        self._ended[key] = OUTCOMES[event.type]
        counts = BatchCounts(**{name: data[name] for name in BatchCounts.__dataclass_fields__})
        check_invariant(counts.unfinished == 0, "B2 no outcome before the last end", event)
        check_invariant(counts.total == data["total"], "B1 the figures add up", event)

    # -- S: jobs ----------------------------------------------------------------------------------
    def _check_accepted(self, before: Mapping[str, Row]) -> None:
        for job_id in before.keys() - self.rows.keys():
            life = self.lives[job_id]
            check_invariant(
                life.state in TERMINAL, "S1 only ended jobs are pruned", job_id, life.state
            )
            self._accepted.discard(job_id)
        check_invariant(
            self._accepted <= self.rows.keys(),
            "S1 accepted jobs exist",
            self._accepted - self.rows.keys(),
        )
        check_invariant(
            not self._rolled_back & self.rows.keys(),
            "S17 rolled back jobs do not exist",
            self._rolled_back & self.rows.keys(),
        )

    def _check_replay(self) -> None:
        for row in self.rows.values():
            life = self.lives.get(row.id)
            if life is None:
                check_invariant(
                    not row.announced and row.state == "queued",
                    "S18 no change without an event",
                    row,
                )
                continue
            folded = (life.state, life.generation, life.attempt, life.token)
            check_invariant(
                folded == (row.state, row.generation, row.attempt, row.token),
                "S18 replay = row",
                row,
                folded,
            )

    def _attempts(self) -> None:
        by_job: dict[str, list[Ended]] = defaultdict(list)
        columns = ", ".join(Ended._fields)
        rows = self.query(f"SELECT {columns} FROM {ATTEMPT_QUERY} ORDER BY job_id, token")  # noqa: S608
        for row in rows:
            by_job[row[0]].append(Ended(*row))
        check_invariant(
            by_job.keys() <= self.rows.keys(),
            "S18 no attempt without its job",
            by_job.keys() - self.rows.keys(),
        )
        for row in self.rows.values():
            self._accounted(row, by_job[row.id])

    def _accounted(self, row: Row, attempts: Sequence[Ended]) -> None:
        last = row.token - (row.state == "running")
        tokens = [attempt.token for attempt in attempts]
        check_invariant(
            tokens == list(range(1, last + 1)), "S5 every claim has its end", row, tokens
        )
        now = [attempt for attempt in attempts if attempt.generation == row.generation]
        verbs = Counter(attempt.verb for attempt in now)
        died = sum(one.verb == "die" and one.ended in {"failed", "retry", "held"} for one in now)
        check_invariant(
            verbs["retry"] <= row.failures <= verbs["retry"] + died,
            "S12 failures are counted once",
            row,
            now,
        )
        lost = sum(one.ended == "lost" for one in now)
        check_invariant(row.losses <= lost, "S12 losses are counted once", row, now)
        # Deliveries may be lost as often as workers are killed.
        may_run = row.losses <= MAX_LOSSES or row.kind.startswith(SYSTEM_PREFIX)
        check_invariant(row.state != "queued" or may_run, "S12 a poison job ends", row)
        check_invariant(
            row.snoozes == sum(one.ended == "snoozed" and one.verb != "stop" for one in now),
            "S12 snoozes",
            row,
            now,
        )
        check_invariant(
            abs(row.cost - sum(one.cost for one in attempts)) < 1e-6,
            "S12 costs add up",
            row,
            attempts,
        )

    def _columns(self) -> None:
        for row in self.rows.values():
            running, ended = row.state == "running", row.state in TERMINAL
            check_invariant(running == (row.worker is not None), "S10 a lease while it runs", row)
            check_invariant(
                row.result is None or row.state == "succeeded",
                "S11 only succeeded jobs have a result",
                row,
            )
            check_invariant(
                (row.error is not None) == (row.state == "dead"),
                "S11 only dead jobs have an error",
                row,
            )
            check_invariant(
                ended == (row.finished_at is not None), "S11 only ended jobs have an end time", row
            )
        self._held()

    def _held(self) -> None:
        """S6: a worker knows its leases, except after a lost answer, until its next transaction."""
        running = [row for row in self.rows.values() if row.state == "running"]
        for worker in self._world.workers:
            known = {*worker.flights, *(ending.lease.fence for ending in worker.endings)}
            mine = {(row.id, row.token) for row in running if row.worker == worker.id}
            check_invariant(
                worker.has_lost_answer or mine <= known,
                "S6 a worker knows its leases",
                worker.id,
                mine - known,
            )

    # -- U: uniqueness ----------------------------------------------------------------------------
    def _unique(self) -> None:
        now = self._world.clock.wall
        holders: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for row in self.rows.values():
            if row.unique_key is None:
                continue
            covered = row.state in (row.unique_cover or "").split(",")
            if row.unique_hash is not None:
                check_invariant(covered, "U1 a key is free outside of its covered states", row)
                holders[row.owner, row.kind, row.unique_key].append(row.id)
            elif covered:
                check_invariant(
                    row.unique_until is not None,
                    "U1 a key is held in its covered states",
                    row,
                    now,
                )
        for key, ids in holders.items():
            check_invariant(len(ids) == 1, "U1 one job of a key", key, ids)

    # -- B: batches -------------------------------------------------------------------------------
    def _batches(self) -> None:
        members: dict[str, Counter[str]] = defaultdict(Counter)
        for row in self.rows.values():
            if row.batch_id is not None:
                members[row.batch_id][row.state] += 1
        found = self.query(
            "SELECT b.id, b.sealed_at, p.generation, p.outcome, p.being_pruned FROM {p}batch b JOIN {p}batch_progress p "
            "ON p.id = b.id"
        )
        for batch_id, sealed_at, generation, outcome, being_pruned in found:
            counts = members.pop(batch_id, Counter())
            if outcome is None or being_pruned:
                continue
            check_invariant(sealed_at is not None, "B2 no outcome before the seal", batch_id)
            check_invariant(
                not any(counts[state] for state in ("queued", "running", "parked")),
                "B2 all have ended",
                batch_id,
            )
            check_invariant(
                self._ended.get((batch_id, generation)) == outcome,
                "B2 an outcome has an event",
                batch_id,
                outcome,
            )
        check_invariant(not members, "B1 no member without its batch", list(members))

    def check_finished_batches(self) -> None:
        """Check that every sealed batch has completed, after all jobs have ended."""
        rows = self.query(
            "SELECT b.id, b.tolerance, b.sealed_at, p.outcome FROM {p}batch b JOIN {p}batch_progress p ON p.id = b.id "
            "WHERE NOT p.being_pruned"
        )
        for batch_id, tolerance, sealed_at, outcome in rows:
            states = Counter(row.state for row in self.rows.values() if row.batch_id == batch_id)
            missed = sum(
                bool(row.must_have) and row.state in {"dead", "cancelled"}
                for row in self.rows.values()
                if row.batch_id == batch_id
            )
            if sealed_at is None:
                continue
            check_invariant(outcome is not None, "L1 a sealed batch ends", batch_id, states)
            counts = BatchCounts(**states, missed=missed)
            check_invariant(
                counts.unfinished == 0,
                "B2 all have ended",
                batch_id,
                states,
                compute_outcome(counts, tolerance),
            )

    # -- O: operations ----------------------------------------------------------------------------
    def _operations(self) -> None:
        items: dict[str, Counter[str]] = defaultdict(Counter)
        for operation, state, outcome, count in self.query(
            "SELECT operation, state, outcome, COUNT(*) FROM {p}operation_item GROUP BY operation, state, outcome"
        ):
            items[operation][outcome or state] += count
        for operation, state, total, tallies in self.query(
            "SELECT id, state, total, tallies FROM {p}operation"
        ):
            counts = items.pop(operation, Counter())
            check_invariant(
                sum(counts.values()) == total,
                "O1 as many items as were found",
                operation,
                total,
                counts,
            )
            if state == "gathering":
                continue
            whole = sum_counts([ItemCounts(*numbers) for numbers in json.loads(tallies)])._asdict()
            size = whole.pop("size")
            check_invariant(size == total, "O1 the steps hold all items", operation, size, total)
            check_invariant(
                {k: v for k, v in whole.items() if v} == dict(counts),
                "O1 tallies = recount",
                operation,
                whole,
                counts,
            )
        check_invariant(not items, "O1 no item without its operation", list(items))

    # -- S13, S15: claims -------------------------------------------------------------------------
    def gates(self) -> list[Gate]:
        with self._store.read() as tx:
            return GuardQueries(tx).list_gates()

    def claimed(self, leases: Sequence[Lease], before: Sequence[Gate]) -> None:
        """Check that no job started in a lane that was closed before and after the claim.

        Adopted leases are ignored: they started earlier.
        """
        now = self._world.clock.wall
        leases = [lease for lease in leases if not self._ran(lease)]
        after = self.gates()
        closed = {gate[:2] for gate in before if is_closed(gate, now)}
        closed &= {gate[:2] for gate in after if is_closed(gate, now) and gate.actor != "breaker"}
        for lease in leases:
            check_invariant(lease.run_at <= now, "S13 nothing starts before its time", lease)
            keys = {("queue", lease.queue), ("kind", lease.kind)}
            keys |= {("dependency", key) for key in lease.uses.split(",") if key}
            check_invariant(
                not keys & closed, "S13 nothing starts behind a closed gate", lease, keys & closed
            )
        if leases:
            self._within_limits(leases, now)

    def _ran(self, lease: Lease) -> bool:
        row = self.rows.get(lease.id)
        return row is not None and row.state == "running" and row.token == lease.token

    def _within_limits(self, leases: Sequence[Lease], now: Micros) -> None:
        with self._store.read() as tx:
            data = GuardQueries(tx).read_claim_state().limits
            running = GuardQueries(tx).count_running()
        limits = merge_limits(self._world.workers[0].turns._claimer.app_limits, data)
        for (scope, key), limit in limits.items():
            if limit.concurrency is None:
                continue
            taken = [
                x
                for x in leases
                if (x.queue == key if scope == "queue" else key in x.uses.split(","))
            ]
            count = sum(
                n
                for queue, uses, n in running
                if (queue == key if scope == "queue" else key in uses.split(","))
            )
            check_invariant(
                not taken or count <= limit.concurrency,
                "S15 no more than the limit run",
                scope,
                key,
                count,
                limit,
                taken,
            )
