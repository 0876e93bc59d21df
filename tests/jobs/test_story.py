"""Tests of the story of a job that a real worker ran."""

from __future__ import annotations

import re

import httpx2
import pytest

from mulligan import Context, Fixed, Mulligan, Policy, Snooze, testing
from mulligan.cli import main

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
CLOCK = r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d UTC"


@pytest.fixture
def repaired_job(make_app, start, tmp_path, monkeypatch):
    """Run a job through two retries, a hold, a death and a manual retry on a real worker."""
    app, repaired = make_app(), tmp_path / "repaired"
    app.open()
    start(app="support.story_app:app")
    job = app.enqueue("fetch", {"repaired": str(repaired)}, owner="acme")
    assert app.jobs.wait(job.id, 30).state == "dead"
    repaired.touch()
    monkeypatch.setenv("MULLIGAN_DATABASE_URL", app.settings.database_url)
    assert main(["jobs", "retry", job.id, "--reason", "the code is repaired"]) == 0
    assert app.jobs.wait(job.id, 30).state == "succeeded"
    return app, job


@pytest.mark.any_store
def test_a_story_with_two_retries_a_hold_and_a_manual_retry_is_complete(repaired_job, capsys):
    app, job = repaired_job
    capsys.readouterr()
    assert main(["jobs", "explain", job.id]) == 0
    text = capsys.readouterr().out
    workers = {attempt.worker for attempt in app.jobs.attempts(job.id)}
    (worker,) = workers
    verdict = r"\(class timeout: something took too long; rule py\.timeout\)"
    for fact in (
        rf"{STAMP}  Enqueued for owner acme: kind fetch, queue default, due at once\.",
        rf"Attempt 1 of generation 1, started {CLOCK} on worker {worker}, failed after .+ with TIMEOUT {verdict}: \w.+\.",
        rf"Retry 1 of 3 scheduled for {CLOCK}, in 0\.[12] s: a backoff of 0\.2 s\.",
        rf"Attempt 2 of generation 1, started {CLOCK} on worker {worker}, failed after .+ with TIMEOUT {verdict}: \w.+\.",
        rf"Retry 2 of 3 scheduled for {CLOCK}, in 0\.[234] s: a backoff of 0\.2 s × 2 = 0\.4 s\.",
        r"Attempt 3 of generation 1, .+ postponed the job after .+ at no charge: .*held for 3 s: maintenance\.",
        rf"because dependency gateway was held by a job's handler, .*maintenance', from {CLOCK} until {CLOCK}",
        rf"Attempt 4 of generation 1, started {CLOCK} .+ with PROGRAMMING_ERROR .+ rule py\.programming-error\)",
        r"The job died: not retried",
        r"To have such errors retried: Policy\(retry_unknown=True\)",
        r"\w+ \(on the command line\) retried it manually: the code is repaired\. Generation 2 begins",
        rf"Attempt 1 of generation 2, started {CLOCK} on worker {worker}, succeeded after .+; its result has 11 B\.",
        rf"Succeeded at {STAMP}",
    ):
        assert re.search(fact, text), f"{fact}\n{text}"
    assert "our eyes only" not in text
    assert "our eyes only" in app.jobs.explain(job.id, private=True).text


@pytest.mark.slow
@pytest.mark.any_store
def test_every_line_of_a_story_is_a_sentence_with_its_time(repaired_job):
    app, job = repaired_job
    explanation = app.jobs.explain(job.id)
    times = [one.at for one in explanation.story]
    assert times == sorted(times)
    for one in explanation.story:
        assert re.fullmatch(r"[A-Za-z(].*[.)]", one.text), one.text
    assert explanation.now in explanation.text
    assert str(explanation) == explanation.text


@pytest.fixture
def waiting(app: Mulligan):
    """Return a job that has snoozed for five minutes."""

    @app.job(name="later")
    def later(ctx: Context) -> Snooze:
        return Snooze(300, "the file is not there yet")

    job = later.enqueue()
    app.run_inline()
    return job


def test_a_waiting_job_says_why_until_when_and_what_ends_it_sooner(app, waiting):
    now = app.jobs.explain(waiting.id).now
    assert re.fullmatch(
        rf"Waiting for its next attempt \(snoozed for 5 min: the file is not there yet\), due {STAMP} "
        rf"\(in 5 min\)\. To run it now, with fresh counters: mulligan jobs cancel {waiting.id} && "
        rf"mulligan jobs retry {waiting.id}",
        now,
    )


def test_a_past_pause_is_still_described(app, render):
    app.queues.pause("default", reason="deploy")
    job = render.enqueue(clip=1)
    testing.advance(app, 60, anywhere=True)
    app.queues.resume("default", reason="done")
    app.run_inline()
    text = " ".join(one.text for one in app.jobs.explain(job.id).story)
    assert "Started 1 min late because queue default was paused" in text
    assert "resumed it, with the reason 'done'" in text


async def _explained(app, job):
    return await app.aio.jobs.explain(job.id, private=True)


def test_the_awaitable_form_returns_the_same_story(app, waiting):
    import asyncio

    assert asyncio.run(_explained(app, waiting)).story == app.jobs.explain(waiting.id).story


def test_a_wait_that_a_server_asked_for_is_explained(app):
    """The evidence is what classification stores, not what a test makes up."""

    @app.job(policy=Policy(max_retries=3, backoff=Fixed(0.5)))
    def call() -> None:
        request = httpx2.Request("GET", "https://api.example.com/orders")
        answer = httpx2.Response(503, headers={"Retry-After": "120"}, request=request)
        answer.raise_for_status()

    job = call.enqueue()
    app.run_inline()
    text = app.jobs.explain(job.id).text
    assert "a fixed backoff of 0.5 s, but the service asked for 2 min" in text
