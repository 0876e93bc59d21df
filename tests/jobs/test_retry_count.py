"""`job.retries`: after how many charged failures of a generation a retry was scheduled."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from mulligan import Context, Fail, Fixed, Hold, Mulligan, Park, Policy, Retry, Snooze, Table
from mulligan.http.app import create_app
from mulligan.testing import drain, force
from support.store import RELEASED, claim_by_id, open_worker, settle_leases

WAITS = Policy(max_retries=2, max_losses=1, backoff=Table([60]))


@pytest.fixture
def work(app):
    app.dependency("gateway", min_calls=1, window=60)

    @app.job(policy=WAITS, uses="gateway")
    def work() -> None: ...

    return work


def run(app: Mulligan, kind, *endings, **options):
    """Enqueue a job, let its attempts end so, and return it."""
    job = kind.options(**options).enqueue()
    with force(app, kind, *endings):
        drain(app, scheduled=True, anywhere=True)
    return job.refresh()


@pytest.mark.parametrize(
    ("endings", "state", "failures", "retries"),
    [
        ([Snooze(1)], "succeeded", 0, 0),
        (["timeout"], "succeeded", 1, 1),
        ([Retry(), "timeout"], "succeeded", 2, 2),
        (["timeout"] * 3, "dead", 3, 2),
        ([Retry()] * 3, "dead", 3, 2),
        (["timeout", Fail("BAD_INPUT", final=True)], "dead", 2, 1),
        ([Fail("BAD_INPUT", final=True)], "dead", 1, 0),
        (["lost"], "succeeded", 0, 0),
        (["timeout", "lost", "lost"], "dead", 1, 1),
        (["timeout", Snooze(10), Hold("gateway", until=10)], "succeeded", 1, 1),
        (["timeout", Park("a person decides")], "parked", 1, 1),
    ],
)
def test_a_failure_counts_as_retry_if_another_attempt_followed(
    app, work, endings, state, failures, retries
):
    job = run(app, work, *endings)
    assert (job.state, job.failures, job.retries) == (state, failures, retries)
    assert [one.retries for one in app.jobs.list()] == [retries]


def test_a_scheduled_retry_counts_before_it_starts(app, work):
    job = work.enqueue()
    with force(app, work, "timeout"):
        drain(app, anywhere=True)
    waiting = job.refresh()
    assert (waiting.phase, waiting.failures, waiting.retries) == ("backing_off", 1, 1)


def test_a_retry_that_would_miss_the_deadline_is_no_retry(app, work):
    job = run(app, work, "timeout", deadline=30)
    assert (job.state, job.failures, job.retries) == ("dead", 1, 0)


def test_the_last_failure_of_a_discarded_job_was_no_retry(app, work):
    job = run(app, work, *["timeout"] * 3)
    app.jobs.discard(job.id, reason="too late")
    assert (job.refresh().state, job.refresh().retries) == ("cancelled", 2)


def test_a_manual_retry_starts_again_at_none(app, work):
    job = run(app, work, *["timeout"] * 3)
    app.jobs.retry(job.id, reason="again")
    assert (job.refresh().failures, job.refresh().retries) == (0, 0)


def test_the_handler_sees_which_retry_it_is(app):
    seen = []

    @app.job(policy=WAITS)
    def work(ctx: Context) -> Retry | None:
        seen.append(ctx.job.retries)
        return Retry() if len(seen) < 3 else None

    work.enqueue()
    drain(app, scheduled=True, anywhere=True)
    assert seen == [0, 1, 2]


# --- The last message about progress ---


def test_an_attempt_that_was_given_back_unstarted_is_no_retry(app):
    seen = []

    @app.job(name="work")
    def work(ctx: Context) -> None:
        seen.append((ctx.attempt, ctx.job.retries))

    job = work.enqueue()
    open_worker(app.store)
    settle_leases(app.store, claim_by_id(app.store, job.id), RELEASED)
    drain(app, scheduled=True, anywhere=True)
    assert seen == [(2, 0)]


def test_the_message_of_the_last_progress_is_public_in_python_http_and_commands(app):
    @app.job
    def encode(ctx: Context) -> None:
        ctx.progress(0.5, "frame 60 of 120")

    job = encode.enqueue()
    assert job.progress_message == ""
    drain(app, anywhere=True)
    assert job.refresh().progress_message == "frame 60 of 120"
    headers = {"Authorization": f"Bearer {app.keys.create('*', 'viewer').text}"}
    with TestClient(create_app(app.settings), base_url="http://localhost") as client:
        document = client.get(f"/api/v1/jobs/{job.id}", headers=headers).json()
    assert (document["progress"], document["progress_message"]) == (0.5, "frame 60 of 120")
    assert document["retries"] == 0


def test_a_new_attempt_starts_without_the_message_of_the_last_one(app):
    @app.job(policy=WAITS)
    def encode(ctx: Context) -> Retry | None:
        if ctx.attempt == 1:
            ctx.progress(0.5, "frame 60 of 120")
            return Retry()
        return None

    job = encode.enqueue()
    drain(app, scheduled=True, anywhere=True)
    assert (job.refresh().progress, job.refresh().progress_message) == (None, "")


def test_the_explanation_counts_retries_not_failures(store_url):
    app = Mulligan(store_url)

    @app.job(policy=Policy(max_retries=2, backoff=Fixed(0)))
    def call() -> None:
        raise ConnectionResetError("hung up")

    job = call.enqueue()
    app.run_inline()
    facts = {fact.name: fact.value for fact in app.jobs.explain(job.id).facts}
    assert job.refresh().failures == 3
    assert facts["retries"] == "2 of 2 used"
    app.close()
