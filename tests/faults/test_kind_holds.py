"""A bad deploy with real workers: one kind is held, the others run, one action releases it."""

from __future__ import annotations

import pytest

from mulligan.events.queries import EventQueries
from support.waiting import until

APP = "support.deployed:app"


@pytest.mark.any_store
def test_two_workers_hold_a_broken_kind_notify_once_and_lose_few_jobs(start, app, tmp_path):
    broken = tmp_path / "witness.broken"
    broken.touch()
    for n in range(200):
        app.enqueue("draw", {"n": n}, owner=f"owner{n % 7}")
    start(app=APP, worker__concurrency="4")
    start(app=APP, worker__concurrency="4")
    until(lambda: app.kinds.get("draw").held, 20, "draw is held")
    mails = [app.enqueue("mail", {"n": n}) for n in range(20)]
    until(
        lambda: all(job.refresh().state == "succeeded" for job in mails),
        20,
        "the other kind runs",
    )
    until(lambda: app.jobs.count("kind:draw state:running") == 0, 20, "running jobs have ended")
    died = app.jobs.count("kind:draw state:dead")
    assert died <= 20, "a few before it was noticed, and those in flight elsewhere"
    assert [event.type for event in alerts(app)] == ["alert.fired"]
    broken.unlink()
    app.kinds.release("draw", reason="the font is back")
    until(
        lambda: app.jobs.count("kind:draw state:succeeded") == 200 - died, 30, "all others succeed"
    )
    assert [event.type for event in alerts(app)] == ["alert.fired", "alert.resolved"]


def alerts(app):
    with app.store.read() as tx:
        return [
            event
            for event in EventQueries(tx).list_events_after(0, 10_000)
            if event.type.startswith("alert.")
        ]
