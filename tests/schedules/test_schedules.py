"""`app.schedule` and `app.schedules`, from the declaration to the job that ran."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from mulligan import Fixed, Mulligan, Policy, State, Unique
from mulligan.core.durations import to_micros
from mulligan.core.errors import ConfigError, NotFound, PayloadRefused, Refused
from mulligan.events.queries import EventQueries
from mulligan.manifest.specs import Manifest
from mulligan.schedules import chore as engine
from mulligan.schedules.queries import ScheduleQueries
from support.app_tools import advance
from support.app_tools import drain_anywhere as drain
from support.store import now as store_now

DAY, HOUR, MINUTE = 86_400, 3600, 60


def move_to(app, *parts, zone=UTC):
    """Set the store's clock, for everybody who uses it."""
    app.store.shift_clock(to_micros(datetime(*parts, tzinfo=zone)) - store_now(app.store))


def with_report(app):
    """A kind to schedule."""

    @app.job(name="report", queue="reports")
    def report(day: date, sections: int = 1) -> str:
        return f"{day:%d.%m.} {sections}"

    return report


def between_slots(app):
    """No slot of a minute or an hour comes by itself while a test looks."""
    move_to(app, 2026, 11, 4, 10, 20, 10)
    return app


@pytest.fixture
def app(app):
    return between_slots(app)


@pytest.fixture
def sums(app):
    return with_report(app)


@pytest.fixture
def bare(tmp_path):
    """An app that never opens its database: a declaration is checked without one."""
    yield Mulligan(f"sqlite:///{tmp_path}/never.db")
    assert not (tmp_path / "never.db").exists()


def jobs(app):
    return app.jobs.list(limit=1000)[::-1]


def skips(app):
    with app.store.read() as tx:
        return [
            event
            for event in EventQueries(tx).list_events_after(0, 10_000)
            if event.type == "schedule.skipped"
        ]


# -- declare -------------------------------------------------------------------------------------
def test_a_due_slot_runs_with_the_declared_payload(app, sums):
    app.schedule(
        "nightly", "0 3 * * *", sums, payload={"day": date(2026, 5, 4)}, timezone="Europe/Berlin"
    )
    move_to(app, 2026, 5, 4, 0, 59)
    assert app.run_inline() == 0
    advance(app, 2 * MINUTE)
    assert app.run_inline() == 1
    [job] = jobs(app)
    assert (job.kind, job.queue, job.state, job.result) == (
        "report",
        "reports",
        State.SUCCEEDED,
        "04.05. 1",
    )
    assert job.run_at == datetime(2026, 5, 4, 1, tzinfo=UTC)
    assert app.run_inline() == 0


def test_a_schedule_takes_all_options_of_a_job(app, sums):
    app.schedule(
        "all",
        "* * * * *",
        "report",
        {"day": "2026-05-04"},
        queue="slow",
        priority=-3,
        owner="acme",
        max_retries=7,
        policy=Policy(backoff=Fixed(1)),
        timeout=timedelta(minutes=2),
        deadline=HOUR,
    )
    app.run_inline()
    advance(app, MINUTE)
    app.run_inline()
    [job] = jobs(app)
    assert (job.queue, job.priority, job.owner, job.max_retries) == ("slow", -3, "acme", 7)
    assert job.deadline_at - max(job.run_at, job.created_at) <= timedelta(hours=1)
    assert job.deadline_at - job.run_at >= timedelta(hours=1)
    spec = app.manifest().schedules["all"]
    assert spec.timeout == 120_000_000
    assert Manifest.from_json(app.manifest().to_json()) == app.manifest()


