"""The migrator: applies each step once, without long locks, and admits builds that a step names."""

from __future__ import annotations

import hashlib
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import psycopg
import pytest

from mulligan import Mulligan
from mulligan.core.errors import SchemaError, StoreUnavailable
from mulligan.storage import migrations, open_store
from support.processes import (
    die_in_the_middle_of_a_migration,
    ended_well,
    migrate_once,
    started,
)
from support.store import (
    FAILED,
    attempts,
    claim_new_job,
    claim_when_due,
    enqueue,
    is_postgres,
    run_concurrently,
    settle_leases,
    sql,
)
from support.waiting import until

ADMITS_ALL = "-- compatible_from: 1\n"
ADD_COLOR = "ALTER TABLE {p}job ADD COLUMN color TEXT NOT NULL DEFAULT 'blue';\n"
SECOND_STEP = ADMITS_ALL + ADD_COLOR
BROKEN_STEP = ADMITS_ALL + "ALTER TABLE {p}no_such_table ADD COLUMN color TEXT;\n"
# On PostgreSQL: a constraint and an index that lock the table only for moments.
ONLINE_STEP = """-- compatible_from: 1
-- commit each statement
ALTER TABLE {p}job DROP CONSTRAINT IF EXISTS job_priority_range;
ALTER TABLE {p}job ADD CONSTRAINT job_priority_range CHECK (priority BETWEEN -9 AND 9) NOT VALID;
ALTER TABLE {p}job VALIDATE CONSTRAINT job_priority_range;
-- An interrupted build leaves an invalid index behind.
DROP INDEX CONCURRENTLY IF EXISTS {p}job_by_priority;
CREATE INDEX CONCURRENTLY job_by_priority ON {p}job (priority);
"""

pytestmark = pytest.mark.processes


@pytest.fixture
def empty_store(empty_url):
    with closing(open_store(empty_url)) as store:
        yield store


