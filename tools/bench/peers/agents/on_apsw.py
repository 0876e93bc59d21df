"""Baseline: SQLite alone through apsw, with rows as wide as ours, WAL, synchronous=FULL.

A claim of a hundred (or a thousand) is one synced commit, their end by update another; no handler, history or fence.
For single and bulk inserts the very rows that Mulligan writes, the job and its event, by plain statements into its own
tables; and the job's row alone into a plain table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import apsw
from talk import BULK_SIZE, SQLITE, Agent, alternate, serve

from mulligan.core.ids import new_id
from mulligan.storage import open_store

WIDE = "x" * 43  # makes a row as wide as ours; `about` returns both widths
TABLE = """
CREATE TABLE plain (
  id TEXT PRIMARY KEY, kind TEXT NOT NULL, queue TEXT NOT NULL, lane TEXT NOT NULL,
  state TEXT NOT NULL DEFAULT 'queued', priority INTEGER NOT NULL DEFAULT 0, run_at INTEGER NOT NULL,
  created_at INTEGER NOT NULL, started_at INTEGER, finished_at INTEGER, worker TEXT, token INTEGER NOT NULL DEFAULT 0,
  attempt INTEGER NOT NULL DEFAULT 0, rest TEXT NOT NULL, payload TEXT NOT NULL, result TEXT) STRICT;
CREATE INDEX plain_for_claim ON plain (lane, priority, run_at, id) WHERE state = 'queued';
"""
CLAIM = """
UPDATE plain SET state = 'running', worker = :worker, token = token + 1, attempt = attempt + 1, started_at = :now
WHERE id IN (SELECT id FROM plain WHERE state = 'queued' AND lane = 'default|noop||0' AND priority = 0
             AND run_at <= :now ORDER BY run_at, id LIMIT :most)
RETURNING id, kind, payload, token
"""
FINISH = "UPDATE plain SET state = 'succeeded', worker = NULL, finished_at = ?, result = 'null' WHERE id = ?"
ROW = """
INSERT INTO plain (id, kind, queue, lane, run_at, created_at, rest, payload)
VALUES (:id, 'noop', 'default', 'default|noop||0', :now, :now, :rest, :payload)
"""
OUR_ROW = """
INSERT INTO mulligan_job (id, kind, queue, owner, priority, lane, uses, run_at, ready_at, created_at, announced, payload)
VALUES (:id, 'noop', 'default', '', 0, 'default|noop||0', '', :now, :now, :now, 1, :payload)
"""
OUR_EVENT = """
INSERT INTO mulligan_event (at, type, job_id, owner, data) VALUES (:now, 'job.queued', :id, '', :data)
"""
BYTES = "SELECT sum(payload) * 1.0 / sum(ncell) FROM dbstat WHERE name = ? AND pagetype = 'leaf'"
OUR_BUNDLE = "INSERT INTO mulligan_event (at, type, bundle, data) VALUES (?, 'job.queued', ?, ?)"
PLAIN, OURS = (ROW,), (OUR_ROW,)


class ApswAgent(Agent):
    def open(self) -> None:
        with closing(open_store(f"sqlite:///{SQLITE}")) as store:
            store.migrate()  # makes our tables
        self.connection = apsw.Connection(SQLITE)
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            self.connection.execute(f"PRAGMA {pragma}").fetchall()
        self.connection.execute(TABLE)

    def close(self) -> None:
        self.connection.close()

    def _rows(self, ids: Iterable[int]) -> list[dict[str, Any]]:
        now = time.time_ns() // 1000
        data = json.dumps({"kind": "noop", "queue": "default", "run_at": now})
        return [
            {
                "id": new_id(),
                "now": now,
                "rest": WIDE,
                "data": data,
                "payload": json.dumps({"i": i}, separators=(",", ":")),
            }
            for i in ids
        ]

    def _insert(self, statements: tuple[str, ...], ids: Iterable[int]) -> None:
        """Insert rows in one synced commit."""
        rows = self._rows(ids)
        self.connection.execute("BEGIN IMMEDIATE")
        for statement in statements:
            self.connection.executemany(statement, rows)
        if statements is OURS:
            self._insert_events(rows)
        self.connection.execute("COMMIT")

    def _insert_events(self, rows: list[dict[str, Any]]) -> None:
        """Insert the events as Mulligan does: one row for one job, one row for many."""
        if len(rows) == 1:
            self.connection.execute(OUR_EVENT, rows[0])
            return
        lines = "\n".join(
            [rows[0]["data"], *(f'["{row["id"]}",null,"",null,null]' for row in rows)]
        )
        self.connection.execute(OUR_BUNDLE, (rows[0]["now"], len(rows), lines))

    def enqueue_many(self, task: str, ids: Sequence[int]) -> None:
        del task
        self._insert(PLAIN, ids)

    def one(self, n: int) -> dict[str, float]:
        return self._both(n, 1)

    def many(self, n: int) -> dict[str, float]:
        return self._both(n, BULK_SIZE)

    def _both(self, n: int, size: int) -> dict[str, float]:
        tables = {"plain": PLAIN, "same rows": OURS}
        return alternate(
            {name: partial(self._each, statements, size) for name, statements in tables.items()}, n
        )

    def _each(self, statements: tuple[str, ...], size: int, n: int) -> None:
        for start in range(0, n, size):
            self._insert(statements, range(start, min(n, start + size)))

    def drain(self, n: int) -> dict[str, float]:
        return {f"batches of {size}": self._measure_drain(n, size) for size in (100, 1000)}

    def _measure_drain(self, n: int, size: int) -> float:
        self.connection.execute("DELETE FROM plain")
        self.fill("noop", n)
        began, ended = time.perf_counter(), 0
        while rows := self._claim(size):
            now = time.time_ns() // 1000
            self.connection.execute("BEGIN IMMEDIATE")
            self.connection.executemany(FINISH, [(now, row[0]) for row in rows])
            self.connection.execute("COMMIT")
            ended += len(rows)
        if ended != n:
            raise RuntimeError(f"{ended} of {n} jobs ended")
        return n / (time.perf_counter() - began)

    def _claim(self, size: int) -> list[Any]:
        params = {
            "worker": "w_06gyb3pj7c00c3ahgzcmdmvx0963",
            "now": time.time_ns() // 1000,
            "most": size,
        }
        return self.connection.execute(CLAIM, params).fetchall()

    def about(self) -> dict[str, float]:
        """Return the bytes of a waiting row, of the baseline and of Mulligan."""
        self.connection.execute("DELETE FROM plain")
        self._insert(PLAIN, range(1000))
        self._insert(OURS, range(1000))
        tables = {"plain": "plain", "ours": "mulligan_job"}
        sizes = {name: self.connection.execute(BYTES, (table,)) for name, table in tables.items()}
        return {
            f"bytes of a row, {name}": float(found.fetchone()[0]) for name, found in sizes.items()
        }


if __name__ == "__main__":
    serve(ApswAgent())
