"""Schedules that are read from the source code of other systems."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent

import pytest
from celery.schedules import crontab
from click.testing import CliRunner
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from mulligan import Mulligan
from mulligan.cli.imports import import_schedules
from mulligan.core.errors import ConfigError
from mulligan.schedules.importers import FoundSchedule, interval_cron, read_schedules

BEAT = """
from celery.schedules import crontab
from datetime import timedelta
HOURLY = 60 * 60
app.conf.timezone = "Europe/Berlin"
app.conf.beat_schedule = {
    "report": {
        "task": "reports.send",
        "schedule": crontab(hour=7, minute=30, day_of_week="mon-fri"),
        "kwargs": {"to": "ada@example.org"},
        "options": {"queue": "mail"},
    },
    "poll": {"task": "feeds.poll", "schedule": 30.0},
    "clean": {"task": "files.clean", "schedule": HOURLY},
    "odd": {"task": "files.odd", "schedule": timedelta(minutes=7)},
    "named": {"task": "math.add", "schedule": crontab(), "args": (16, 16)},
    "sun": {"task": "garden.water", "schedule": solar("sunset", 1, 2)},
}

@app.on_after_configure.connect
def setup(sender, **kwargs):
    sender.add_periodic_task(crontab(hour="*/2", minute=0), ping.s(host="a"), name="ping")
"""
APS = """
scheduler.add_job(tidy, "cron", hour=3, id="tidy", kwargs={"days": 7})
scheduler.add_job("shop.tasks:poll", "interval", minutes=5)
scheduler.add_job(once, "date", run_date="2030-01-01")

@scheduler.scheduled_job("cron", day_of_week="0-4", hour="9,17")
def digest(): ...
"""
RQ = """
cron.register(send_newsletter, queue_name="mail", cron="0 9 * * 1")
cron.register(check, queue_name="default", interval=60, kwargs={"deep": True})
atexit.register(close)
"""


def read(system: str, source: str) -> dict[str, FoundSchedule]:
    return {one.name: one for one in read_schedules(system, source).schedules}


def test_celery_beat_is_read_without_running_it() -> None:
    found = read("celery-beat", BEAT)
    assert read_schedules("celery-beat", BEAT).timezone == "Europe/Berlin"
    assert {name: (one.cron, one.kind) for name, one in found.items() if not one.problem} == {
        "report": ("30 7 * * mon-fri", "reports.send"),
        "poll": ("*/30 * * * * *", "feeds.poll"),
        "clean": ("0 * * * *", "files.clean"),
        "named": ("* * * * *", "math.add"),
        "ping": ("0 */2 * * *", "ping"),
    }
    assert found["report"].kwargs == {"to": "ada@example.org"}
    assert found["report"].queue == "mail"
    assert found["ping"].kwargs == {"host": "a"}
    assert found["odd"].problem == "cron cannot express an interval of 420 s"
    assert found["sun"].problem == "solar(…) is not understood"


def test_apscheduler_is_read_without_running_it() -> None:
    found = read("apscheduler", APS)
    assert found["tidy"] == FoundSchedule("tidy", "0 3 * * *", "tidy", (), {"days": 7})
    assert found["shop.tasks.poll"].cron == "*/5 * * * *"
    assert found["digest"].cron == "0 9,17 * * mon-fri"
    assert found["once"].problem == "a trigger 'date' is not a schedule"


def test_the_cron_of_rq_is_read_without_running_it() -> None:
    found = read("rq", RQ)
    assert found["send_newsletter"].cron == "0 9 * * 1"
    assert found["send_newsletter"].queue == "mail"
    assert found["check"].cron == "* * * * *"
    assert set(found) == {"send_newsletter", "check"}


def test_the_command_prints_declarations_that_run(tmp_path: Path) -> None:
    file = tmp_path / "celery_app.py"
    file.write_text(BEAT)
    result = CliRunner().invoke(import_schedules, ["celery-beat", str(file)])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "# name its positional arguments [16, 16]" in lines
    app = Mulligan(f"sqlite:///{tmp_path}/m.db")
    exec(result.stdout, {"app": app})  # noqa: S102 - what a person would paste
    assert set(app.registry.schedules) == {"report", "poll", "clean", "ping"}
    assert app.registry.schedules["report"].timezone == "Europe/Berlin"


@pytest.mark.parametrize(
    "source", ["def (", "\x00", "beat_schedule = {**other}", "beat_schedule = {'a': b}"]
)
def test_strange_source_is_an_error_or_a_problem(source: str) -> None:
    try:
        found = read_schedules("celery-beat", source)
    except ConfigError:
        return
    assert all(one.problem for one in found.schedules)


@given(st.integers(1, 200_000))
def test_an_interval_is_exact_or_refused(seconds: int) -> None:
    cron = interval_cron(seconds)
    if cron:
        times = CronSim(cron, datetime(2026, 1, 5, tzinfo=UTC))
        first, second, third = next(times), next(times), next(times)
        assert second - first == third - second == timedelta(seconds=seconds)


@given(
    minute=st.sampled_from(["*", "*/15", "0", "5,10"]),
    hour=st.sampled_from(["*", "3", "*/2", "8-17"]),
    weekday=st.sampled_from(["*", "mon", "0", "1-5", "sat,sun"]),
)
def test_a_crontab_means_the_same_as_in_celery(minute: str, hour: str, weekday: str) -> None:
    source = dedent(f"""
        beat_schedule = {{"a": {{
            "task": "t",
            "schedule": crontab(minute={minute!r}, hour={hour!r}, day_of_week={weekday!r}),
        }}}}
    """)
    cron = read("celery-beat", source)["a"].cron
    theirs = crontab(minute=minute, hour=hour, day_of_week=weekday)
    at = next(CronSim(cron, datetime(2026, 5, 13, 11, 58, tzinfo=UTC)))
    assert at.minute in theirs.minute
    assert at.hour in theirs.hour
    assert at.isoweekday() % 7 in theirs.day_of_week
