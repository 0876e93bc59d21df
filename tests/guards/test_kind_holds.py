"""Holds of a kind whose jobs die of one cause, on both databases."""

from __future__ import annotations

import asyncio
import json

import pytest

from mulligan import Fail, Fixed, Policy
from mulligan.core.errors import NotFound, Refused
from mulligan.doctor.verify.checker import verify
from mulligan.events.queries import EventQueries
from mulligan.guards.kind_breaker import KindDeath
from mulligan.guards.kind_observer import KindObserver
from mulligan.guards.queries import GuardQueries
from support.app_tools import advance, run_job

OWNERS = ("acme", "zenith", "orbit")


class World:
    """Return the set of things that are broken; handlers check it."""

    broken = "render-farm certificate expired"


@pytest.fixture
def world():
    return World()


@pytest.fixture
def draw(app, world):
    @app.job(name="draw")
    def draw(n: int = 0) -> int:
        if world.broken:
            raise KeyError(world.broken)
        return n

    return draw


def feed(kind, jobs, owners=OWNERS):
    return [kind.options(owner=owners[n % len(owners)]).enqueue(n=n) for n in range(jobs)]


def states(jobs):
    return [job.refresh().state.value for job in jobs]


def list_events(app, *prefixes):
    with app.store.read() as tx:
        return [
            event
            for event in EventQueries(tx).list_events_after(0, 10_000)
            if event.type.startswith(prefixes)
        ]


def test_many_deaths_of_one_cause_hold_the_kind_and_alert_once(app, draw):
    jobs = feed(draw, 30)
    app.run_inline()
    assert states(jobs) == ["dead"] * 4 + ["queued"] * 26
    (held,) = [kind for kind in app.kinds.list() if kind.held]
    assert (held.name, held.actor, held.jobs, held.owners, held.held_jobs) == (
        "draw",
        "guard",
        5,
        3,
        26,
    )
    assert held.reason.startswith("5 jobs of 3 owners failed in a row with")
    (alert,) = list_events(app, "alert.")
    assert (alert.type, alert.actor, alert.job_id) == ("alert.fired", "guard", jobs[4].id)
    assert alert.data["kind"] == "draw"
    assert alert.data["fingerprint"] == held.fingerprint
    assert (alert.data["code"], alert.data["jobs"], alert.data["owners"]) == (held.code, 5, 3)
    assert "certificate" not in json.dumps(alert.data), "the public half only"


def test_jobs_running_when_the_kind_is_held_are_not_charged(app, draw):
    jobs = feed(draw, 6)
    app.run_inline()
    last = jobs[4].refresh()
    assert (last.state, last.phase, last.failures, last.attempts) == ("queued", "held", 0, 1)
    assert "kind draw is held since" in last.why
    assert "by its guard" in last.why
    assert "mulligan kinds release draw" in last.why


def test_explain_of_a_held_kind(app, draw):
    jobs = feed(draw, 6)
    app.run_inline()
    now = app.jobs.explain(jobs[5].id).now
    assert "kind draw is held since" in now
    assert 'by its guard, reason "5 jobs of 3 owners failed' in now
    assert now.endswith("until someone releases it. Sooner: mulligan kinds release draw")


def test_release_starts_all_jobs_and_resolves_the_alert(app, draw, world):
    jobs = feed(draw, 30)
    app.run_inline()
    world.broken = ""
    advance(app, 3600)
    status = app.kinds.release("draw", reason="renewed the certificate")
    assert (status.held, status.ready, status.code) == (False, 26, "")
    app.run_inline()
    assert states(jobs) == ["dead"] * 4 + ["succeeded"] * 26
    assert [event.type for event in list_events(app, "alert.", "kind.")] == [
        "kind.held",
        "alert.fired",
        "alert.resolved",
        "kind.released",
    ]
    story = app.jobs.explain(jobs[5].id).text
    assert "kind draw was held by its guard" in story
    assert "when a Python program released it, with the reason 'renewed the certificate'" in story


def test_same_cause_after_release_alerts_again(app, draw):
    jobs = feed(draw, 30)
    app.run_inline()
    app.kinds.release("draw")
    app.run_inline()
    assert [event.type for event in list_events(app, "alert.")] == [
        "alert.fired",
        "alert.resolved",
        "alert.fired",
    ]
    assert states(jobs).count("dead") == 8


