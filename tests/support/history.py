"""Insert many finished jobs directly into the tables, for tests that look back over them."""

# ruff: noqa: S608 - statements made of parts of our own

from __future__ import annotations

from mulligan.core.durations import Micros
from mulligan.core.ids import first_id
from mulligan.storage import Store
from support.store import sql

DAY = 86_400_000_000
_NUMBERS = "WITH RECURSIVE n (i) AS (SELECT CAST(0 AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < :jobs - 1) "
_ID = "'{head}' || substr(CAST(1000000000000 + i AS TEXT), 2)"

# Of five jobs, three succeed at once, one succeeds with its first retry, one dies after four attempts.
_JOBS = (
    "INSERT INTO {p}job (id, kind, queue, lane, uses, run_at, created_at, payload, state, attempt, token, finished_at,"
    " error, result) "
    + _NUMBERS
    + "SELECT {id}, 'render', 'default', 'default|render|gateway|0', 'gateway', 0, :start + i * :step, '{{}}',"
    " CASE WHEN (i - i / 5 * 5) = 4 THEN 'dead' ELSE 'succeeded' END, {made}, {made}, :start + i * :step + 60000000,"
    ' CASE WHEN (i - i / 5 * 5) = 4 THEN \'{{"code":"HTTP_5XX","class":"transient"}}\' END,'
    " CASE WHEN (i - i / 5 * 5) = 4 THEN NULL ELSE 'null' END FROM n"
)
_ATTEMPTS = (
    "INSERT INTO {p}attempt (job_id, token, generation, attempt, worker, settled_by, started_at, ended_at, ended, verb,"
    " code, cls, rule, public, private, cost) "
    + _NUMBERS
    + "SELECT {id}, t, 1, t, 'w', 'w', :start + i * :step + t * 1000000, :start + i * :step + t * 1000000 + 500000,"
    " CASE WHEN {good} THEN 'returned' ELSE 'failed' END,"
    " CASE WHEN {good} THEN 'succeed' WHEN t = 4 THEN 'die' ELSE 'retry' END,"
    " CASE WHEN {good} THEN NULL WHEN (i - i / 5 * 5) = 3 THEN 'GW_TIMEOUT' ELSE 'HTTP_5XX' END,"
    " CASE WHEN {good} THEN NULL WHEN (i - i / 5 * 5) = 3 THEN 'timeout' ELSE 'transient' END,"
    " CASE WHEN {good} THEN NULL ELSE 'http.unavailable' END, 'x', CASE WHEN {good} THEN NULL ELSE :private END, 0.01"
    " FROM n CROSS JOIN (SELECT 1 AS t UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4) AS tries WHERE t <= {made}"
)
_MADE = "(CASE (i - i / 5 * 5) WHEN 3 THEN 2 WHEN 4 THEN 4 ELSE 1 END)"
_GOOD = "(((i - i / 5 * 5) < 3) OR ((i - i / 5 * 5) = 3 AND t = 2))"


def insert_finished_jobs(
    store: Store, jobs: int, *, now: Micros, days: float = 6.0, private: int = 1500, tag: str = "a"
) -> None:
    """Insert finished jobs spread over the last days; 9 attempts for every 5 jobs."""
    start = now - round(days * DAY)
    params = {"jobs": jobs, "start": start, "step": round(days * DAY) // jobs}
    head = first_id(start // 1000)[:15] + tag
    parts = {"p": "{p}", "id": _ID.format(head=head), "made": _MADE, "good": _GOOD}
    sql(store, _JOBS.format(**parts), params)
    sql(store, _ATTEMPTS.format(**parts), {**params, "private": "x" * private})
