"""The page of a job shows its steps, and continues at the one that a person chooses."""

from __future__ import annotations

import pytest

from mulligan import Context, Policy
from support.app_tools import run_job
from support.dashboard_client import sign_in_with_key

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`


@pytest.fixture
def order(app):
    """A dead job of two steps. The second fails once."""
    app.calls = []

    def reserve():
        app.calls.append("reserve")
        if len(app.calls) == 2:
            raise ConnectionResetError("the stock is down")
        return "shelf <7>"

    @app.job(name="order", policy=Policy(max_retries=0))
    def order(ctx: Context) -> str:
        ctx.step("charge", lambda: app.calls.append("charge") or {"password": "hunter2"})
        return ctx.step("reserve", reserve)

    return run_job(app, order.enqueue())


def test_a_job_continues_at_the_step_that_a_person_chooses(app, order):
    with sign_in_with_key(app) as client:
        page = client.page(f"/jobs/{order.id}")
        assert "2, in the order in which they ended" in page
        assert "1 finished step is not called again." in page
        assert "hunter2" not in page
        told = client.submit(f"/jobs/{order.id}/retry", from_step="charge")
        assert "Retried" in told
        assert "runs again" in client.page(f"/jobs/{order.id}")
        assert run_job(app, order).result == "shelf <7>"
        assert app.calls == ["charge", "reserve", "charge", "reserve"]
        ended = client.page(f"/jobs/{order.id}")
        assert "shelf <7>" in ended
        assert "Continue here" not in ended


def test_a_job_without_steps_has_no_table_of_them(app):
    @app.job(name="plain")
    def plain() -> None:
        pass

    with sign_in_with_key(app) as client:
        assert 'id="steps"' not in client.page(f"/jobs/{plain.enqueue().id}")
