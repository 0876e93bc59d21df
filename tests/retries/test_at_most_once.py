"""Handlers that must not run twice: `once=True`, and `max_retries=0` with a dependency."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from mulligan import Context, Policy, Retry
from mulligan.config import RetrySection
from mulligan.core.attempt import Cls, Ended, Ground, Outcome
from mulligan.core.errors import ConfigError
from mulligan.doctor.verify import verify
from mulligan.retries.decide import decide
from mulligan.retries.policy import resolve_policy
from mulligan.worker.claim import create_claimer
from mulligan.worker.queries import WorkerQueries
from support.app_tools import advance, load_attempts, run_job
from support.builders import NOW, make_failure, make_lease
from support.flaky_service import FlakyService, job_states
from support.store import open_worker

NO_RETRIES = Policy(max_retries=0)
ONCE = resolve_policy(RetrySection(), once=True)
WITHOUT_RETRIES = resolve_policy(RetrySection(), None, NO_RETRIES)


def decide_ending(outcome, policy=ONCE, **options):
    return decide(make_lease(uses="gateway"), outcome, policy, NOW, Random(0), **options)


# -- the decision ----------------------------------------------------------------------------------
def test_a_lost_attempt_of_a_kind_with_once_is_parked_for_a_person():
    decision = decide_ending(Outcome(Ended.LOST))
    assert (decision.state, decision.ground) == ("parked", Ground.FATE_UNKNOWN)
    assert decision.choices == ("run again", "it happened")
    assert "it may have done its work" in decision.reason


def test_a_release_parks_a_kind_with_once_only_if_its_handler_was_called():
    assert decide_ending(Outcome(Ended.RELEASED, interrupted=True)).state == "parked"
    assert decide_ending(Outcome(Ended.RELEASED)).state == "queued"


def test_a_cancelled_job_with_once_is_cancelled_when_it_is_lost():
    lease = make_lease(cancel_reason="no longer needed")
    decision = decide(lease, Outcome(Ended.LOST), ONCE, NOW, Random(0))
    assert decision.state == "cancelled"


@pytest.mark.parametrize("policy", [ONCE, WITHOUT_RETRIES], ids=["once", "max_retries=0"])
@pytest.mark.parametrize("uncharged", [{"dependency_down": "gateway"}, {"kind_held": "pay"}])
def test_a_handler_without_retries_is_not_queued_again_after_an_outage(policy, uncharged):
    failed = Outcome(Ended.FAILED, failure=make_failure(Cls.TRANSIENT))
    assert decide_ending(failed, policy, **uncharged).state == "dead"


def test_a_loss_of_a_job_without_retries_counts_against_max_losses():
    assert decide_ending(Outcome(Ended.LOST), WITHOUT_RETRIES).state == "queued"


def test_a_job_cannot_allow_retries_that_its_kind_forbids_with_once():
    policy = resolve_policy(RetrySection(), None, None, None, 5, once=True)
    assert (policy.max_retries, policy.max_retries_from) == (0, "kind")


# -- whole jobs ------------------------------------------------------------------------------------
@pytest.fixture
def line():
    return FlakyService()


@pytest.mark.parametrize(
    "options", [{"once": True}, {"policy": NO_RETRIES}], ids=["once", "max_retries=0"]
)
def test_no_job_without_retries_runs_twice_in_an_outage(make_app, line, options):
    app = make_app()
    app.dependency("gateway", cool_down=30, min_calls=3)

    @app.job(name="pay", uses="gateway", **options)
    def pay(n: int) -> int:
        return line.call(n)

    line.down()
    jobs = pay.enqueue_many([{"n": n} for n in range(8)])
    app.run_inline()
    assert app.dependencies.get("gateway").state == "open"
    for _ in range(10):
        advance(app, 60)
        app.run_inline()
    assert set(Counter(line.calls).values()) == {1}
    assert job_states(jobs) <= {"dead", "queued"}


def test_jobs_with_once_wait_for_the_probe_function_and_then_run(make_app, line):
    app = make_app()
    app.dependency("gateway", cool_down=30, min_calls=3, probe=lambda: line.error is None)

    @app.job(name="pay", uses="gateway", once=True)
    def pay(n: int) -> int:
        return line.call(n)

    line.down()
    jobs = pay.enqueue_many([{"n": n} for n in range(8)])
    app.run_inline()
    started = len(line.calls)
    assert started < 8
    line.up()
    for _ in range(60):
        advance(app, 5)
        app.run_inline()
    assert Counter(line.calls) == Counter(range(8))
    assert Counter(job.refresh().state for job in jobs) == {
        "dead": started,
        "succeeded": 8 - started,
    }


def test_a_job_with_retries_is_the_probe_before_one_without(make_app, line):
    app = make_app()
    app.dependency("gateway", cool_down=30, min_calls=3)

    @app.job(name="ask", uses="gateway", policy=Policy(max_retries=9))
    def ask(n: int) -> int:
        return line.call(n)

    @app.job(name="pay", uses="gateway", policy=NO_RETRIES)
    def pay(n: int) -> int:
        return line.call(n)

    line.down()
    ask.enqueue_many([{"n": n} for n in range(6)])
    app.run_inline()
    waiting = pay.enqueue_many([{"n": 100 + n} for n in range(3)])
    for _ in range(5):
        advance(app, 60)
        app.run_inline()
    assert job_states(waiting) == {"queued"}


def test_a_handler_with_once_that_returns_retry_is_dead(make_app):
    app = make_app()

    @app.job(once=True)
    def pay() -> Retry:
        return Retry()

    assert run_job(app, pay.enqueue()).state == "dead"


def test_once_with_retries_is_refused(make_app):
    app = make_app()
    with pytest.raises(ConfigError, match=r"once=True allows no retries, but .* max_retries=3"):

        @app.job(once=True, policy=Policy(max_retries=3))
        def pay() -> None: ...


# -- a lost worker ---------------------------------------------------------------------------------
@pytest.fixture
def lost(make_app):
    """A job with once=True whose worker was lost while it ran."""
    app, runs = make_app(), []

    @app.job(name="pay", once=True)
    def pay(ctx: Context) -> str:
        runs.append(ctx.choice)
        return "paid"

    job = pay.enqueue()
    open_worker(app.store, "w9")
    claimer = create_claimer("w9", app.manifest())
    with app.store.begin() as tx:
        [lease] = claimer.claim(tx, 1).leases
    with app.store.begin() as tx:
        WorkerQueries(tx).close_worker("w9", "killed", last_renewed=None)
    assert lease.id == job.id
    app.run_inline()
    return app, job, runs


def test_a_job_with_once_is_parked_after_its_worker_was_lost(lost):
    app, job, runs = lost
    assert (job.refresh().state, runs) == ("parked", [])
    assert "run again" in app.jobs.explain(job.id).text
    assert "it may have done its work" in job.refresh().why


def test_run_again_runs_it_and_it_happened_does_not(lost):
    app, job, runs = lost
    app.jobs.release(job.id, choice="it happened", reason="found in the bank statement")
    app.run_inline()
    assert (job.refresh().state, runs) == ("succeeded", [])
    [*_, attempt] = load_attempts(app, job)
    assert attempt.verb == "succeed"


def test_a_person_can_run_it_again_by_choice_or_by_a_manual_retry(lost):
    app, job, runs = lost
    preview = app.jobs.preview_retry(job.id)
    assert "runs at most once (once=True), and this job was started once" in preview.warnings[0]
    assert not preview.refused
    app.jobs.release(job.id, choice="run again")
    app.run_inline()
    assert (job.refresh().state, runs) == ("succeeded", ["run again"])


@pytest.mark.parametrize("choice", ["run again", "it happened"])
def test_the_history_of_a_lost_and_released_job_is_consistent(lost, choice):
    app, job, _ = lost
    app.jobs.release(job.id, choice=choice)
    app.run_inline()
    assert job.refresh().state == "succeeded"
    assert not verify(app.store).violations
