"""Upgrade of a database from before retries: no row is lost and unfinished work resumes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest
from sqlalchemy import inspect, text
from sqlalchemy.exc import IntegrityError, OperationalError

from mulligan import testing
from watermark import campaigns, data, jobs, upgrade

OLD = (Path(__file__).parent / "pre006.sql").read_text(encoding="utf-8")
TABLES = ("accounts", "assets", "recipients", "campaigns", "tokens", "jobs")


@pytest.fixture
def old(tmp_path, monkeypatch) -> str:
    """Create an old database with one delivered copy. Return its URL."""
    monkeypatch.setenv("WATERMARK_FILES", str(tmp_path))
    connection = apsw.Connection(str(tmp_path / "old.db"))
    connection.execute(OLD)
    connection.close()
    data.copy_of("t3").parent.mkdir()
    data.copy_of("t3").write_bytes(b"delivered last year")
    yield f"sqlite:///{tmp_path}/old.db"
    data.engine.cache_clear()


def count_rows(url: str) -> dict[str, int]:
    with data.transaction(url) as session:
        counts = {}
        for name in TABLES:
            query = text(f"SELECT count(*) FROM {name}")  # noqa: S608 - our tables
            counts[name] = session.execute(query).scalar_one()
        return counts


@pytest.mark.seed("000-50", "000-81", "000-82", "000-84")
def test_upgrade_keeps_every_row_and_adds_the_new_columns(old):
    assert count_rows(old) == {
        "accounts": 2,
        "assets": 2,
        "recipients": 3,
        "campaigns": 5,
        "tokens": 6,
        "jobs": 5,
    }
    with data.transaction(old) as session:
        rows = session.execute(
            text("SELECT DISTINCT retry_count, max_retries, next_retry_at FROM jobs")
        ).all()
        assert rows == [(0, 3, None)]
        campaign = session.get_one(data.Campaign, "running")
        assert (campaign.name, campaign.max_downloads, campaign.visible_wm) == ("Running", 3, 0)
        assert campaign.published_at == "2026-01-02T03:04:05.000Z"
        assert session.execute(text("PRAGMA foreign_key_check")).all() == []
        session.execute(text("UPDATE campaigns SET state = 'PARTIAL' WHERE id = 'ready'"))
    with pytest.raises(IntegrityError), data.transaction(old) as session:
        session.execute(text("UPDATE campaigns SET state = 'DONE'"))
    with data.transaction(old) as session:
        session.execute(text("DELETE FROM campaigns WHERE id = 'over'"))
    assert (count_rows(old)["tokens"], count_rows(old)["jobs"]) == (5, 4)
    by_account = inspect(data.engine(old)).get_indexes("campaigns")
    assert ["account_id"] in [column["column_names"] for column in by_account]


@pytest.mark.seed("000-09", "000-81")
def test_upgrade_resumes_unfinished_copies_and_keeps_finished_ones(old, monkeypatch):
    settings = jobs.app.settings.model_copy(update={"database_url": old})
    with jobs.app.redirected(settings):
        jobs.app.open()
        with jobs.db() as session:
            campaigns.resume(session)
        assert sorted(job.payload["token"] for job in jobs.app.jobs.list("kind:watermark")) == [
            "t1",
            "t2",
            "t3",
            "t4",
        ]
        with jobs.db() as session:
            campaigns.resume(session)
        assert jobs.app.jobs.count("kind:watermark") == 4
        with testing.force(jobs.app, jobs.watermark, testing.Returns(), times=4):
            testing.drain(jobs.app, anywhere=True)
        states = {}
        with jobs.db() as session:
            for name in ("draft", "running", "ready", "over", "late"):
                states[name] = campaigns.campaign_view(session.get_one(data.Campaign, name)).state
        over = {"over": "EXPIRED", "late": "EXPIRED"}
        assert states == {"draft": "DRAFT", "running": "READY", "ready": "READY"} | over


@pytest.mark.parametrize("database", ["new", "old"])
def test_concurrent_starts_upgrade_the_database_once(request, database, store_url):
    url = request.getfixturevalue("old") if database == "old" else store_url
    start = threading.Barrier(6)

    def open_engine(_: int) -> None:
        start.wait()
        data.engine.__wrapped__(url).dispose()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(open_engine, range(6)))
    with data.transaction(url) as session:
        assert session.execute(text("SELECT count(*) FROM schema_steps")).scalar_one() == (
            7 if database == "old" else 2
        )
        assert session.execute(text("SELECT count(*) FROM tokens")).scalar_one() == (
            6 if database == "old" else 0
        )
    data.engine(url).dispose()
    data.engine.cache_clear()


@pytest.mark.seed("000-85")
def test_two_steps_with_the_same_number_are_refused(tmp_path):
    for name in ("006_job_retry.sql", "006_recipient_groups.sql"):
        (tmp_path / name).write_text("SELECT 1")
    with pytest.raises(upgrade.CannotUpgrade, match="two steps have the number 6"):
        upgrade.find_steps(tmp_path)


@pytest.mark.seed("000-82")
def test_failed_step_leaves_the_database_unchanged(old, tmp_path):
    steps = tmp_path / "steps"
    steps.mkdir()
    good = (upgrade.STEPS / "006_job_retry.sql").read_text(encoding="utf-8")
    (steps / "006_job_retry.sql").write_text(f"{good};DROP TABLE nowhere;", encoding="utf-8")
    engine = data.build_engine(old)
    with pytest.raises(OperationalError, match="nowhere"):
        upgrade.upgrade(engine, steps)
    assert "retry_count" not in [column["name"] for column in inspect(engine).get_columns("jobs")]
    upgrade.upgrade(engine)
    assert "retry_count" in [column["name"] for column in inspect(engine).get_columns("jobs")]
    engine.dispose()


@pytest.mark.seed("000-20")
def test_stored_times_have_a_fixed_width():
    assert len({len(data.now()) for _ in range(50)}) == 1
