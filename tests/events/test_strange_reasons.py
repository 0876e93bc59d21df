"""Reasons that people give are stored without characters that no text can contain."""

from __future__ import annotations

import pytest

from mulligan import Fail, Park, Policy
from support.app_tools import run_job

REASONS = {
    "a\ud800b\x00c\udfff": "a\ufffdb\ufffdc\ufffd",
    "a\ud800b": "a\ufffdb",
    "a 😀 ü": "a 😀 ü",
}


@pytest.mark.parametrize(("reason", "stored"), REASONS.items(), ids=ascii)
def test_every_event_of_a_manual_action_has_the_reason_that_its_row_has(app, reason, stored):
    @app.job(name="fails", policy=Policy(max_retries=0))
    def fails() -> Fail:
        return Fail("BAD_FILE", "no", final=True)

    @app.job(name="parks")
    def parks() -> Park:
        return Park("which?", choices=("left",))

    dead = run_job(app, fails.enqueue())
    app.jobs.retry(dead.id, reason=reason)
    app.jobs.cancel(dead.id, reason=reason)
    parked = run_job(app, parks.enqueue())
    app.jobs.release(parked.id, choice="left", reason=reason)
    app.queues.pause("default", reason=reason)
    assert app.queues.get("default").reason == stored
    app.queues.resume("default", reason=reason)
    app.kinds.hold("fails", reason=reason)
    app.dependencies.open("gateway", reason=reason)
    batch = app.batch("spring")
    app.batches.cancel(batch.id, reason=reason)
    assert app.batches.get(batch.id).cancel_reason == stored
    types = (
        "job.retried job.cancelled job.released queue.paused queue.resumed kind.held "
        "dependency.opened batch.cancelled"
    )
    found = {event.type: event.data["reason"] for event in app.events.list(type=types.split())}
    assert found == dict.fromkeys(types.split(), stored)
