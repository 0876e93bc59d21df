"""A job that failed before it could begin."""

from __future__ import annotations

import asyncio

import pytest

from mulligan import Fail, Rule, Unique
from mulligan.core.errors import Refused
from support.app_tools import event_types

NOT_A_PDF = Rule(
    "not-pdf",
    verdict="BAD_FILE",
    code="NOT_PDF",
    cls="invalid_input",
    public="Only PDF files, please.",
)


@pytest.fixture
def convert(app):
    @app.job(
        name="convert", rules=NOT_A_PDF, unique=Unique(by=("owner", "payload.file")), uses="gateway"
    )
    def convert(file: str) -> str:
        return f"{file} as XML"

    return convert


def test_a_rejected_job_is_dead_without_an_attempt_and_classified_by_its_kind(app, convert):
    job = convert.options(owner="acme").reject(Fail("NOT_PDF", "starts with PNG"), file="a.png")
    assert (job.state, job.attempts, job.failures, job.owner) == ("dead", 0, 0, "acme")
    assert (job.error["code"], job.error["class"], job.error["rule"]) == (
        "NOT_PDF",
        "invalid_input",
        "not-pdf",
    )
    assert job.error["message"] == "Only PDF files, please."
    assert event_types(app, job) == ["queued", "died"]
    assert app.run_inline() == 0
    assert [found.id for found in app.jobs.list("state:dead code:NOT_PDF")] == [job.id]


def test_a_rejected_job_frees_its_key_and_can_be_retried(app, convert):
    job = convert.reject(Fail("IO_ERROR"), file="a.pdf")
    assert not job.deduplicated
    again = convert.enqueue(file="a.pdf")
    assert again.id != job.id
    app.jobs.cancel(again.id)
    app.jobs.retry(job.id)
    app.run_inline()
    assert job.refresh().result == "a.pdf as XML"


def test_reject_returns_the_job_that_holds_the_unique_key(app, convert):
    first = convert.enqueue(file="a.pdf")
    job = convert.reject(Fail("IO_ERROR"), file="a.pdf")
    assert (job.id, job.deduplicated, job.state) == (first.id, True, "queued")


def test_a_rejected_member_counts_in_its_batch(app, convert):
    batch = app.batch("spring")
    convert.options(batch=batch).reject(Fail("NOT_PDF"), file="a.png")
    batch.seal()
    assert batch.refresh().state == "failed"


def test_reject_can_be_awaited(app, convert):
    assert asyncio.run(convert.reject_async(Fail("NOT_PDF"), file="a.png")).state == "dead"


def test_reject_needs_a_reason_and_takes_no_connection(app, convert):
    with pytest.raises(Refused, match="takes Fail"):
        convert.reject("because", file="a.png")
    with app.transaction() as tx, pytest.raises(Refused, match="connection="):
        convert.options(connection=tx).reject(Fail("NOT_PDF"), file="a.png")