def test_a_schedule_may_name_a_kind_before_its_handler_is_registered(bare):
    bare.schedule("early", "* * * * *", "later", {"n": "7"})

    @bare.job(name="later", uses=lambda payload: f"bucket-{payload['n']}")
    def later(n: int) -> int:
        return n

    spec = bare.manifest().schedules["early"]
    assert (spec.payload, spec.uses) == ('{"n":7}', "bucket-7")
    bare.schedule("wrong", "* * * * *", "latest", {"n": "seven"})
    with pytest.raises(PayloadRefused, match=r"schedule 'wrong'.*n: .*integer"):

        @bare.job(name="latest")
        def latest(n: int) -> int:
            return n


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"cron": "0 25 * * *"}, ConfigError, "bad hour.*minute hour day month weekday"),
        ({"cron": None}, ConfigError, "not a cron expression"),
        ({"timezone": "europe/berlin"}, ConfigError, "Write a name like 'Europe/Berlin'"),
        ({"timezone": "CET+1"}, ConfigError, "'UTC'"),
        ({"timezone": "../../etc/passwd"}, ConfigError, "unknown"),
        ({"timezone": ["UTC"]}, ConfigError, "unknown"),
        ({"timezone": None}, ConfigError, "unknown"),
        ({"missed": "some"}, ConfigError, "'latest'.*'all'.*'skip'"),
        ({"name": "with space"}, ConfigError, "a name is"),
        ({"name": ""}, ConfigError, "a name is"),
        ({"name": ["a"]}, ConfigError, "a name is"),
        ({"kind": 7}, ConfigError, "decorated with @app.job"),
        ({"kind": "a b"}, ConfigError, "a name is"),
        ({"kind": lambda: None}, ConfigError, "decorated with @app.job"),
        ({"payload": {"day": "someday"}}, PayloadRefused, "schedule 'nightly'.*day"),
        ({"payload": {}}, PayloadRefused, "day: is missing"),
        ({"payload": [1]}, PayloadRefused, "must map argument names"),
        ({"queue": "a|b"}, ConfigError, "a name is"),
        ({"priority": 10}, Refused, "priority"),
        ({"deadline": datetime(2030, 1, 1, tzinfo=UTC)}, Refused, "deadline must be seconds"),
        ({"owner": "a\x00"}, Refused, "owner"),
    ],
)
def test_an_invalid_schedule_is_refused_at_once_and_not_registered(bare, options, error, message):
    sums = with_report(bare)
    right = {"name": "nightly", "cron": "0 3 * * *", "kind": sums, "payload": {"day": "2026-05-04"}}
    with pytest.raises(error, match=message):
        bare.schedule(**(right | options))
    assert bare.manifest().schedules == {}


def test_a_schedule_name_is_unique_and_options_belong_to_the_schedule(bare):
    sums = with_report(bare)
    bare.schedule("nightly", "0 3 * * *", sums, {"day": "2026-05-04"})
    with pytest.raises(ConfigError, match="twice"):
        bare.schedule("nightly", "0 4 * * *", sums, {"day": "2026-05-04"})
    with pytest.raises(ConfigError, match=r"not with options\(\)"):
        bare.schedule("other", "0 4 * * *", sums.options(owner="acme"), {"day": "2026-05-04"})


def test_without_a_time_zone_database_the_error_names_the_package_and_utc_works(bare, monkeypatch):
    sums = with_report(bare)
    monkeypatch.setattr(engine, "available_timezones", set)
    monkeypatch.setattr(engine, "ZoneInfo", lambda name: (_ for _ in ()).throw(LookupError(name)))
    engine.load_timezone.cache_clear()
    with pytest.raises(ConfigError, match="pip install tzdata"):
        bare.schedule("nightly", "0 3 * * *", sums, {"day": "2026-05-04"}, timezone="Europe/Berlin")
    bare.schedule("nightly", "0 3 * * *", sums, {"day": "2026-05-04"})
    engine.load_timezone.cache_clear()


def test_the_jobs_of_slots_hold_no_unique_key(app):
    @app.job(unique=Unique())
    def once() -> None: ...

    app.schedule("hourly", "0 * * * *", once, missed="all")
    app.run_inline()
    advance(app, 3 * HOUR)
    assert app.run_inline() == 3
    assert [job.unique_key for job in jobs(app)] == [None] * 3


def test_advancing_the_clock_and_draining_fires_the_slot(app, sums):
    app.schedule("hourly", "0 * * * *", sums, {"day": "2026-05-04"})
    assert drain(app).attempts == 0
    advance(app, HOUR)
    assert [job.result for job in drain(app).of(sums)] == ["04.05. 1"]


# -- missed --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("missed", "runs", "skipped"),
    [("latest", [7], [3, 4, 5, 6]), ("all", [3, 4, 5, 6, 7], []), ("skip", [], [3, 4, 5, 6, 7])],
)
def test_after_an_absence_missed_slots_run_as_declared(app, sums, missed, runs, skipped):
    app.schedule("hourly", "0 * * * *", sums, {"day": "2026-05-04"}, missed=missed, owner="acme")
    move_to(app, 2026, 5, 4, 2, 30)
    app.run_inline()
    move_to(app, 2026, 5, 4, 7, 30)
    assert app.run_inline() == len(runs)
    assert [job.run_at for job in jobs(app)] == [
        datetime(2026, 5, 4, hour, tzinfo=UTC) for hour in runs
    ]
    events_of_type = [
        (e.data["schedule"], e.data["first"], e.data["last"], e.data["count"], e.owner)
        for e in skips(app)
    ]
    ends = (
        [to_micros(datetime(2026, 5, 4, hour, tzinfo=UTC)) for hour in (skipped[0], skipped[-1])]
        if skipped
        else []
    )
    assert events_of_type == ([("hourly", *ends, len(skipped), "acme")] if skipped else [])
    assert all(missed in event.data["reason"] for event in skips(app))
    move_to(app, 2026, 5, 4, 8, 0)
    assert app.run_inline() == 1


