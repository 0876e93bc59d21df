"""Ten thousand dead jobs, one careful action, and a worker that is killed in the middle of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from mulligan import Mulligan
from mulligan.core.job import NewJob
from mulligan.operations.service import Operation
from support.store import ATTEMPT_QUERY, sql
from support.waiting import until
from support.worker import Worker

Start = Callable[..., Worker]
CAUSES = ("gateway", "moov", "disk")
SETTINGS = {
    "app": "support.fixable_app:app",
    "guards__same_cause": "0",
    "worker__concurrency": "20",
}


@pytest.mark.slow
@pytest.mark.any_store
def test_operations_recover_three_hundred_dead_jobs_of_three_causes(
    app: Mulligan, start: Start, tmp_path: Path
) -> None:
    stops_recovers_and_survives_a_kill(app, start, tmp_path, each=100, rate=25, patience=60)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_operations_recover_ten_thousand_dead_jobs_of_three_causes(
    app: Mulligan, start: Start, tmp_path: Path
) -> None:
    stops_recovers_and_survives_a_kill(app, start, tmp_path, each=3334, rate=400, patience=240)


def stops_recovers_and_survives_a_kill(
    app: Mulligan, start: Start, tmp_path: Path, *, each: int, rate: float, patience: float
) -> None:
    app.insert(_new(app, each))
    worker = start(**SETTINGS)
    until(lambda: app.jobs.count("state:dead", cap=4 * each) == 3 * each, patience, "all dead")
    groups = {group.code: group for group in app.failures.groups()}
    assert {code: group.count for code, group in groups.items()} == dict.fromkeys(
        ("GW_5XX", "BAD_FILE", "DISK_FULL"), each
    )
    where = f"group:{groups['GW_5XX'].fingerprint}"

    stopped = _ended(app, app.operations.start("retry", where, reason="perhaps"), patience)
    assert stopped.state == "stopped"
    assert f"{each - 1:,} of {each:,} jobs were not retried" in stopped.note
    assert sql(app.store, "SELECT count(*) FROM {p}job WHERE generation > 1") == [(1,)]

    (tmp_path / "fixed-gateway").touch()
    begun = app.operations.start("retry", where, steps=[1, 10, "rest"], rate=rate, reason="fixed")
    until(lambda: app.operations.get(begun.id).counts.ended >= each // 4, patience, "in the middle")
    worker.kill()
    middle = app.operations.get(begun.id)
    assert middle.state == "running"
    start(**SETTINGS)
    ended = _ended(app, begun, patience)
    assert ended.state == "finished", ended
    _nothing_lost_nothing_doubled(app, ended, each)
    assert app.jobs.count("state:dead", cap=4 * each) == 2 * each


def _new(app: Mulligan, each: int) -> list[NewJob]:
    return [app.build_job("work", {"cause": cause}) for cause in CAUSES for _ in range(each)]


def _ended(app: Mulligan, begun: Operation, patience: float) -> Operation:
    def over() -> Operation | None:
        now = app.operations.get(begun.id)
        return None if now.under_way or now.counts.sent else now

    return until(over, patience, "the operation's end")


def _nothing_lost_nothing_doubled(app: Mulligan, ended: Operation, each: int) -> None:
    items = app.operations.items(ended.id, limit=10_000)
    assert len({item.job for item in items}) == len(items) == ended.total == each
    assert Counter(item.outcome for item in items) == Counter(recovered=each)
    assert ended.counts.recovered == each
    moves = sql(
        app.store,
        "SELECT job_id, count(*) FROM {p}event WHERE type = 'job.retried' AND data LIKE :data GROUP BY job_id",
        {"data": f"%{ended.id}%"},
    )
    assert len(moves) == each
    assert {count for _, count in moves} == {1}
    wins = sql(
        app.store,
        f"SELECT job_id, count(*) FROM {ATTEMPT_QUERY} WHERE verb = 'succeed' GROUP BY job_id",  # noqa: S608
    )
    assert (len(wins), {count for _, count in wins}) == (each, {1})
