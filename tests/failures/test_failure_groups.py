"""Dead jobs by cause, on both stores."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from mulligan import Fail, Policy
from mulligan.core.errors import NotFound, Refused
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


def feed(kind, cause, jobs=1, **options):
    made = kind.options(**options).enqueue_many([{"cause": cause, "n": n} for n in range(jobs)])
    return [job.id for job in made]


def told(app):
    with app.store.read() as unit:
        return [
            event for event in unit.events_after(0, 10_000) if event.type.startswith("failure.")
        ]


@pytest.fixture
def three(app, work):
    """Six dead of three causes, of two owners."""
    for owner, cause, jobs in (
        ("acme", "moov", 2),
        ("zenith", "moov", 1),
        ("acme", "gateway", 2),
        ("zenith", "disk", 1),
    ):
        feed(work, cause, jobs, owner=owner)
    app.run_inline()
    return {group.code: group for group in app.failures.groups()}


def test_groups_hold_the_dead_by_cause_with_counts_kinds_times_and_a_sample(app, three):
    assert {code: group.count for code, group in three.items()} == {
        "BAD_FILE": 3,
        "GW_5XX": 2,
        "DISK_FULL": 1,
    }
    group = three["BAD_FILE"]
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


def test_a_group_counts_the_jobs_that_its_list_shows(app, three):
    for group in three.values():
        listed = app.jobs.list(f"state:dead group:{group.fingerprint}")
        assert len(listed) == group.count == app.jobs.count(f"group:{group.fingerprint}")
        assert group.sample.job in {job.id for job in listed}
        assert {job.error["code"] for job in listed} == {group.code}


def test_an_owner_sees_a_group_of_their_own_jobs(app, three):
    mine = {group.code: group.count for group in app.failures.groups(owner="acme")}
    assert mine == {"BAD_FILE": 2, "GW_5XX": 2}
    assert {group.code for group in app.failures.groups("owner:zenith")} == {
        "BAD_FILE",
        "DISK_FULL",
    }
    assert app.failures.get(three["BAD_FILE"].fingerprint, owner="acme").count == 2
    with pytest.raises(NotFound):
        app.failures.get(three["GW_5XX"].fingerprint, owner="zenith")
    with pytest.raises(Refused, match="only jobs of 'acme'"):
        app.failures.groups("owner:zenith", owner="acme")
    assert (
        app.failures.groups('"moov atom"', owner="acme") == []
    )  # the private half is not theirs to search
    assert [group.code for group in app.failures.groups('"the moov"', owner="acme")] == ["BAD_FILE"]


def test_the_dead_are_found_by_code_class_group_and_words(app, three):
    moov = three["BAD_FILE"]
    assert app.jobs.count("code:BAD_FILE") == 3
    assert app.jobs.count("code:BAD_FILE,GW_5XX owner:acme") == 4
    assert app.jobs.count(f"class:{moov.cls} code:BAD_FILE") == 3
    assert app.jobs.count(f"group:{moov.fingerprint},{three['DISK_FULL'].fingerprint}") == 4
    assert app.jobs.count('"MOOV atom"') == 3
    assert app.jobs.count('"moov atom" owner:zenith') == 1
    assert app.jobs.count('"atom not found"') == 6
    assert app.jobs.count('"moov" "gateway"') == 0
    assert app.jobs.count(f'"{moov.sample.job[:20]}"') == 1
    assert app.jobs.count('"nobody said this"') == app.jobs.count("code:NONE") == 0
    assert [group.code for group in app.failures.groups('"moov atom"')] == ["BAD_FILE"]
    assert [group.code for group in app.failures.groups("code:DISK_FULL")] == ["DISK_FULL"]


def test_words_find_unique_keys_and_never_payloads(app, work):
    keyed = work.options(unique="sha256:ab%cd").enqueue(n=1)
    work.enqueue(cause="disk", n=424242)
    assert [job.id for job in app.jobs.list('"sha256:ab"')] == [keyed.id]
    assert app.jobs.list('"424242"') == []
    assert app.jobs.list('"sha256:ab" state:dead') == []


def test_several_states_and_phases_are_one_part_of_a_filter(app, work):
    feed(work, "moov")
    app.run_inline()
    work.options(delay=3600).enqueue()
    work.enqueue()
    assert app.jobs.count("state:dead,queued") == 3
    assert [job.phase for job in app.jobs.list("phase:scheduled")] == ["scheduled"]
    assert app.jobs.count("phase:scheduled,dead") == 2
    app.queues.pause("default", until=60)
    assert (
        app.jobs.count("phase:held") == 1
    )  # the other's own time comes later than the end of the pause
    assert [job.phase for job in app.jobs.list("phase:scheduled")] == ["scheduled"]
    app.queues.resume("default")
    app.queues.pause("default")
    assert {job.phase for job in app.jobs.list("phase:held")} == {"held"}
    assert (app.jobs.count("phase:held"), app.jobs.count("phase:scheduled")) == (2, 0)


def test_a_job_that_is_held_by_a_dependency_is_found_by_its_phase(app):
    @app.job(name="fetch", uses=["gate_way", "bucket"])
    def fetch() -> None: ...

    @app.job(name="look", uses="gatexway")
    def look() -> None: ...

    fetch.enqueue(), look.enqueue()
    app.dependencies.open("gate_way", reason="maintenance")
    assert [job.kind for job in app.jobs.list("phase:held")] == ["fetch"]


def test_a_retry_leaves_the_group_and_tells_whether_it_helped(app, work, world):
    ids = feed(work, "moov", 4)
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


def test_a_group_whose_jobs_all_recovered_is_still_known_but_not_listed(app, work, world):
    (job_id,) = feed(work, "moov")
    app.run_inline()
    name = app.failures.groups()[0].fingerprint
    world.broken = False
    app.jobs.retry(job_id)
    app.run_inline()
    assert app.failures.groups() == []
    group = app.failures.get(name)
    assert (group.count, group.recovered, group.sample) == (0, 1, None)


def test_a_discarded_job_leaves_its_group(app, three):
    group = three["DISK_FULL"]
    discard(app.store, group.sample.job, actor="kim", reason="not wanted")
    assert "DISK_FULL" not in {one.code for one in app.failures.groups()}
    assert sql(app.store, "SELECT count(*) FROM {p}job WHERE died_code = 'DISK_FULL'") == [(0,)]


def test_mute_ends_by_itself_and_says_who_and_why(app, three):
    name = three["GW_5XX"].fingerprint
    muted = app.failures.mute(name, until=3600, reason="the provider knows")
    assert (muted.state, muted.note, muted.actor) == ("muted", "the provider knows", "python")
    assert muted.until is not None
    assert app.failures.groups()[-1].fingerprint == name
    advance(app, 3601)
    assert app.failures.get(name).state is GroupState.OPEN
    assert app.failures.get(name).until is None


def test_unmute_leaves_what_is_not_muted_and_reopen_takes_back_all(app, three):
    name = three["GW_5XX"].fingerprint
    app.failures.unmute(name)
    assert told(app) == []
    app.failures.mute(name)
    assert app.failures.unmute(name).state == "open"
    app.failures.resolve(name, note="fixed in 2026-03")
    assert app.failures.reopen(name, reason="it was not").state == "open"
    events = told(app)
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


def test_a_resolved_group_regresses_with_the_next_death(app, work, three):
    name = three["BAD_FILE"].fingerprint
    assert app.failures.resolve(name, note="new decoder").state is GroupState.RESOLVED
    advance(app, 10)
    feed(work, "moov")
    app.run_inline()
    group = app.failures.get(name)
    assert (group.state, group.count, group.note) == ("regressed", 4, "new decoder")
    assert app.failures.groups()[0].fingerprint == name


def test_what_an_owner_says_is_theirs(app, three):
    name = three["BAD_FILE"].fingerprint
    app.failures.mute(name, owner="acme")
    assert app.failures.get(name, owner="acme").state == "muted"
    assert app.failures.get(name).state == "new"
    assert told(app)[0].owner == "acme"


@pytest.mark.parametrize("call", ["get", "mute", "unmute", "resolve", "reopen"])
def test_an_unknown_group_is_not_found(app, three, call):
    with pytest.raises(NotFound, match="no failure group 'v2-nothing'"):
        getattr(app.failures, call)("v2-nothing")
    assert told(app) == []


def test_what_cannot_be_asked_of_groups_is_refused(app, three):
    for words in ("state:queued", "phase:held", "stat:dead"):
        with pytest.raises(Refused):
            app.failures.groups(words)
    with pytest.raises(Refused, match="limit"):
        app.failures.groups(limit=0)
    with pytest.raises(Refused, match="future"):
        app.failures.mute(three["BAD_FILE"].fingerprint, until=datetime(2020, 1, 1, tzinfo=UTC))
    assert told(app) == []


def test_a_list_that_was_cut_says_so(app, three):
    assert (len(app.failures.groups(limit=2)), app.failures.groups(limit=2).more) == (2, True)
    assert not app.failures.groups(limit=3).more


def test_all_of_it_awaitable(app, three):
    async def walk(name):
        assert len(await app.aio.failures.groups()) == 3
        await app.aio.failures.mute(name, reason="known")
        await app.aio.failures.unmute(name)
        await app.aio.failures.resolve(name, note="done")
        await app.aio.failures.reopen(name)
        return (await app.aio.failures.get(name)).state

    assert asyncio.run(walk(three["BAD_FILE"].fingerprint)) == "open"


def test_a_deadline_that_passed_while_a_job_waited_is_a_cause_too(app, work):
    from mulligan.worker.upkeep import expire_deadlines

    work.options(delay=3600, deadline=10).enqueue()
    advance(app, 11)
    assert expire_deadlines(app.store) == 1
    (group,) = app.failures.groups()
    assert (group.code, group.count, group.sample.private) == ("DEADLINE_PASSED", 1, None)
    assert app.failures.get(group.fingerprint, private=True).sample.private == {}
    assert app.jobs.count(f"group:{group.fingerprint} class:permanent") == 1
