"""Doctor's checks of PostgreSQL's housekeeping, and the updates that need no new index entry."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from mulligan import Mulligan
from mulligan.doctor import run_checks
from mulligan.doctor.housekeeping import table_bloat, vacuum_blockers
from mulligan.doctor.queries import VacuumLimits
from mulligan.worker.queries import WorkerQueries
from support.store import claim_new_job, open_worker
from support.waiting import until

AT_ONCE = VacuumLimits(seconds=0, wal=0, xids=0)


@pytest.fixture
def app(postgres_url):
    app = Mulligan(postgres_url)
    yield app.open()
    app.close()


@pytest.fixture
def server(postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


def blockers(app, limits=AT_ONCE):
    with app.store.read() as tx:
        return list(vacuum_blockers(tx, app.settings, limits))


def bloat(app, **limits):
    with app.store.read() as tx:
        return list(table_bloat(tx, app.settings, **limits))


def test_a_transaction_that_runs_for_long_is_reported_with_what_ends_it(app, postgres_url):
    with psycopg.connect(postgres_url) as connection, ThreadPoolExecutor(1) as executor:
        pid = connection.info.backend_pid
        running = executor.submit(connection.execute, "SELECT pg_sleep(60)")
        [found] = until(lambda: [one for one in blockers(app) if f" {pid} " in one.found], 10)
        assert (found.status, found.check) == ("warn", "vacuum")
        assert found.next.endswith(f"SELECT pg_terminate_backend({pid})")
        assert blockers(app, VacuumLimits()) == []
        connection.cancel_safe()
        assert isinstance(running.exception(10), psycopg.errors.QueryCanceled)
        connection.rollback()


def test_a_forgotten_replication_slot_is_reported(app, server):
    name = f"forgotten_{secrets.token_hex(4)}"
    server.execute("SELECT pg_create_physical_replication_slot(%s, true)", (name,))
    try:
        server.execute("SELECT pg_logical_emit_message(false, 'test', repeat('x', 1000))")
        [found] = [one for one in blockers(app) if name in one.found]
        assert f"replication slot {name} is inactive and keeps" in found.found
        assert f"pg_drop_replication_slot('{name}')" in found.next
    finally:
        server.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    assert [one for one in blockers(app) if name in one.found] == []


def test_dead_rows_are_reported_until_they_are_vacuumed(app, server):
    server.execute("ALTER TABLE mulligan.meta SET (autovacuum_vacuum_threshold = 100000000)")
    server.execute(
        "INSERT INTO mulligan.meta SELECT 'k' || n, '' FROM generate_series(1, 500) AS n"
    )
    server.execute("DELETE FROM mulligan.meta WHERE key LIKE 'k%'")
    server.execute("SELECT pg_stat_force_next_flush()")
    [found] = [one for one in bloat(app, min_dead=100) if "meta" in one.found]
    assert "table meta has 500 dead rows and" in found.found
    assert "last vacuum: never" in found.found
    server.execute("VACUUM mulligan.meta")
    server.execute("SELECT pg_stat_force_next_flush()")
    assert [one for one in bloat(app, min_dead=100) if "meta" in one.found] == []


def test_a_table_much_larger_than_its_rows_is_reported(app, server):
    server.execute(
        "INSERT INTO mulligan.meta SELECT 'k' || n, repeat('x', 200) FROM generate_series(1, 5000) AS n"
    )
    server.execute("DELETE FROM mulligan.meta WHERE key LIKE 'k%' AND key <> 'k5000'")
    server.execute("VACUUM (TRUNCATE off) mulligan.meta")
    server.execute("ANALYZE mulligan.meta")
    server.execute("SELECT pg_stat_force_next_flush()")
    [found] = [one for one in bloat(app, min_bytes=500_000) if "meta" in one.found]
    assert "rows need about" in found.found
    assert "VACUUM FULL" in found.next


def test_a_table_without_autovacuum_is_reported(app, server):
    server.execute("ALTER TABLE mulligan.event SET (autovacuum_enabled = false)")
    [found] = bloat(app)
    assert "autovacuum is disabled for table event" in found.found


def test_a_healthy_server_has_one_line_and_no_warning(app):
    _, checks = run_checks(app.settings)
    assert [one.status for one in checks if one.check == "bloat"] == ["ok"]
    assert [one for one in checks if one.check == "vacuum"] == []


def test_sqlite_has_nothing_to_vacuum(tmp_path):
    app = Mulligan(f"sqlite:///{tmp_path / 'm.db'}").open()
    assert (blockers(app), bloat(app)) == ([], [])
    app.close()


def test_renewals_and_progress_need_no_new_index_entry(app, server):
    """Index entries of these frequent updates would be most of the garbage of an idle fleet."""
    worker = open_worker(app.store)
    lease = claim_new_job(app.store)
    for number in range(20):
        with app.store.begin() as tx:
            WorkerQueries(tx).renew_worker(worker, draining=False)
        server.execute(
            "UPDATE mulligan.job SET progress = %s WHERE id = %s", (number / 20, lease.id)
        )
    app.close()  # the statistics of a connection are complete when it ends
    server.execute("SELECT pg_stat_force_next_flush()")
    rows = until(
        lambda: server.execute(
            "SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables "
            "WHERE relname IN ('worker', 'job') AND n_tup_upd >= 20"
        ).fetchall(),
        10,
    )
    assert {name for name, _, _ in rows} == {"worker", "job"}
    for name, updates, hot in rows:
        assert hot >= updates - 2, name
