"""Payloads of another release: left to it during a deploy instead of dead."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import AfterValidator

from mulligan import Rule
from mulligan.core.durations import SECOND
from mulligan.manifest.declared import publish_manifest

HOUR = 3600 * SECOND


def publish(app, release, name="shop:app"):
    """Publish the manifest of an app as its worker would."""
    manifest = app.registry.manifest(name, release)
    with app.store.begin() as tx:
        publish_manifest(tx, manifest)


@pytest.fixture
def older(make_app):
    app = make_app()
    app.job(name="send")(_send)
    return app


@pytest.fixture
def newer(make_app):
    app = make_app()
    app.job(name="send")(_send_with_locale)
    return app


def _send(to: str) -> str:
    return to


def _send_with_locale(to: str, locale: str = "en") -> str:
    return f"{to} {locale}"


def test_a_new_argument_is_left_to_the_release_that_accepts_it(older, newer):
    publish(older, "r1")
    publish(newer, "r2")
    job = newer.enqueue("send", {"to": "a", "locale": "de"})
    older.run_inline()
    job = older.jobs.get(job.id)
    assert (job.state, job.failures, job.losses) == ("queued", 0, 0)
    assert "left to release r2 of shop:app" in job.why
    older.store.shift_clock(2 * SECOND)
    newer.run_inline()
    assert older.jobs.get(job.id).result == "a de"


def test_a_refused_payload_that_a_rule_renames_is_left_to_the_other_release(older, newer):
    older.rules.add(Rule("other", verdict="PAYLOAD_REFUSED", code="UNKNOWN", cls="permanent"))
    publish(older, "r1")
    publish(newer, "r2")
    job = newer.enqueue("send", {"to": "a", "locale": "de"})
    older.run_inline()
    job = older.jobs.get(job.id)
    assert (job.state, job.failures) == ("queued", 0)
    assert "left to release r2 of shop:app" in job.why


def test_a_new_argument_waits_for_the_first_worker_of_the_new_release(older, newer):
    publish(older, "r1")
    job = newer.job(name="send2")(_send_with_locale).enqueue(to="a", locale="de")
    older.job(name="send2")(_send)
    older.run_inline()
    job = older.jobs.get(job.id)
    assert (job.state, job.failures) == ("queued", 0)
    assert "left to a release that knows argument locale" in job.why
    older.store.shift_clock(2 * SECOND)
    newer.run_inline()
    assert older.jobs.get(job.id).result == "a de"


def test_a_new_argument_that_no_worker_knows_within_an_hour_is_refused(older, newer):
    job = newer.job(name="send2")(_send_with_locale).enqueue(to="a", locale="de")
    older.job(name="send2")(_send)
    older.run_inline()
    older.store.shift_clock(HOUR)
    older.run_inline()
    assert older.jobs.get(job.id).error["code"] == "PAYLOAD_REFUSED"


def test_a_removed_argument_is_left_to_the_older_release_while_it_runs(older, newer):
    publish(newer, "r1")
    publish(older, "r2")
    job = newer.enqueue("send", {"to": "a", "locale": "de"})
    older.run_inline()
    assert "left to release r1" in older.jobs.get(job.id).why


def test_a_payload_that_no_release_accepts_dies_at_once(older, newer):
    publish(older, "r1")
    publish(newer, "r2")
    job = older.enqueue("send", {"to": "a"})
    with older.store.transaction() as connection:
        table = "mulligan_job" if older.store.lock_directory else "mulligan.job"
        connection.execute(f"UPDATE {table} SET payload = '{{\"from\": 1}}'")  # noqa: S608
    older.run_inline()
    assert older.jobs.get(job.id).error["code"] == "PAYLOAD_REFUSED"


def test_a_payload_dies_once_the_release_that_accepts_it_was_rolled_back(older, newer):
    publish(older, "r1")
    publish(newer, "r2")
    job = newer.enqueue("send", {"to": "a", "locale": "de"})
    older.run_inline()
    older.store.shift_clock(HOUR)
    publish(older, "r1")
    older.run_inline()
    assert older.jobs.get(job.id).error["code"] == "PAYLOAD_REFUSED"


def _refuse(value: str) -> str:
    raise ValueError("never")


def test_two_releases_with_equal_schemas_do_not_leave_a_job_to_each_other(make_app):
    first, second = make_app(), make_app()
    for app in (first, second):

        @app.job(name="picky")
        def picky(to: Annotated[str, AfterValidator(_refuse)]) -> None: ...

    publish(first, "r1")
    publish(second, "r2")
    job = make_app().enqueue("picky", {"to": "a"})
    first.run_inline()
    assert first.jobs.get(job.id).error["code"] == "PAYLOAD_REFUSED"
