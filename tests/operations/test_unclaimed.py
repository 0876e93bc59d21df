"""Tests of an operation on jobs that died before they were ever claimed."""

from __future__ import annotations

from support.app_tools import advance
from support.operation_tools import IN_ONE_STEP


def test_a_job_that_died_unclaimed_and_then_succeeds_has_recovered(app):
    @app.job(name="noop")
    def noop(n: int = 0) -> None: ...

    ids = [
        job.id
        for job in noop.options(delay=60, deadline=30).enqueue_many([{"n": n} for n in range(4)])
    ]
    advance(app, 61)
    app.run_inline()
    assert {app.jobs.get(one).state for one in ids} == {"dead"}
    begun = app.operations.start("retry", "code:DEADLINE_PASSED", **IN_ONE_STEP)
    app.run_inline()
    ended = app.operations.get(begun.id)
    assert {app.jobs.get(one).state for one in ids} == {"succeeded"}
    assert [item.why for item in app.operations.items(ended.id)] == [""] * 4
    assert (ended.state, ended.counts.recovered, ended.counts.other) == ("finished", 4, 0)
