"""Upgrade of a database from before retries: no row is lost and unfinished work resumes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import inspect, text
from sqlalchemy.exc import IntegrityError, OperationalError

from mulligan import testing
from mulligan.apps.watermark import data, jobs, upgrade
from mulligan.apps.watermark.web import web

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


@pytest.mark.seed("000-50", "000-82")
def test_upgrade_keeps_every_row_and_admits_the_new_states(old):
    assert count_rows(old) == {
        "accounts": 2,
        "assets": 2,
        "recipients": 3,
        "campaigns": 5,
        "tokens": 6,
        "jobs": 5,
    }  # 000-82
    with data.transaction(old) as session:
        campaign = session.get_one(data.Campaign, "running")
        assert (campaign.name, campaign.max_downloads, campaign.visible_wm) == ("Running", 3, 0)
        assert campaign.published_at == "2026-01-02T03:04:05.000Z"
        assert session.execute(text("PRAGMA foreign_key_check")).all() == []
        for state in ("PARTIAL", "FAILED"):  # 000-50
            session.execute(text(f"UPDATE campaigns SET state = '{state}' WHERE id = 'ready'"))  # noqa: S608
    with pytest.raises(IntegrityError), data.transaction(old) as session:
        session.execute(text("UPDATE campaigns SET state = 'DONE'"))
    with data.transaction(old) as session:
        session.execute(text("DELETE FROM campaigns WHERE id = 'over'"))
    assert (count_rows(old)["tokens"], count_rows(old)["jobs"]) == (5, 4)


@pytest.fixture
def upgraded(old, hook_server) -> str:
    """Start the pages on the old database, as an upgrade does. Return its URL."""
    with jobs.app.redirected(jobs.app.settings.model_copy(update={"database_url": old})):
        with TestClient(web):
            pass
        yield old


def read_tokens(campaign: str) -> dict[str, dict]:
    """Return the copies of a campaign by the name of the recipient, as the pages show them."""
    with jobs.db() as session:
        key = session.get_one(data.Campaign, campaign).account.key
    with TestClient(web, cookies={"key": key}) as client:
        found = client.get(f"/campaigns/{campaign}/tokens").json()["tokens"]
    return {token["recipient"]: token for token in found}


@pytest.mark.seed("000-81")
def test_every_old_job_has_its_retry_fields_after_the_upgrade(upgraded):
    """Old jobs that ran, waited, had ended or had failed: t1 to t4."""
    for campaign in ("running", "ready"):
        tokens = read_tokens(campaign)
        assert sorted(tokens) == ["ada", "bo"]
        for token in tokens.values():
            fields = [token[name] for name in ("retry_count", "max_retries", "next_retry_at")]
            assert fields == [0, 3, None]  # 000-81


@pytest.mark.seed("000-81")
def test_an_old_job_is_retried_like_a_new_one_after_the_upgrade(upgraded):
    with testing.force(jobs.app, jobs.watermark, RuntimeError("x"), testing.Returns(), times=3):
        testing.drain(jobs.app, anywhere=True)
    tokens = read_tokens("running") | read_tokens("ready")
    waiting = [token for token in tokens.values() if token["retry_count"] == 1]
    assert waiting  # 000-81
    assert all(token["next_retry_at"] for token in waiting)  # 000-81


@pytest.mark.seed("000-09")
def test_upgrade_resumes_unfinished_copies_and_keeps_finished_ones(upgraded):
    def tokens() -> list[str]:
        return sorted(job.payload["token"] for job in jobs.app.jobs.list("kind:watermark"))

    assert tokens() == ["t1", "t2", "t3", "t4"]
    with TestClient(web):  # another start
        assert tokens() == ["t1", "t2", "t3", "t4"]
    with testing.force(jobs.app, jobs.watermark, testing.Returns(), times=4):
        testing.drain(jobs.app, anywhere=True)
    with jobs.db() as session:
        states = dict(session.execute(text("SELECT id, state FROM campaigns")).all())
    over = {"over": "EXPIRED", "late": "EXPIRED"}
    assert states == {"draft": "DRAFT", "running": "READY", "ready": "READY"} | over


@pytest.mark.seed("000-84")
def test_campaigns_are_found_by_index(store_url):
    with data.transaction(store_url) as session:
        session.add_all(
            data.Account(id=f"a{number}", name="x", email="x@x.org") for number in range(50)
        )
        session.add(data.Asset(id="asset", account_id="a0", name="x", path="x"))
        session.flush()
        session.add_all(
            data.Campaign(
                account_id=f"a{number % 50}", asset_id="asset", name="x", batch_id=str(number)
            )
            for number in range(5_000)
        )
    with data.transaction(store_url) as session:
        session.execute(text("ANALYZE campaigns"))
        explain = "EXPLAIN QUERY PLAN" if store_url.startswith("sqlite") else "EXPLAIN"
        for column in ("account_id", "batch_id"):
            statement = f"{explain} SELECT * FROM campaigns WHERE {column} = 'a7'"  # noqa: S608
            plan = " ".join(str(row) for row in session.execute(text(statement)))
            assert f"ix_campaigns_{column}" in plan  # 000-84
    data.engine(store_url).dispose()
    data.engine.cache_clear()


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


def steps_applied(engine) -> set[int]:
    with engine.connect() as connection:
        return set(connection.execute(text("SELECT number FROM schema_steps")).scalars())


@pytest.mark.seed("000-82")
def test_failed_step_leaves_the_database_unchanged(old, tmp_path):
    steps = tmp_path / "steps"
    steps.mkdir()
    good = (upgrade.STEPS / "006_job_retry.sql").read_text(encoding="utf-8")
    (steps / "006_job_retry.sql").write_text(f"{good};DROP TABLE nowhere;", encoding="utf-8")
    engine = data.build_engine(old)
    with pytest.raises(OperationalError, match="nowhere"):
        upgrade.upgrade(engine, steps)
    assert "batch_id" not in [column["name"] for column in inspect(engine).get_columns("campaigns")]
    assert not list(steps_applied(engine) & {6, 7})
    upgrade.upgrade(engine)
    assert steps_applied(engine) >= {6, 7}
    engine.dispose()