# -- clocks that change --------------------------------------------------------------------------
CHANGES = [
    # zone, the day, then how often in that local day: a fixed time within the changed hour, every hour
    ("Europe/Berlin", (2026, 3, 29), "30 2 * * *", ["03:00+0200"], 23),
    ("Europe/Berlin", (2026, 10, 25), "30 2 * * *", ["02:30+0200"], 25),
    ("America/New_York", (2026, 3, 8), "30 2 * * *", ["03:00-0400"], 23),
    ("America/New_York", (2026, 11, 1), "30 1 * * *", ["01:30-0400"], 25),
]


@pytest.mark.parametrize(("zone", "day", "fixed", "once", "hours"), CHANGES)
def test_across_a_clock_change_fixed_times_fire_once_and_stars_follow_real_time(
    app, sums, zone, day, fixed, once, hours
):
    local = ZoneInfo(zone)
    move_to(app, *day, zone=local)
    app.schedule(
        "fixed", fixed, sums, {"day": "2026-05-04"}, timezone=zone, owner="fixed", missed="all"
    )
    app.schedule(
        "star", "15 * * * *", sums, {"day": "2026-05-04"}, timezone=zone, owner="star", missed="all"
    )
    app.run_inline()
    advance(app, hours * HOUR)
    assert app.run_inline() == hours + 1
    assert [
        f"{job.run_at.astimezone(local):%H:%M%z}" for job in jobs(app) if job.owner == "fixed"
    ] == once
    star = sorted(job.run_at for job in jobs(app) if job.owner == "star")
    assert star == [star[0] + n * timedelta(hours=1) for n in range(hours)]


# -- look and run --------------------------------------------------------------------------------
def test_list_returns_next_slot_and_last_job_of_each_schedule(app, sums):
    app.schedule("nightly", "30 2 * * *", sums, {"day": "2026-05-04"}, timezone="Europe/Berlin")
    app.schedule("hourly", "0 * * * *", "elsewhere", queue="far")
    move_to(app, 2026, 3, 28, 12)
    app.run_inline()
    move_to(app, 2026, 3, 29, 1, 0)
    app.run_inline()
    hourly, nightly = app.schedules.list()
    assert (hourly.name, hourly.queue, hourly.kind, nightly.queue) == (
        "hourly",
        "far",
        "elsewhere",
        "reports",
    )
    assert nightly.last_at.isoformat() == "2026-03-29T03:00:00+02:00"
    assert nightly.next_at.isoformat() == "2026-03-30T02:30:00+02:00"
    assert app.jobs.get(nightly.last_job_id).payload == nightly.payload == {"day": "2026-05-04"}


def test_another_process_without_the_app_sees_what_was_declared(app, sums, make_app):
    app.schedule("nightly", "0 3 * * *", sums, {"day": "2026-05-04"})
    stranger = make_app()
    assert [schedule.name for schedule in app.schedules.list()] == ["nightly"]
    assert stranger.schedules.list() == []
    app.run_inline()
    assert stranger.schedules.list() == app.schedules.list()


def test_next_returns_slots_in_the_zone_of_the_schedule(app, sums):
    app.schedule("nightly", "30 2 * * *", sums, {"day": "2026-05-04"}, timezone="Europe/Berlin")
    move_to(app, 2026, 3, 28, 0)
    found = [at.isoformat() for at in app.schedules.next("nightly", 3)]
    assert found == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]
    assert len(app.schedules.next("nightly")) == 5
    for n in (0, -1, 1001, 2.5, "3"):
        with pytest.raises(Refused, match="n must be"):
            app.schedules.next("nightly", n)


def test_run_enqueues_a_job_now_and_records_actor_and_reason(app, sums):
    app.schedule("nightly", "0 3 * * *", sums, {"day": "2026-05-04"}, owner="acme")
    app.run_inline()
    job = app.schedules.run("nightly", reason="the disk was full")
    assert app.run_inline() == 1
    assert (job.refresh().state, job.refresh().owner) == (State.SUCCEEDED, "acme")
    queued = app.jobs.history(job.id)[0]
    assert (queued.type, queued.actor) == ("job.queued", "python")
    assert (queued.data["schedule"], queued.data["reason"]) == ("nightly", "the disk was full")
    [nightly] = app.schedules.list()
    assert nightly.last_at is None
    advance(app, DAY)
    assert app.run_inline() == 1


def test_an_unknown_schedule_is_not_found_and_the_nearest_is_suggested(app, sums):
    with pytest.raises(NotFound, match="none yet"):
        app.schedules.next("nightly")
    app.schedule("nightly", "0 3 * * *", sums, {"day": "2026-05-04"})
    with pytest.raises(NotFound, match="did you mean nightly"):
        app.schedules.run("nightli")


