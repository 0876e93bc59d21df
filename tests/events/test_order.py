"""The order of a job's events: `seq` grows, and each event says how many retries there were."""

from __future__ import annotations

from mulligan import Fail, Fixed, Policy
from support.app_tools import advance, run_until_final


def test_seq_grows_along_the_life_of_a_job(app):
    @app.job(policy=Policy(max_retries=2, backoff=Fixed(1)))
    def fails() -> Fail:
        return Fail("HTTP_5XX")

    job = run_until_final(app, fails.enqueue())
    app.jobs.retry(job.id, reason="again")
    run_until_final(app, job)
    events = app.jobs.history(job.id)
    attempt = ["job.started", "job.retry_scheduled"]
    life = [*attempt * 2, "job.started", "job.died"]
    assert [event.type for event in events] == ["job.queued", *life, "job.retried", *life]
    numbers = [event.seq for event in events]
    assert numbers == sorted(set(numbers))


def test_a_job_of_a_callers_transaction_is_queued_before_it_starts(app):
    @app.job
    def works() -> None: ...

    with app.transaction() as tx:
        job = works.options(connection=tx).enqueue()
    run_until_final(app, job)
    events = sorted(app.jobs.history(job.id), key=lambda event: event.seq)
    assert [event.type for event in events] == ["job.queued", "job.started", "job.succeeded"]


def test_every_event_of_an_attempt_has_the_number_of_retries(app):
    @app.job(policy=Policy(max_retries=2, backoff=Fixed(1)))
    def fails() -> Fail:
        return Fail("HTTP_5XX")

    jobs = fails.enqueue_many([{}] * 3)  # claimed together: their events share a row
    for _ in range(4):
        app.run_inline()
        advance(app, 2)
    for job in jobs:
        events = [event for event in app.jobs.history(job.id) if event.attempt]
        numbers = [(event.attempt, event.data["retries"]) for event in events]
        assert numbers == [(1, 0), (1, 0), (2, 1), (2, 1), (3, 2), (3, 2)]
