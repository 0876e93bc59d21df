"""Statements about gates, limits and guards.

Nothing waits here. If a guard is locked, a worker appends a tally, and the next one that locks the
guard folds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.job import Gate, GuardRow, LimitKey, LimitRow, TokenBucket
from mulligan.storage.base import Queries


class LaneDepthRow(NamedTuple):
    """Number of waiting jobs of a lane at one priority."""

    lane: str
    first: Micros  # when the first job is due
    due: int
    later: int


class GuardQueries(Queries):
    """Statements about gates, limits and guards, in a transaction."""

    def list_gates(self) -> list[Gate]:
        """List all closed gates."""
        return [Gate._make(row) for row in self.tx.rows("list_gates")]

    def close_gate(self, gate: Gate) -> None:
        """Close a queue, kind or dependency. A gate that is closed for longer stays so."""
        self.tx.rows("close_gate", **gate._asdict())

    def open_gate(self, scope: str, key: str) -> bool:
        """Open a gate. False: it was not closed."""
        return bool(self.tx.rows("open_gate", scope=scope, key=key))

    def list_limits(self) -> list[LimitRow]:
        """List the limits that operators have set."""
        return [LimitRow._make(row) for row in self.tx.rows("list_limits")]

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

    def count_waiting(self, lane: str, priority: int, now: Micros, cap: int) -> tuple[int, int]:
        """Count the queued jobs of a lane: due, and due later. Each count stops at `cap`."""
        rows = self.tx.rows("count_waiting", lane=lane, priority=priority, at_time=now, cap=cap)
        due, later = rows[0]
        return due, later

    def count_waiting_by_lane(self, now: Micros, cap: int, limit: int) -> list[LaneDepthRow]:
        """Count waiting jobs of at most `limit` lanes. Each count stops at `cap`."""
        return [
            LaneDepthRow._make(row)
            for row in self.tx.rows("count_waiting_by_lane", at_time=now, cap=cap, limit=limit)
        ]

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

    def find_last_success(self, kind: str, limit: int) -> tuple[Micros | None, Micros]:
        """Return when a job of this kind last succeeded, and how far back was looked.

        Considers the newest `limit` successes of all kinds. 0: all of them.
        """
        found = self.tx.rows("find_last_success", kind=kind, limit=limit)
        if found:
            return found[0][0], found[0][0]
        oldest = self.tx.rows("find_nth_success", n=limit - 1)
        return None, oldest[0][0] if oldest else 0


def _parse_guard(row: tuple[Any, ...]) -> GuardRow:
    scope, key, version, active, body = row
    return GuardRow(scope, key, version, bool(active), body)
