"""Escalation: stored counts and settings, and the move to another queue and lane."""

from __future__ import annotations

import json
from random import Random

import pytest

from mulligan.config import RetrySection
from mulligan.core.attempt import Cls, Ended, Ending, Outcome
from mulligan.core.job import Lane
from mulligan.guards.limits import owner_share
from mulligan.guards.queries import GuardQueries
from mulligan.jobs import repair as recover
from mulligan.manifest.queries import ManifestQueries
from mulligan.manifest.specs import KindSpec, Manifest, QueueSpec
from mulligan.retries.backoff import Fixed
from mulligan.retries.effective import EffectivePolicies
from mulligan.retries.policy import Policy, Then
from mulligan.worker.settle import SettleContext, settle
from support.store import (
    FATAL,
    RETURNED,
    attempts,
    claim,
    claim_new_job,
    get,
    make_failure,
    settle_leases,
    sql,
)

STEP = Then(queue="big", memory_limit=8_000, timeout=7, settings={"preset": "fast"})
LADDER = Policy(
    max_retries=9, backoff=Fixed(0), classes={"resource": Policy(then=[STEP, Then(queue="huge")])}
)
QUEUES = {"turns": QueueSpec("turns", fair=True)}
LAYERS = EffectivePolicies(
    RetrySection(), {"render": KindSpec("render", policy=LADDER.to_json())}, QUEUES
)
TOO_LARGE = Outcome(Ended.FAILED, failure=make_failure(Cls.RESOURCE, "OOM"))


def lane_of(store, job_id):
    return sql(store, "SELECT lane FROM {p}job WHERE id = :id", {"id": job_id})[0][0]


def test_a_moved_job_is_only_in_its_new_lane(store):
    lease = claim_new_job(store, uses="bucket")
    settle_leases(store, lease, TOO_LARGE, policies=LAYERS)
    row = get(store, lease.id)
    assert (row.queue, row.state) == ("big", "queued")
    assert lane_of(store, lease.id) == Lane("big", "render", "bucket", True).key
    with store.read() as tx:
        assert [key for key, _, _ in GuardQueries(tx).read_claim_state().lanes] == [
            "big|render|bucket|1"
        ]
    (again,) = claim(store)
    assert (again.queue, again.attempt) == ("big", 2)
    assert json.loads(again.counts) == {"classes": {"resource": 1}, "codes": {"OOM": 1}}
    assert json.loads(again.settings) == {
        "timeout": 7_000_000,
        "memory_limit": 8_000,
        "settings": {"preset": "fast"},
        "home": "default",
    }


def test_the_attempt_records_how_the_next_one_differs(store):
    lease = claim_new_job(store)
    failure = make_failure(Cls.RESOURCE, "OOM", judged={"table": "t1"}, terms={"alarm": "page"})
    settle_leases(store, lease, Outcome(Ended.FAILED, failure=failure), policies=LAYERS)
    (attempt,) = attempts(store, lease.id)
    assert json.loads(attempt.judged) == {
        "table": "t1",
        "ground": "retry",
        "retry_count": "1 of 9",
        "terms": {"alarm": "page"},
        "then": {
            "queue": "big",
            "memory_limit": 8_000,
            "timeout": 7.0,
            "settings": {"preset": "fast"},
        },
    }
    assert attempt.reason.endswith(
        "the next attempt goes to queue big with 8 kB of memory, a timeout of 7 s and other settings (preset)"
    )


def test_without_an_escalation_nothing_is_stored(store):
    lease = claim_new_job(store)
    settle_leases(store, lease, RETURNED, policies=LAYERS)
    row = get(store, lease.id)
    assert (row.counts, row.settings, attempts(store, lease.id)[0].judged) == (None, None, None)


def test_several_settlements_in_one_transaction_keep_their_own_settings(store):
    leases = [claim_new_job(store, uses=f"d{n}", owner=f"o{n}") for n in range(3)]
    outcomes = [TOO_LARGE, RETURNED, Outcome(Ended.FAILED, failure=make_failure())]
    endings = [Ending(lease, outcome) for lease, outcome in zip(leases, outcomes, strict=True)]
    with store.begin() as tx:
        settle(tx, endings, SettleContext(LAYERS, tx.now(), Random(7)))
    assert [get(store, lease.id).queue for lease in leases] == ["big", "default", "default"]
    assert [lane_of(store, lease.id) for lease in leases] == [
        "big|render|d0|1",
        "default|render|d1|0",
        "default|render|d2|1",
    ]


@pytest.mark.parametrize(("before", "after"), [("turns", "big"), ("default", "turns")])
def test_a_share_is_added_and_removed_with_a_fair_queue(store, before, after):
    policy = Policy(max_retries=9, backoff=Fixed(0), then=Then(queue=after))
    layers = EffectivePolicies(
        RetrySection(), {"render": KindSpec("render", policy=policy.to_json())}, QUEUES
    )
    share = owner_share("acme")
    lease = claim_new_job(store, queue=before, share=share if before == "turns" else "")
    settle_leases(store, lease, TOO_LARGE, policies=layers)
    assert (
        lane_of(store, lease.id)
        == Lane(after, "render", "", True, share if after == "turns" else "").key
    )


@pytest.mark.parametrize("home", ["default", "turns"])
def test_a_new_generation_starts_in_the_original_queue_without_counts(store, home):
    with store.begin() as tx:
        manifest = Manifest("app", "", {}, QUEUES)
        ManifestQueries(tx).store_manifest(manifest.id, "app", "", manifest.to_json())
    share = owner_share("acme") if home == "turns" else ""
    lease = claim_new_job(store, queue=home, share=share)
    settle_leases(store, lease, TOO_LARGE, policies=LAYERS)
    (again,) = claim(store)
    settle_leases(store, again, FATAL, policies=LAYERS)
    dead = get(store, lease.id)
    assert (dead.state, dead.queue) == ("dead", "big")
    assert json.loads(dead.counts)["classes"] == {"resource": 1, "permanent": 1}
    recover.retry(store, lease.id, actor="me")
    row = get(store, lease.id)
    assert (row.queue, row.counts, row.settings, row.generation) == (home, None, None, 2)
    assert lane_of(store, lease.id) == Lane(home, "render", "", False, share).key


def test_a_job_that_never_moved_stays_in_its_queue_in_a_new_generation(store):
    lease = claim_new_job(store, queue="mine")
    settle_leases(store, lease, FATAL, policies=LAYERS)
    recover.retry(store, lease.id, actor="me")
    assert (get(store, lease.id).queue, lane_of(store, lease.id)) == ("mine", "mine|render||0")


def test_a_second_step_continues_from_the_current_queue_and_keeps_the_original_one(store):
    lease = claim_new_job(store)
    settle_leases(store, lease, TOO_LARGE, policies=LAYERS)
    (again,) = claim(store)
    settle_leases(store, again, TOO_LARGE, policies=LAYERS)
    row = get(store, lease.id)
    assert (row.queue, json.loads(row.settings)["home"]) == ("huge", "default")
    assert json.loads(row.settings)["memory_limit"] == 8_000
