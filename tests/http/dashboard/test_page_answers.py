"""The page of a waiting job has a form to answer it."""

from __future__ import annotations

import pytest

from mulligan import Context
from support.app_tools import run_job
from support.dashboard_client import sign_in_with_key

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`


@pytest.fixture
def waiting(app):
    @app.job(name="asks")
    def asks(ctx: Context) -> object:
        return ctx.wait("approval")

    return run_job(app, asks.enqueue())


def test_the_form_of_a_job_answers_it(app, waiting):
    with sign_in_with_key(app) as client:
        page = client.page(f"/jobs/{waiting.id}")
        assert "Answer approval" in page
        told = client.submit(f"/jobs/{waiting.id}/tell", name="approval", value='{"ok": true}')
        assert "Answered approval" in told
        assert "Answer approval" not in client.page(f"/jobs/{waiting.id}")
    assert run_job(app, waiting).result == {"ok": True}


def test_the_list_shows_waiting_jobs(app, waiting):
    with sign_in_with_key(app) as client:
        assert waiting.id in client.page("/jobs?filter=phase:waiting")
