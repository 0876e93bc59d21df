"""`POST /jobs/{id}/tell/{name}`: the first answer counts, for the job's owner only."""

from __future__ import annotations

import pytest

from mulligan import Context
from support.app_tools import run_job


@pytest.fixture
def waiting(app):
    @app.job(name="waits_for_approval")
    def asks(ctx: Context) -> object:
        return ctx.wait("approval/first part")

    return run_job(app, asks.options(owner="acme").enqueue())


def tell(client, job, headers, **body):
    path = f"/api/v1/jobs/{job.id}/tell/approval%2Ffirst%20part"
    return client.post(path, json=body, headers=headers)


def test_an_answer_wakes_the_job_and_a_second_one_is_a_conflict(app, client, key, waiting):
    headers = key("acme", "operator")
    told = tell(client, waiting, headers, value={"approved": True})
    assert told.status_code == 200
    assert told.json()["phase"] != "waiting"
    second = tell(client, waiting, headers, value={"approved": False})
    assert (second.status_code, second.json()["code"]) == (409, "ANSWER_REFUSED")
    assert run_job(app, waiting).result == {"approved": True}


def test_other_owners_and_viewers_cannot_answer(client, key, waiting):
    assert tell(client, waiting, key("blue", "operator"), value=1).status_code == 404
    assert tell(client, waiting, key("acme", "viewer"), value=1).status_code == 403
