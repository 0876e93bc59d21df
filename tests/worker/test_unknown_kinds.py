"""A kind that no worker knows: its jobs wait a day by default."""

from __future__ import annotations

from mulligan.core.durations import SECOND
from mulligan.worker.upkeep import expire_unknown_kinds

HOUR = 3600 * SECOND


def test_a_job_of_an_unknown_kind_waits_a_day_before_it_dies(app):
    job = app.enqueue("rendr", {})
    after = app.settings.worker.unknown_kind_after
    app.store.shift_clock(23 * HOUR)
    assert expire_unknown_kinds(app.store, after) == 0
    assert job.refresh().phase == "no_worker"
    app.store.shift_clock(2 * HOUR)
    assert expire_unknown_kinds(app.store, after) == 1
    assert job.refresh().error["code"] == "KIND_UNKNOWN"
