"""Baseline: PostgreSQL alone, with rows as wide as ours, claimed in batches and finished by update.

One connection, prepared statements, each statement its own synced commit, no handler, no history, no fence.
For single and bulk inserts the very rows that Mulligan writes, the job and its event, by plain statements into its own
schema; and the job's row alone into a plain table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing

import psycopg
from talk import BULK_SIZE, POSTGRES, Agent, alternate, serve

from mulligan.core.ids import new_id
from mulligan.storage import open_store

WIDE = "x" * 40  # makes a row as wide as ours; `about` returns both widths
TABLE = """
CREATE TABLE plain (
  id text COLLATE "C" PRIMARY KEY, kind text NOT NULL, queue text NOT NULL, lane text COLLATE "C" NOT NULL,
  state text NOT NULL DEFAULT 'queued', priority integer NOT NULL DEFAULT 0, run_at bigint NOT NULL,
  created_at bigint NOT NULL, started_at bigint, finished_at bigint, worker text, token integer NOT NULL DEFAULT 0,
  attempt integer NOT NULL DEFAULT 0, rest text NOT NULL, payload text NOT NULL, result text);
CREATE INDEX plain_for_claim ON plain (lane, priority, run_at, id) WHERE state = 'queued';
"""
CLAIM = """
UPDATE plain SET state = 'running', worker = %(worker)s, token = token + 1, attempt = attempt + 1, started_at = %(now)s
WHERE id = ANY (ARRAY(SELECT id FROM plain WHERE state = 'queued' AND lane = 'default|noop||0' AND priority = 0
                      AND run_at <= %(now)s ORDER BY run_at, id LIMIT %(most)s FOR UPDATE SKIP LOCKED))
RETURNING id, kind, payload, token
"""
FINISH = """
UPDATE plain SET state = 'succeeded', worker = NULL, finished_at = %(now)s, result = 'null' WHERE id = ANY (%(ids)s)
"""
ROWS = """
INSERT INTO plain (id, kind, queue, lane, run_at, created_at, rest, payload)
SELECT i.id, 'noop', 'default', 'default|noop||0', %(now)s, %(now)s, %(rest)s, i.payload
FROM unnest(%(ids)s::text[], %(payloads)s::text[]) AS i(id, payload)
"""
ROW = """
INSERT INTO plain (id, kind, queue, lane, run_at, created_at, rest, payload)
VALUES (%(id)s, 'noop', 'default', 'default|noop||0', %(now)s, %(now)s, %(rest)s, %(payload)s)
"""
OUR_ROW = """
WITH fresh AS (
  INSERT INTO mulligan.job (id, kind, queue, owner, priority, lane, uses, run_at, ready_at, created_at, announced, payload)
  VALUES (%(id)s, 'noop', 'default', '', 0, 'default|noop||0', '', %(now)s, %(now)s, %(now)s, true, %(payload)s)
  RETURNING id, kind, queue, owner, run_at, created_at
)
INSERT INTO mulligan.event (at, type, job_id, owner, data)
SELECT created_at, 'job.queued', id, owner, json_build_object('kind', kind, 'queue', queue, 'run_at', run_at) FROM fresh
"""
OUR_ROWS = """
WITH fresh AS (
  INSERT INTO mulligan.job (id, kind, queue, owner, priority, lane, uses, run_at, ready_at, created_at, announced, payload)
  SELECT i.id, 'noop', 'default', '', 0, 'default|noop||0', '', %(now)s, %(now)s, %(now)s, true, i.payload
  FROM unnest(%(ids)s::text[], %(payloads)s::text[]) AS i(id, payload)
  RETURNING id
)
INSERT INTO mulligan.event (at, type, bundle, data)
SELECT %(now)s, 'job.queued', count(*), '{"kind":"noop"}' || string_agg(E'\\n["' || id || '",null,"",null,null]', '')
FROM fresh
"""
BYTES = "SELECT avg(pg_column_size(t.*)) FROM {table} AS t"


class PsycopgAgent(Agent):
    def open(self) -> None:
        with closing(open_store(POSTGRES)) as store:
            store.migrate()  # makes our schema
        self.connection = psycopg.connect(POSTGRES, autocommit=True, prepare_threshold=0)
        self.connection.execute(TABLE, prepare=False)

    def _payload(self, i: int) -> str:
        return json.dumps({"i": i}, separators=(",", ":"))

    def _insert(self, statement: str, ids: Sequence[int]) -> None:
        rows = {"ids": [new_id() for _ in ids], "payloads": [self._payload(i) for i in ids]}
        self.connection.execute(statement, {**rows, "now": time.time_ns() // 1000, "rest": WIDE})

    def enqueue_many(self, task: str, ids: Sequence[int]) -> None:
        del task
        self._insert(ROWS, ids)

    def one(self, n: int) -> dict[str, float]:
        return alternate(
            {
                "plain": lambda few: self._each(ROW, few),
                "same rows": lambda few: self._each(OUR_ROW, few),
            },
            n,
        )

    def _each(self, statement: str, n: int) -> None:
        for i in range(n):
            row = {
                "id": new_id(),
                "now": time.time_ns() // 1000,
                "rest": WIDE,
                "payload": self._payload(i),
            }
            self.connection.execute(statement, row)

    def many(self, n: int) -> dict[str, float]:
        return alternate(
            {
                "plain": lambda few: self._bulk(ROWS, few),
                "same rows": lambda few: self._bulk(OUR_ROWS, few),
            },
            n,
        )

    def _bulk(self, statement: str, n: int) -> None:
        for start in range(0, n, BULK_SIZE):
            self._insert(statement, range(start, min(n, start + BULK_SIZE)))

    def drain(self, n: int) -> dict[str, float]:
        return {f"batches of {size}": self._measure_drain(n, size) for size in (100, 1000)}

    def _measure_drain(self, n: int, size: int) -> float:
        self.connection.execute("TRUNCATE plain")
        self.fill("noop", n)
        self.connection.execute(
            "VACUUM ANALYZE plain", prepare=False
        )  # or it may plan badly: the limit has it best
        began, ended = time.perf_counter(), 0
        while rows := self._claim(size):
            ids = [row[0] for row in rows]
            self.connection.execute(FINISH, {"ids": ids, "now": time.time_ns() // 1000})
            ended += len(ids)
        if ended != n:
            raise RuntimeError(f"{ended} of {n} jobs ended")
        return n / (time.perf_counter() - began)

    def _claim(self, size: int) -> list[tuple[str, str, str, int]]:
        params = {
            "worker": "w_06gyb3pj7c00c3ahgzcmdmvx0963",
            "now": time.time_ns() // 1000,
            "most": size,
        }
        return self.connection.execute(CLAIM, params).fetchall()

    def about(self) -> dict[str, float]:
        """Return the bytes of a waiting row, of the baseline and of Mulligan."""
        self.connection.execute("TRUNCATE plain")
        self._insert(ROWS, range(1000))
        self._insert(OUR_ROWS, range(1000))
        tables = {"plain": "plain", "ours": "mulligan.job"}
        sizes = {
            name: self.connection.execute(BYTES.format(table=table))
            for name, table in tables.items()
        }
        return {
            f"bytes of a row, {name}": float(found.fetchone()[0]) for name, found in sizes.items()
        }


if __name__ == "__main__":
    serve(PsycopgAgent())
