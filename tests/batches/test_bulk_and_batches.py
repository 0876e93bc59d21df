"""Operations, batches and retries by hand meet: each keeps the promises of the others."""

from __future__ import annotations

import pytest

from mulligan import Fail, Policy
from support.app_tools import advance
from support.store import run_concurrently


@pytest.fixture
def app(make_app):
    return make_app(guards__same_cause="0")


@pytest.fixture
def broken():
    return {"yes"}


@pytest.fixture
def render(app, broken):
    @app.job(name="render", policy=Policy(max_retries=0), editable=("clip",))
    def render(clip: int) -> int | Fail:
        return Fail("GW_5XX", "down", final=True) if broken and clip % 2 else clip

    return render


def campaigns(app, render, many, members):
    made = []
    for number in range(many):
        with app.batch(f"campaign {number}") as batch:
            render.options(batch=batch).enqueue_many([{"clip": clip} for clip in range(members)])
        made.append(batch.id)
    app.run_inline()
    return made


def outcomes(app, ids):
    return [app.batches.get(one).state for one in ids]


def test_an_operation_over_one_cause_makes_its_partial_batches_ready(app, render, broken):
    ids = campaigns(app, render, 3, 4)
    assert outcomes(app, ids) == ["partial"] * 3
    broken.clear()
    operation = app.operations.start("retry", "code:GW_5XX", reason="the gateway is back")
    app.run_inline()
    assert app.operations.get(operation.id).counts.recovered == 6
    assert outcomes(app, ids) == ["ready"] * 3
    for one in ids:
        events = [event.type for event in app.batches.history(one)]
        assert events[-2:] == ["batch.ready", "batch.recovered"]
        assert events.count("batch.ready") == events.count("batch.recovered") == 1
        assert events.count("batch.reopened") == app.batches.get(one).generation - 1


def test_an_operation_that_cancels_the_last_members_ends_their_batches(app, render):
    ids = []
    for number in range(3):
        with app.batch(f"campaign {number}") as batch:
            render.options(batch=batch, delay=3600).enqueue_many([{"clip": 0}, {"clip": 2}])
        ids.append(batch.id)
    operation = app.operations.start("cancel", "kind:render", reason="not this spring")
    app.run_inline()
    assert app.operations.get(operation.id).counts.done == 6
    assert outcomes(app, ids) == ["failed"] * 3


def test_an_operation_refuses_members_of_expired_batches_and_retries_the_others(
    app, render, broken
):
    with app.batch("short", expires_in=60) as short:
        render.options(batch=short).enqueue(clip=1)
    lasting = campaigns(app, render, 1, 2)[0]
    advance(app, 61)
    app.run_inline()
    assert app.batches.get(short.id).state == "expired"
    broken.clear()
    operation = app.operations.start("retry", "code:GW_5XX", steps=["rest"])
    app.run_inline()
    ended = app.operations.get(operation.id)
    assert (ended.counts.recovered, ended.counts.refused) == (1, 1)
    refused = [item.why for item in app.operations.items(operation.id) if item.outcome == "refused"]
    assert refused[0].endswith("[BATCH_EXPIRED]")
    assert app.batches.get(lasting).state == "ready"


def test_an_operation_with_overrides_changes_each_job_and_refuses_what_a_kind_does_not_allow(
    app, render, broken
):
    job = render.enqueue(clip=1)
    app.run_inline()
    app.operations.start(
        "retry", "state:dead", overrides={"payload": {"clip": 2}, "max_retries": 5}, steps=["rest"]
    )
    app.run_inline()
    done = app.jobs.get(job.id)
    assert (done.state, done.payload, done.max_retries) == ("succeeded", {"clip": 2}, 5)
    retried = next(event for event in app.jobs.history(job.id) if event.type == "job.retried")
    assert retried.data["changes"]["payload.clip"] == {"before": 1, "after": 2}


def test_retries_of_a_batch_and_of_an_operation_at_once_make_one_generation_of_each_job(
    app, render, broken
):
    ids = campaigns(app, render, 2, 6)
    broken.clear()

    def by_batch(number):
        app.batches.retry_failed(ids[number % 2])

    def by_operation(_):
        app.operations.start("retry", "code:GW_5XX", steps=["rest"], rate=1000)

    acts = [by_batch, by_operation]
    run_concurrently(
        *[lambda number=number: tried(acts[number % 2], number // 2) for number in range(4)]
    )
    app.run_inline()
    assert {
        job.generation
        for job in app.jobs.list("state:succeeded", limit=50)
        if job.payload["clip"] % 2
    } == {2}
    assert outcomes(app, ids) == ["ready"] * 2


def tried(act, number):
    from mulligan.core.errors import NothingFailed

    try:
        act(number)
    except NothingFailed:
        return


def test_an_operation_waits_while_a_fail_fast_dependency_is_down(make_app):
    app = make_app(guards__same_cause="0")
    app.dependency("gateway", mode="fail_fast")
    down = {"yes"}

    @app.job(name="call", uses="gateway", policy=Policy(max_retries=0))
    def call() -> Fail | None:
        return Fail("X", final=True) if down else None

    call.enqueue_many([{}] * 3)
    app.run_inline()
    down.clear()
    app.dependencies.open("gateway", reason="maintenance")
    operation = app.operations.start("retry", "code:X", steps=["rest"])
    app.run_inline()
    waits = app.operations.get(operation.id)
    assert (waits.state, waits.untouched) == ("running", 3)
    assert "gateway is down" in waits.note
    app.dependencies.close("gateway")
    app.run_inline()
    assert app.operations.get(operation.id).untouched == 0  # and they start as its ramp allows
