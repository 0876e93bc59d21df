"""`app.jobs`: look, wait, page, and what is said when there is nothing to see."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from mulligan import Context, Fixed, Park, Policy, State
from mulligan.core.errors import NotFound, Refused, WaitTimeout
from mulligan.core.ids import LENGTH
from support.app_tools import register_idle_worker, run_job
from support.waiting import until

NOBODY = ["nosuchjob", "0" * LENGTH, "", "' OR 1=1 --", "%", "nul\x00", "half\ud800", "x" * 5000]


@pytest.fixture
def kinds(app):
    @app.job(name="good", queue="fast")
    def good() -> str:
        return "done"

    @app.job(name="bad", policy=Policy(max_retries=0))
    def bad() -> None:
        raise ConnectionResetError("no")

    @app.job(name="asks")
    def asks() -> object:
        return Park("who pays?")

    return good, bad, asks


# -- wait ----------------------------------------------------------------------------------------
def test_wait_returns_a_job_that_has_ended_or_needs_a_person(app, kinds):
    jobs = [kind.enqueue() for kind in kinds]
    app.run_inline()
    assert [app.jobs.wait(job.id, 1).state for job in jobs] == [
        State.SUCCEEDED,
        State.DEAD,
        State.PARKED,
    ]
    cancelled = kinds[0].enqueue()
    app.jobs.cancel(cancelled.id)
    assert app.jobs.wait(cancelled.id).state is State.CANCELLED


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_wait_raises_after_its_timeout_and_leaves_the_job_running(app, kinds, timeout):
    job = kinds[0].enqueue()
    began = time.monotonic()
    with pytest.raises(WaitTimeout, match="still queued"):
        app.jobs.wait(job.id, timeout)
    assert timeout <= time.monotonic() - began
    assert run_job(app, job).result == "done"


def test_wait_returns_when_the_job_ends_meanwhile(app, make_app):
    runs, go = threading.Event(), threading.Event()

    @app.job
    def slow() -> str:
        runs.set()
        go.wait(10)
        return "done"

    job = slow.enqueue()
    worker = threading.Thread(target=app.run_inline)
    worker.start()
    assert runs.wait(10)
    other = make_app()
    results = []
    waiter = threading.Thread(target=lambda: results.append(other.jobs.wait(job.id, 20)))
    waiter.start()
    assert other.jobs.get(job.id).state is State.RUNNING
    go.set()
    waiter.join(20)
    worker.join(20)
    assert results[0].result == "done"


@pytest.mark.parametrize("call", ["get", "wait", "history", "retry", "cancel", "release"])
def test_an_unknown_id_is_not_found_whatever_it_looks_like(app, call):
    for job_id in NOBODY:
        with pytest.raises(NotFound):
            getattr(app.jobs, call)(job_id)


# -- get, refresh, history -----------------------------------------------------------------------
def test_a_job_is_a_snapshot_and_refresh_reads_it_again(app, kinds):
    job = kinds[0].enqueue()
    app.run_inline()
    assert job.state is State.QUEUED
    after = job.refresh()
    assert (after.state, after.refresh()) == (State.SUCCEEDED, after)
    with pytest.raises(AttributeError):
        after.state = State.DEAD


def test_enqueue_returns_the_job_as_it_is_read_back(app, kinds):
    fresh = (
        kinds[0]
        .options(owner="acme", priority=-3, delay=60, deadline=3600, unique="key", max_retries=7)
        .enqueue()
    )
    read = app.jobs.get(fresh.id)
    fields = [name for name in fresh.__dataclass_fields__ if name not in {"why", "_service"}]
    assert {name: getattr(fresh, name) for name in fields} == {
        name: getattr(read, name) for name in fields
    }


@pytest.mark.parametrize("options", [{}, {"owner": "acme", "delay": 60}], ids=["due", "later"])
def test_enqueue_many_returns_the_jobs_as_they_are_read_back(app, options):
    @app.job(name="numbered", uses=lambda payload: ["smtp"] if payload["n"] % 2 else [])
    def numbered(n: int, more: dict[str, list[str]] | None = None) -> None: ...

    made = numbered.options(**options).enqueue_many(
        [{"n": n, "more": {"a": ["b"]}} for n in range(12)]
    )
    for n, fresh in enumerate(made):
        read = app.jobs.get(fresh.id)
        fields = [
            name for name in fresh.__dataclass_fields__ if name not in {"why", "phase", "_service"}
        ]
        assert {name: getattr(fresh, name) for name in fields} == {
            name: getattr(read, name) for name in fields
        }
        assert fresh.payload == {"n": n, "more": {"a": ["b"]}}
    with pytest.raises(AttributeError):
        made[0].state = State.DEAD
    made[0].payload["more"]["a"].append("c")
    assert made[1].payload["more"] == {"a": ["b"]}, "nothing that can change is shared"
    assert pickle.loads(pickle.dumps(replace(made[2], _service=None))) == made[2]  # noqa: S301 - our own data


def test_a_due_job_says_whether_a_worker_can_run_it(app, kinds):
    job = kinds[0].enqueue()
    assert job.refresh().phase == "no_worker"
    register_idle_worker(app)
    assert job.refresh().phase == "ready"


@pytest.mark.seed("003-55")
def test_history_returns_events_in_order_with_actor_and_time(app):
    @app.job(policy=Policy(max_retries=1, backoff=Fixed(0)))
    def again(ctx: Context) -> str:
        if ctx.token < 3:
            raise ConnectionResetError("no")
        return "done"

    job = again.options(owner="acme").enqueue()
    run_job(app, job)
    app.jobs.retry(job.id, reason="fixed it")
    run_job(app, job)
    story = app.jobs.history(job.id)
    text = [
        "queued",
        "started",
        "retry_scheduled",
        "started",
        "died",
        "retried",
        "started",
        "succeeded",
    ]
    assert [event.type for event in story] == [f"job.{word}" for word in text]
    assert [event.id for event in story] == sorted(event.id for event in story)
    assert all(first.at <= second.at for first, second in itertools.pairwise(story))
    assert {event.owner for event in story} == {"acme"}
    assert [event.attempt for event in story if event.type == "job.started"] == [1, 2, 1]
    [retried] = [event for event in story if event.type == "job.retried"]
    assert (retried.actor, retried.data["reason"], retried.data["generation"]) == (
        "python",
        "fixed it",
        2,
    )
    died = story[4].data
    assert (died["code"], died["class"], died["rule"]) == (
        "CONNECTION",
        "transient",
        "py.connection",
    )


# -- lists ---------------------------------------------------------------------------------------
def test_lists_filter_by_field_and_are_newest_first(app, kinds):
    good, bad, asks = kinds
    jobs = [
        good.enqueue(),
        bad.options(owner="acme").enqueue(),
        asks.options(queue="slow").enqueue(),
    ]
    app.run_inline()
    waiting = good.options(delay=60).enqueue()
    everything = [waiting, *reversed(jobs)]

    def found(text: str) -> list[str]:
        return [job.id for job in app.jobs.list(text)]

    assert found("") == [job.id for job in everything]
    for text, expected in (
        ("state:succeeded", [jobs[0]]),
        ("state:dead", [jobs[1]]),
        ("state:parked", [jobs[2]]),
        ("state:queued", [waiting]),
        ("kind:good", [waiting, jobs[0]]),
        ("kind:good state:succeeded", [jobs[0]]),
        ("queue:fast", [waiting, jobs[0]]),
        ("queue:slow", [jobs[2]]),
        ("owner:acme", [jobs[1]]),
        ("owner:nobody", []),
        ("kind:good owner:acme", []),
        ('kind:"good"', [waiting, jobs[0]]),
        ("  state:dead  ", [jobs[1]]),
    ):
        assert found(text) == [job.id for job in expected], text


def test_a_period_finds_the_jobs_that_ended_in_it(app, kinds):
    done, waiting = kinds[0].enqueue(), kinds[0].options(delay=60).enqueue()
    app.run_inline()
    start = app.jobs.get(done.id).finished_at.replace(tzinfo=None)
    minute = timedelta(minutes=1)

    def find(first, last, more=""):
        text = f"ended:{first.isoformat()}..{last.isoformat()} {more}"
        assert app.jobs.count(text) == len(app.jobs.list(text))
        return [job.id for job in app.jobs.list(text)]

    assert find(start - minute, start + minute) == [done.id]
    assert find(start, start + minute, "state:succeeded kind:good") == [done.id]
    assert find(start - minute, start) == []
    assert find(start - minute, start + minute, "state:dead") == []
    assert app.jobs.get(waiting.id).finished_at is None


def test_pages_follow_each_other_without_gap_or_overlap(app, kinds):
    made = [job.id for job in kinds[0].enqueue_many({} for _ in range(25))]
    pages, before = [], None
    while page := app.jobs.list("kind:good", limit=10, before=before):
        pages.append([job.id for job in page])
        before = page[-1].id
    assert [len(page) for page in pages] == [10, 10, 5]
    assert [job_id for page in pages for job_id in page] == made[::-1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stat:dead", "state"),
        ("dead", "field:value"),
        ("state:ded", "no such state"),
        ("state:", "no such state"),
        ('kind:"open', "quotation"),
        ("colour:red", "fields"),
    ],
)
def test_an_invalid_filter_is_refused_with_a_hint(app, text, message):
    with pytest.raises(Refused, match=message):
        app.jobs.list(text)


@pytest.mark.parametrize("limit", [0, -1, 1001, 10**9])
def test_an_invalid_page_size_is_refused(app, limit):
    with pytest.raises(Refused, match="limit"):
        app.jobs.list(limit=limit)


# -- ids -----------------------------------------------------------------------------------------
def test_a_unique_prefix_resolves_to_the_id(app, kinds):
    jobs = [kinds[0].enqueue() for _ in range(3)]
    for job in jobs:
        for length in (LENGTH, LENGTH - 1, LENGTH - 8):
            assert app.jobs.resolve(job.id[:length]) == job.id
    with pytest.raises(NotFound, match="more than one"):
        app.jobs.resolve(jobs[0].id[:4])


@pytest.mark.parametrize("prefix", ["zzzz", "%", "_", "nul\x00", "half\ud800"])
def test_an_unknown_prefix_is_not_found(app, kinds, prefix):
    kinds[0].enqueue()
    with pytest.raises(NotFound):
        app.jobs.resolve(prefix)


# -- awaitable -----------------------------------------------------------------------------------
def test_all_methods_can_be_awaited(app, kinds):
    good, *_ = kinds

    async def walk() -> list[object]:
        results: list[object] = []
        jobs = [await kind.enqueue_async() for kind in kinds]
        jobs += await good.enqueue_many_async([{}, {}])
        jobs.append(await app.aio.enqueue("good", {}, owner="acme"))
        await asyncio.to_thread(app.run_inline)
        results += [(await app.aio.jobs.wait(job.id, 5)).state for job in jobs]
        results.append((await app.aio.jobs.get(jobs[0].id)).result)
        results.append(len(await app.aio.jobs.list("kind:good")))
        results.append((await app.aio.jobs.history(jobs[1].id))[-1].type)
        results.append((await app.aio.jobs.retry(jobs[1].id, reason="again")).generation)
        results.append((await app.aio.jobs.cancel(jobs[1].id, reason="no")).state)
        results.append((await app.aio.jobs.release(jobs[2].id, choice="us")).state)
        results.append((await app.aio.jobs.retry(jobs[1].id)).state)
        await asyncio.to_thread(app.run_inline)
        results.append((await app.aio.jobs.discard(jobs[1].id, reason="enough")).state)
        with pytest.raises(NotFound):
            await app.aio.jobs.get("nobody")
        return results

    assert asyncio.run(walk()) == [
        State.SUCCEEDED,
        State.DEAD,
        State.PARKED,
        State.SUCCEEDED,
        State.SUCCEEDED,
        State.SUCCEEDED,
        "done",
        4,
        "job.died",
        2,
        State.CANCELLED,
        State.QUEUED,
        State.QUEUED,
        State.CANCELLED,
    ]


def test_run_inline_inside_an_event_loop_names_the_alternative(app):
    async def wrong() -> None:
        app.run_inline()

    with pytest.raises(Refused, match="to_thread"):
        asyncio.run(wrong())


def test_a_closed_app_reopens_on_use(app, kinds):
    job = kinds[0].enqueue()
    app.close()
    app.close()
    assert app.jobs.get(job.id).id == job.id
    until(lambda: run_job(app, job).result == "done")


def test_hundreds_of_async_waits_leave_threads_free(app, kinds):
    async def wait_for_all() -> set[str]:
        jobs = kinds[0].enqueue_many([{}] * 200)
        waiting = [asyncio.create_task(app.aio.jobs.wait(job.id, 30)) for job in jobs]
        assert await asyncio.to_thread(app.run_inline) == 200
        return {(await each).state for each in waiting}

    assert asyncio.run(wait_for_all()) == {State.SUCCEEDED}


def test_sync_and_async_waits_time_out(app, kinds):
    with pytest.raises(WaitTimeout, match="still queued"):
        asyncio.run(app.aio.jobs.wait(kinds[0].enqueue().id, 0.1))


def test_another_owners_job_counts_as_missing(app, kinds):
    job = kinds[0].options(owner="acme").enqueue()
    assert app.jobs.get(job.id, owner="acme").id == job.id
    assert asyncio.run(app.aio.jobs.get(job.id, owner="acme")).id == job.id
    for owner in ("other", ""):
        with pytest.raises(NotFound) as refused:
            app.jobs.get(job.id, owner=owner)
        with pytest.raises(NotFound) as unknown:
            app.jobs.get(job.id[:-1])
        assert str(refused.value) == str(unknown.value).replace(job.id[:-1], job.id)


def test_an_application_can_read_the_metrics(app):
    assert "# TYPE mulligan_queue_depth gauge" in app.metrics()
    assert asyncio.run(app.aio.metrics()) == app.metrics()  # good for five seconds
