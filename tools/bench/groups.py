"""Measure failure groups and filters over many dead jobs, inserted directly into the tables."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import psycopg

from mulligan import Mulligan
from support.store import is_postgres, sql

DAY = 86_400_000_000
FILL = """
INSERT INTO {p}job (id, kind, queue, owner, lane, run_at, created_at, payload, state, attempt, token, finished_at,
                    error, result, announced, died_code, died_class, died_group)
WITH RECURSIVE n(i) AS (SELECT CAST(0 AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < :jobs - 1)
SELECT 'j' || substr(CAST(1000000000 + i AS TEXT), 2), 'render', 'default', 'owner' || CAST(i / 3 % 50 AS TEXT),
       'default|render||0', 0, :now - :span + i * (:span / :jobs), '{{}}',
       CASE WHEN i % 3 = 0 THEN 'dead' ELSE 'succeeded' END, 1, 1, :now - :span + i * (:span / :jobs),
       CASE WHEN i % 3 = 0 THEN '{{"code":"C","class":"unknown","message":"It broke."}}' END,
       CASE WHEN i % 3 = 0 THEN NULL ELSE 'null' END, {yes},
       CASE WHEN i % 3 = 0 THEN 'C' || {cause} END, CASE WHEN i % 3 = 0 THEN 'unknown' END,
       CASE WHEN i % 3 = 0 THEN 'v2-' || {cause} END
FROM n
"""
CAUSE = "CASE WHEN i % 300 = 0 THEN 'rare' WHEN i % 2 = 0 THEN 'one' ELSE 'two' END"


def fill(app: Mulligan, jobs: int) -> None:
    """Insert jobs, a third of them dead: of two causes, and one percent of a third cause."""
    store = app.open().store
    with store.read() as tx:
        now = tx.now()
    postgres = is_postgres(store)
    text = FILL.format(p="{p}", yes="true" if postgres else "1", cause=CAUSE)
    for name, value in (("jobs", jobs), ("now", now), ("span", 5 * DAY)):
        text = text.replace(f":{name}", str(value))
    sql(store, text)
    if postgres:  # as autovacuum would do later
        with psycopg.connect(app.settings.database_url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE mulligan.job")


def measure(app: Mulligan) -> dict[str, float]:
    queries: dict[str, Callable[[], object]] = {
        "groups": app.failures.groups,
        "groups of an owner": lambda: app.failures.groups(owner="owner7"),
        "one group": lambda: app.failures.get("v2-one"),
        "list state:dead": lambda: app.jobs.list("state:dead"),
        "list of a group": lambda: app.jobs.list("group:v2-one"),
        "list of a rare group": lambda: app.jobs.list("group:v2-rare"),
        "list by code and owner": lambda: app.jobs.list("code:Crare owner:owner7"),
        "count of a group": lambda: app.jobs.count("state:dead group:v2-one"),
        "count by class": lambda: app.jobs.count("class:unknown"),
        "words": lambda: app.jobs.list('"broke"'),
    }
    return {f"{name}, ms": _median(query) for name, query in queries.items()}


def _median(query: Callable[[], object]) -> float:
    query()  # warm
    times = []
    for _ in range(5):
        began = time.monotonic()
        query()
        times.append((time.monotonic() - began) * 1000)
    return statistics.median(times)
