"""Payloads of other versions: upcast in the runner, or left to a release that takes them."""

from __future__ import annotations

import json

import pytest

from mulligan import Policy
from mulligan.core.durations import SECOND
from mulligan.core.errors import OverrideRefused
from mulligan.manifest.declared import publish_manifest
from support.versioned_app import declare, rename_to

DAY = 86_400 * SECOND


def publish(app, release):
    with app.store.begin() as tx:
        publish_manifest(tx, app.registry.manifest("shop:app", release))


@pytest.fixture
def release(make_app):
    """Make the app of a release: its payload version is its number."""

    def make(version):
        app = make_app()
        app.send = declare(app, version)
        publish(app, f"r{version}")
        return app

    return make


def test_older_payloads_are_upcast_before_they_are_validated(release):
    first = release(1).send.enqueue(to="a")
    second = release(2).send.enqueue(address="b")
    newest = release(3)
    third = newest.send.enqueue(address="c", locale="de")
    newest.run_inline()
    assert [newest.jobs.get(job.id).result for job in (first, second, third)] == [
        ["a", "en"],
        ["b", "en"],
        ["c", "de"],
    ]
    assert [newest.jobs.get(job.id).version for job in (first, second, third)] == [1, 2, 3]


def test_a_newer_payload_is_left_to_the_release_that_takes_it(release):
    older, newer = release(1), release(3)
    job = newer.send.enqueue(address="a", locale="de")
    assert job.version == 3
    older.run_inline()
    job = older.jobs.get(job.id)
    assert (job.state, job.failures, job.losses) == ("queued", 0, 0)
    assert "left to release r3 of shop:app (payload version 3)" in job.why
    older.store.shift_clock(2 * SECOND)
    newer.run_inline()
    assert older.jobs.get(job.id).result == ["a", "de"]


def test_a_newer_payload_waits_for_the_first_worker_of_its_release(make_app, release):
    older = release(2)
    newer = make_app()
    job = declare(newer, 3).enqueue(address="a", locale="de")
    older.run_inline()
    assert "left to a release with payload version 3 (this one has 2)" in older.jobs.get(job.id).why
    older.store.shift_clock(2 * SECOND)
    newer.run_inline()
    assert older.jobs.get(job.id).result == ["a", "de"]


def test_a_newer_payload_without_arguments_is_not_run_by_an_older_release(make_app):
    older, newer = make_app(), make_app()
    older.job(name="tick")(lambda: "older")
    newer.job(name="tick", version=2, upcast={1: dict})(lambda: "newer")
    job = newer.enqueue("tick")
    older.run_inline()
    assert older.jobs.get(job.id).state == "queued"


def test_a_newer_payload_dies_if_no_release_takes_it_for_a_day(make_app, release):
    older = release(2)
    job = declare(make_app(), 3).enqueue(address="a", locale="de")
    older.run_inline()
    older.store.shift_clock(DAY + 2 * SECOND)
    older.run_inline()
    job = older.jobs.get(job.id)
    assert (job.state, job.error["code"]) == ("dead", "PAYLOAD_REFUSED")


def test_a_payload_older_than_every_upcast_dies_and_says_so(make_app, release):
    job = release(1).send.enqueue(to="a")
    newer = make_app()
    newer.store.shift_clock(3600 * SECOND)
    newer.job(name="send", version=3, upcast={2: dict})(lambda address: address)
    publish(newer, "r3")
    newer.run_inline()
    assert newer.jobs.get(job.id).error["code"] == "PAYLOAD_REFUSED"
    message = newer.jobs.attempts(job.id)[-1].private
    assert "has version 1; this release takes versions 2 to 3" in message


def test_a_payload_older_than_every_upcast_is_left_to_the_older_release_while_it_runs(
    make_app, release
):
    job = release(1).send.enqueue(to="a")
    newer = make_app()
    newer.job(name="send", version=3, upcast={2: dict})(lambda address: address)
    publish(newer, "r3")
    newer.run_inline()
    assert "left to release r1 of shop:app (payload version 1)" in newer.jobs.get(job.id).why


def test_an_error_in_an_upcast_is_a_failure_of_the_job(release, make_app):
    job = release(1).send.enqueue(to="a")
    newer = make_app()

    def lookup(payload):
        return {"address": {}[payload["to"]]}

    options = {"version": 2, "upcast": {1: lookup}, "policy": Policy(max_retries=0)}
    newer.job(name="send", **options)(lambda address: address)
    newer.run_inline()
    job = newer.jobs.get(job.id)
    assert (job.state, job.failures) == ("dead", 1)
    evidence = json.loads(newer.jobs.attempts(job.id)[-1].evidence)
    assert evidence["asked"] == "upcast"


def test_an_edit_of_an_older_payload_upcasts_it_first(release, make_app):
    first = release(1)
    job = first.send.enqueue(to="a")
    first.jobs.cancel(job.id)
    newer = make_app()
    options = {"version": 2, "upcast": {1: rename_to}, "editable": "address"}
    newer.job(name="send", **options)(lambda address: address)
    publish(newer, "r2")
    with pytest.raises(OverrideRefused, match="has version 1, and kind send has version 2"):
        make_app().jobs.retry(job.id, overrides={"payload": {"address": "b"}})
    newer.jobs.retry(job.id, overrides={"payload": {"address": "b"}})
    newer.run_inline()
    job = newer.jobs.get(job.id)
    assert (job.result, job.version) == ("b", 2)


def test_can_retry_gets_an_upcast_payload(release, make_app):
    first = release(1)
    job = first.send.enqueue(to="a")
    first.jobs.cancel(job.id)
    newer = make_app()
    asked = []

    def allow(address):
        asked.append(address)

    options = {"version": 2, "upcast": {1: rename_to}, "can_retry": allow}
    newer.job(name="send", **options)(lambda address: address)
    newer.jobs.retry(job.id)
    assert asked == ["a"]


def test_enqueue_by_name_and_schedules_use_the_version_of_the_kind(release, make_app):
    newest = release(3)
    by_name = make_app().enqueue("send", {"address": "a", "locale": "de"})
    assert by_name.version == 3
    payload = {"address": "b", "locale": "de"}
    newest.schedule("nightly", "0 3 * * *", newest.send, payload=payload)
    assert newest.registry.schedules["nightly"].version == 3
    publish(newest, "r3")
    newest.run_inline()
    newest.store.shift_clock(DAY)
    newest.run_inline()
    [scheduled] = [job for job in newest.jobs.list("kind:send") if job.id != by_name.id]
    assert (scheduled.version, scheduled.result) == (3, ["b", "de"])