@pytest.fixture
def steps_folder(tmp_path, monkeypatch):
    """A copy of the folder of steps, which the migrator reads instead of its own."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrations.SCHEMA_FOLDER, folder)
    monkeypatch.setattr(migrations, "SCHEMA_FOLDER", folder)
    return folder


def dialect_of(url):
    return "postgres" if url.startswith("postgres") else "sqlite"


def step_names(url):
    return [step.row.name for step in migrations.load_steps(dialect_of(url), "")]


def add_step(folder, url, name, text):
    """Write a step as a developer would, and return its file."""
    file = folder / f"{name}.{dialect_of(url)}.sql"
    file.write_text(text)
    return file


def applied_steps(store):
    return store.applied_steps()


def column_count(store, column):
    """Count the columns of the job table with this name: 0 or 1."""
    if is_postgres(store):
        query = (
            "SELECT count(*) FROM pg_attribute"
            " WHERE attrelid = '{p}job'::regclass AND attname = :column"
        )
    else:
        query = "SELECT count(*) FROM pragma_table_info('{p}job') WHERE name = :column"
    return sql(store, query, {"column": column})[0][0]


def test_an_empty_database_is_migrated_and_the_steps_are_returned(empty_store, empty_url):
    assert empty_store.is_empty()
    assert empty_store.migrate() == step_names(empty_url)
    assert not empty_store.is_empty()
    empty_store.check_schema()


def test_there_is_one_initial_step_for_each_database():
    for dialect in ("sqlite", "postgres"):
        names = [step.row.name for step in migrations.load_steps(dialect, "")]
        assert names[0] == "0001_initial"
        numbers = [step.row.number for step in migrations.load_steps(dialect, "")]
        assert numbers == list(range(1, len(numbers) + 1))


def test_migrating_a_current_database_changes_nothing(store):
    (job_id,) = enqueue(store)
    before = applied_steps(store)
    assert store.migrate() == []
    assert applied_steps(store) == before
    assert sql(store, "SELECT id FROM {p}job") == [(job_id,)]


def test_a_dry_run_returns_the_pending_steps_and_applies_none(empty_store, empty_url):
    assert empty_store.migrate(dry_run=True) == step_names(empty_url)
    assert empty_store.is_empty()
    with pytest.raises(SchemaError, match="mulligan migrate"):
        empty_store.check_schema()


def test_prepare_creates_a_schema_only_in_an_empty_database(empty_store):
    empty_store.prepare()
    empty_store.prepare()
    empty_store.check_schema()


def test_concurrent_processes_apply_each_step_once(empty_url, tmp_path):
    log = tmp_path / "log"
    ended_well(*[started(migrate_once, empty_url, str(log)) for _ in range(4)])
    assert sorted(log.read_text().split()) == step_names(empty_url)
    assert len(log.read_text().splitlines()) == 4
    with closing(open_store(empty_url)) as store:
        store.check_schema()


def test_concurrent_prepares_all_find_the_whole_schema(empty_url):
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(open_store(empty_url))) for _ in range(6)]
        run_concurrently(*[store.prepare for store in stores])


def test_a_process_that_dies_while_migrating_leaves_an_empty_database(empty_url):
    ended_well(started(die_in_the_middle_of_a_migration, empty_url))
    with closing(open_store(empty_url)) as store:
        assert store.is_empty()
        assert store.migrate() == step_names(empty_url)
        enqueue(store)


def test_an_app_that_refuses_the_schema_leaves_no_connection_open(
    postgres, postgres_url, steps_folder
):
    postgres.close()
    add_step(steps_folder, postgres_url, "0002_add_color", SECOND_STEP)
    with pytest.raises(SchemaError, match="mulligan migrate"):
        Mulligan(postgres_url).open()
    query = "SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        until(lambda: admin.execute(query).fetchone() == (0,), 10, "the end of all others")


def test_a_second_step_is_applied_once_to_a_database_with_jobs(store, store_url, steps_folder):
    (job_id,) = enqueue(store)
    first = applied_steps(store)
    add_step(steps_folder, store_url, "0002_add_color", SECOND_STEP)

    with pytest.raises(SchemaError, match="mulligan migrate"):
        store.check_schema()
    with pytest.raises(SchemaError, match="mulligan migrate"):
        store.prepare()  # only an empty database is migrated automatically
    assert store.migrate(dry_run=True) == ["0002_add_color"]
    assert column_count(store, "color") == 0

    assert store.migrate() == ["0002_add_color"]
    store.check_schema()
    assert sql(store, "SELECT id, color FROM {p}job") == [(job_id, "blue")]
    checksum = hashlib.sha256(SECOND_STEP.encode()).hexdigest()[:16]
    assert applied_steps(store) == [*first, (2, "0002_add_color", checksum, 1)]

    assert store.migrate() == []
    assert applied_steps(store) == [*first, (2, "0002_add_color", checksum, 1)]


def test_an_empty_database_gets_both_steps_in_order(empty_store, empty_url, steps_folder):
    add_step(steps_folder, empty_url, "0002_add_color", SECOND_STEP)
    assert empty_store.migrate() == ["0001_initial", "0002_add_color"]
    assert column_count(empty_store, "color") == 1


def test_concurrent_migrations_apply_a_second_step_once(store, store_url, steps_folder):
    add_step(steps_folder, store_url, "0002_add_color", SECOND_STEP)
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(open_store(store_url))) for _ in range(4)]
        applied = run_concurrently(*[each.migrate for each in stores])
    assert sorted(applied) == [[], [], [], ["0002_add_color"]]
    assert [row.number for row in applied_steps(store)] == [1, 2]


def test_a_step_that_fails_is_undone_and_leaves_the_steps_before_it(store, store_url, steps_folder):
    add_step(steps_folder, store_url, "0002_add_color", SECOND_STEP)
    broken = add_step(steps_folder, store_url, "0003_broken", SECOND_STEP + BROKEN_STEP)
    with pytest.raises(Exception, match=r"color|no_such_table"):
        store.migrate()
    assert [row.name for row in applied_steps(store)] == ["0001_initial", "0002_add_color"]
    assert store.migrate(dry_run=True) == ["0003_broken"]

    broken.write_text(ADMITS_ALL + ADD_COLOR.replace("color", "shape"))
    assert store.migrate() == ["0003_broken"]
    assert column_count(store, "shape") == 1


def test_an_empty_database_gets_all_steps_or_none(empty_store, empty_url, steps_folder):
    add_step(steps_folder, empty_url, "0002_broken", BROKEN_STEP)
    with pytest.raises(Exception, match="no_such_table"):
        empty_store.migrate()
    assert empty_store.is_empty()


def test_a_step_that_was_changed_after_it_was_applied_is_refused(store, store_url, steps_folder):
    file = add_step(steps_folder, store_url, "0002_add_color", SECOND_STEP)
    store.migrate()
    file.write_text(SECOND_STEP.replace("blue", "red"))
    message = (
        r"step 0002_add_color of the schema has changed since it was applied: "
        r"its checksum was [0-9a-f]{16}, now it is [0-9a-f]{16}"
    )
    for check in (store.check_schema, store.migrate, store.prepare):
        with pytest.raises(SchemaError, match=message):
            check()


def test_a_stored_checksum_that_differs_is_refused(store):
    sql(store, "UPDATE {p}schema SET checksum = 'tampered'")
    for check in (store.check_schema, store.migrate):
        with pytest.raises(SchemaError, match=r"step 0001_initial .* has changed .* was tampered"):
            check()


def test_an_older_version_uses_a_newer_schema_that_admits_it(store, store_url, steps_folder):
    newer = add_step(steps_folder, store_url, "0002_add_color", SECOND_STEP)
    assert store.newer_steps() == []
    store.migrate()
    newer.unlink()  # the older version does not have this step

    store.check_schema()
    store.prepare()
    assert store.migrate() == []
    assert store.newer_steps() == ["0002_add_color"]
    enqueue(store)
    assert sql(store, "SELECT color FROM {p}job") == [("blue",)]


def test_an_older_version_refuses_a_newer_schema_that_does_not_admit_it(
    store, store_url, steps_folder
):
    add_step(steps_folder, store_url, "0002_add_color", SECOND_STEP)
    third = "-- compatible_from: 2\n" + ADD_COLOR.replace("color", "shape")
    newest = add_step(steps_folder, store_url, "0003_add_shape", third)
    store.migrate()
    newest.unlink()
    store.check_schema()  # schema 2 is admitted

    (steps_folder / f"0002_add_color.{dialect_of(store_url)}.sql").unlink()
    message = (
        "the schema is newer than this version of Mulligan: step 0003_add_shape admits versions "
        "with schema 2 or newer, this one has 1. Upgrade Mulligan."
    )
    for check in (store.check_schema, store.migrate, store.prepare):
        with pytest.raises(SchemaError, match=message):
            check()


def test_a_newer_version_names_the_steps_it_needs_and_the_command(store, store_url, steps_folder):
    add_step(steps_folder, store_url, "0002_add_color", SECOND_STEP)
    with pytest.raises(SchemaError, match=r"needs 0002_add_color. Run: mulligan migrate"):
        store.check_schema()


def test_a_step_must_name_the_oldest_schema_that_it_admits(store, store_url, steps_folder):
    add_step(steps_folder, store_url, "0002_add_color", ADD_COLOR)
    with pytest.raises(SchemaError, match=r"0002_add_color.*must begin with '-- compatible_from"):
        store.migrate()


def test_every_step_after_the_first_admits_the_schema_before_it():
    for dialect in ("sqlite", "postgres"):
        rows = [step.row for step in migrations.load_steps(dialect, "")]
        assert [row.name for row in rows[1:] if row.compatible_from >= row.number] == []


def test_two_schemas_in_one_postgres_database_are_separate(postgres_url):
    with ExitStack() as stack:
        one = stack.enter_context(closing(open_store(postgres_url, schema="one")))
        two = stack.enter_context(closing(open_store(postgres_url, schema="two")))
        one.migrate()
        assert two.is_empty()
        two.migrate()
        enqueue(one)
        assert sql(two, "SELECT count(*) FROM {p}job") == [(0,)]


# --- Locks on PostgreSQL ---


@pytest.fixture
def online_step(postgres_url, steps_folder):
    """A store with jobs whose newer version has a step of several commits."""
    with closing(open_store(postgres_url)) as store:
        store.migrate()
        enqueue(store)
        add_step(steps_folder, postgres_url, "0002_online", ONLINE_STEP)
        yield store


def index_is_valid(store):
    return sql(
        store,
        "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('{p}job_by_priority')",
    )


def test_an_online_step_validates_its_constraint_and_builds_its_index(online_step):
    assert online_step.migrate() == ["0002_online"]
    assert index_is_valid(online_step) == [(True,)]
    assert sql(
        online_step,
        "SELECT convalidated FROM pg_constraint WHERE conname = 'job_priority_range'",
    ) == [(True,)]
    assert online_step.migrate() == []


def test_an_online_step_is_part_of_a_new_schema(postgres_url, steps_folder):
    add_step(steps_folder, postgres_url, "0002_online", ONLINE_STEP)
    with closing(open_store(postgres_url)) as store:
        assert store.migrate() == ["0001_initial", "0002_online"]
        assert index_is_valid(store) == [(True,)]


def test_an_online_step_that_was_interrupted_is_repeated(online_step):
    step = online_step.known_steps()[1]
    for statement in step.statements[:2]:  # the process ends here
        with online_step.transaction() as connection:
            connection.execute(statement)
    assert online_step.migrate(dry_run=True) == ["0002_online"]
    assert online_step.migrate() == ["0002_online"]


def test_concurrent_processes_build_an_index_once(online_step, postgres_url):
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(open_store(postgres_url))) for _ in range(4)]
        applied = run_concurrently(*[each.migrate for each in stores])
    assert sorted(applied) == [[], [], [], ["0002_online"]]
    assert index_is_valid(online_step) == [(True,)]


def test_a_step_waits_only_for_moments_so_that_others_are_not_blocked_behind_it(
    online_step, postgres_url, monkeypatch
):
    monkeypatch.setattr(migrations, "LOCK_TIMEOUT", 0.2)
    with ExitStack() as stack:
        other = stack.enter_context(closing(open_store(postgres_url)))
        pool = stack.enter_context(ThreadPoolExecutor())
        with other.transaction() as connection:
            connection.execute("SELECT 1 FROM mulligan.job")  # a long transaction
            migrating = pool.submit(online_step.migrate)
            longest = 0.0
            for _ in range(10):
                before = time.monotonic()
                enqueue(online_step)
                longest = max(longest, time.monotonic() - before)
            assert not migrating.done()
        assert migrating.result(30) == ["0002_online"]
    assert longest < 2


def test_a_step_that_gets_no_lock_reports_what_to_do(online_step, postgres_url, monkeypatch):
    monkeypatch.setattr(migrations, "LOCK_TIMEOUT", 0.05)
    monkeypatch.setattr(migrations, "LOCK_TRIES", 2)
    with closing(open_store(postgres_url)) as other, other.transaction() as connection:
        connection.execute("SELECT 1 FROM mulligan.job")
        with pytest.raises(StoreUnavailable, match=r"no lock in 2 tries .* mulligan migrate"):
            online_step.migrate()
    assert online_step.migrate() == ["0002_online"]


def test_a_job_and_token_has_one_attempt_row(store):
    lease = claim_new_job(store)
    settle_leases(store, lease, FAILED)
    settle_leases(store, claim_when_due(store, lease.id), FAILED)
    settle_leases(store, claim_when_due(store, lease.id))
    assert [one.token for one in attempts(store, lease.id)] == [1, 2, 3]
    with pytest.raises(Exception, match=r"(?i)unique"):
        sql(store, "INSERT INTO {p}attempt SELECT * FROM {p}attempt LIMIT 1")
