"""Edge cases of outages: no job waits forever, no probe storm, no wrong charge."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mulligan import Fail, Hold, Policy, Retry
from mulligan.core.errors import IllegalMove
from mulligan.guards.capacity import SlotLimits
from mulligan.guards.observer import DependencyObserver
from mulligan.guards.queries import GuardQueries
from mulligan.guards.window import DependencyTally
from mulligan.manifest.queries import ManifestQueries
from mulligan.manifest.specs import DependencySpec
from mulligan.worker.claim import create_claimer
from support.app_tools import advance
from support.flaky_service import RETRIES, break_gateway, job_states, run_until_ended
from support.store import open_worker


def are_down(app, line, kind, jobs=12):
    line.down()
    made = [kind.enqueue(n=n) for n in range(jobs)]
    for _ in range(20):
        app.run_inline()
        advance(app, 1)
    return made


def test_two_dependencies_that_went_down_together_both_recover(app, line):
    @app.job(name="both", uses=["gateway", "bucket"], policy=RETRIES)
    def both(n: int = 0) -> int:
        return line.call(n)

    jobs = are_down(app, line, both)
    assert {app.dependencies.get(key).state for key in ("gateway", "bucket")} == {"open"}
    line.up()
    advance(app, 31)
    run_until_ended(app, jobs)
    assert job_states(jobs) == {"succeeded"}


def test_two_fail_fast_dependencies_that_are_down_hold_no_job(app, line):
    @app.job(name="both", uses=["gateway", "bucket"], policy=RETRIES)
    def both(n: int = 0) -> int:
        return line.call(n)

    app.dependency("gateway", mode="fail_fast")
    app.dependency("bucket", mode="fail_fast")
    are_down(app, line, both)
    assert {app.dependencies.get(key).state for key in ("gateway", "bucket")} == {"open"}
    job = both.enqueue(n=99)
    app.run_inline()
    assert job.refresh().state == "dead"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda: Hold("gateway", until=600), id="hold"),
        pytest.param(lambda: Fail("RATE_LIMITED"), id="rate-limited"),
        pytest.param(lambda: Fail("RATE_LIMITED", retry_after=60), id="rate-limited-hint"),
        pytest.param(lambda: Fail("QUOTA", retry_after=60), id="quota"),
        pytest.param(lambda: Retry(after=5), id="retry"),
    ],
)
def test_after_a_probe_with_a_retry_hint_the_next_probe_waits_for_it(app, line, call, answer):
    break_gateway(app, line, call, jobs=20)
    before = len(line.calls)
    line.error = answer()
    advance(app, 31)
    app.run_inline()
    assert len(line.calls) == before + 1
    assert app.dependencies.get("gateway").state == "open"


def test_a_rate_limited_probe_does_not_charge_its_job(app, line, call):
    jobs = break_gateway(app, line, call, jobs=20)
    charged = sum(job.refresh().failures for job in jobs)
    line.error = Fail("RATE_LIMITED")
    advance(app, 31)
    app.run_inline()
    assert sum(job.refresh().failures for job in jobs) == charged


class Answers:
    async def __call__(self) -> bool:
        return False


async def unwell() -> bool:
    return False


@pytest.mark.parametrize("probe", [Answers(), lambda: unwell() or None], ids=["object", "lambda"])
def test_a_probe_function_that_returns_an_awaitable_is_awaited(app, line, call, probe):
    break_gateway(app, line, call, probe=probe)
    advance(app, 31)
    app.run_inline()
    assert app.dependencies.get("gateway").state == "open"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_any_exception_of_a_probe_function_counts_as_failed_probe(app, line, call, error):
    def look() -> None:
        raise error

    break_gateway(app, line, call, probe=look)
    advance(app, 31)
    app.run_inline()
    assert app.dependencies.get("gateway").state == "open"
    [probe] = app.jobs.list("kind:mulligan.probe")
    assert probe.result["healthy"] is False


def test_after_the_clock_was_set_back_a_probe_does_not_wait_for_the_old_time(app, line, call):
    break_gateway(app, line, call)
    line.up()
    advance(app, -6 * 3600)
    jobs = [call.enqueue(n=n) for n in range(5)]
    run_until_ended(app, jobs)
    assert job_states(jobs) == {"succeeded"}


def test_a_hint_does_not_end_a_hold_by_an_operator(app, line, call):
    app.dependencies.close("gateway", until=3600, reason="we observer it ourselves")
    line.error = Fail("RATE_LIMITED", retry_after=5)
    call.enqueue(n=1)
    app.run_inline()
    assert app.dependencies.get("gateway").state == "open"
    advance(app, 6)
    line.down()
    for n in range(40):
        call.enqueue(n=n)
    for _ in range(40):
        app.run_inline()
        advance(app, 1)
    assert app.dependencies.get("gateway").state != "open"
    assert app.dependencies.get("gateway").until is not None


def test_a_hint_to_a_job_without_retries_still_holds_the_dependency(app, line):
    @app.job(name="once", uses="gateway", policy=Policy(max_retries=0))
    def once(n: int = 0) -> int:
        return line.call(n)

    line.error = Fail("RATE_LIMITED", retry_after=60)
    for n in range(5):
        once.enqueue(n=n)
    app.run_inline()
    assert len(line.calls) == 1


def test_earlier_rate_limit_errors_still_reduce_concurrency_by_three_tenths(app, monkeypatch):
    monkeypatch.setattr("mulligan.guards.observer._count_running", lambda *_: 10)
    observer = DependencyObserver()
    with app.store.begin() as tx:
        observer.fold(tx, "gateway", DependencyTally(limited=3, ok=7), tx.now())
        observer.fold(tx, "gateway", DependencyTally(ok=15), tx.now())
    assert observer.guards["gateway"].throttle.limit == 7


def test_a_limit_that_another_worker_has_used_up_is_respected(app):
    observer, other = DependencyObserver(), DependencyObserver()
    with app.store.begin() as tx:
        now = tx.now()
        observer.fold(tx, "gateway", DependencyTally(retried=60), now)
        assert observer.retries_left("gateway", now) == 0
        other.fold(tx, "gateway", DependencyTally(first_ok=600), now)
        observer.load_guards(GuardQueries(tx).read_claim_state().guards)
        assert observer.retries_left("gateway", now) > 0


def test_observations_made_during_a_fold_are_counted_once(app):
    observer = DependencyObserver()
    observer._pending = {"gateway": DependencyTally(ok=1)}
    pending = observer.take_pending()
    observer._add_pending({"gateway": DependencyTally(ok=2)})
    assert (pending["gateway"].ok, observer._pending["gateway"].ok) == (1, 2)
    observer.restore_pending(pending)
    assert observer._pending["gateway"].ok == 3


def test_a_job_probes_if_the_app_with_the_probe_function_has_no_workers(app, line, call):
    break_gateway(app, line, call)
    line.up()
    open_worker(app.store, "w9")
    manifest = app.manifest()
    mine = replace(manifest, dependencies={})
    theirs = replace(
        manifest,
        app="theirs",
        kinds={},
        dependencies={"gateway": DependencySpec("gateway", probe=True)},
    )
    with app.store.begin() as tx:
        ManifestQueries(tx).store_manifest("theirs", "theirs", "", theirs.to_json())
    claimer = create_claimer("w9", mine)
    advance(app, 31)
    with app.store.begin() as tx:
        assert claimer.claim(tx, 1).leases == []
    advance(app, 61)
    with app.store.begin() as tx:
        assert [lease.kind for lease in claimer.claim(tx, 1).leases] == ["call"]


def test_an_impossible_probe_is_refused_with_the_time_until_it_is_held(app, call):
    app.dependencies.open("gateway", reason="maintenance")
    with pytest.raises(
        IllegalMove,
        match=r"until it is closed\. To release its jobs, run: mulligan deps close gateway",
    ):
        app.dependencies.probe("gateway")
    app.dependencies.open("gateway", until=600)
    with pytest.raises(IllegalMove, match=r"an operator holds it until 20.* UTC"):
        app.dependencies.probe("gateway")


@pytest.mark.parametrize(("shared", "taken"), [(frozenset(), 3), (frozenset({"gateway"}), 4)])
def test_a_slot_is_reserved_for_other_jobs_unless_all_use_the_dependency(app, call, shared, taken):
    call.enqueue_many([{"n": n} for n in range(9)])
    open_worker(app.store, "w9")
    claimer = create_claimer("w9", app.manifest())
    with app.store.begin() as tx:
        leases = claimer.claim(tx, 4, slots=SlotLimits(4, 3, {}, shared)).leases
    assert len(leases) == taken


def test_a_ramp_does_not_wait_for_jobs_of_a_paused_queue(app, call):
    call.enqueue(n=1)
    advance(app, 5)
    open_worker(app.store, "w9")
    claimer = create_claimer("w9", app.manifest())
    with app.store.read() as tx:
        claimer.claim(tx, 0)
    assert claimer.observer.waiting == {"gateway"}
    app.queues.pause("default")
    with app.store.read() as tx:
        claimer.claim(tx, 0)
    assert claimer.observer.waiting == frozenset()
