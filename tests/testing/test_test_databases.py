"""`mulligan.testing`: temporary databases, and real workers on them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from mulligan import Mulligan, State
from mulligan.core.errors import ConfigError, MulliganError, Refused
from mulligan.testing import (
    advance,
    assert_enqueued,
    drain,
    drain_async,
    environ,
    force,
    now,
    refute_enqueued,
    temporary,
    worker,
)
from support.app_tools import event_types, load_attempts
from support.waiting import until

pytestmark = pytest.mark.processes

HOUR = timedelta(hours=1)


@pytest.fixture
def url(store_url):
    """Return the URL argument of `temporary`: None on SQLite, the server on PostgreSQL."""
    return None if store_url.startswith("sqlite") else store_url


def test_temporary_puts_the_app_on_another_database_during_the_block(app, render, url):
    @app.job
    def parent() -> None:
        render.enqueue(clip=99)

    mine = render.enqueue(clip=1)
    jobs = app.jobs
    with temporary(app, url) as same:
        assert same is app
        assert jobs.list() == []
        parent.enqueue()
        force(app, render, "lost")
        drain(app)
        assert_enqueued(app, render, payload={"clip": 99}, state="any")
        with temporary(app, url):
            refute_enqueued(app, state="any")
        assert len(app.jobs.list()) == 2
        app.close()
        assert len(app.jobs.list()) == 2, "it reopens the same database"
        advance(app, 3600)
    assert [job.id for job in jobs.list()] == [mine.id]
    assert app.registry.overrides == []
    assert abs(now(app) - datetime.now(UTC)) < timedelta(minutes=1)


def test_drain_and_advance_refuse_a_database_not_made_for_tests_without_anywhere(app, render, url):
    job, before = render.enqueue(clip=1), now(app)
    with pytest.raises(
        Refused, match=r"drain\(\) runs .*temporary\(app\).*drain\(…, anywhere=True\)"
    ):
        drain(app)
    with pytest.raises(
        Refused, match=r"advance\(\) moves .*temporary\(app\).*advance\(…, anywhere=True\)"
    ):
        advance(app, HOUR)
    with pytest.raises(Refused, match=r"drain\(\) runs"):
        asyncio.run(drain_async(app))
    assert (job.refresh().state, app.calls) == (State.QUEUED, [])
    assert now(app) - before < timedelta(minutes=1)
    advance(app, HOUR, anywhere=True)
    assert drain(app, scheduled=True, anywhere=True).attempts == 1
    assert asyncio.run(drain_async(app, anywhere=True)).attempts == 0


def test_the_refusal_shows_no_password(app, store_url):
    with pytest.raises(Refused) as refused:
        drain(app)
    secret = urlsplit(store_url).password
    assert secret is None or secret not in str(refused.value)


def test_two_temporary_blocks_share_no_database_and_leave_no_files(app, render, url, tmp_path):
    databases = set()
    for _ in range(2):
        with temporary(app, url, folder=tmp_path):
            render.enqueue(clip=1)
            assert len(drain(app).jobs) == 1
            databases.add((app.settings.database_url, app.settings.schema_name))
            state = Path(app.settings.worker.state_dir)
    assert len(databases) == 2
    assert list(state.rglob("*.life")) == []
    if url:
        with app.transaction() as connection:
            found = connection.execute(
                "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'mulligan_test_%'"
            ).fetchall()
        assert found == []


def test_temporary_refuses_a_sqlite_url(app):
    with (
        pytest.raises(
            ConfigError, match=r"is not a postgresql:// URL. Leave it out to get a SQLite file"
        ),
        temporary(app, "sqlite:///x.db"),
    ):
        pass


def test_an_error_in_the_block_restores_the_settings_of_the_app(app, url):
    settings = app.settings
    with pytest.raises(ZeroDivisionError), temporary(app, url):
        1 / 0  # noqa: B018 - it must fail
    assert app.settings is settings


@pytest.mark.any_store
def test_a_real_worker_is_declared_lost_when_killed_or_when_its_lease_expires(app, url, tmp_path):
    fast = {
        "MULLIGAN_WORKER__LEASE": "4",
        "MULLIGAN_WORKER__HEARTBEAT": "1",
        "WITNESS": str(tmp_path / "witness"),
    }
    with temporary(app, url), worker(app, "support.strange:app", env=fast) as real:
        job = app.enqueue("naps", {"seconds": 600})
        begun = tmp_path / f"runs-{job.id}"  # written by the handler
        until(begun.exists)
        advance(app, HOUR)
        drain(app)
        assert (job.refresh().state, job.refresh().token) == (State.RUNNING, 1)
        advance(app, HOUR, leases=True)
        assert event_types(app, job)[:3] == ["queued", "started", "lost"]
        begun.unlink()
        until(lambda: begun.exists() and job.refresh().token == 2, 20, "a new name of the worker")
        real.kill()
        app.job(name="naps")(lambda seconds: "rested")
        until(
            lambda: drain(app) and job.refresh().state is State.SUCCEEDED,
            20,
            "the job is recovered, by the liveness file or the lease",
        )
        assert [row.ended for row in load_attempts(app, job)] == ["lost", "lost", "returned"]
        assert "was declared lost" in real.output


def test_a_worker_that_cannot_start_reports_the_reason(sqlite_url):
    app = Mulligan(sqlite_url)
    with (
        pytest.raises(MulliganError, match="No module named 'nowhere'"),
        worker(app, "nowhere:app"),
    ):
        pass
    with pytest.raises(ConfigError, match="module:attribute"), worker(app, "nowhere"):
        pass
    app.close()


def test_environ_puts_another_process_on_the_same_database(app, url):
    with temporary(app, url):
        assert environ(app) == {
            "MULLIGAN_DATABASE_URL": app.settings.database_url,
            "MULLIGAN_SCHEMA_NAME": app.settings.schema_name,
            "MULLIGAN_WORKER__STATE_DIR": app.settings.worker.state_dir,
        }
