"""The schema: made once, whoever comes first; refused when it is not ours."""

from __future__ import annotations

from contextlib import ExitStack, closing

import pytest

from mulligan.errors import SchemaError
from mulligan.store import migrate as migrations
from mulligan.store import open_store
from support.processes import die_in_the_middle_of_a_migration, ended_well, migrate_once, started
from support.store import FAILED, FATAL, RETURNED, attempts, enqueue, finish, once_more, running, sql, together

pytestmark = pytest.mark.processes


@pytest.fixture
def bare(empty_url):
    with closing(open_store(empty_url)) as store:
        yield store


def steps_of(empty_url):
    dialect = "postgres" if empty_url.startswith("postgres") else "sqlite"
    return [step.name for step in migrations.steps(dialect, "")]


def test_an_empty_database_is_brought_up_and_says_how(bare, empty_url):
    assert bare.empty()
    assert bare.migrate() == steps_of(empty_url)
    assert not bare.empty()
    bare.check_schema()


def test_once_more_is_nothing(store):
    (job_id,) = enqueue(store)
    before = sql(store, "SELECT * FROM {p}schema")
    assert store.migrate() == []
    assert sql(store, "SELECT * FROM {p}schema") == before
    assert sql(store, "SELECT id FROM {p}job") == [(job_id,)]


def test_a_dry_run_says_what_it_would_do_and_does_nothing(bare, empty_url):
    assert bare.migrate(dry_run=True) == steps_of(empty_url)
    assert bare.empty()
    with pytest.raises(SchemaError, match="mulligan migrate"):
        bare.check_schema()


def test_prepare_makes_a_schema_only_where_there_is_none(bare):
    bare.prepare()
    bare.prepare()
    bare.check_schema()


def test_processes_that_come_at_once_take_each_step_once(empty_url, tmp_path):
    log = tmp_path / "log"
    ended_well(*[started(migrate_once, empty_url, str(log)) for _ in range(4)])
    assert sorted(log.read_text().split()) == steps_of(empty_url)
    assert len(log.read_text().splitlines()) == 4
    with closing(open_store(empty_url)) as store:
        store.check_schema()


def test_whoever_comes_while_a_schema_is_made_finds_all_of_it(empty_url):
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(open_store(empty_url))) for _ in range(6)]
        together(*[store.prepare for store in stores])


def test_a_process_that_dies_in_the_middle_leaves_nothing_and_the_next_one_does_it(empty_url):
    ended_well(started(die_in_the_middle_of_a_migration, empty_url))
    with closing(open_store(empty_url)) as store:
        assert store.empty()
        assert store.migrate() == steps_of(empty_url)
        enqueue(store)


def test_a_schema_newer_than_this_version_is_refused(store):
    sql(store, "INSERT INTO {p}schema VALUES (9999, '9999_from_the_future', 'x')")
    for check in (store.check_schema, store.migrate, store.prepare):
        with pytest.raises(SchemaError, match=r"9999_from_the_future.*upgrade"):
            check()


def test_a_step_applied_from_another_text_is_refused(store):
    sql(store, "UPDATE {p}schema SET checksum = 'tampered'")
    for check in (store.check_schema, store.migrate):
        with pytest.raises(SchemaError, match="another text"):
            check()


def test_two_schemas_in_one_database_do_not_meet(postgres_url):
    with closing(open_store(postgres_url, schema="one")) as one, closing(open_store(postgres_url, schema="two")) as two:
        one.migrate()
        assert two.empty()
        two.migrate()
        enqueue(one)
        assert sql(two, "SELECT count(*) FROM {p}job") == [(0,)]


def test_attempts_written_before_they_were_appended_are_all_there(empty_url, monkeypatch):
    """Step 0026 makes their table anew on SQLite: a database of the step before, with rows."""
    all_steps = migrations.steps
    monkeypatch.setattr(migrations, "steps", lambda *given: [s for s in all_steps(*given) if s.number <= 25])
    with closing(open_store(empty_url)) as old:
        old.migrate()
        leases = [running(old) for _ in range(3)]
        for lease, outcome in zip(leases, (FAILED, FATAL, RETURNED), strict=True):
            finish(old, lease, outcome)
        finish(old, once_more(old, leases[0].id), FAILED)
        before = {lease.id: attempts(old, lease.id) for lease in leases}
        assert [len(found) for found in before.values()] == [2, 1, 1]
    monkeypatch.setattr(migrations, "steps", all_steps)
    with closing(open_store(empty_url)) as store:
        store.migrate()
        assert {lease.id: attempts(store, lease.id) for lease in leases} == before
        finish(store, once_more(store, leases[0].id))
        assert [one.token for one in attempts(store, leases[0].id)] == [1, 2, 3]
        with pytest.raises(Exception, match=r"(?i)unique"):
            sql(store, "INSERT INTO {p}attempt SELECT * FROM {p}attempt LIMIT 1")