def test_other_kinds_continue(app, draw):
    @app.job
    def mail() -> str:
        return "sent"

    feed(draw, 30)
    app.run_inline()
    assert run_job(app, mail.enqueue()).state == "succeeded"


def test_success_in_between_prevents_a_hold(app, world):
    @app.job(name="draw")
    def draw(n: int = 0) -> int:
        if n % 3:
            raise KeyError(world.broken)
        return n

    jobs = feed(draw, 60)
    app.run_inline()
    assert set(states(jobs)) == {"dead", "succeeded"}
    assert not app.kinds.get("draw").held


def test_jobs_of_one_owner_that_never_worked_are_not_held(app, draw):
    jobs = feed(draw, 40, owners=("",))
    app.run_inline()
    assert states(jobs) == ["dead"] * 40


def test_kind_of_one_owner_that_worked_is_held_after_twenty_deaths(app, draw, world):
    trouble, world.broken = world.broken, ""
    assert run_job(app, draw.enqueue()).state == "succeeded"
    world.broken = trouble
    jobs = feed(draw, 40, owners=("",))
    app.run_inline()
    assert states(jobs).count("dead") == 19
    assert app.kinds.get("draw").held


def test_invalid_input_does_not_hold_the_kind(app):
    @app.job
    def read(n: int) -> Fail:
        return Fail("INVALID_INPUT", "cannot be read")

    jobs = feed(read, 30)
    app.run_inline()
    assert states(jobs) == ["dead"] * 30


def test_retried_failures_do_not_hold_the_kind(app):
    @app.job(policy=Policy(max_retries=1, backoff=Fixed(60)))
    def fetch(n: int) -> None:
        raise ConnectionError("refused")

    jobs = feed(fetch, 12)
    app.run_inline()
    assert states(jobs) == ["queued"] * 12
    assert not app.kinds.get(fetch.name).held
    advance(app, 3600)
    app.run_inline()
    assert states(jobs).count("dead") == 4
    assert app.kinds.get(fetch.name).held


def test_kind_breaker_can_be_switched_off(make_app, world):
    app = make_app(guards__same_cause="0")

    @app.job
    def fail(n: int) -> None:
        raise KeyError(world.broken)

    jobs = feed(fail, 30)
    app.run_inline()
    assert states(jobs) == ["dead"] * 30
    with app.store.read() as tx:
        assert GuardQueries(tx).list_guards() == []


def test_flush_without_deaths_writes_no_state(app, draw, world):
    world.broken = ""
    feed(draw, 10)
    app.run_inline()
    with app.store.read() as tx:
        assert GuardQueries(tx).list_guards() == []


def test_stored_deaths_are_folded_later(app, draw):
    """A worker stores deaths as tallies if another one has locked the guard."""
    with app.store.begin() as tx:
        dead = [
            KindDeath(f"j{n}", OWNERS[n % 3], tx.now(), "v2-x", "X", "It broke.", False)
            for n in range(5)
        ]
        GuardQueries(tx).append_tally(("kind", "draw"), json.dumps(dead))
    with app.store.begin() as tx:
        KindObserver().fold_pending(tx, KindObserver().find_pending_kinds(tx), tx.now())
    assert app.kinds.get("draw").held
    assert draw


def test_last_success_is_found_by_kind_within_the_search_limit(app, draw, world):
    @app.job
    def other() -> None: ...

    world.broken = ""
    done = run_job(app, draw.enqueue())
    advance(app, 10)
    for _ in range(3):
        run_job(app, other.enqueue())
    with app.store.read() as tx:
        at, looked = GuardQueries(tx).find_last_success("draw", 10)
        assert at is not None
        assert done.finished_at is not None
        assert abs(at / 1e6 - done.finished_at.timestamp()) < 0.001
        assert looked == at
        at, looked = GuardQueries(tx).find_last_success("draw", 3)
        assert at is None
        assert looked > 0
        assert GuardQueries(tx).find_last_success("nothing", 10) == (None, 0)


# -- manual --------------------------------------------------------------------------------------
def test_operator_holds_a_kind_for_a_while(app, draw, world):
    world.broken = ""
    status = app.kinds.hold("draw", until=3600, reason="the farm moves")
    assert (status.held, status.reason, status.actor, status.code) == (
        True,
        "the farm moves",
        "python",
        "",
    )
    assert status.until is not None
    job = run_job(app, draw.enqueue())
    assert (job.state, job.phase) == ("queued", "held")
    advance(app, 3601)
    assert run_job(app, job).state == "succeeded"
    assert list_events(app, "alert.") == []


