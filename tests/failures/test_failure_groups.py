"""Failure groups, on both databases."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from mulligan import Fail, Policy
from mulligan.core.errors import NotFound, Refused
from mulligan.events.queries import EventQueries
from mulligan.failures.groups import GroupState
from mulligan.jobs.repair import discard
from support.app_tools import advance
from support.store import sql

CAUSES = {"moov": "BAD_FILE", "gateway": "GW_5XX", "disk": "DISK_FULL"}


class World:
    broken = True


@pytest.fixture
def world():
    return World()


@pytest.fixture
def work(app, world):
    @app.job(name="work", policy=Policy(max_retries=0))
    def work(cause: str = "moov", n: int = 0) -> int | Fail:
        if world.broken:
            return Fail(
                CAUSES[cause],
                f"{cause} atom not found in part {n}",
                public=f"It is the {cause}.",
                final=True,
            )
        return n

    return work


def enqueue_jobs(kind, cause, jobs=1, **options):
    made = kind.options(**options).enqueue_many([{"cause": cause, "n": n} for n in range(jobs)])
    return [job.id for job in made]


def failure_events(app):
    with app.store.read() as tx:
        return [
            event
            for event in EventQueries(tx).list_events_after(0, 10_000)
            if event.type.startswith("failure.")
        ]


@pytest.fixture
def groups(app, work):
    """Six dead jobs with three causes, of two owners."""
    for owner, cause, jobs in (
        ("acme", "moov", 2),
        ("zenith", "moov", 1),
        ("acme", "gateway", 2),
        ("zenith", "disk", 1),
    ):
        enqueue_jobs(work, cause, jobs, owner=owner)
    app.run_inline()
    return {group.code: group for group in app.failures.groups()}


def test_dead_jobs_are_grouped_by_cause_with_counts_kinds_times_and_a_sample(app, groups):
    assert {code: group.count for code, group in groups.items()} == {
        "BAD_FILE": 3,
        "GW_5XX": 2,
        "DISK_FULL": 1,
    }
    group = groups["BAD_FILE"]
    assert (group.kinds, group.codes, group.state, group.capped) == (
        {"work": 3},
        {"BAD_FILE": 3},
        "new",
        False,
    )
    assert group.message == "It is the moov."
    assert sum(group.hourly) == sum(group.daily) == 3
    assert group.first_seen <= group.last_seen <= datetime.now(UTC) + timedelta(seconds=5)
    assert group.recovered_share is None
    assert group.sample.private is None
    assert (
        "moov atom not found"
        in app.failures.get(group.fingerprint, private=True).sample.private["message"]
    )


def test_the_count_of_a_group_equals_the_length_of_its_job_list(app, groups):
    for group in groups.values():
        listed = app.jobs.list(f"state:dead group:{group.fingerprint}")
        assert len(listed) == group.count == app.jobs.count(f"group:{group.fingerprint}")
        assert group.sample.job in {job.id for job in listed}
        assert {job.error["code"] for job in listed} == {group.code}


def test_a_group_of_an_owner_contains_only_their_jobs(app, groups):
    mine = {group.code: group.count for group in app.failures.groups(owner="acme")}
    assert mine == {"BAD_FILE": 2, "GW_5XX": 2}
    assert {group.code for group in app.failures.groups("owner:zenith")} == {
        "BAD_FILE",
        "DISK_FULL",
    }
    assert app.failures.get(groups["BAD_FILE"].fingerprint, owner="acme").count == 2
    with pytest.raises(NotFound):
        app.failures.get(groups["GW_5XX"].fingerprint, owner="zenith")
    with pytest.raises(Refused, match="does not match the owner 'acme'"):
        app.failures.groups("owner:zenith", owner="acme")
    # An owner cannot search the private part.
    assert app.failures.groups('"moov atom"', owner="acme") == []
    assert [group.code for group in app.failures.groups('"the moov"', owner="acme")] == ["BAD_FILE"]


def test_dead_jobs_are_found_by_code_class_group_and_text(app, groups):
    moov = groups["BAD_FILE"]
    assert app.jobs.count("code:BAD_FILE") == 3
    assert app.jobs.count("code:BAD_FILE,GW_5XX owner:acme") == 4
    assert app.jobs.count(f"class:{moov.cls} code:BAD_FILE") == 3
    assert app.jobs.count(f"group:{moov.fingerprint},{groups['DISK_FULL'].fingerprint}") == 4
    assert app.jobs.count('"MOOV atom"') == 3
    assert app.jobs.count('"moov atom" owner:zenith') == 1
    assert app.jobs.count('"atom not found"') == 6
    assert app.jobs.count('"moov" "gateway"') == 0
    assert app.jobs.count(f'"{moov.sample.job[:20]}"') == 1
    assert app.jobs.count('"not in any text"') == app.jobs.count("code:NONE") == 0
    assert [group.code for group in app.failures.groups('"moov atom"')] == ["BAD_FILE"]
    assert [group.code for group in app.failures.groups("code:DISK_FULL")] == ["DISK_FULL"]


def test_quoted_text_finds_unique_keys_but_not_payloads(app, work):
    keyed = work.options(unique="sha256:ab%cd").enqueue(n=1)
    work.enqueue(cause="disk", n=424242)
    assert [job.id for job in app.jobs.list('"sha256:ab"')] == [keyed.id]
    assert app.jobs.list('"424242"') == []
    assert app.jobs.list('"sha256:ab" state:dead') == []


def test_a_filter_may_name_several_states_and_phases(app, work):
    enqueue_jobs(work, "moov")
    app.run_inline()
    work.options(delay=3600).enqueue()
    work.enqueue()
    assert app.jobs.count("state:dead,queued") == 3
    assert [job.phase for job in app.jobs.list("phase:scheduled")] == ["scheduled"]
    assert app.jobs.count("phase:scheduled,dead") == 2
    app.queues.pause("default", until=60)
    # The scheduled job is due after the end of the pause.
    assert app.jobs.count("phase:held") == 1
    assert [job.phase for job in app.jobs.list("phase:scheduled")] == ["scheduled"]
    app.queues.resume("default")
    app.queues.pause("default")
    assert {job.phase for job in app.jobs.list("phase:held")} == {"held"}
    assert (app.jobs.count("phase:held"), app.jobs.count("phase:scheduled")) == (2, 0)


def test_a_job_held_by_a_dependency_is_found_by_its_phase(app):
    @app.job(name="fetch", uses=["gate_way", "bucket"])
    def fetch() -> None: ...

    @app.job(name="look", uses="gatexway")
    def look() -> None: ...

    fetch.enqueue(), look.enqueue()
    app.dependencies.open("gate_way", reason="maintenance")
    assert [job.kind for job in app.jobs.list("phase:held")] == ["fetch"]


def test_a_retried_job_leaves_its_group_and_counts_as_retried_and_recovered(app, work, world):
    ids = enqueue_jobs(work, "moov", 4)
    app.run_inline()
    (group,) = app.failures.groups()
    world.broken = False
    for job_id in ids[:3]:
        app.jobs.retry(job_id)
    assert app.failures.get(group.fingerprint).count == 1
    app.run_inline()
    after = app.failures.get(group.fingerprint)
    assert (after.count, after.retried, after.recovered, after.recovered_share) == (1, 3, 3, 1.0)
    world.broken = True
    app.jobs.retry(ids[3])
    app.run_inline()
    again = app.failures.get(group.fingerprint)
    assert (again.count, again.retried, again.recovered) == (1, 4, 3)


def test_a_group_without_dead_jobs_can_be_read_but_is_not_listed(app, work, world):
    (job_id,) = enqueue_jobs(work, "moov")
    app.run_inline()
    name = app.failures.groups()[0].fingerprint
    world.broken = False
    app.jobs.retry(job_id)
    app.run_inline()
    assert app.failures.groups() == []
    group = app.failures.get(name)
    assert (group.count, group.recovered, group.sample) == (0, 1, None)


def test_a_discarded_job_leaves_its_group(app, groups):
    group = groups["DISK_FULL"]
    discard(app.store, group.sample.job, actor="kim", reason="not wanted")
    assert "DISK_FULL" not in {one.code for one in app.failures.groups()}
    assert sql(app.store, "SELECT count(*) FROM {p}job WHERE died_code = 'DISK_FULL'") == [(0,)]


def test_a_mute_expires_and_records_actor_and_reason(app, groups):
    name = groups["GW_5XX"].fingerprint
    muted = app.failures.mute(name, until=3600, reason="the provider knows")
    assert (muted.state, muted.note, muted.actor) == ("muted", "the provider knows", "python")
    assert muted.until is not None
    assert app.failures.groups()[-1].fingerprint == name
    advance(app, 3601)
    assert app.failures.get(name).state is GroupState.OPEN
    assert app.failures.get(name).until is None


def test_unmute_changes_only_muted_groups_and_reopen_changes_all(app, groups):
    name = groups["GW_5XX"].fingerprint
    app.failures.unmute(name)
    assert failure_events(app) == []
    app.failures.mute(name)
    assert app.failures.unmute(name).state == "open"
    app.failures.resolve(name, note="fixed in 2026-03")
    assert app.failures.reopen(name, reason="it was not").state == "open"
    events = failure_events(app)
    assert [event.type.partition(".")[2] for event in events] == [
        "muted",
        "reopened",
        "resolved",
        "reopened",
    ]
    assert [(event.data["before"]["state"], event.data["after"]["state"]) for event in events] == [
        ("new", "muted"),
        ("muted", "open"),
        ("open", "resolved"),
        ("resolved", "open"),
    ]
    assert events[2].data["note"] == "fixed in 2026-03"
    assert {event.actor for event in events} == {"python"}


def test_a_resolved_group_regresses_with_the_next_death(app, work, groups):
    name = groups["BAD_FILE"].fingerprint
    assert app.failures.resolve(name, note="new decoder").state is GroupState.RESOLVED
    advance(app, 10)
    enqueue_jobs(work, "moov")
    app.run_inline()
    group = app.failures.get(name)
    assert (group.state, group.count, group.note) == ("regressed", 4, "new decoder")
    assert app.failures.groups()[0].fingerprint == name


def test_marks_of_an_owner_do_not_change_the_group_of_all_owners(app, groups):
    name = groups["BAD_FILE"].fingerprint
    app.failures.mute(name, owner="acme")
    assert app.failures.get(name, owner="acme").state == "muted"
    assert app.failures.get(name).state == "new"
    assert failure_events(app)[0].owner == "acme"


@pytest.mark.parametrize("call", ["get", "mute", "unmute", "resolve", "reopen"])
def test_an_unknown_group_is_not_found(app, groups, call):
    with pytest.raises(NotFound, match="unknown failure group 'v2-nothing'"):
        getattr(app.failures, call)("v2-nothing")
    assert failure_events(app) == []


def test_invalid_group_queries_are_refused(app, groups):
    for query in ("state:queued", "phase:held", "stat:dead"):
        with pytest.raises(Refused):
            app.failures.groups(query)
    with pytest.raises(Refused, match="limit"):
        app.failures.groups(limit=0)
    with pytest.raises(Refused, match="future"):
        app.failures.mute(groups["BAD_FILE"].fingerprint, until=datetime(2020, 1, 1, tzinfo=UTC))
    assert failure_events(app) == []


def test_a_truncated_list_has_more(app, groups):
    assert (len(app.failures.groups(limit=2)), app.failures.groups(limit=2).more) == (2, True)
    assert not app.failures.groups(limit=3).more


def test_the_async_service_has_the_same_methods(app, groups):
    async def call_all(name):
        assert len(await app.aio.failures.groups()) == 3
        await app.aio.failures.mute(name, reason="known")
        await app.aio.failures.unmute(name)
        await app.aio.failures.resolve(name, note="done")
        await app.aio.failures.reopen(name)
        return (await app.aio.failures.get(name)).state

    assert asyncio.run(call_all(groups["BAD_FILE"].fingerprint)) == "open"


def test_jobs_whose_deadline_passed_are_a_group(app, work):
    from mulligan.worker.upkeep import expire_deadlines

    work.options(delay=3600, deadline=10).enqueue()
    advance(app, 11)
    assert expire_deadlines(app.store) == 1
    (group,) = app.failures.groups()
    assert (group.code, group.count, group.sample.private) == ("DEADLINE_PASSED", 1, None)
    assert app.failures.get(group.fingerprint, private=True).sample.private == {}
    assert app.jobs.count(f"group:{group.fingerprint} class:permanent") == 1
