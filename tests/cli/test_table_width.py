"""Tables fit a terminal of 80 columns; what does not fit is named, never cut without a mark."""

from __future__ import annotations

import pytest

from mulligan import Fail, Webhook
from mulligan.cli.output import fit_columns

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`
WIDTH = 80
LISTS = (
    ("jobs", "list"),
    ("failures", "list"),
    ("queues", "list"),
    ("kinds", "list"),
    ("deps", "list"),
    ("workers", "list", "--all"),
    ("batches", "list"),
    ("ops", "list"),
    ("schedules", "list"),
    ("alerts", "list"),
    ("notify", "list"),
    ("releases", "list"),
    ("audit",),
    ("top",),
)


@pytest.fixture
def busy(app):
    @app.job(name="a_kind_with_quite_a_long_name", queue="a_queue_with_a_name", uses="gateway")
    def breaks(order: int) -> Fail:
        return Fail("BROKEN_BEYOND_REPAIR", f"order {order}: " + "nothing helps " * 8, final=True)

    app.schedule("every-single-night", "0 3 * * 1-5", "add", payload={"a": 1, "b": 2})
    app.subscriptions.add("job.died", Webhook("https://example.com/" + "hook/" * 20), name="ops")
    batch = app.batch("the campaign of this spring", owner="a-customer-with-a-long-name")
    breaks.options(batch=batch, owner=batch.owner).enqueue_many([{"order": n} for n in range(3)])
    batch.seal()
    app.run_inline()
    reason = "the provider has asked us to wait until their database is back"
    app.queues.pause("a_queue_with_a_name", reason=reason)
    app.dependencies.open("gateway", reason=reason)
    app.kinds.hold("a_kind_with_quite_a_long_name", reason=reason)
    app.operations.start("retry", "state:dead kind:a_kind_with_quite_a_long_name", reason=reason)
    return app


def test_lists_fit_80_columns_and_their_heading_is_one_line(call, busy, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    for command in LISTS:
        lines = call(*command, "-o", "table").out.splitlines()
        assert [line for line in lines if len(line) > WIDTH] == [], command
        assert sum(line.isupper() for line in lines) <= 1, command


def test_a_table_leaves_out_empty_columns_before_it_hides_values():
    rows = [{"name": "x" * 30, "status": "held", "rate": None, "since": "5 min ago", "mode": "m"}]
    columns = ("name", "status", "rate", "since", "mode")
    assert fit_columns(rows, columns, 200) == list(columns)
    assert fit_columns(rows, columns, 60) == ["name", "status", "since", "mode"]
    assert fit_columns(rows, columns, 50) == ["name", "status", "since"]
    assert fit_columns(rows, columns, 10) == ["name", "status"]


def test_hidden_columns_are_named_on_stderr(call, busy, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    answer = call("batches", "list", "-o", "table")
    assert "Too narrow for: " in answer.err
    assert "ended" in answer.err
    assert "Too narrow" not in call("batches", "list", "-o", "json").err
