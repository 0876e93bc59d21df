"""`GET /jobs/{id}/steps`: values are for operators."""

from __future__ import annotations

import pytest

from mulligan import Context
from support.app_tools import run_job


@pytest.mark.parametrize(("role", "keys"), [("viewer", False), ("operator", True)])
def test_values_of_steps_are_for_operators(app, client, key, role, keys):
    @app.job(name="order")
    def order(ctx: Context) -> None:
        ctx.step("charge", lambda: {"cents": 4200})

    job = run_job(app, order.options(owner="acme").enqueue())
    answer = client.get(f"/api/v1/jobs/{job.id}/steps", headers=key("acme", role))
    [step] = answer.json()["steps"]
    assert (step["name"], step["state"], step["token"]) == ("charge", "done", 1)
    assert step.get("value") == ({"cents": 4200} if keys else None)
    assert ("value" in step) is keys
    foreign = client.get(f"/api/v1/jobs/{job.id}/steps", headers=key("blue", role))
    assert foreign.status_code == 404
