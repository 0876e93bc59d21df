"""`mulligan jobs tell`: answers a waiting job from the shell."""

from __future__ import annotations

import pytest

from mulligan import Context
from support.app_tools import run_job


@pytest.fixture
def waiting(app):
    @app.job(name="asks")
    def asks(ctx: Context) -> object:
        return ctx.wait("approval")

    return run_job(app, asks.options(unique="order:7").enqueue())


@pytest.mark.parametrize(
    ("typed", "value"),
    [('{"approved": true}', {"approved": True}), ("yes", "yes"), ("NaN", "NaN"), (None, None)],
)
def test_what_is_typed_is_json_or_a_text(app, call, waiting, typed, value):
    answer = call("jobs", "tell", waiting.id, "approval", *([] if typed is None else [typed]))
    assert answer.code == 0
    assert run_job(app, waiting).result == value


def test_a_second_answer_is_a_conflict_that_names_the_first(app, call, waiting):
    call("jobs", "tell", "order:7", "approval", "1", "--key", "--actor", "ada")
    answer = call("jobs", "tell", waiting.id, "approval", "2")
    assert answer.code == 5
    assert "was answered by ada" in answer.err
    assert run_job(app, waiting).result == 1


def test_show_and_explain_say_what_the_job_waits_for(call, waiting):
    for command in ("show", "explain"):
        answer = call("jobs", command, waiting.id)
        assert "waits for an answer to approval" in answer.out
        assert f"mulligan jobs tell {waiting.id} approval VALUE" in answer.out