def test_operator_hold_replaces_the_breaker_hold(app, draw, world):
    jobs = feed(draw, 6)
    app.run_inline()
    app.kinds.hold("draw", until=60, reason="mine")
    assert app.kinds.get("draw").reason == "mine"
    assert [event.type for event in list_events(app, "alert.")] == ["alert.fired", "alert.resolved"]
    advance(app, 61)
    world.broken = ""
    assert run_job(app, jobs[5]).state == "succeeded"


def test_releasing_a_kind_that_is_not_held_changes_nothing(app, draw):
    assert not app.kinds.release("draw").held
    assert list_events(app, "alert.", "kind.") == []
    assert not app.kinds.release("nobody-knows-it").held
    with pytest.raises(NotFound, match="nobody-knows-it"):
        app.kinds.get("nobody-knows-it")
    with pytest.raises(Refused, match="until"):
        app.kinds.hold("draw", until=-1)
    assert draw


def test_async_kinds(app, draw):
    async def talk():
        await app.aio.kinds.hold("draw", reason="later")
        held = [kind.name for kind in await app.aio.kinds.list() if kind.held]
        assert (await app.aio.kinds.get("draw")).held
        return held, (await app.aio.kinds.release("draw")).held

    assert asyncio.run(talk()) == (["draw"], False)
    assert draw


# --- Trials ---


def test_trial_runs_exactly_one_job_and_the_kind_stays_held(app, draw, world):
    jobs = feed(draw, 30)
    app.run_inline()
    world.broken = ""
    advance(app, 60)
    status = app.kinds.try_one("draw", reason="new certificate")
    assert (status.held, status.trial_result) == (True, "waiting")
    app.run_inline()
    assert states(jobs) == ["dead"] * 4 + ["queued"] + ["succeeded"] + ["queued"] * 24
    status = app.kinds.get("draw")
    assert (status.held, status.held_jobs, status.trial) == (True, 25, jobs[5].id)
    assert status.trial_result == "succeeded"
    (event,) = list_events(app, "job.tried")
    assert (event.job_id, event.owner, event.actor) == (jobs[5].id, "orbit", "python")
    assert (event.data["kind"], event.data["reason"]) == ("draw", "new certificate")
    assert not verify(app.store).violations


def test_trial_that_fails_again_is_not_charged_and_the_next_one_takes_another_job(app, draw):
    jobs = feed(draw, 30)
    app.run_inline()
    first = app.kinds.try_one("draw").trial
    app.run_inline()
    assert app.kinds.get("draw").trial_result == app.kinds.get("draw").code
    assert states(jobs) == ["dead"] * 4 + ["queued"] * 26
    assert app.jobs.get(first).failures == 0
    second = app.kinds.try_one("draw").trial
    app.run_inline()
    assert second != first
    assert app.kinds.get("draw").held
    assert not verify(app.store).violations


def test_trial_is_refused_without_a_hold_without_a_job_and_while_another_one_waits(app, draw):
    with pytest.raises(Refused, match="kind 'draw' is not held"):
        app.kinds.try_one("draw")
    app.kinds.hold("draw")
    with pytest.raises(Refused, match="no job of kind 'draw' waits"):
        app.kinds.try_one("draw")
    job = draw.enqueue()
    app.kinds.try_one("draw")
    with pytest.raises(Refused, match=f"job {job.id} of kind 'draw' is being tried"):
        app.kinds.try_one("draw")


def test_trial_of_a_job_that_is_cancelled_first_does_not_run(app, draw):
    job = draw.enqueue()
    other = draw.enqueue()
    app.kinds.hold("draw")
    app.kinds.try_one("draw")
    app.jobs.cancel(job.id)
    app.run_inline()
    assert states([job, other]) == ["cancelled", "queued"]
    assert app.kinds.get("draw").trial_result == "not run"
    with app.store.read() as tx:
        assert not any(row.active for row in GuardQueries(tx).list_guards())


def test_release_forgets_a_trial_that_has_not_run(app, draw, world):
    world.broken = ""
    draw.enqueue()
    app.kinds.hold("draw")
    app.kinds.try_one("draw")
    status = app.kinds.release("draw")
    assert (status.held, status.trial) == (False, "")
    app.run_inline()
    app.kinds.hold("draw")
    assert app.kinds.get("draw").trial == ""
