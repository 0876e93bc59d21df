"""Steps in real workers: time limits, deaths and kills."""

from __future__ import annotations

import pytest

from mulligan import State
from support.app_tools import load_attempts
from support.stepped import calls

pytestmark = [pytest.mark.processes]
APP = "support.stepped:app"


def test_a_sync_step_is_stopped_at_its_own_limit(app, start):
    start(app=APP)
    job = app.jobs.wait(app.enqueue("hangs_in_step", {"order": 1}).id, 30)
    assert (job.state, job.error["code"], job.error["step"]) == (State.DEAD, "TIMEOUT", "hang")
    assert "Step hang ran longer than its limit of 0.3 s" in job.error["message"]


def test_a_death_carries_the_step_in_which_the_process_died(app, start):
    start(app=APP)
    job = app.jobs.wait(app.enqueue("dies_in_step", {"order": 1}).id, 30)
    assert (job.error["code"], job.error["step"]) == ("PROCESS_DIED", "charge")


def test_a_step_that_was_recorded_is_not_called_after_a_death(app, start, tmp_path):
    start(app=APP)
    job = app.jobs.wait(app.enqueue("dies_and_repeats", {"order": 1}).id, 30)
    assert job.result == ["parcel 1", "charged 1"]
    assert calls(tmp_path) == ["reserve 1", "charge 1", "charge 1"]
    assert len(load_attempts(app, job)) == 2


def test_a_death_between_mark_and_result_parks_the_job(app, start, tmp_path):
    start(app=APP)
    job = app.jobs.wait(app.enqueue("parks_in_doubt", {"order": 1}).id, 30)
    assert (job.state, calls(tmp_path)) == (State.PARKED, ["charge 1"])
    assert load_attempts(app, job)[-1].code == "STEP_IN_DOUBT"
    app.jobs.release(job.id, choice="it happened", value="charged by hand")
    assert app.jobs.wait(job.id, 30).result == "charged by hand"
    assert calls(tmp_path) == ["charge 1"]


def test_an_undo_survives_the_death_of_its_process(app, start, tmp_path):
    start(app=APP)
    job = app.jobs.wait(app.enqueue("dies_in_undo", {"order": 1}).id, 30)
    assert (job.state, job.error["code"]) == (State.DEAD, "INVALID_INPUT")
    assert calls(tmp_path) == ["reserve 1", "put back parcel 1", "put back parcel 1"]
