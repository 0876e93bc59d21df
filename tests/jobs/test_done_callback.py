"""`done=`: the result exists already, skip. Asked before the handler, in the attempt, and visible afterwards."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from mulligan import Context, Fail, Fixed, Policy, Snooze, Unique
from mulligan.worker import upkeep
from support.app_tools import advance, event_types, load_attempts, run_job
from support.waiting import until

ONCE = Policy(max_retries=0)
AGAIN = Policy(max_retries=2, backoff=Fixed(0))


@pytest.fixture
def made(app):
    """Results by clip, and how often the handler ran."""
    app.made, app.calls = {}, []

    def there(clip: int) -> str | None:
        return app.made.get(clip)

    @app.job(name="render", done=there, cost=3, policy=AGAIN)
    def render(clip: int, size: str = "small") -> str:
        app.calls.append((clip, size))
        app.made[clip] = f"clip {clip}"
        return app.made[clip]

    return render


def test_an_existing_result_skips_the_handler(app, made):
    first, second = made.enqueue(clip=7), made.enqueue(clip=7)
    assert run_job(app, first).result == "clip 7"
    assert second.refresh().result == "clip 7"
    assert app.calls == [(7, "small")]
    assert (first.refresh().cost, second.refresh().cost) == (3, 0)


def test_a_skipped_attempt_is_visible_in_events_history_and_story(app, made):
    app.made[7] = "there"
    job = run_job(app, made.enqueue(clip=7))
    assert (job.state, job.result) == ("succeeded", "there")
    (attempt,) = load_attempts(app, job)
    assert (attempt.ended, json.loads(attempt.judged)) == ("returned", {"skipped": True})
    assert "the result already existed" in attempt.reason
    event = app.jobs.history(job.id)[-1]
    assert (event.type, event.data["skipped"]) == ("job.succeeded", True)
    assert (
        "without calling the handler: the result already existed" in app.jobs.explain(job.id).text
    )
    assert "skipped" not in app.jobs.history(run_job(app, made.enqueue(clip=8)).id)[-1].data


@pytest.mark.parametrize("handler_async", [False, True], ids=["def", "async def"])
@pytest.mark.parametrize("done_async", [False, True], ids=["plain done", "async done"])
def test_sync_and_async_handlers_work_with_sync_and_async_done(app, handler_async, done_async):
    calls = []

    def look(ctx: Context, clip: int) -> str | None:
        calls.append((ctx.attempt, clip))
        return "there" if clip == 7 else None

    async def look_async(ctx: Context, clip: int) -> str | None:
        return look(ctx, clip)

    if handler_async:

        @app.job(name="work", done=look_async if done_async else look)
        async def work(ctx: Context, clip: int, size: int = 1) -> str:
            return f"made {clip} {size} {ctx.attempt}"
    else:

        @app.job(name="work", done=look_async if done_async else look)
        def work(ctx: Context, clip: int, size: int = 1) -> str:
            return f"made {clip} {size} {ctx.attempt}"

    jobs = [work.enqueue(clip=7), work.enqueue(clip=8, size=2)]
    app.run_inline()
    assert [job.refresh().result for job in jobs] == ["there", "made 8 2 1"]
    assert calls == [(1, 7), (1, 8)]


@pytest.mark.parametrize("result", ["", 0, False, [], {}])
def test_only_none_from_done_calls_the_handler(app, result):
    @app.job(done=lambda: result)
    def work() -> str:
        return "called"

    assert run_job(app, work.enqueue()).result == result


def test_an_error_in_done_fails_the_attempt_and_done_is_called_again(app):
    looks = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 1:
            raise ConnectionError("bucket is away")

    @app.job(done=look, policy=AGAIN)
    def work() -> str:
        return "made"

    job = run_job(app, work.enqueue())
    assert (job.state, job.failures, job.result, len(looks)) == ("succeeded", 1, "made", 2)
    attempt = load_attempts(app, job)[0]
    assert (attempt.ended, json.loads(attempt.evidence)["asked"]) == ("failed", "done")


def test_done_may_return_an_outcome(app):
    answers = [Snooze(60, "still being made"), Fail("BROKEN", final=True)]

    @app.job(done=lambda: answers.pop(0), policy=ONCE)
    def work() -> str:
        return "called"

    job = run_job(app, work.enqueue())
    assert (job.state, event_types(app, job)[-1]) == ("queued", "snoozed")
    advance(app, 61)
    assert run_job(app, job).error["code"] == "BROKEN"


def test_an_invalid_result_of_done_is_refused(app):
    @app.job(done=lambda: {1, object()}, policy=ONCE)
    def work() -> str:
        return "called"

    assert run_job(app, work.enqueue()).error["code"] == "RESULT_NOT_JSON"


def test_a_skipped_attempt_does_not_count_for_its_dependencies(app):
    @app.job(uses="gateway", done=lambda: "there")
    def call() -> str:
        return "called"

    for _ in range(3):
        run_job(app, call.enqueue())
    assert app.dependencies.get("gateway").calls == 0


def test_a_handler_with_any_arguments_may_have_a_done_with_any_arguments(app):
    @app.job(done=lambda **given: sorted(given.items()))
    def work(ctx: Context, a: int, **more: int) -> str:
        return "called"

    assert run_job(app, work.enqueue(a=1, b=2)).result == [["a", 1], ["b", 2]]


@pytest.mark.any_store
def test_a_worker_calls_done_within_the_time_limit(start, store_url, tmp_path):
    worker = start(app="support.finished:app")
    from support.finished import app as finished

    with finished.redirected(finished.settings.model_copy(update={"database_url": store_url})):
        place = tmp_path / "result.txt"
        first = finished.enqueue("convert", {"place": str(place)})
        until(lambda: first.refresh().state == "succeeded", what="the first is made")
        second = finished.enqueue("convert", {"place": str(place)})
        until(lambda: second.refresh().state == "succeeded", what="the second is skipped")
        assert [event.data.get("skipped") for event in finished.jobs.history(second.id)][-1] is True
        assert Path(place).read_text() == "made once"
        slow = finished.enqueue("slow_check")
        until(lambda: slow.refresh().state == "dead", 30, what="the look ran out of time")
        assert slow.refresh().error["code"] == "TIMEOUT"
    assert worker.process.poll() is None


def test_a_unique_key_is_free_once_its_result_is_purged(app):
    @app.job(unique=Unique(by="payload.clip"))
    def render(clip: int) -> float:
        return time.monotonic()

    first = run_job(app, render.enqueue(clip=7))
    assert render.enqueue(clip=7).id == first.id
    advance(app, app.settings.retention.succeeded + 1)
    upkeep.prune(app.store, app.settings, {})
    second = render.enqueue(clip=7)
    assert (second.id != first.id, second.deduplicated) == (True, False)
    assert run_job(app, second).state == "succeeded"
