"""The story of a job that a real worker ran: every fact is in it, and it reads as sentences."""

from __future__ import annotations

import re

import pytest

from mulligan import Context, Mulligan, Snooze, testing
from mulligan.cli import main

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
CLOCK = r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d UTC"


@pytest.fixture
def life(make_app, start, tmp_path, monkeypatch):
    """A job with two retries, a hold, a death and a retry by hand, all on a real worker."""
    app, repaired = make_app(), tmp_path / "repaired"
    app.open()
    start(app="support.storied:app")
    job = app.enqueue("fetch", {"repaired": str(repaired)}, owner="acme")
    assert app.jobs.wait(job.id, 30).state == "dead"
    repaired.touch()
    monkeypatch.setenv("MULLIGAN_DATABASE_URL", app.settings.database_url)
    assert main(["jobs", "retry", job.id, "--reason", "the code is repaired"]) == 0
    assert app.jobs.wait(job.id, 30).state == "succeeded"
    return app, job


@pytest.mark.any_store
def test_a_life_with_two_retries_a_hold_and_a_retry_by_hand_is_told_in_full(life, capsys):
    app, job = life
    capsys.readouterr()
    assert main(["jobs", "explain", job.id]) == 0
    told = capsys.readouterr().out
    workers = {attempt.worker for attempt in app.jobs.attempts(job.id)}
    (worker,) = workers
    judged = r"\(class timeout: something took too long; judged by rule py\.timeout\)"
    for fact in (
        rf"{STAMP}  The job was enqueued for owner acme: kind fetch, queue default, to start at once\.",
        rf"Attempt 1 of life 1, begun {CLOCK} on worker {worker}, failed after .+ with TIMEOUT {judged}: \w.+\.",
        rf"Retry 1 of 3 was set for {CLOCK}, a wait of 0\.[12] s: the schedule says 0\.2 s\.",
        rf"Attempt 2 of life 1, begun {CLOCK} on worker {worker}, failed after .+ with TIMEOUT {judged}: \w.+\.",
        rf"Retry 2 of 3 was set for {CLOCK}, a wait of 0\.[234] s: the schedule says 0\.2 s × 2 = 0\.4 s\.",
        r"Attempt 3 of life 1, .+ put the job off after .+, which costs no retry: .*held for 3 s: maintenance\.",
        rf"because dependency gateway was held by a job's own code, .*maintenance', from {CLOCK} until {CLOCK}",
        rf"Attempt 4 of life 1, begun {CLOCK} .+ with PROGRAMMING_ERROR .+ judged by rule py\.programming-error\)",
        r"That was the end: not retried",
        r"To have such errors tried again: Policy\(retry_unknown=True\)",
        r"\w+ \(on the command line\) retried it by hand: the code is repaired\. That began life 2",
        rf"Attempt 1 of life 2, begun {CLOCK} on worker {worker}, succeeded after .+; its result has 11 B\.",
        rf"It succeeded at {STAMP}",
    ):
        assert re.search(fact, told), f"{fact}\n{told}"
    assert "our eyes only" not in told
    assert "our eyes only" in app.jobs.explain(job.id, private=True).text


@pytest.mark.slow
@pytest.mark.any_store
def test_every_line_of_a_story_is_a_sentence_with_its_moment(life):
    app, job = life
    told = app.jobs.explain(job.id)
    moments = [one.at for one in told.story]
    assert moments == sorted(moments)
    for one in told.story:
        assert re.fullmatch(r"[A-Za-z(].*[.)]", one.text), one.text
    assert told.now in told.text
    assert str(told) == told.text


@pytest.fixture
def waiting(app: Mulligan):
    """A job that has put itself off for five minutes."""

    @app.job(name="later")
    def later(ctx: Context) -> Snooze:
        return Snooze(300, "the file is not there yet")

    job = later.enqueue()
    app.run_inline()
    return job


def test_a_job_that_waits_says_why_until_when_and_what_ends_it_sooner(app, waiting):
    now = app.jobs.explain(waiting.id).now
    assert re.fullmatch(
        rf"It waits before its next attempt \(snoozed for 5 min: the file is not there yet\), which is due at {STAMP} "
        rf"\(in 5 min\)\. Sooner, with fresh counters: mulligan jobs cancel {waiting.id} && "
        rf"mulligan jobs retry {waiting.id}",
        now,
    )


def test_a_pause_that_is_over_is_still_told(app, render):
    app.queues.pause("default", reason="deploy")
    job = render.enqueue(clip=1)
    testing.advance(app, 60, anywhere=True)
    app.queues.resume("default", reason="done")
    app.run_inline()
    told = " ".join(one.text for one in app.jobs.explain(job.id).story)
    assert "It began 1 min after its time, because queue default was paused" in told
    assert "opened it, with the reason 'done'" in told


async def _explained(app, job):
    return await app.aio.jobs.explain(job.id, private=True)


def test_the_awaitable_twin_tells_the_same(app, waiting):
    import asyncio

    assert asyncio.run(_explained(app, waiting)).story == app.jobs.explain(waiting.id).story
