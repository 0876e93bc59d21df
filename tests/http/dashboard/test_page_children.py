"""The pages of a parent and its child jobs lead to each other."""

from __future__ import annotations

import pytest

from mulligan import Context
from support.app_tools import run_job
from support.dashboard_client import sign_in_with_key

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`


def test_a_parent_and_its_children_are_linked(app):
    @app.job(name="resize")
    def resize(width: int) -> int:
        return width

    @app.job(name="gallery")
    def gallery(ctx: Context) -> list[int]:
        return ctx.gather("sizes", [resize.call(width=n) for n in (200, 800)])

    parent = run_job(app, gallery.enqueue())
    child = app.jobs.list("kind:resize")[0]
    with sign_in_with_key(app) as client:
        page = client.page(f"/jobs/{parent.id}")
        assert f"/batches/{child.batch_id}" in page
        assert "gallery: sizes" in page
        assert "child jobs" in page
        assert f"/jobs/{parent.id}" in client.page(f"/jobs/{child.id}")
