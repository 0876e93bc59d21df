"""`mulligan backup` copies a live SQLite database."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import apsw
import psycopg
import pytest

from mulligan import Mulligan, State
from support.postgres import find_binaries
from support.waiting import until

FEEDER = """
import sys
from mulligan import Mulligan

app = Mulligan(sys.argv[1])
while True:
    print(app.enqueue("add", {"a": 1, "b": 2}).id, flush=True)
"""


def integrity_check(file: Path) -> str:
    with closing(apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall()[0][0]


def ids_in(file: Path) -> set[str]:
    with closing(apsw.Connection(str(file))) as connection:
        return {row[0] for row in connection.execute("SELECT id FROM mulligan_job")}


@pytest.fixture
def acknowledged(folder, sqlite_url):
    """Run two programs that enqueue as fast as they can. Yield a function that returns their job ids."""
    (folder / "feeder.py").write_text(FEEDER)
    Mulligan(sqlite_url).open().close()
    logs = [folder / f"feeder-{number}.log" for number in range(2)]
    running = []
    for log in logs:
        with log.open("wb") as out:
            running.append(subprocess.Popen([sys.executable, "feeder.py", sqlite_url], stdout=out))
    yield lambda: {line for log in logs for line in log.read_text().split("\n")[:-1]}
    for process in running:
        process.kill()
        process.wait()


def test_backup_under_load_has_every_job_acknowledged_before_it_started(
    call, start, folder, acknowledged, sqlite_url
):
    start("worker", "jobs:app", "--database", sqlite_url).wait_for_output("concurrency")
    until(lambda: len(acknowledged()) > 100, 20)
    for number in range(3):
        before, target = acknowledged(), folder / f"copy-{number}.db"
        assert call("backup", target, "--database", sqlite_url).code == 0
        assert integrity_check(target) == "ok"
        assert before <= ids_in(target)
        assert target.stat().st_mode & 0o777 == 0o600
        assert list(folder.glob(".copy*")) == []
        until(lambda: len(acknowledged()) > len(before), what="the programs to continue")  # noqa: B023 - called here


def test_cp_loses_acknowledged_jobs(folder, sqlite_url, tmp_path):
    with closing(Mulligan(sqlite_url)) as app:
        app.open()
        shutil.copy(tmp_path / "mulligan.db", folder / "before.db")
        app.enqueue("add", {"a": 1, "b": 2})
        shutil.copy(tmp_path / "mulligan.db", folder / "cp.db")
    assert (folder / "cp.db").read_bytes() == (folder / "before.db").read_bytes()


def test_backup_overwrites_nothing_and_leaves_no_temporary_files(call, folder, sqlite_url):
    Mulligan(sqlite_url).open().close()
    (folder / "precious.db").write_text("keep me")
    refused = call("backup", "precious.db", "--database", sqlite_url)
    assert (refused.code, (folder / "precious.db").read_text()) == (2, "keep me")
    assert "already exists" in refused.err
    assert call("backup", "nowhere/copy.db", "--database", sqlite_url).code == 2
    assert call("backup", "copy.db", "--database", "sqlite:///none.db").code == 1
    assert [path.name for path in folder.glob("*.db*")] == ["precious.db"]


def test_backup_works_on_a_file_system_without_hard_links(call, folder, sqlite_url, monkeypatch):
    Mulligan(sqlite_url).open().close()

    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    assert call("backup", "copy.db", "--database", sqlite_url).code == 0
    assert integrity_check(folder / "copy.db") == "ok"
    assert call("backup", "copy.db", "--database", sqlite_url).code != 0


def test_backup_of_a_damaged_file_is_refused(call, folder, sqlite_url, tmp_path):
    with closing(Mulligan(sqlite_url)) as app:
        app.enqueue("add", {"a": 1, "b": "x" * 200_000})
    file = tmp_path / "mulligan.db"
    with file.open("r+b") as damaged:
        damaged.seek(file.stat().st_size - 3 * 4096)
        damaged.write(os.urandom(2 * 4096))
    assert call("backup", "copy.db", "--database", sqlite_url).code == 1
    assert list(folder.glob("*copy*")) == []


def test_backup_of_postgresql_suggests_pg_dump(call, postgres_url):
    answer = call("backup", "copy.db", "--database", postgres_url)
    assert (answer.code, "pg_dump --format=custom --schema=mulligan" in answer.err) == (2, True)


# --- Restored ---
def dump_and_restore(url: str, tmp_path: Path) -> None:
    """Dump the schema and restore it over the current one, as docs/operate/backup.md describes."""
    binaries, dump = find_binaries(), str(tmp_path / "jobs.dump")
    subprocess.run(
        [binaries / "pg_dump", "--format=custom", "--schema=mulligan", "--file", dump, url],
        check=True,
    )
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA mulligan CASCADE")
    subprocess.run([binaries / "pg_restore", "--dbname", url, dump], check=True)


def backup_and_restore(call, url: str, tmp_path: Path) -> None:
    assert call("backup", tmp_path / "copy.db", "--database", url).code == 0
    for left in tmp_path.glob("mulligan.db*"):
        if left.is_file():
            left.unlink()
    shutil.move(tmp_path / "copy.db", tmp_path / "mulligan.db")


@pytest.mark.any_store
def test_after_a_restore_running_jobs_run_again_with_a_new_token(
    app, call, start, store_url, tmp_path
):
    (Path.cwd() / "slow.py").write_text(SLOW)
    quick = {
        "MULLIGAN_WORKER__LEASE": "1",
        "MULLIGAN_WORKER__HEARTBEAT": "0.3",
        "MULLIGAN_WORKER__SWEEP": "0.3",
    }
    job = app.enqueue("nap", {"seconds": 30})
    first = start("worker", "slow:app", **quick)
    until(lambda: app.jobs.get(job.id).state == State.RUNNING, 20)
    refused = call("restored")
    assert (refused.code, "may be running" in refused.err) == (2, True)
    first.process.kill()
    first.wait_for_exit()
    app.close()
    if store_url.startswith("sqlite"):
        backup_and_restore(call, store_url, tmp_path)
    else:
        dump_and_restore(store_url, tmp_path)
    until(lambda: call("restored").code == 0, 10)
    assert app.jobs.get(job.id).token == 1_000_001
    app.close()
    start("worker", "slow:app", NAP="0", **quick)
    assert app.jobs.wait(job.id, timeout=20).result == 1_000_002
    assert app.jobs.get(job.id).losses == 0


SLOW = """
import os, time
from mulligan import Context, Mulligan

app = Mulligan()

@app.job
def nap(ctx: Context, seconds: float) -> int:
    time.sleep(float(os.environ.get("NAP", seconds)))
    return ctx.token
"""
