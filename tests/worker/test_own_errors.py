"""Errors of Mulligan inside an attempt: the job goes back uncharged."""

from __future__ import annotations

import pytest

from mulligan.core.errors import SchemaError, StoreUnavailable


@pytest.mark.parametrize("error", [SchemaError, StoreUnavailable])
def test_an_error_of_mulligan_gives_the_job_back_uncharged(app, error):
    broken = [True]

    @app.job
    def order(n: int) -> int:
        if broken:
            raise error("the schema is newer than this version of Mulligan; cannot continue")
        return n

    job = order.enqueue(n=1)
    app.run_inline()
    job = job.refresh()
    assert (job.state, job.failures, job.losses) == ("queued", 0, 0)
    assert "an error of Mulligan and not of the job" in job.why

    broken.clear()
    app.store.shift_clock(2_000_000)
    app.run_inline()
    assert job.refresh().state == "succeeded"