def test_every_method_has_an_awaitable_form(app, sums):
    app.schedule("nightly", "0 3 * * *", sums, {"day": "2026-05-04"})

    async def look() -> tuple[str, int, str]:
        [schedule] = await app.aio.schedules.list()
        times = await app.aio.schedules.next("nightly", 2)
        job = await app.aio.schedules.run("nightly", reason="asked")
        return schedule.name, len(times), job.kind

    assert asyncio.run(look()) == ("nightly", 2, "report")


# -- releases ------------------------------------------------------------------------------------
def release(make_app, cron=None, **options) -> Mulligan:
    app = make_app()
    app.job(name="work")(lambda: None)
    if cron is not None:
        app.schedule("tick", cron, "work", **options)
    return app


def test_a_release_may_change_a_schedule_and_a_rollback_restores_it(make_app):
    old, new = release(make_app, "0 * * * *"), release(make_app, "30 * * * *")
    between_slots(old).run_inline()
    advance(old, 1)
    new.run_inline()
    assert release(make_app).schedules.list()[0].cron == "30 * * * *"
    advance(old, 20 * MINUTE)
    old.run_inline()
    assert release(make_app).schedules.list()[0].cron == "0 * * * *"


def test_a_restored_schedule_skips_missed_slots_but_absent_workers_make_up_for_them(
    make_app,
):
    with_it, without = release(make_app, "0 * * * *", missed="all"), release(make_app)
    between_slots(with_it).run_inline()
    advance(with_it, 24 * 60 * MINUTE)
    assert with_it.run_inline() == 24
    advance(without, 60 * MINUTE)
    without.run_inline()
    advance(without, 24 * 60 * MINUTE)
    without.run_inline()
    advance(with_it, 5 * 60 * MINUTE)
    assert with_it.run_inline() == 0
    advance(with_it, 60 * MINUTE)
    assert with_it.run_inline() == 1


def test_a_release_without_the_schedule_ends_it(make_app):
    with_it, without = release(make_app, "* * * * *"), release(make_app)
    between_slots(with_it).run_inline()
    advance(without, 20 * MINUTE)
    assert without.run_inline() == 0
    assert without.schedules.list() == []


# -- pause ---------------------------------------------------------------------------------------
def events_of_type(app, type_):
    with app.store.read() as tx:
        return [
            event for event in EventQueries(tx).list_events_after(0, 10_000) if event.type == type_
        ]


def test_a_paused_schedule_creates_no_jobs_and_its_slots_are_skipped(app, sums):
    app.schedule("each", "* * * * *", sums, payload={"day": date(2026, 5, 4)}, missed="all")
    app.run_inline()
    paused = app.schedules.pause("each", reason="the source is being moved")
    assert (paused.paused, paused.paused_until, paused.reason, paused.actor) == (
        True,
        None,
        "the source is being moved",
        "python",
    )
    advance(app, 10 * MINUTE)
    assert app.run_inline() == 0
    assert not app.schedules.resume("each", reason="moved").paused
    assert app.run_inline() == 0
    advance(app, MINUTE)
    assert app.run_inline() == 1
    [event] = events_of_type(app, "schedule.resumed")
    assert (event.data["schedule"], event.data["reason"], event.actor) == (
        "each",
        "moved",
        "python",
    )
    assert skips(app) == []
    app.schedules.resume("each")
    assert len(events_of_type(app, "schedule.resumed")) == 1


def test_a_pause_ends_at_its_time_even_if_the_schedule_changed(app, sums):
    app.schedule("each", "* * * * *", sums, payload={"day": date(2026, 5, 4)}, missed="all")
    app.run_inline()
    app.schedules.pause("each", until=5 * MINUTE)
    assert app.schedules.get("each").paused
    with app.store.begin() as tx:
        [row] = ScheduleQueries(tx).list_schedules()
        assert not ScheduleQueries(tx).advance_schedule(
            row, from_cursor=row.cursor
        )  # whoever had looked before the pause
    advance(app, 8 * MINUTE)
    assert not app.schedules.get("each").paused
    assert app.run_inline() == 3  # of the eight minutes those after the pause
    assert [event.actor for event in events_of_type(app, "schedule.resumed")] == ["upkeep"]


def test_a_schedule_can_be_paused_before_it_ever_fired(app, sums):
    app.schedule("later", "0 3 * * *", sums, payload={"day": date(2026, 5, 4)})
    assert app.schedules.pause("later", until=HOUR).paused
    assert app.schedules.run("later").kind == "report"
    with pytest.raises(NotFound, match="did you mean later"):
        app.schedules.pause("latr")
