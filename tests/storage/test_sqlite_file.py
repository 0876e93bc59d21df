"""One SQLite file and many processes: no acknowledged row is lost, and no lock error."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from mulligan.core.errors import ConnectionRefused, StoreUnavailable, TwoLibraries
from mulligan.guards.queries import GuardQueries
from mulligan.jobs.queries import JobQueries, SearchQueries
from mulligan.storage import open_store
from support.processes import (
    daemon,
    ended_well,
    enqueue_for,
    enqueue_for_through_sqlite3,
    enqueue_once_through_sqlite3,
    fork_often,
    fork_while_writing,
    started,
    stored,
    write_stored,
)
from support.store import (
    BackgroundCall,
    a_job,
    all_rows,
    enqueue,
    insert,
    is_postgres,
    jobs,
    migrated,
)

pytestmark = pytest.mark.processes

MEGABYTE = 1024 * 1024


def integrity(path):
    with closing(apsw.Connection(str(path))) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "mulligan.db"


# --- One library per process ---
def test_a_connection_of_the_other_library_is_refused_with_both_ways_out(sqlite, file):
    with pytest.raises(TwoLibraries, match=r"app\.transaction") as refused:
        sqlite3.connect(file)
    assert "sqlite+stdlib:///" in str(refused.value)
    assert all_rows(sqlite) == []


def test_a_file_opened_by_the_other_library_is_not_opened(sqlite_url, file):
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE theirs (n)")
        with pytest.raises(TwoLibraries, match="sqlite\\+stdlib:///"):
            open_store(sqlite_url)
    with migrated(sqlite_url) as store:
        enqueue(store)


def test_one_process_does_not_open_a_file_through_both_libraries(sqlite, sqlite_url):
    with pytest.raises(TwoLibraries, match="through apsw, not sqlite3"):
        open_store(sqlite_url.replace("sqlite:", "sqlite+stdlib:"))
    open_store(sqlite_url).close()
    enqueue(sqlite)


def test_the_standard_library_serves_clients_with_their_own_connections(sqlite_url, file):
    with migrated(sqlite_url.replace("sqlite:", "sqlite+stdlib:")) as store:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            JobQueries(store.join(connection)).insert_jobs(jobs(3), announce=False)
            connection.execute("ROLLBACK")
            connection.execute("BEGIN IMMEDIATE")
            (answer,) = JobQueries(store.join(connection)).insert_jobs([a_job()], announce=False)
            connection.execute("COMMIT")
        assert [row.id for row in all_rows(store)] == [answer.id]


def test_a_connection_to_another_file_is_refused(sqlite, tmp_path):
    for elsewhere in (str(tmp_path / "other.db"), ":memory:"):
        with (
            closing(apsw.Connection(elsewhere)) as connection,
            pytest.raises(ConnectionRefused, match="not on"),
        ):
            sqlite.join(connection)


# --- Locks ---
def test_opening_a_file_a_second_time_does_not_drop_the_locks_of_the_first(
    sqlite, sqlite_url, file, tmp_path
):
    """Closing any descriptor of a file drops all locks of the process. Another process that exits last
    then deletes the log, and later commits are lost.
    """
    log = tmp_path / "log"
    enqueue(sqlite)
    open_store(sqlite_url).close()
    ended_well(started(enqueue_once_through_sqlite3, sqlite_url, str(log)))
    ours = enqueue(sqlite, 3)
    assert set(ours) | set(log.read_text().split()) <= stored_elsewhere(file, tmp_path)


def stored_elsewhere(file, tmp_path):
    """Read as a process without our connections."""
    found = tmp_path / "found"
    ended_well(started(write_stored, str(file), str(found)))
    return set(found.read_text().split())


def test_a_forked_child_works_after_its_parent_has_exited(sqlite_url, file, tmp_path):
    """A daemon forks and its parent exits: the child needs its own locks."""
    ended_well(started(daemon, sqlite_url, str(tmp_path)))
    acknowledged = set((tmp_path / "log").read_text().split())
    assert len(acknowledged) == 3
    assert acknowledged <= stored(file)
    assert integrity(file) == [("ok",)]


def test_forking_with_the_file_open_does_no_harm(sqlite_url, file, tmp_path):
    ended_well(started(fork_often, sqlite_url, str(tmp_path / "log")))
    acknowledged = (tmp_path / "log").read_text().split()
    assert len(acknowledged) == 20 * 4
    assert set(acknowledged) == stored(file)
    assert integrity(file) == [("ok",)]


def test_a_fork_during_another_threads_transaction_raises_or_works(sqlite_url, file, tmp_path):
    """A child must neither wait for the inherited transaction nor break it."""
    ended_well(started(fork_while_writing, sqlite_url, str(tmp_path / "log")))
    assert set((tmp_path / "log").read_text().split()) == stored(file)
    assert integrity(file) == [("ok",)]


# --- Many processes ---
@pytest.mark.slow
def test_eight_processes_write_without_a_lock_error(sqlite, sqlite_url, file, tmp_path):
    logs = [tmp_path / f"log{n}" for n in range(8)]
    ended_well(*[started(enqueue_for, sqlite_url, 3.0, str(log)) for log in logs])
    acknowledged = [line for log in logs for line in log.read_text().split()]
    assert all(log.read_text() for log in logs)
    assert set(acknowledged) == {row.id for row in all_rows(sqlite)}
    assert integrity(file) == [("ok",)]


def test_two_processes_with_different_libraries_lose_nothing(sqlite, sqlite_url, file, tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ended_well(
        started(enqueue_for, sqlite_url, 2.0, str(ours)),
        started(enqueue_for_through_sqlite3, sqlite_url, 2.0, str(theirs)),
    )
    acknowledged = set(ours.read_text().split()) | set(theirs.read_text().split())
    assert ours.read_text()
    assert theirs.read_text()
    assert acknowledged == {row.id for row in all_rows(sqlite)}
    assert integrity(file) == [("ok",)]


# --- The file ---
@pytest.mark.security("S52")
def test_the_file_and_its_companions_are_private(sqlite, file):
    enqueue(sqlite)
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in file.parent.glob("mulligan.db*")
    }
    assert modes == {"mulligan.db": 0o600, "mulligan.db-wal": 0o600, "mulligan.db-shm": 0o600}


def test_a_missing_folder_is_named_in_the_error(tmp_path):
    with pytest.raises(StoreUnavailable, match="mkdir -p"):
        open_store(f"sqlite:///{tmp_path}/no/such/folder.db")


def test_a_file_that_is_no_database_is_refused_and_unchanged(tmp_path):
    file = tmp_path / "poem.db"
    file.write_text("Shall I compare thee to a summer's day?" * 100)
    with (
        pytest.raises(StoreUnavailable, match=r"poem\.db"),
        closing(open_store(f"sqlite:///{file}")) as store,
    ):
        store.migrate()
    assert file.read_text().startswith("Shall I")


def test_every_commit_is_flushed(sqlite):
    assert sqlite.facts()["synchronous"] == "FULL"
    assert not is_postgres(sqlite)


# --- Long reads ---
def grow(store):
    for _ in range(9):
        insert(store, *jobs(8, payload=f'"{"x" * MEGABYTE}"'))


def test_the_wal_is_truncated_after_a_long_read(sqlite, file):
    wal = Path(f"{file}-wal")
    with sqlite.read() as reader:
        assert SearchQueries(reader).list_jobs({}, 1, None) == []
        grow(sqlite)
        assert wal.stat().st_size > 64 * MEGABYTE
        sqlite.reclaim_space()
        assert wal.stat().st_size > 64 * MEGABYTE
    sqlite.reclaim_space()
    assert wal.stat().st_size <= 64 * MEGABYTE
    assert len(all_rows(sqlite)) == 72


@pytest.mark.timing
def test_a_checkpoint_behind_an_open_reader_delays_no_writer(sqlite):
    with sqlite.read() as reader:
        SearchQueries(reader).list_jobs({}, 1, None)
        grow(sqlite)
        tidy = BackgroundCall(sqlite.reclaim_space)
        slowest = 0.0
        while not tidy.done:
            began = time.monotonic()
            enqueue(sqlite)
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 2.0
        tidy.result()


def test_a_slow_writer_is_waited_for(sqlite):
    inside, leave = threading.Event(), threading.Event()

    def slow():
        with sqlite.begin() as tx:
            JobQueries(tx).insert_jobs([a_job()], announce=True)
            inside.set()
            assert leave.wait(30)

    first = BackgroundCall(slow)
    assert inside.wait(30)
    second = BackgroundCall(lambda: enqueue(sqlite))
    leave.set()
    first.result()
    second.result()
    assert len(all_rows(sqlite)) == 2


# --- Plans and hints ---
def test_plans_do_not_depend_on_bound_values(sqlite):
    planned = []

    def may(*what):
        planned.append(what)
        return apsw.SQLITE_OK

    with sqlite.read() as tx:
        connection = tx._handle.connection
        connection.authorizer = may  # is called whenever a statement is planned
        GuardQueries(tx).read_claim_state()
        assert planned, "the first time it has to be"
        planned.clear()
        GuardQueries(tx).read_claim_state()
        connection.authorizer = None
    assert planned == []


def test_writes_of_the_dedicated_store_cause_no_hint(sqlite):
    with closing(sqlite.open_listener()) as listener:
        dedicated = sqlite.dedicated()
        for _ in range(20):
            insert(dedicated, a_job())
            assert not listener.wait(0)
            insert(sqlite, a_job())
            assert listener.wait(10)
            assert not listener.wait(0)


def test_a_wait_for_hints_ends_when_it_is_woken(sqlite):
    reading, writing = os.pipe()
    with closing(sqlite.open_listener()) as listener:
        os.write(writing, b"x")
        began = time.monotonic()
        assert not listener.wait(30, reading)
        assert time.monotonic() - began < 10
    os.close(reading)
    os.close(writing)
