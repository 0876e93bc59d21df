"""Batches: a common outcome, once per generation, in the transaction of the last member's end."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import pytest

from mulligan import Cancel, Context, Fail, LeaseLost, Park, Policy, Retry, Unique
from mulligan.batches.queries import BatchQueries
from mulligan.core.errors import (
    BatchCancelled,
    BatchExpired,
    BatchOwner,
    BatchSealed,
    ConfigError,
    IllegalMove,
    NotFound,
    NothingFailed,
    PayloadRefused,
    Refused,
    UniqueMismatch,
    UniqueTaken,
)
from mulligan.core.job import State
from support.app_tools import advance, drain_anywhere, load_row, register_idle_worker
from support.store import rolled_back, run_concurrently

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FATES = {
    "well": lambda: "done",
    "dies": lambda: Fail(
        "BAD_FILE", "moov atom", public="This file could not be read.", final=True
    ),
    "parks": lambda: Park("who pays?", choices=("us", "them")),
    "waits": lambda: Retry(after=60, reason="not yet"),
    "stops": lambda: Cancel("nobody wants it"),
}


@pytest.fixture
def work(app):
    """A member whose fate is said with it; `app.fates` may say otherwise later."""
    app.fates = {}

    @app.job(name="work", policy=Policy(max_retries=3))
    def work(ctx: Context, fate: str = "well", n: int = 0) -> object:
        return ctx.choice or FATES[app.fates.get(fate, fate)]()

    return work


@pytest.fixture
def ended(app):
    """A kind for on_complete; `app.heard` are the batches it was told of, with what it saw of them."""
    app.completions = []

    @app.job(name="ended", queue="mail")
    def ended(batch: str) -> None:
        current = app.batches.get(batch)
        app.completions.append((current.name, current.state, current.generation))

    return ended


def made(app, work, *fates, **options):
    """A sealed batch with members of these fates, after all that is due has run."""
    with app.batch("spring", **options) as batch:
        for n, fate in enumerate(fates):
            work.options(batch=batch).enqueue(fate=fate, n=n)
    app.run_inline(seed=7)
    return batch.refresh()


def event_types(app, batch):
    return [event.type.removeprefix("batch.") for event in app.batches.history(batch.id)]


def events_named(app, batch, name):
    return [event for event in app.batches.history(batch.id) if event.type == f"batch.{name}"]


# -- outcomes ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fates", "outcome"),
    [
        ("", "ready"),
        ("well well well", "ready"),
        ("well dies well", "partial"),
        ("dies dies", "failed"),
        ("well parks", "processing"),
        ("well waits", "processing"),
        ("well stops", "ready"),
        ("stops stops", "failed"),
        ("dies stops", "failed"),
    ],
)
def test_the_outcome_comes_with_the_end_of_the_last_member(app, work, fates, outcome):
    batch = made(app, work, *fates.split())
    assert batch.state == outcome
    expected = ["sealed"] if outcome == "processing" else ["sealed", outcome]
    assert event_types(app, batch) == expected
    assert batch.counts.total == len(fates.split())
    assert (batch.finished_at is None) == (outcome == "processing")


def test_the_event_of_an_outcome_carries_the_counts(app, work):
    batch = made(app, work, *["well"] * 4, "dies", "stops", owner="acme")
    [event] = events_named(app, batch, "partial")
    assert event.owner == "acme"
    assert {
        "name": "spring",
        "total": 6,
        "succeeded": 4,
        "dead": 1,
        "cancelled": 1,
    }.items() <= event.data.items()
    assert (batch.counts.succeeded, batch.counts.dead, batch.counts.cancelled) == (4, 1, 1)


def test_an_unsealed_batch_does_not_complete(app, work):
    batch = app.batch("spring")
    work.options(batch=batch).enqueue()
    app.run_inline()
    assert (batch.refresh().state, batch.refresh().sealed, event_types(app, batch)) == (
        "processing",
        False,
        [],
    )
    sealed = batch.seal()
    assert (sealed.state, sealed.sealed, event_types(app, batch)) == (
        "ready",
        True,
        ["sealed", "ready"],
    )


def test_tolerance_is_a_count_or_a_share(app, work):
    assert made(app, work, "well", "dies", tolerance=1).state == "ready"
    assert made(app, work, "well", "dies", "dies", tolerance=1).state == "partial"
    assert made(app, work, *["well"] * 9, "dies", tolerance="10%").state == "ready"
    assert made(app, work, *["well"] * 8, "dies", "dies", tolerance=0.1).state == "partial"


@pytest.mark.parametrize("fate", ["dies", "stops"])
def test_a_batch_fails_if_a_must_have_member_is_missing(app, work, fate):
    with app.batch("spring", tolerance=5) as batch:
        work.options(batch=batch, must_have=True).enqueue(fate=fate)
        work.options(batch=batch).enqueue_many([{"n": n} for n in range(5)])
    app.run_inline()
    assert (batch.refresh().state, batch.refresh().counts.missed) == ("failed", 1)


def test_a_must_have_needs_a_batch(work):
    with pytest.raises(Refused, match="must_have"):
        work.options(must_have=True).enqueue()
    with pytest.raises(Refused, match="must_have"):
        work.options(must_have=7, batch="b").enqueue()


def test_a_member_waiting_for_its_retry_keeps_the_batch_processing(app, work):
    batch = made(app, work, "well", "waits")
    assert batch.counts.queued == 1
    app.fates["waits"] = "well"
    advance(app, 61)
    app.run_inline()
    assert batch.refresh().state == "ready"


@pytest.mark.parametrize(
    ("act", "outcome"), [("release", "ready"), ("cancel", "ready"), ("discard", "ready")]
)
def test_a_parked_member_keeps_it_processing_until_a_person_decides(app, work, act, outcome):
    batch = made(app, work, "well", "parks")
    [parked] = app.batches.members(batch.id, "state:parked")
    if act == "release":
        app.jobs.release(parked.id, choice="us")
        app.run_inline()
    else:
        getattr(app.jobs, act)(parked.id, reason="nobody pays")
    assert batch.refresh().state == outcome
    assert event_types(app, batch) == ["sealed", outcome]


def test_a_deadline_that_passes_while_a_member_waits_completes_its_batch(app, work):
    with app.batch("spring") as batch:
        work.options(batch=batch).enqueue()
        work.options(batch=batch, delay=500, deadline=60).enqueue()
    app.run_inline()
    advance(app, 61)
    app.run_inline()
    assert batch.refresh().state == "partial"


@pytest.mark.seed("000-44")
def test_a_member_of_an_unknown_kind_dies_in_bounded_time_and_the_batch_ends(app, work):
    with app.batch("spring") as batch:
        work.options(batch=batch).enqueue()
        app.enqueue("unheard_of", batch=batch.id)
    drain_anywhere(app)
    assert batch.refresh().state == "processing"
    advance(app, app.settings.worker.unknown_kind_after + 1)
    drain_anywhere(app)
    assert batch.refresh().state == "partial"
    assert [(one.code, one.count) for one in app.batches.failures(batch.id)] == [
        ("KIND_UNKNOWN", 1)
    ]


def test_failures_of_members_are_listed_by_code_with_their_public_message(app, work):
    batch = made(app, work, "well", "dies", "dies")
    [failed] = app.batches.failures(batch.id)
    assert (failed.code, failed.count, failed.message) == (
        "BAD_FILE",
        2,
        "This file could not be read.",
    )
    assert app.jobs.get(failed.job).state is State.DEAD


def test_a_discarded_member_does_not_change_an_announced_outcome(app, work):
    batch = made(app, work, "well", "dies")
    [dead] = app.batches.members(batch.id, "state:dead")
    app.jobs.discard(dead.id, reason="a test file")
    assert (batch.refresh().state, batch.refresh().counts.cancelled) == ("partial", 1)
    assert event_types(app, batch) == ["sealed", "partial"]


# -- joining -------------------------------------------------------------------------------------
def test_a_sealed_batch_takes_no_new_members(app, work):
    batch = made(app, work, "well")
    for given in (batch, batch.id):
        with pytest.raises(BatchSealed, match="sealed"):
            work.options(batch=given).enqueue()
        with pytest.raises(BatchSealed, match="sealed"):
            work.options(batch=given).enqueue_many([{}, {}])
    assert batch.refresh().counts.total == 1


def test_a_second_seal_is_refused_and_changes_nothing(app, work):
    batch = made(app, work, "well")
    with pytest.raises(BatchSealed, match="already") as refused:
        batch.seal()
    assert refused.value.code == "BATCH_SEALED"
    with app.transaction() as tx, pytest.raises(BatchSealed):
        batch.seal(connection=tx)
    assert event_types(app, batch) == ["sealed", "ready"]


def test_a_batch_that_does_not_exist_is_refused(app, work):
    with pytest.raises(NotFound, match="no batch 'spring'"):
        work.options(batch="spring").enqueue()
    for call in (
        app.batches.get,
        app.batches.seal,
        app.batches.cancel,
        app.batches.retry_failed,
        app.batches.failures,
    ):
        with pytest.raises(NotFound, match="no batch 'spring'"):
            call("spring")
    assert app.jobs.list() == []


@pytest.mark.parametrize("by", ["handle", "id"])
def test_a_member_gets_the_owner_of_its_batch_and_no_other(app, work, by):
    batch = app.batch("spring", owner="acme")
    given = batch if by == "handle" else batch.id
    job = work.options(batch=given, unique="k").enqueue()
    assert (job.owner, job.refresh().owner) == ("acme", "acme")
    assert work.options(owner="acme", unique="k").enqueue().id == job.id
    with pytest.raises(BatchOwner, match="acme") as refused:
        work.options(batch=given, owner="beta").enqueue()
    assert refused.value.code == "BATCH_OWNER"
    assert batch.refresh().counts.total == 1


def test_a_batch_without_an_owner_accepts_members_of_any_owner(app, work):
    batch = app.batch("spring")
    for owner in ("", "acme", "beta"):
        work.options(batch=batch, owner=owner).enqueue()
    assert sorted(job.owner for job in app.batches.members(batch.id)) == ["", "acme", "beta"]


def test_a_member_in_a_fair_queue_gets_the_share_of_its_owner(app, work):
    app.queue("shared", fair=True)
    batch = app.batch("spring", owner="acme")
    alone = work.options(queue="shared", owner="acme").enqueue()
    member = work.options(queue="shared", batch=batch.id).enqueue()
    with app.store.transaction() as tx:
        prefix = getattr(app.store, "prefix", "mulligan_")
        lanes = {row[0] for row in tx.execute(f"SELECT lane FROM {prefix}job").fetchall()}  # noqa: S608
    assert len(lanes) == 1
    assert {alone.owner, member.owner} == {"acme"}


def test_a_running_member_may_add_members_after_the_seal(app, work):
    added = []

    @app.job(name="splits")
    def splits(ctx: Context) -> None:
        added.append(work.options(batch=ctx).enqueue())
        added.extend(work.options(batch=ctx, must_have=True).enqueue_many([{"fate": "dies"}, {}]))

    with app.batch("spring", owner="acme") as batch:
        splits.options(batch=batch).enqueue()
    app.run_inline()
    assert [(job.batch_id, job.owner) for job in added] == [(batch.id, "acme")] * 3
    assert (batch.refresh().state, batch.refresh().counts.total) == ("failed", 4)
    assert event_types(app, batch) == ["sealed", "failed"]


def test_an_attempt_that_lost_its_job_adds_nothing(app, work):
    contexts = []

    @app.job(name="splits")
    def splits(ctx: Context) -> str:
        contexts.append(ctx)
        return "done"

    with app.batch("spring") as batch:
        splits.options(batch=batch).enqueue()
    app.run_inline()
    with pytest.raises(LeaseLost, match="no longer holds") as refused:
        work.options(batch=contexts[0]).enqueue()
    assert refused.value.code == "LEASE_LOST"
    assert (batch.refresh().state, batch.refresh().counts.total) == ("ready", 1)


def test_a_job_outside_a_batch_cannot_add_members(app, work):
    refused = []

    @app.job(name="alone")
    def alone(ctx: Context) -> None:
        with pytest.raises(Refused, match="not in a batch") as why:
            work.options(batch=ctx).enqueue()
        refused.append(why)

    alone.enqueue()
    app.run_inline()
    assert len(refused) == 1


def test_an_attempt_that_runs_again_finds_its_batch_and_its_members(app, work):
    @app.job(name="publish", policy=Policy(max_retries=3))
    def publish(ctx: Context, times: int) -> Retry | str:
        with app.batch("spring", unique=ctx.key("tokens")) as batch:
            for n in range(3):
                member = work.options(batch=batch, unique=ctx.key(f"token {n}"))
                member.enqueue(fate="dies" if n == 2 else "well", n=n)
        return batch.id if ctx.attempt >= times else Retry(after=60)

    job = publish.enqueue(times=3)
    for _ in range(3):
        app.run_inline()
        advance(app, 61)
    [batch] = app.batches.list()
    assert job.refresh().result == batch.id
    assert (batch.state, batch.counts.total, batch.counts.dead) == ("partial", 3, 1)
    assert event_types(app, batch) == ["sealed", "partial"]


def test_a_unique_key_has_one_member_whatever_its_state(app, work):
    batch = app.batch("spring")
    first = work.options(batch=batch, unique="k").enqueue(fate="dies")
    app.run_inline()
    again = work.options(batch=batch, unique="k").enqueue(fate="dies")
    assert (again.id, again.deduplicated, again.state) == (first.id, True, State.DEAD)
    with pytest.raises(UniqueMismatch, match="a different payload"):
        work.options(batch=batch, unique="k").enqueue(fate="well")
    assert work.options(batch=batch, unique="k", owner="acme").enqueue(fate="dies").id != first.id
    assert work.options(unique="k").enqueue(fate="dies").id != first.id
    assert batch.refresh().counts.total == 2


def test_a_unique_batch_exists_once_per_owner(app):
    first = app.batch("spring", unique="k", owner="acme")
    assert app.batch("summer", unique="k", owner="acme").name == "spring"
    assert app.batch("spring", unique="k", owner="beta").id != first.id
    assert app.batch("spring", owner="acme").id != first.id
    found = run_concurrently(*[lambda: app.batch("autumn", unique="race").id for _ in range(8)])
    assert len(set(found)) == 1


def test_invalid_options_are_refused_before_writing(app, work):
    app.open()
    for options, message in [
        ({"name": ""}, "name"),
        ({"name": 7}, "name"),
        ({"name": "x" * 501}, "name"),
        ({"name": "nul\x00"}, "name"),
        ({"owner": None}, "owner"),
        ({"tolerance": -1}, "tolerance"),
        ({"tolerance": "many"}, "tolerance"),
        ({"expires_in": -1}, "expires_in"),
        ({"expires_in": 0}, "expires_in"),
        ({"expires_in": LONG_AGO}, "future"),
        ({"expires_in": "soon"}, "expires_in"),
        ({"unique": ""}, "unique"),
        ({"on_complete": 7}, "kind"),
        ({"connection": 7}, "connection"),
    ]:
        with pytest.raises((Refused, ConfigError), match=message):
            app.batch(**{"name": "spring", **options})
    assert app.batches.list() == []


# -- transactions --------------------------------------------------------------------------------
def test_batch_members_and_seal_commit_or_roll_back_together(app, work):
    app.open()
    with rolled_back(app.transaction()) as tx, app.batch("spring", connection=tx) as batch:
        work.options(batch=batch, connection=tx).enqueue()
    assert (app.batches.list(), app.jobs.list()) == ([], [])


def test_a_seal_in_a_callers_transaction_is_announced_and_completed_by_upkeep(app, work):
    app.open()
    with app.transaction() as tx, app.batch("spring", connection=tx) as batch:
        work.options(batch=batch, connection=tx).enqueue()
    assert batch.refresh().sealed
    assert event_types(app, batch) == []
    app.run_inline()
    assert (batch.refresh().state, event_types(app, batch)) == ("ready", ["sealed", "ready"])
    empty = app.batch("empty")
    with app.transaction() as tx:
        empty.seal(connection=tx)
    assert empty.refresh().state == "processing"
    app.run_inline()
    assert (empty.refresh().state, event_types(app, empty)) == ("ready", ["sealed", "ready"])


def test_a_block_that_raises_does_not_seal(app, work):
    with rolled_back(app.batch("spring")) as batch:
        work.options(batch=batch).enqueue()
    assert not batch.refresh().sealed


# -- on_complete ---------------------------------------------------------------------------------
def test_the_on_complete_job_is_enqueued_once_per_outcome(app, work, ended):
    batch = made(app, work, "well", "dies", on_complete=ended, owner="acme")
    assert app.completions == [("spring", "partial", 1)]
    [job] = app.jobs.list("kind:ended")
    assert (job.owner, job.queue, job.batch_id, job.payload) == (
        "acme",
        "mail",
        None,
        {"batch": batch.id},
    )
    assert batch.on_complete == "ended"
    assert events_named(app, batch, "partial")[0].data["on_complete"] == job.id
    app.fates["dies"] = "well"
    app.batches.retry_failed(batch.id)
    app.run_inline()
    assert app.completions == [("spring", "partial", 1), ("spring", "ready", 2)]
    assert batch.refresh().counts.total == 2


def test_the_on_complete_job_has_the_options_of_its_kind_and_call(app, work, ended):
    made(app, work, on_complete=ended.options(queue="slow", priority=3, max_retries=7, delay=60))
    [job] = app.jobs.list("kind:ended")
    assert (job.queue, job.priority, job.max_retries, job.phase) == ("slow", 3, 7, "scheduled")
    with pytest.raises(Refused, match="Leave out batch="):
        app.batch("spring", on_complete=ended.options(unique="k"))


def test_on_complete_may_name_an_unregistered_kind(app, work):
    made(app, work, "well", on_complete="unheard_of")
    [job] = app.jobs.list("kind:unheard_of")
    assert job.state is State.QUEUED


def test_on_complete_refuses_a_handler_that_does_not_fit(app, work):
    for kind in (work, "work"):
        with pytest.raises(PayloadRefused, match="one argument, batch"):
            app.batch("spring", on_complete=kind)
    assert app.batches.list() == []


# -- once more -----------------------------------------------------------------------------------
def test_retry_failed_turns_partial_into_ready(app, work):
    batch = made(app, work, "well", "dies", "dies")
    app.fates["dies"] = "well"
    done = app.batches.retry_failed(batch.id, reason="the disk was full")
    assert (done.batch.state, done.batch.generation, len(done.jobs), done.refused) == (
        "processing",
        2,
        2,
        {},
    )
    app.run_inline()
    batch = batch.refresh()
    assert (batch.state, batch.previous, batch.counts.succeeded) == ("ready", "partial", 3)
    assert event_types(app, batch) == ["sealed", "partial", "reopened", "ready", "recovered"]
    [reopened] = events_named(app, batch, "reopened")
    assert (reopened.actor, reopened.data["reason"], reopened.data["jobs"]) == (
        "python",
        "the disk was full",
        2,
    )
    assert events_named(app, batch, "recovered")[0].data["previous"] == "partial"


def test_a_retry_that_fails_again_is_announced_again(app, work):
    batch = made(app, work, "dies", "dies")
    app.batches.retry_failed(batch.id)
    app.run_inline()
    assert event_types(app, batch) == ["sealed", "failed", "reopened", "failed"]
    app.fates["dies"] = "well"
    app.batches.retry_failed(batch.id)
    app.run_inline()
    assert event_types(app, batch)[4:] == ["reopened", "ready", "recovered"]


def test_a_single_retry_reopens_a_finished_batch(app, work):
    batch = made(app, work, "well", "dies", "dies")
    first, second = app.batches.members(batch.id, "state:dead")
    app.fates["dies"] = "well"
    app.jobs.retry(first.id)
    assert (batch.refresh().state, batch.refresh().generation) == ("processing", 2)
    app.jobs.retry(second.id)
    assert batch.refresh().generation == 2
    app.run_inline()
    assert event_types(app, batch) == ["sealed", "partial", "reopened", "ready", "recovered"]
    assert events_named(app, batch, "reopened")[0].data["job"] == first.id


def test_a_cancelled_member_may_be_retried_too(app, work):
    batch = made(app, work, "well", "stops")
    app.fates["stops"] = "dies"
    [stopped] = app.batches.members(batch.id, "state:cancelled")
    app.jobs.retry(stopped.id)
    app.run_inline()
    assert (batch.refresh().state, event_types(app, batch)) == (
        "partial",
        ["sealed", "ready", "reopened", "partial"],
    )


def test_a_retry_before_the_outcome_reopens_nothing(app, work):
    batch = made(app, work, "dies", "parks")
    [dead] = app.batches.members(batch.id, "state:dead")
    app.fates["dies"] = "well"
    app.jobs.retry(dead.id)
    app.run_inline()
    [parked] = app.batches.members(batch.id, "state:parked")
    app.jobs.release(parked.id, choice="us")
    app.run_inline()
    assert (batch.refresh().generation, event_types(app, batch)) == (1, ["sealed", "ready"])


def test_retry_failed_without_dead_members_is_refused(app, work):
    batch = made(app, work, "well")
    with pytest.raises(NothingFailed, match="no dead members") as refused:
        app.batches.retry_failed(batch.id)
    assert refused.value.code == "NOTHING_FAILED"
    assert batch.refresh().generation == 1


def test_twenty_concurrent_retry_failed_make_one_generation(app, work):
    batch = made(app, work, "well", *["dies"] * 5)

    def press():
        try:
            return len(app.batches.retry_failed(batch.id).jobs)
        except NothingFailed:
            return 0

    assert sorted(run_concurrently(*[press] * 20)) == [0] * 19 + [5]
    assert (batch.refresh().generation, event_types(app, batch)) == (
        2,
        ["sealed", "partial", "reopened"],
    )
    assert {
        load_row(app, job).generation for job in app.batches.members(batch.id, "state:queued")
    } == {2}


def test_a_member_whose_key_is_taken_stays_dead_and_does_not_stop_others(app):
    @app.job(name="scan", unique=Unique())
    def scan(n: int) -> Fail:
        return Fail("BAD_FILE", final=True)

    with app.batch("spring") as batch:
        scan.options(batch=batch).enqueue_many([{"n": n} for n in range(3)])
    app.run_inline()
    twin = scan.options(delay=60).enqueue(n=1)
    done = app.batches.retry_failed(batch.id)
    [(taken, why)] = done.refused.items()
    assert isinstance(why, UniqueTaken)
    assert app.jobs.get(taken).payload == {"n": 1}
    assert len(done.jobs) == 2
    assert app.jobs.get(taken).state is State.DEAD
    assert twin.refresh().state is State.QUEUED


def test_if_every_member_is_refused_the_batch_is_not_reopened(app):
    @app.job(name="scan", unique=Unique())
    def scan(n: int) -> Fail:
        return Fail("BAD_FILE", final=True)

    with app.batch("spring") as batch:
        scan.options(batch=batch).enqueue(n=1)
    app.run_inline()
    scan.options(delay=60).enqueue(n=1)
    assert app.batches.retry_failed(batch.id).jobs == ()
    assert (batch.refresh().state, batch.refresh().generation) == ("failed", 1)


# -- expiry --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fates", "outcome"), [("well", "ready"), ("well dies", "partial"), ("dies", "failed")]
)
def test_a_finished_batch_expires_at_its_time(app, work, fates, outcome):
    batch = made(app, work, *fates.split(), expires_in=3600)
    app.run_inline()
    assert batch.refresh().state == outcome
    advance(app, 3601)
    app.run_inline()
    app.run_inline()
    batch = batch.refresh()
    assert (batch.state, batch.outcome, event_types(app, batch)) == (
        "expired",
        outcome,
        ["sealed", outcome, "expired"],
    )


def test_a_processing_batch_gets_its_outcome_before_it_expires(app, work):
    batch = made(app, work, "well", "parks", expires_in=3600)
    advance(app, 3601)
    app.run_inline()
    assert batch.refresh().state == "processing"
    [parked] = app.batches.members(batch.id, "state:parked")
    app.jobs.release(parked.id, choice="us")
    app.run_inline()
    app.run_inline()
    assert event_types(app, batch) == ["sealed", "ready", "expired"]


def test_a_member_of_an_expired_batch_cannot_be_retried(app, work):
    batch = made(app, work, "well", "dies", expires_in=3600)
    [dead] = app.batches.members(batch.id, "state:dead")
    before = load_row(app, dead)
    advance(app, 3601)
    for _ in range(2):
        with pytest.raises(BatchExpired, match="expired at") as refused:
            app.jobs.retry(dead.id)
        assert refused.value.code == "BATCH_EXPIRED"
        with pytest.raises(BatchExpired, match="expired at"):
            app.batches.retry_failed(batch.id)
        app.run_inline()
    assert load_row(app, dead) == before
    assert batch.refresh().state == "expired"


def test_an_open_batch_is_sealed_when_it_expires(app, work):
    batch = app.batch("spring", expires_in=60)
    work.options(batch=batch).enqueue()
    advance(app, 61)
    with pytest.raises(BatchExpired, match="accepts no new members"):
        work.options(batch=batch).enqueue()
    app.run_inline()
    app.run_inline()
    assert event_types(app, batch) == ["sealed", "ready", "expired"]


# -- cancel --------------------------------------------------------------------------------------
def test_cancel_seals_the_batch_and_cancels_waiting_members(app, work):
    with app.batch("spring") as batch:
        work.options(batch=batch).enqueue()
    app.run_inline()
    open_one = app.batch("summer", owner="acme")
    work.options(batch=open_one).enqueue_many([{"fate": "parks"}, {"n": 1}])
    work.options(batch=open_one, delay=60).enqueue()
    app.run_inline()
    done = app.batches.cancel(open_one.id, reason="wrong list")
    assert (done.state, done.cancelled, done.sealed, done.cancel_reason) == (
        "ready",
        True,
        True,
        "wrong list",
    )
    assert (done.counts.succeeded, done.counts.cancelled) == (1, 2)
    assert event_types(app, open_one) == ["sealed", "cancelled", "ready"]
    [event] = events_named(app, open_one, "cancelled")
    assert (event.actor, event.owner, event.data["reason"]) == ("python", "acme", "wrong list")
    with pytest.raises(IllegalMove, match="nothing left to cancel"):
        app.batches.cancel(batch.id)
    with pytest.raises(BatchCancelled):
        work.options(batch=open_one).enqueue()


def test_a_batch_cancelled_before_anything_ran_has_failed(app, work):
    batch = app.batch("spring")
    work.options(batch=batch).enqueue_many([{}, {}])
    assert app.batches.cancel(batch.id).state == "failed"
    assert event_types(app, batch) == ["sealed", "cancelled", "failed"]


def test_a_running_member_of_a_cancelled_batch_is_asked_to_stop_and_the_outcome_follows(app, work):
    current = []

    @app.job(name="long")
    async def long(ctx: Context) -> str:
        if not current:
            done = await app.aio.batches.cancel(ctx.job.batch_id, reason="wrong list")
            current.append((done.state, done.cancelled))
            again = await app.aio.batches.cancel(ctx.job.batch_id)
            current.append((again.state, again.cancel_reason))
            with pytest.raises(BatchCancelled):
                await work.options(batch=ctx).enqueue_async()
        await asyncio.sleep(60)
        return "never"

    with app.batch("spring") as batch:
        long.options(batch=batch).enqueue()
        work.options(batch=batch, delay=60).enqueue()
    app.run_inline()
    assert current == [("processing", True), ("processing", "wrong list")]
    assert (batch.refresh().state, batch.refresh().counts.cancelled) == ("failed", 2)
    assert event_types(app, batch) == ["sealed", "cancelled", "failed"]


# -- look ----------------------------------------------------------------------------------------
def test_lists_are_newest_first_and_by_state_and_owner(app, work):
    ready, partial = made(app, work, "well", owner="acme"), made(app, work, "well", "dies")
    gone = made(app, work, "well", expires_in=60)
    advance(app, 61)
    app.run_inline()
    open_one = app.batch("open")
    ids = [batch.id for batch in app.batches.list()]
    assert ids == [open_one.id, gone.id, partial.id, ready.id]
    for state, batch in (
        ("ready", ready),
        ("partial", partial),
        ("expired", gone),
        ("processing", open_one),
    ):
        assert [one.id for one in app.batches.list(state=state)] == [batch.id]
    assert [one.id for one in app.batches.list(owner="acme")] == [ready.id]
    assert [one.id for one in app.batches.list(limit=2, before=gone.id)] == ids[2:]
    assert app.batches.resolve(ready.id[:20]) == ready.id
    with pytest.raises(NotFound, match="more than one"):
        app.batches.resolve(ready.id[:2])
    for wrong in ({"state": "done"}, {"limit": 0}):
        with pytest.raises(Refused):
            app.batches.list(**wrong)
    with pytest.raises(NotFound):
        app.batches.get(ready.id, owner="beta")
    assert app.batches.get(ready.id, owner="acme") == ready


def test_members_are_found_by_the_filter_of_jobs(app, work):
    batch = made(app, work, "well", "dies")
    assert app.jobs.count(f"batch:{batch.id}") == 2
    assert [job.payload["n"] for job in app.batches.members(batch.id)] == [1, 0]
    assert [job.payload["n"] for job in app.batches.members(batch.id, "state:dead")] == [1]


def test_explain_names_the_batch(app, work):
    register_idle_worker(app)
    batch = made(app, work, "well", "dies")
    [dead] = app.batches.members(batch.id, "state:dead")
    event_types = app.jobs.explain(dead.id)
    [fact] = [fact for fact in event_types.facts if fact.name == "batch"]
    assert fact.value == f"spring ({batch.id}), partial"


# -- awaitable -----------------------------------------------------------------------------------
def test_batches_work_from_async_code(app, work, ended):
    async def walk():
        async with await app.aio.batch("spring", on_complete=ended, unique="k") as batch:
            await work.options(batch=batch).enqueue_async(fate="dies")
            await work.options(batch=batch.id).enqueue_many_async([{"n": 1}])
        await asyncio.to_thread(app.run_inline)
        assert (await batch.refresh_async()).state == "partial"
        assert len(await app.aio.batches.members(batch.id)) == 2
        assert [one.code for one in await app.aio.batches.failures(batch.id)] == ["BAD_FILE"]
        assert [one.id for one in await app.aio.batches.list(state="partial")] == [batch.id]
        assert (await app.aio.batches.get(batch.id)).name == "spring"
        assert [event.type for event in await app.aio.batches.history(batch.id)] == [
            "batch.sealed",
            "batch.partial",
        ]
        assert len((await app.aio.batches.retry_failed(batch.id)).jobs) == 1
        other = await app.aio.batch("summer")
        assert (await app.aio.batches.seal(other.id)).state == "ready"

    asyncio.run(walk())


def test_the_stored_on_complete_job_is_plain_json(app, work, ended):
    batch = app.batch("spring", on_complete=ended, owner="acme")
    with app.store.read() as tx:
        row = BatchQueries(tx).get_batch(batch.id)
    options = json.loads(row.on_complete)
    assert (options["kind"], options["owner"], json.loads(options["payload"])) == (
        "ended",
        "acme",
        {"batch": batch.id},
    )
    assert not {"id", "batch_id", "unique_key"} & set(options)
