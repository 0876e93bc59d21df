"""`mulligan jobs show`: the steps of a job in the shell."""

from __future__ import annotations

import json

import pytest

from mulligan import Context, Policy
from support.app_tools import run_job


@pytest.fixture
def order(app):
    def reserve():
        raise ConnectionResetError("the stock is down")

    @app.job(name="order", policy=Policy(max_retries=0))
    def order(ctx: Context) -> None:
        ctx.step("charge", lambda: {"cents": 4200})
        ctx.step("reserve", reserve)

    return run_job(app, order.enqueue())


def test_show_lists_the_steps_before_the_attempts(call, order):
    lines = call("jobs", "show", order.id).out.splitlines()
    start = lines.index("STEPS (2)")
    assert lines[start + 1].split()[:2] == ["done", "charge"]
    assert lines[start + 1].endswith('#1   {"cents": 4200}')
    assert lines[start + 2].split()[:2] == ["failed", "reserve"]
    assert lines[start + 2].endswith("CONNECTION")
    assert start < lines.index("ATTEMPTS (1)")


def test_show_as_json_has_the_steps(call, order):
    record = json.loads(call("jobs", "show", order.id, "-o", "json").out)
    assert [(step["name"], step["state"]) for step in record["steps"]] == [
        ("charge", "done"),
        ("reserve", "failed"),
    ]
