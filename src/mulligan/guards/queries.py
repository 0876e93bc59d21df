"""Statements about gates, limits and guards.

Nothing waits here. If a guard is locked, a worker appends a tally, and the next one that locks the
guard folds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.job import (
    ALL_LANES,
    Candidate,
    ClaimState,
    Gate,
    GuardRow,
    LaneEntry,
    LaneRef,
    LaneWindow,
    Limit,
    LimitKey,
    LimitRow,
    ReadyWindow,
    TokenBucket,
)
from mulligan.storage.base import Queries
from mulligan.storage.statements import SqlDialect

LAST_TIME: Micros = 2**63 - 1


class LaneDepthRow(NamedTuple):
    """Number of waiting jobs of a lane at one priority."""

    lane: str
    first: Micros  # when the first job is due
    due: int
    later: int


class TrialJobRow(NamedTuple):
    """A job that is tried while its kind is held, and how the attempt of the trial ended."""

    token: int
    owner: str
    state: str
    ended: str | None
    code: str | None


class RunningGroup(NamedTuple):
    """Running jobs of one kind on one worker."""

    worker: str
    queue: str
    kind: str
    jobs: int
    since: Micros  # start of the one that has run longest


class GuardQueries(Queries):
    """Statements about gates, limits and guards, in a transaction."""

    def read_claim_state(
        self, expected: Sequence[LaneRef] = (), depth: int = 0, window: LaneWindow = ALL_LANES
    ) -> ClaimState:
        """Read what a claim must know: clock, gates, limits, guards and lanes with jobs.

        Also list the due jobs of the `expected` lanes, like `list_due_jobs`: a claim that guesses
        its lanes saves a round trip.
        """
        if self.tx.dialect == SqlDialect.SQLITE:
            rows = self.tx.rows("read_claim_state", **_window_params(window))
            candidates = self.list_due_jobs(expected, depth)
            return _parse_claim_state(rows)._replace(candidates=candidates)
        params = self._lane_params(expected, depth) | _window_params(window)
        return _parse_claim_state(self.tx.rows("read_claim_state", len(expected) * depth, **params))

    def read_claim_state_partly(
        self, expected: Sequence[LaneRef], depth: int, window: LaneWindow, ready: ReadyWindow
    ) -> ClaimState:
        """Read what a claim must know if there are too many lanes to read all of them.

        Like `read_claim_state`, and in addition the lanes in `ready` and those expected.
        """
        known = [*expected, *ready.known]
        if self.tx.dialect == SqlDialect.SQLITE:
            state = self.read_claim_state(expected, depth, window)
            return state._replace(
                known=self._list_known_lanes(known),
                ready=self._list_ready_lanes(ready.since, state.now, ready.max_ready),
                upcoming=self._list_ready_lanes(state.now, LAST_TIME, ready.max_upcoming),
            )
        params = self._lane_params(known, depth) | _window_params(window)
        params |= {"expected": len(expected), "ready_since": ready.since}
        params |= {"max_ready": ready.max_ready, "max_upcoming": ready.max_upcoming}
        return _parse_claim_state(self.tx.rows("read_claim_state_partly", **params))

    def _list_known_lanes(self, lanes: Sequence[LaneRef]) -> list[LaneEntry]:
        if not lanes:
            return []
        return self.tx.rows("list_known_lanes", lanes=self.tx.array_param(lanes))

    def _list_ready_lanes(self, since: Micros, until: Micros, limit: int) -> list[LaneEntry]:
        return self.tx.rows("list_ready_lanes", since=since, until=until, limit=limit)

    def list_due_jobs(self, lanes: Sequence[LaneRef], depth: int) -> list[Candidate]:
        """List the first due jobs of each lane and priority, at most `depth` of each.

        Locks nothing.
        """
        if self.tx.dialect == SqlDialect.POSTGRES:
            params = self._lane_params(lanes, depth)
            rows = self.tx.rows("list_due_jobs", len(lanes) * depth, **params)
            return [*map(Candidate._make, rows)]
        found: list[Candidate] = []
        for lane, priority in lanes:
            rows = self.tx.rows("list_due_jobs", lane=lane, priority=priority, depth=depth)
            found += map(Candidate._make, rows)
        return found

    def _lane_params(self, lanes: Sequence[LaneRef], depth: int) -> dict[str, Any]:
        return {
            "lanes": self.tx.array_param([lane for lane, _ in lanes]),
            "priorities": self.tx.array_param([priority for _, priority in lanes]),
            "depth": depth,
        }

    def list_gates(self) -> list[Gate]:
        """List all closed gates."""
        return self.list_rows(Gate, "list_gates")

    def close_gate(self, gate: Gate) -> None:
        """Close a queue, kind or dependency. A gate that is closed for longer stays so."""
        self.tx.rows("close_gate", **gate._asdict())

    def open_gate(self, scope: str, key: str) -> bool:
        """Open a gate. False: it was not closed."""
        return bool(self.tx.rows("open_gate", scope=scope, key=key))

    def list_limits(self) -> list[LimitRow]:
        """List the limits that operators have set."""
        return self.list_rows(LimitRow, "list_limits")

    def set_limit(self, row: LimitRow) -> None:
        """Set a limit that overrides the declared one."""
        self.tx.rows("set_limit", **row._asdict())

    def clear_limit(self, key: LimitKey) -> bool:
        """Remove an operator's limit. False: there was none."""
        return bool(self.tx.rows("clear_limit", scope=key[0], key=key[1]))

    def lock_token_buckets(
        self, keys: Sequence[LimitKey]
    ) -> dict[LimitKey, tuple[TokenBucket, Micros] | None]:
        """Lock token buckets, creating those that do not exist. Return each with the current time.

        None: another claim has locked the bucket.
        """
        locked = self._lock_existing_buckets(keys)
        missing = [key for key in keys if key not in locked]
        if missing and self.tx.rows("insert_token_buckets", **self._bucket_params(missing)):
            locked |= self._lock_existing_buckets(missing)
        return {key: locked.get(key) for key in keys}

    def _lock_existing_buckets(
        self, keys: Sequence[LimitKey]
    ) -> dict[LimitKey, tuple[TokenBucket, Micros]]:
        rows = self.tx.rows("lock_token_buckets", **self._bucket_params(keys))
        return {
            (scope, key): (TokenBucket(tokens, at), now) for scope, key, tokens, at, now, *_ in rows
        }

    def _bucket_params(self, keys: Sequence[LimitKey]) -> dict[str, Any]:
        return {
            "scopes": self.tx.array_param([scope for scope, _ in keys]),
            "keys": self.tx.array_param([key for _, key in keys]),
        }

    def update_token_buckets(self, left: Mapping[LimitKey, TokenBucket]) -> None:
        """Store what is left in locked token buckets."""
        tokens = self.tx.array_param([bucket.tokens for bucket in left.values()])
        times = self.tx.array_param([bucket.at for bucket in left.values()])
        params = self._bucket_params([*left])
        self.tx.rows("update_token_buckets", **params, tokens=tokens, times=times)

    def count_running(self) -> list[tuple[str, str, int]]:
        """Count the running jobs by (queue, dependencies)."""
        return [(row[0], row[1], row[2]) for row in self.tx.rows("count_running")]

    def list_running_groups(self, limit: int) -> list[RunningGroup]:
        """List running jobs by worker, queue and kind, the largest groups first."""
        return self.list_rows(RunningGroup, "list_running_groups", limit=limit)

    def count_waiting(self, lane: str, priority: int, now: Micros, cap: int) -> tuple[int, int]:
        """Count the queued jobs of a lane: due, and due later. Each count stops at `cap`."""
        rows = self.tx.rows("count_waiting", lane=lane, priority=priority, at_time=now, cap=cap)
        due, later = rows[0]
        return due, later

    def count_waiting_by_lane(self, now: Micros, cap: int, limit: int) -> list[LaneDepthRow]:
        """Count waiting jobs of at most `limit` lanes. Each count stops at `cap`."""
        window = _window_params(LaneWindow(max_lanes=limit))
        return self.list_rows(LaneDepthRow, "count_waiting_by_lane", at_time=now, cap=cap, **window)

    def list_guards(self, *, active_only: bool = False) -> list[GuardRow]:
        """List all guards, or only those that restrict claims."""
        statement = "list_active_guards" if active_only else "list_guards"
        return [_parse_guard(row) for row in self.tx.rows(statement)]

    def lock_guard(self, key: LimitKey) -> GuardRow | None:
        """Lock a guard, creating it if it does not exist. None: another worker has locked it."""
        name = {"scope": key[0], "key": key[1]}
        found = self.tx.rows("lock_guard", **name)
        if not found and not self.tx.rows("guard_exists", **name):
            self.tx.rows("insert_guard", **name)
            found = self.tx.rows("lock_guard", **name)
        return _parse_guard(found[0]) if found else None

    def update_guard(self, row: GuardRow) -> bool:
        """Store a guard by compare-and-set on its version. False: it has changed."""
        return bool(self.tx.rows("update_guard", **row._asdict()))

    def append_tally(self, key: LimitKey, body: str) -> None:
        """Append outcomes to a guard without locking it."""
        self.tx.rows("append_tally", scope=key[0], key=key[1], body=body)

    def take_tallies(self, key: LimitKey) -> list[str]:
        """Delete and return the tallies of a guard, oldest first."""
        return [row[0] for row in self.tx.rows("take_tallies", scope=key[0], key=key[1])]

    def list_tallied_guards(self) -> list[LimitKey]:
        """List guards that have tallies."""
        return [(row[0], row[1]) for row in self.tx.rows("list_tallied_guards")]

    def set_probe_time(self, key: LimitKey, at: Micros | None) -> None:
        """Store when a guard probes its closed gate next."""
        self.tx.rows("set_probe_time", scope=key[0], key=key[1], probe_at=at)

    def is_running(self, job_id: str, token: int) -> bool:
        """True if this attempt is running."""
        return bool(self.tx.rows("is_running", id=job_id, token=token))

    def get_trial_job(self, job_id: str, token: int) -> TrialJobRow | None:
        """Read a job that is tried. `token`: of the attempt of the trial."""
        return self.first_row(TrialJobRow, "get_trial_job", id=job_id, token=token)

    def find_last_success(self, kind: str, limit: int) -> tuple[Micros | None, Micros]:
        """Return when a job of this kind last succeeded, and how far back was looked.

        Considers the newest `limit` successes of all kinds. 0: all of them.
        """
        found = self.tx.rows("find_last_success", kind=kind, limit=limit)
        if found:
            return found[0][0], found[0][0]
        oldest = self.tx.rows("find_nth_success", n=limit - 1)
        searched_from = oldest[0][0] if oldest else 0
        return None, searched_from


