"""A held release claims nothing of what is held, and canaries keep their share, on both stores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from mulligan.core.attempt import Decision, Ground, Verb, Verdict
from mulligan.core.errors import NotFound
from mulligan.core.job import State
from mulligan.events.queries import EventQueries
from mulligan.releases.canary import Canary
from mulligan.releases.chore import build_deltas, count_verdicts
from mulligan.releases.queries import ReleaseQueries
from mulligan.releases.rules import ReleaseState
from mulligan.worker.queries import WorkerQueries
from support.app_tools import advance
from support.dashboard_client import sign_in_with_key, text_of
from support.released import add_starts, deploy, register_worker, run_as


@pytest.fixture
def render(app):
    @app.job(name="render")
    def render(clip: int) -> int:
        return clip

    @app.job(name="mail")
    def mail() -> None: ...

    app.open()
    return render


def see(app, *releases):
    for release in releases:
        run_as(app, release)
        advance(app, 60)


# --- Holds ---


def test_workers_of_a_held_release_leave_the_kind_to_others(app, render):
    see(app, "r41", "r42")
    app.releases.hold("r42", kind="render", reason="fails more")
    job = render.enqueue(clip=7)
    mail = app.enqueue("mail")
    run_as(app, "r42")
    assert (app.jobs.get(job.id).state, app.jobs.get(mail.id).state) == ("queued", "succeeded")
    run_as(app, "r41")
    assert app.jobs.get(job.id).state == "succeeded"


def test_a_hold_without_a_kind_holds_all_of_them(app, render):
    see(app, "r42")
    app.releases.hold("r42")
    jobs = [render.enqueue(clip=7), app.enqueue("mail")]
    run_as(app, "r42")
    assert {app.jobs.get(job.id).state for job in jobs} == {"queued"}
    app.releases.unhold("r42")
    run_as(app, "r42")
    assert {app.jobs.get(job.id).state for job in jobs} == {"succeeded"}


def test_a_hold_ends_at_its_time(app, render):
    see(app, "r42")
    app.releases.hold("r42", kind="render", until=600)
    job = render.enqueue(clip=7)
    advance(app, 601)
    assert app.releases.get("r42").holds == ()
    run_as(app, "r42")
    assert app.jobs.get(job.id).state == "succeeded"


def test_a_hold_is_listed_and_its_events_say_who_and_why(app, render):
    see(app, "r42")
    held = app.releases.hold("r42", kind="render", reason="fails more")
    (hold,) = held.holds
    assert (hold.kind, hold.reason, hold.actor, hold.until) == (
        "render",
        "fails more",
        "python",
        None,
    )
    app.releases.unhold("r42", kind="render", reason="fixed by hand")
    app.releases.unhold("r42", kind="render")
    events = [event for event in app.events.list() if event.type.startswith("release.")]
    assert [event.type for event in events] == ["release.unheld", "release.held"]
    assert events[1].data["release"] == "r42"
    assert (events[1].data["kind"], events[1].data["reason"]) == ("render", "fails more")


def test_an_unknown_release_is_not_found(app, render):
    see(app, "r41")
    for call in (app.releases.get, app.releases.hold, app.releases.unhold):
        with pytest.raises(NotFound, match=r"unknown release 'r9'\. The newest are: r41"):
            call("r9")
    with pytest.raises(NotFound):
        app.releases.compare("r41", "r9")


def test_releases_are_listed_newest_first_with_their_counters(app, render):
    render.enqueue_many([{"clip": 1}] * 3)
    see(app, "r41")
    render.enqueue(clip=1)
    see(app, "r42")
    newest, oldest = app.releases.list()
    assert (newest.name, newest.counts.starts, newest.state) == ("r42", 1, ReleaseState.OPEN)
    assert (oldest.name, oldest.counts.attempts, oldest.workers) == ("r41", 3, 0)


# --- Compare ---


def test_a_comparison_says_which_kinds_fail_more(app):
    app.open()
    for release, failures in (("r41", 20), ("r42", 300)):
        add_starts(app, release, "render", 1000, failures)
        add_starts(app, release, "mail", 1000, 20)
    found = app.releases.compare("r41", "r42")
    assert [(row.kind, row.state) for row in found.kinds] == [
        ("mail", ReleaseState.FINE),
        ("render", ReleaseState.WORSE),
    ]
    (only,) = app.releases.compare("r41", "r42", kind="render").kinds
    assert (only.before.failures, only.after.failures) == (20, 300)
    worst = app.releases.list()[0]
    assert (worst.state, [kind.kind for kind in worst.worse_kinds]) == (
        ReleaseState.WORSE,
        ["render"],
    )


# --- Canaries: real claims ---

SHARE = 0.2


def register(app, worker, release):
    return register_worker(app, worker, release, canary=SHARE if release == "r42" else None)


def claim(app, claimer, free=4):
    """Claim as a worker does, and count the claims of old releases as if they had ended."""
    with app.store.begin() as tx:
        leases = claimer.claim(tx, free).leases
    success = Decision(Verb.SUCCEED, State.SUCCEEDED, Ground.RETURNED, "")
    if leases and claimer.canary is None:
        counts = count_verdicts([Verdict(lease, success) for lease in leases])
        with app.store.begin() as tx:
            ReleaseQueries(tx).add_counts(build_deltas(claimer.release, counts))
    return len(leases)


def claimed_by(app):
    with app.store.read() as tx:
        rows = ReleaseQueries(tx).list_counts()
    return {row.release: row for row in rows}


def test_ten_canaries_together_never_take_more_than_their_share(app, render):
    render.enqueue_many([{"clip": clip} for clip in range(400)])
    old = [register(app, f"w_old{n}", "r41") for n in range(2)]
    canaries = [register(app, f"w_new{n}", "r42") for n in range(10)]
    taken = {"r41": 0, "r42": 0}
    with ThreadPoolExecutor(10) as threads:
        for _ in range(12):
            for claimer in old:
                taken["r41"] += claim(app, claimer)
            taken["r42"] += sum(threads.map(lambda one: claim(app, one), canaries))
            assert taken["r42"] <= SHARE * (taken["r41"] + taken["r42"])
    assert taken["r41"] == 96
    assert taken["r42"] == 22  # of 110; the first 8 were claimed before the canaries began
    assert claimed_by(app)["r42"].claimed == 22


def test_a_release_that_is_judged_fine_takes_any_number(app, render):
    add_starts(app, "r41", "render", 1000, 20)
    add_starts(app, "r42", "render", 100, 1)
    register(app, "w_old", "r41")
    render.enqueue_many([{"clip": clip} for clip in range(50)])
    assert claim(app, register(app, "w_new", "r42"), 50) == 50


def test_a_release_that_fails_more_keeps_its_share(app, render):
    add_starts(app, "r41", "render", 1000, 20)
    add_starts(app, "r42", "render", 100, 60)
    register(app, "w_old", "r41")
    render.enqueue_many([{"clip": clip} for clip in range(50)])
    assert claim(app, register(app, "w_new", "r42"), 50) == 0


def test_a_kind_that_only_the_canary_runs_is_not_limited(app, render):
    render.enqueue_many([{"clip": clip} for clip in range(9)])
    assert claim(app, register(app, "w_new", "r42"), 9) == 9


def test_canaries_deliver_messages_without_a_limit(app, render):
    register(app, "w_old", "r41")
    with app.store.begin() as tx:
        assert Canary("r42", 0.05).lock(tx, {"mulligan.deliver.email"}) == {}


# --- The alert and its action ---


@pytest.fixture
def worse(app, render):
    """Let render fail more under r42, while workers of both releases are live."""
    add_starts(app, "r41", "render", 1000, 20)
    add_starts(app, "r42", "render", 100, 60)
    register(app, "w_old", "r41")
    return register(app, "w_new", "r42")


def check_alerts(app):
    from mulligan.alerts.chore import AlertChecker
    from mulligan.config import AlertSection

    AlertChecker(AlertSection()).run_once(app.store)
    advance(app, 60)


def alerts_of(app):
    with app.store.read() as tx:
        found = EventQueries(tx).list_events_of_types(["alert.fired"], 0, 10**9, 100)
    return [event.data for event in found if event.data["rule"] == "release_worse"]


def test_a_release_that_fails_more_is_held_while_the_alert_fires(app, worse):
    for _ in range(30):  # longer than the first hold
        check_alerts(app)
        assert [hold.kind for hold in app.releases.get("r42").holds] == ["render"]
    (fired,) = alerts_of(app)
    assert fired["key"] == "render under r42"
    assert fired["did"].startswith("held for 15 min")
    app.enqueue("render", {"clip": 1})
    assert claim(app, worse) == 0


def test_a_person_who_ends_the_hold_decides(app, worse):
    check_alerts(app)
    app.releases.unhold("r42", kind="render")
    for _ in range(20):
        check_alerts(app)
        assert app.releases.get("r42").holds == ()


def test_the_only_release_of_a_kind_is_not_held(app, worse):
    with app.store.begin() as tx:
        WorkerQueries(tx).close_worker("w_old", "shut down", last_renewed=None)
    check_alerts(app)
    (fired,) = alerts_of(app)
    assert fired["did"] == "none (no other release runs the kind)"
    assert app.releases.get("r42").holds == ()


def test_the_hold_ends_when_the_other_releases_are_gone(app, worse):
    check_alerts(app)
    with app.store.begin() as tx:
        WorkerQueries(tx).close_worker("w_old", "shut down", last_renewed=None)
    for _ in range(20):
        check_alerts(app)
    assert app.releases.get("r42").holds == ()


def test_a_release_is_deployed_under_its_name(app, render):
    deploy(app, "r42")
    assert app.manifest("shop").release == "r42"


def test_the_overview_says_what_a_release_broke_and_holds_it_in_one_click(app, worse):
    with app.store.begin() as tx:
        WorkerQueries(tx).close_worker("w_old", "shut down", last_renewed=None)
    check_alerts(app)  # the only live release of the kind is not held by itself
    with sign_in_with_key(app) as client:
        page = text_of(client.page("/"))
        assert (
            "render fails more since release r42: 60 of 100 first attempts, 20 of 1,000 before"
        ) in page
        assert "Hold in r42" in page
        client.submit("/releases/r42/hold", kind="render", back="/")
    assert [hold.kind for hold in app.releases.get("r42").holds] == ["render"]
