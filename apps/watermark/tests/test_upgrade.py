"""A database from before retries loses nothing, and what it had begun goes on."""

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
    """The URL of such a database; the copy of its one finished token lies where it was delivered."""
    monkeypatch.setenv("WATERMARK_FILES", str(tmp_path))
    connection = apsw.Connection(str(tmp_path / "old.db"))
    connection.execute(OLD)
    connection.close()
    data.copy_of("t3").parent.mkdir()
    data.copy_of("t3").write_bytes(b"delivered last year")
    yield f"sqlite:///{tmp_path}/old.db"
    data.engine.cache_clear()


def counted(url: str) -> dict[str, int]:
    with data.transaction(url) as session:
        return {
            name: session.execute(text(f"SELECT count(*) FROM {name}")).scalar_one()
            for name in TABLES
        }  # noqa: S608


@pytest.mark.seed("000-50", "000-81", "000-82", "000-84")
def test_every_row_and_every_child_is_still_there_with_the_new_columns(old):
    assert counted(old) == {
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
        kept = session.get_one(data.Campaign, "running")
        assert (kept.name, kept.max_downloads, kept.visible_wm) == ("Running", 3, 0)
        assert kept.published_at == "2026-01-02T03:04:05.000Z"
        assert session.execute(text("PRAGMA foreign_key_check")).all() == []
        session.execute(text("UPDATE campaigns SET state = 'PARTIAL' WHERE id = 'ready'"))
    with pytest.raises(IntegrityError), data.transaction(old) as session:
        session.execute(text("UPDATE campaigns SET state = 'DONE'"))
    with data.transaction(old) as session:
        session.execute(text("DELETE FROM campaigns WHERE id = 'over'"))
    assert (counted(old)["tokens"], counted(old)["jobs"]) == (5, 4)
    by_account = inspect(data.engine(old)).get_indexes("campaigns")
    assert ["account_id"] in [one["column_names"] for one in by_account]


@pytest.mark.seed("000-09", "000-81")
def test_what_was_begun_goes_on_and_what_is_done_is_not_done_again(old, monkeypatch):
    own = jobs.app.settings.model_copy(update={"database_url": old})
    with jobs.app.redirected(own):
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


@pytest.mark.parametrize("begun", ["new", "old"])
def test_who_starts_at_the_same_moment_finds_one_database(request, begun, store_url):
    url = request.getfixturevalue("old") if begun == "old" else store_url
    start = threading.Barrier(6)

    def come(_: int) -> None:
        start.wait()
        data.engine.__wrapped__(url).dispose()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(come, range(6)))
    with data.transaction(url) as session:
        assert session.execute(text("SELECT count(*) FROM schema_steps")).scalar_one() == (
            7 if begun == "old" else 2
        )
        assert session.execute(text("SELECT count(*) FROM tokens")).scalar_one() == (
            6 if begun == "old" else 0
        )
    data.engine(url).dispose()
    data.engine.cache_clear()


@pytest.mark.seed("000-85")
def test_two_steps_with_one_number_are_refused(tmp_path):
    for name in ("006_job_retry.sql", "006_recipient_groups.sql"):
        (tmp_path / name).write_text("SELECT 1")
    with pytest.raises(upgrade.CannotUpgrade, match="two steps have the number 6"):
        upgrade.find_steps(tmp_path)


@pytest.mark.seed("000-82")
def test_a_step_that_fails_leaves_everything_as_it_was(old, tmp_path):
    steps = tmp_path / "steps"
    steps.mkdir()
    good = (upgrade.STEPS / "006_job_retry.sql").read_text(encoding="utf-8")
    (steps / "006_job_retry.sql").write_text(f"{good};DROP TABLE nowhere;", encoding="utf-8")
    made = data.build_engine(old)
    with pytest.raises(OperationalError, match="nowhere"):
        upgrade.upgrade(made, steps)
    assert "retry_count" not in [one["name"] for one in inspect(made).get_columns("jobs")]
    upgrade.upgrade(made)
    assert "retry_count" in [one["name"] for one in inspect(made).get_columns("jobs")]
    made.dispose()


@pytest.mark.seed("000-20")
def test_times_of_the_application_sort_as_texts():
    assert len({len(data.now()) for _ in range(50)}) == 1