def _parse_guard(row: tuple[Any, ...]) -> GuardRow:
    scope, key, version, active, body = row
    return GuardRow(scope, key, version, bool(active), body)


def _window_params(window: LaneWindow) -> dict[str, Any]:
    lane, priority = window.after
    return {"after_lane": lane, "after_priority": priority, "max_lanes": window.max_lanes}


def _parse_claim_state(rows: Iterable[Sequence[Any]]) -> ClaimState:
    """Build a ClaimState from the rows of `read_claim_state`, which have different types."""
    now = 0
    gates = []
    lanes: dict[str, list[LaneEntry]] = {"lane": [], "known": [], "ready": [], "upcoming": []}
    guards = []
    candidates = []
    limits: dict[LimitKey, tuple[Micros | None, Limit]] = {}
    for row_type, name, key, first, second, text, actor in rows:
        if row_type == "job":
            candidates.append(Candidate(first, second, key, name))
        elif row_type in lanes:
            lanes[row_type].append((name, first, second))
        elif row_type == "gate":
            gates.append(Gate(name, key, first, second, text, actor))
        elif row_type == "guard":
            guards.append(GuardRow(name, key, first, active=True, body=text))
        elif row_type == "limit":
            rate = None if text is None else float(text)
            limits[name, key] = (second, Limit(first, rate))
        else:
            now = first
    in_force = {
        key: limit for key, (until, limit) in limits.items() if until is None or until > now
    }
    all_lanes, known, ready, upcoming = lanes.values()
    return ClaimState(now, gates, in_force, all_lanes, guards, candidates, known, ready, upcoming)
