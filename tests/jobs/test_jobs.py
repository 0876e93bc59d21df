"""`app.jobs`: look, wait, page, and what is said when there is nothing to see."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import threading
import time
from dataclasses import replace

import pytest

from mulligan import Context, Fixed, Park, Policy, State
from mulligan.core.errors import NotFound, Refused, WaitTimeout
from mulligan.core.ids import LENGTH
from support.app_tools import ran, stand_by
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


# -- wait -------------------------------------------------------------------------------------------
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
def test_wait_raises_when_its_timeout_is_over_and_the_job_goes_on(app, kinds, timeout):
    job = kinds[0].enqueue()
    began = time.monotonic()
    with pytest.raises(WaitTimeout, match="still queued"):
        app.jobs.wait(job.id, timeout)
    assert timeout <= time.monotonic() - began
    assert ran(app, job).result == "done"


def test_wait_sees_the_end_that_comes_while_it_waits(app, make_app):
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
    seen = []
    waiter = threading.Thread(target=lambda: seen.append(other.jobs.wait(job.id, 20)))
    waiter.start()
    assert other.jobs.get(job.id).state is State.RUNNING
    go.set()
    waiter.join(20)
    worker.join(20)
    assert seen[0].result == "done"


@pytest.mark.parametrize("call", ["get", "wait", "history", "retry", "cancel", "release"])
def test_an_unknown_id_is_not_found_whatever_it_looks_like(app, call):
    for job_id in NOBODY:
        with pytest.raises(NotFound):
            getattr(app.jobs, call)(job_id)


# -- get, refresh, history --------------------------------------------------------------------------
def test_a_job_in_the_hand_is_a_picture_and_refresh_takes_a_new_one(app, kinds):
    job = kinds[0].enqueue()
    app.run_inline()
    assert job.state is State.QUEUED
    after = job.refresh()
    assert (after.state, after.refresh()) == (State.SUCCEEDED, after)
    with pytest.raises(AttributeError):
        after.state = State.DEAD


def test_what_enqueue_returns_is_what_is_read_back(app, kinds):
    fresh = (
        kinds[0]
        .options(owner="acme", priority=-3, delay=60, deadline=3600, unique="key", max_retries=7)
        .enqueue()
    )
    read = app.jobs.get(fresh.id)
    fields = [name for name in fresh.__dataclass_fields__ if name not in {"why", "_again"}]
    assert {name: getattr(fresh, name) for name in fields} == {
        name: getattr(read, name) for name in fields
    }


@pytest.mark.parametrize("said", [{}, {"owner": "acme", "delay": 60}], ids=["due", "later"])
def test_what_a_bulk_returns_is_what_is_read_back(app, said):
    @app.job(name="numbered", uses=lambda payload: ["smtp"] if payload["n"] % 2 else [])
    def numbered(n: int, more: dict[str, list[str]] | None = None) -> None: ...

    made = numbered.options(**said).enqueue_many(
        [{"n": n, "more": {"a": ["b"]}} for n in range(12)]
    )
    for n, fresh in enumerate(made):
        read = app.jobs.get(fresh.id)
        fields = [
            name for name in fresh.__dataclass_fields__ if name not in {"why", "phase", "_again"}
        ]
        assert {name: getattr(fresh, name) for name in fields} == {
            name: getattr(read, name) for name in fields
        }
        assert fresh.payload == {"n": n, "more": {"a": ["b"]}}
    with pytest.raises(AttributeError):
        made[0].state = State.DEAD
    made[0].payload["more"]["a"].append("c")
    assert made[1].payload["more"] == {"a": ["b"]}, "nothing that can change is shared"
    assert pickle.loads(pickle.dumps(replace(made[2], _again=None))) == made[2]  # noqa: S301 - our own words


def test_a_due_job_says_whether_anybody_could_run_it(app, kinds):
    job = kinds[0].enqueue()
    assert job.refresh().phase == "no_worker"
    stand_by(app)
    assert job.refresh().phase == "ready"


@pytest.mark.seed("003-55")
def test_history_tells_everything_in_order_with_who_and_when(app):
    @app.job(policy=Policy(max_retries=1, backoff=Fixed(0)))
    def again(ctx: Context) -> str:
        if ctx.token < 3:
            raise ConnectionResetError("no")
        return "done"

    job = again.options(owner="acme").enqueue()
    ran(app, job)
    app.jobs.retry(job.id, reason="fixed it")
    ran(app, job)
    story = app.jobs.history(job.id)
    words = [
        "queued",
        "started",
        "retry_scheduled",
        "started",
        "died",
        "retried",
        "started",
        "succeeded",
    ]
    assert [event.type for event in story] == [f"job.{word}" for word in words]
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


# -- lists ------------------------------------------------------------------------------------------
def test_lists_filter_by_what_they_name_newest_first(app, kinds):
    good, bad, asks = kinds
    jobs = [
        good.enqueue(),
        bad.options(owner="acme").enqueue(),
        asks.options(queue="slow").enqueue(),
    ]
    app.run_inline()
    waiting = good.options(delay=60).enqueue()
    everything = [waiting, *reversed(jobs)]

    def found(words: str) -> list[str]:
        return [job.id for job in app.jobs.list(words)]

    assert found("") == [job.id for job in everything]
    for words, expected in (
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
        assert found(words) == [job.id for job in expected], words


def test_pages_follow_each_other_without_gap_or_overlap(app, kinds):
    made = [job.id for job in kinds[0].enqueue_many({} for _ in range(25))]
    pages, before = [], None
    while page := app.jobs.list("kind:good", limit=10, before=before):
        pages.append([job.id for job in page])
        before = page[-1].id
    assert [len(page) for page in pages] == [10, 10, 5]
    assert [job_id for page in pages for job_id in page] == made[::-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("stat:dead", "state"),
        ("dead", "field:value"),
        ("state:ded", "no such state"),
        ("state:", "no such state"),
        ('kind:"open', "quotation"),
        ("colour:red", "fields"),
    ],
)
def test_a_filter_nobody_understands_is_refused_with_what_would_be_right(app, words, said):
    with pytest.raises(Refused, match=said):
        app.jobs.list(words)


@pytest.mark.parametrize("limit", [0, -1, 1001, 10**9])
def test_a_page_has_a_size(app, limit):
    with pytest.raises(Refused, match="limit"):
        app.jobs.list(limit=limit)


# -- ids --------------------------------------------------------------------------------------------
def test_as_much_of_an_id_as_makes_it_unique_is_enough(app, kinds):
    jobs = [kinds[0].enqueue() for _ in range(3)]
    for job in jobs:
        for length in (LENGTH, LENGTH - 1, LENGTH - 8):
            assert app.jobs.resolve(job.id[:length]) == job.id
    with pytest.raises(NotFound, match="more than one"):
        app.jobs.resolve(jobs[0].id[:4])


@pytest.mark.parametrize("prefix", ["zzzz", "%", "_", "nul\x00", "half\ud800"])
def test_a_beginning_of_no_id_is_not_found(app, kinds, prefix):
    kinds[0].enqueue()
    with pytest.raises(NotFound):
        app.jobs.resolve(prefix)


# -- awaitable --------------------------------------------------------------------------------------
def test_all_of_it_can_be_awaited(app, kinds):
    good, *_ = kinds

    async def walk() -> list[object]:
        seen: list[object] = []
        jobs = [await kind.enqueue_async() for kind in kinds]
        jobs += await good.enqueue_many_async([{}, {}])
        jobs.append(await app.aio.enqueue("good", {}, owner="acme"))
        await asyncio.to_thread(app.run_inline)
        seen += [(await app.aio.jobs.wait(job.id, 5)).state for job in jobs]
        seen.append((await app.aio.jobs.get(jobs[0].id)).result)
        seen.append(len(await app.aio.jobs.list("kind:good")))
        seen.append((await app.aio.jobs.history(jobs[1].id))[-1].type)
        seen.append((await app.aio.jobs.retry(jobs[1].id, reason="again")).generation)
        seen.append((await app.aio.jobs.cancel(jobs[1].id, reason="no")).state)
        seen.append((await app.aio.jobs.release(jobs[2].id, choice="us")).state)
        seen.append((await app.aio.jobs.retry(jobs[1].id)).state)
        await asyncio.to_thread(app.run_inline)
        seen.append((await app.aio.jobs.discard(jobs[1].id, reason="enough")).state)
        with pytest.raises(NotFound):
            await app.aio.jobs.get("nobody")
        return seen

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


def test_run_inline_inside_a_loop_says_what_to_write(app):
    async def wrong() -> None:
        app.run_inline()

    with pytest.raises(Refused, match="to_thread"):
        asyncio.run(wrong())


def test_an_app_that_is_closed_opens_again_when_it_is_asked(app, kinds):
    job = kinds[0].enqueue()
    app.close()
    app.close()
    assert app.jobs.get(job.id).id == job.id
    until(lambda: ran(app, job).result == "done")


def test_hundreds_who_wait_on_one_loop_leave_its_threads_free(app, kinds):
    async def wait_for_all() -> set[str]:
        jobs = kinds[0].enqueue_many([{}] * 200)
        waiting = [asyncio.create_task(app.aio.jobs.wait(job.id, 30)) for job in jobs]
        assert await asyncio.to_thread(app.run_inline) == 200
        return {(await each).state for each in waiting}

    assert asyncio.run(wait_for_all()) == {State.SUCCEEDED}


def test_awaited_or_not_a_wait_gives_up_in_time(app, kinds):
    with pytest.raises(WaitTimeout, match="still queued"):
        asyncio.run(app.aio.jobs.wait(kinds[0].enqueue().id, 0.1))


def test_somebody_elses_job_answers_like_one_that_does_not_exist(app, kinds):
    job = kinds[0].options(owner="acme").enqueue()
    assert app.jobs.get(job.id, owner="acme").id == job.id
    assert asyncio.run(app.aio.jobs.get(job.id, owner="acme")).id == job.id
    for owner in ("other", ""):
        with pytest.raises(NotFound) as refused:
            app.jobs.get(job.id, owner=owner)
        with pytest.raises(NotFound) as unknown:
            app.jobs.get(job.id[:-1])
        assert str(refused.value) == str(unknown.value).replace(job.id[:-1], job.id)


def test_an_application_can_show_the_numbers_itself(app):
    assert "# TYPE mulligan_queue_depth gauge" in app.metrics()
    assert asyncio.run(app.aio.metrics()) == app.metrics()  # good for five seconds
