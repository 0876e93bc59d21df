"""The single checks of `mulligan doctor`."""

from __future__ import annotations

import os
import re
from pathlib import Path

import psycopg
import pytest

from mulligan import Mulligan, Unique
from mulligan.config import read_settings
from mulligan.core.durations import SECOND
from mulligan.doctor import environment, run_checks, runtime
from mulligan.doctor.settings import settings_checks
from mulligan.events.queries import EventQueries
from mulligan.guards.queries import GuardQueries
from mulligan.guards.ramp import ThrottleState
from mulligan.guards.state import GuardState
from support.store import open_worker

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /srv rw,relatime shared:2 - nfs4 server:/export rw
31 30 8:2 / /srv/local rw,relatime - xfs /dev/sdb1 rw
32 22 0:41 / /my\\040share rw - fuse.sshfs me@host:/ rw
"""


def statuses(checks):
    return {check.check: check.status for check in checks}


def settings(**environ):
    return read_settings(
        environ={f"MULLIGAN_{name}": value for name, value in environ.items()},
        file=Path(os.devnull),
    )


# -- Contradicting settings -------------------------------------------------------------------------
def test_the_default_settings_pass():
    assert statuses(settings_checks(settings())) == {"lease": "ok", "settings": "ok"}


@pytest.mark.parametrize(
    ("environ", "problem", "advice"),
    [
        ({"WORKER__LEASE": "6"}, "loses every running job", "HEARTBEAT=2"),
        ({"WORKER__SWEEP": "60"}, "sweep 1 min is longer than lease", "SWEEP=5"),
        ({"WORKER__SHUTDOWN_GRACE": "120"}, "systemd kills after 90 s", "TimeoutStopSec=130"),
        ({"WORKER__SHUTDOWN_GRACE": "2"}, "kill_grace 5 s is longer", "SHUTDOWN_GRACE=10"),
        ({"WORKER__RUNNERS": "20"}, "some stay idle", "RUNNERS=10"),
    ],
)
def test_contradicting_settings_are_reported_with_a_fix(environ, problem, advice):
    (found,) = [check for check in settings_checks(settings(**environ)) if check.status == "warn"]
    assert problem in found.found
    assert advice in found.next


def test_a_unique_key_that_outlives_the_retention_of_its_job_is_reported(sqlite_url):
    app = Mulligan(sqlite_url)

    @app.job(unique=Unique(for_=3 * 86_400))
    def once() -> None: ...

    app.run_inline()
    short = settings(RETENTION__SUCCEEDED="86400")
    with app.store.read() as tx:
        (found,) = runtime._unique_keys(tx, short)
        assert list(runtime._unique_keys(tx, settings())) == []
    app.close()
    assert "once" in found.found
    assert found.next == "MULLIGAN_RETENTION__SUCCEEDED=259200"


# -- This host -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("file", "kind", "status"),
    [
        ("/var/lib/x.db", "ext4", "ok"),
        ("/srv/x.db", "nfs4", "fail"),
        ("/srv/local/x.db", "xfs", "ok"),
        ("/srvx/x.db", "ext4", "ok"),
        ("/my share/x.db", "fuse.sshfs", "warn"),
    ],
)
def test_a_network_file_system_is_recognised_by_its_mount(file, kind, status):
    assert environment.mount_type(Path(file), MOUNTS) == kind
    assert environment.file_system(Path(file), MOUNTS).status == status
    assert environment.file_system(Path(file), "").status == "ok"


def test_permissions_of_the_wal_file_are_checked(tmp_path):
    file, wal = tmp_path / "x.db", tmp_path / "x.db-wal"
    file.touch(mode=0o600)
    assert environment.file_permissions(file).status == "ok"
    wal.touch(mode=0o644)
    found = environment.file_permissions(file)
    assert (found.status, found.next) == ("warn", f"chmod 600 {wal}")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_file_that_this_user_cannot_write_fails(tmp_path):
    file = tmp_path / "x.db"
    file.touch(mode=0o400)
    assert environment.file_permissions(file).status == "fail"


@pytest.mark.parametrize(
    ("free", "status"), [(50_000_000, "fail"), (500_000_000, "warn"), (5_000_000_000, "ok")]
)
def test_little_disk_space_warns_and_very_little_fails(monkeypatch, tmp_path, free, status):
    monkeypatch.setattr(
        environment.shutil, "disk_usage", lambda _: type("Usage", (), {"free": free})
    )
    assert environment.disk_space(tmp_path).status == status


# -- The database --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"library": "apsw, SQLite 3.54.1"}, "ok"),
        ({"library": "sqlite3, SQLite 3.40.1"}, "warn"),
        ({"server": "16.4 (Debian 16.4-1)"}, "ok"),
        ({"server": "13.14"}, "fail"),
    ],
)
def test_an_old_database_version_is_reported(facts, status):
    assert statuses(environment.database_version(facts)) == {"database version": status}


@pytest.mark.parametrize(
    "facts",
    [
        {"synchronous": "1 (weaker than FULL)"},
        {"synchronous_commit": "off (weaker than on)"},
        {"fsync": "off"},
        {"journal_mode": "delete"},
    ],
)
def test_weakened_durability_is_reported(facts):
    (found,) = [check for check in environment.durability_checks(facts) if check.status != "ok"]
    assert found.status == "warn"
    assert found.next


def test_wake_ups_are_tested_on_postgresql(postgres_url):
    read = settings(DATABASE_URL=postgres_url)
    _, checks = run_checks(read)
    assert statuses(checks)["wake-ups"] == "ok"
    lost = settings(DATABASE_URL=postgres_url, LISTEN_URL="postgresql://127.0.0.1:1/nowhere")
    assert statuses(run_checks(lost)[1])["wake-ups"] == "fail"


def test_an_old_idle_transaction_is_named_with_its_process(postgres_url):
    app = Mulligan(postgres_url)
    app.open()
    with psycopg.connect(postgres_url, application_name="forgetful") as connection:
        connection.execute("SELECT 1")
        with app.store.read() as tx:
            checks = list(runtime.idle_transactions(tx, app.settings, older_than=0))
            assert list(runtime.idle_transactions(tx, app.settings)) == []
    [found] = [check for check in checks if "forgetful" in check.found]
    assert (found.status, found.check) == ("warn", "transactions")
    assert "pg_terminate_backend(" in found.next
    app.close()


def test_a_dependency_that_nothing_may_probe_is_reported(tmp_path):
    app = Mulligan(f"sqlite:///{tmp_path / 'm.db'}")
    app.dependency("bank")
    app.dependency("ledger", probe=lambda: True)
    app.job(name="pay", uses=["bank", "ledger"], once=True)(lambda: None)
    app.run_inline()
    with app.store.read() as tx:
        [found] = runtime.unprobed_dependencies(tx, app.settings)
    assert "dependency bank is used only by kinds with once=True" in found.found
    app.job(name="ask", uses="bank")(lambda: None)
    app.run_inline()
    with app.store.read() as tx:
        assert list(runtime.unprobed_dependencies(tx, app.settings)) == []
    app.close()


def test_sqlite_has_no_idle_transactions(tmp_path):
    app = Mulligan(f"sqlite:///{tmp_path / 'm.db'}")
    app.open()
    with app.store.read() as tx:
        assert list(runtime.idle_transactions(tx, app.settings, older_than=0)) == []
    app.close()


@pytest.mark.seed("001-81")
def test_a_wrong_clock_is_reported_and_event_lag_is_measured(postgres_url):
    app = Mulligan(postgres_url)
    job = app.enqueue("x")
    with app.transaction() as connection:
        EventQueries(app.store.join(connection)).write_events([])
        connection.execute("SELECT mulligan.mark_events(), pg_sleep(0.05)")
        with app.store.read() as tx:
            assert EventQueries(tx).event_lag() > 0.04 * SECOND
    app.store.shift_clock(600 * SECOND)
    _, checks = run_checks(settings(DATABASE_URL=postgres_url))
    app.close()
    assert job
    assert statuses(checks)["clock"] == "warn"  # 001-81
    assert statuses(checks)["events"] == "ok"


def test_due_jobs_in_a_queue_without_workers_are_reported(store_url):
    app = Mulligan(store_url)
    app.enqueue("render", queue="slow")
    app.enqueue("render", queue="mail")
    open_worker(app.store, kinds='["render"]', queues='["mail"]')
    with app.store.read() as tx:
        (found,) = runtime._unserved_queues(tx, settings())
    app.close()
    assert "render in queue slow" in found.found


# -- Dependencies --------------------------------------------------------------------------------
@pytest.fixture
def guarded(store_url):
    app = Mulligan(store_url)
    app.dependency("gateway", min_calls=3)

    @app.job(name="call", uses="gateway")
    def call(number: int) -> None:
        raise ConnectionRefusedError

    call.enqueue_many([{"number": number} for number in range(9)])
    yield app
    app.close()


def run_guard_checks(app):
    with app.store.read() as tx:
        return list(runtime.guard_checks(tx, app.settings))


def test_an_open_breaker_is_reported_with_its_duration_held_jobs_and_command(guarded):
    assert [check.status for check in run_guard_checks(guarded)] == ["ok"]
    guarded.run_inline()
    (check,) = run_guard_checks(guarded)
    assert check.status == "warn"
    assert re.fullmatch(
        r"gateway is open since .+: 3 of 3 calls failed in the last 2 min; \d jobs are held, next probe in .+",
        check.found,
    )
    assert check.next == "mulligan deps probe gateway"
    guarded.dependencies.open("gateway", reason="vendor window")
    (check,) = run_guard_checks(guarded)
    assert re.search(r"vendor window; \d jobs are held, until a person closes it", check.found)
    assert check.next == "mulligan deps close gateway"
    guarded.dependencies.close("gateway")
    assert "gateway recovers" in run_guard_checks(guarded)[0].found


def test_a_throttled_dependency_is_reported(guarded):
    with guarded.store.begin() as tx:
        row = GuardQueries(tx).lock_guard(("dependency", "gateway"))
        body = GuardState(
            throttle=ThrottleState(
                limit=3, base=10, changed_at=tx.now(), until=tx.now() + 900 * SECOND
            )
        ).to_json()
        GuardQueries(tx).update_guard(row._replace(active=True, body=body))
    (check,) = run_guard_checks(guarded)
    assert check.found == "gateway requested fewer calls: 3 at a time for now"


def test_too_many_lanes_and_names_are_reported(guarded, monkeypatch):
    monkeypatch.setattr(runtime, "MAX_LANES", 0)
    findings = [check.found for check in run_guard_checks(guarded) if check.check == "lanes"]
    assert [finding.split()[1] for finding in findings] == ["lanes", "dependencies"]
