"""The migrator: applies each step once, in one transaction, and refuses a schema it does not know."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import ExitStack, closing

import pytest

from mulligan.core.errors import SchemaError
from mulligan.storage import maintenance as migrations
from mulligan.storage import open_store
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

SECOND_STEP = "ALTER TABLE {p}job ADD COLUMN color TEXT NOT NULL DEFAULT 'blue';\n"
BROKEN_STEP = "ALTER TABLE {p}no_such_table ADD COLUMN color TEXT;\n"

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
    return [step.name for step in migrations.load_steps(dialect_of(url), "")]


def add_step(folder, url, name, text):
    """Write a step as a developer would, and return its file."""
    file = folder / f"{name}.{dialect_of(url)}.sql"
    file.write_text(text)
    return file


def applied_steps(store):
    return sql(store, "SELECT number, name, checksum FROM {p}schema ORDER BY number")


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
        names = [step.name for step in migrations.load_steps(dialect, "")]
        assert names[0] == "0001_initial"
        numbers = [step.number for step in migrations.load_steps(dialect, "")]
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
    assert applied_steps(store) == [*first, (2, "0002_add_color", checksum)]

    assert store.migrate() == []
    assert applied_steps(store) == [*first, (2, "0002_add_color", checksum)]


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
    assert [number for number, _, _ in applied_steps(store)] == [1, 2]


def test_a_step_that_fails_takes_the_steps_before_it_back(store, store_url, steps_folder):
    before = applied_steps(store)
    add_step(steps_folder, store_url, "0002_add_color", SECOND_STEP)
    broken = add_step(steps_folder, store_url, "0003_broken", BROKEN_STEP)
    with pytest.raises(Exception, match="no_such_table"):
        store.migrate()
    assert applied_steps(store) == before
    assert column_count(store, "color") == 0

    broken.unlink()
    assert store.migrate() == ["0002_add_color"]


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


def test_an_older_version_refuses_a_newer_schema(store, store_url, steps_folder):
    file = add_step(steps_folder, store_url, "0002_add_color", SECOND_STEP)
    store.migrate()
    file.unlink()  # the older version does not have this step
    message = "schema is newer than this version of Mulligan: it has step 0002_add_color. Upgrade"
    for check in (store.check_schema, store.migrate, store.prepare):
        with pytest.raises(SchemaError, match=message):
            check()


def test_a_step_with_an_unknown_number_is_refused(store):
    sql(store, "INSERT INTO {p}schema VALUES (9999, '9999_from_the_future', 'x')")
    for check in (store.check_schema, store.migrate, store.prepare):
        with pytest.raises(SchemaError, match=r"9999_from_the_future.*Upgrade"):
            check()


def test_two_schemas_in_one_postgres_database_are_separate(postgres_url):
    with ExitStack() as stack:
        one = stack.enter_context(closing(open_store(postgres_url, schema="one")))
        two = stack.enter_context(closing(open_store(postgres_url, schema="two")))
        one.migrate()
        assert two.is_empty()
        two.migrate()
        enqueue(one)
        assert sql(two, "SELECT count(*) FROM {p}job") == [(0,)]


def test_a_job_and_token_has_one_attempt_row(store):
    lease = claim_new_job(store)
    settle_leases(store, lease, FAILED)
    settle_leases(store, claim_when_due(store, lease.id), FAILED)
    settle_leases(store, claim_when_due(store, lease.id))
    assert [one.token for one in attempts(store, lease.id)] == [1, 2, 3]
    with pytest.raises(Exception, match=r"(?i)unique"):
        sql(store, "INSERT INTO {p}attempt SELECT * FROM {p}attempt LIMIT 1")
