"""A PostgreSQL server that stops, restarts, or is behind a pooler."""

from __future__ import annotations

import contextlib
from contextlib import closing
from random import Random

import psycopg
import pytest
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH
from storm.proxy import Proxies

from mulligan.core.attempt import Ending
from mulligan.core.errors import StoreUnavailable
from mulligan.guards.queries import GuardQueries
from mulligan.jobs.queries import JobQueries
from mulligan.retries.decide import decide
from mulligan.storage import open_store
from mulligan.storage import postgres as postgres_store
from mulligan.storage.postgres import PostgresStore
from mulligan.storage.postgres_connections import ListenState, connect_options
from mulligan.storage.postgres_transaction import format_array, format_columns
from mulligan.storage.statements import load_statement, set_columns, statement_names
from mulligan.worker.queries import (
    ATTEMPT_COLUMNS,
    RARE_COLUMNS,
    LeaseQueries,
    Settlement,
    WorkerQueries,
)
from mulligan.worker.settlement import settlement_row
from support.store import (
    FAILED,
    HOUR,
    POLICIES,
    RETURNED,
    a_job,
    all_rows,
    claim,
    claim_by_id,
    enqueue,
    get,
    insert,
    jobs,
    open_worker,
    run_concurrently,
    settle_leases,
    sql,
    unique_job,
)
from support.waiting import until

pytestmark = pytest.mark.processes


def end_all_others(url):
    """Terminate every other session of this database."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        others = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        until(lambda: not admin.execute(others).fetchall(), 10, "they have gone")


def test_a_cut_connection_raises_unavailable_and_the_next_use_works(postgres, postgres_url):
    with pytest.raises(StoreUnavailable), postgres.begin() as tx:
        cut_while_inserting(tx, postgres_url)
    assert all_rows(postgres) == []
    enqueue(postgres)
    assert len(all_rows(postgres)) == 1


def cut_while_inserting(tx, url):
    JobQueries(tx).insert_jobs([a_job()], announce=True)
    end_all_others(url)
    JobQueries(tx).insert_jobs([a_job()], announce=True)


def test_connections_that_died_while_idle_cost_at_most_one_call(postgres, postgres_url):
    run_concurrently(*[lambda: enqueue(postgres, 50) for _ in range(8)])
    end_all_others(postgres_url)
    failures = 0
    for _ in range(10):
        try:
            enqueue(postgres)
        except StoreUnavailable:
            failures += 1
    assert failures <= 1
    assert len(all_rows(postgres)) == 400 + 10 - failures


def test_a_server_killed_and_started_again_has_every_acknowledged_row(postgres, postgres_server):
    if not postgres_server.owned:
        pytest.skip("this server must not be restarted")
    open_worker(postgres)
    ids = enqueue(postgres, 20)
    (lease,) = claim(postgres)
    postgres_server.restart("immediate")
    for _ in range(20):
        try:
            settle_leases(postgres, lease)
            break
        except StoreUnavailable:
            continue
    assert get(postgres, ids[0]).state == "succeeded"
    assert [row.id for row in all_rows(postgres)] == ids


def test_a_stopped_server_is_unavailable(postgres_server, monkeypatch):
    monkeypatch.setattr("mulligan.storage.postgres.CONNECT_PATIENCE", 1.0)
    url = "postgresql://nobody@127.0.0.1:1/nothing?connect_timeout=2"
    with closing(open_store(url)) as store, pytest.raises(StoreUnavailable):
        store.migrate()


def test_a_read_only_database_is_unavailable_for_writing(postgres):
    name = sql(postgres, "SELECT current_database()")[0][0]
    sql(postgres, f"ALTER DATABASE {name} SET default_transaction_read_only TO on")
    postgres.close()
    with pytest.raises(StoreUnavailable):
        enqueue(postgres)
    with pytest.raises(StoreUnavailable), postgres.single_statement() as tx:
        JobQueries(tx).insert_jobs([a_job()], announce=True)
    assert all_rows(postgres) == []


def test_everything_works_without_prepared_statements(postgres_url):
    with closing(open_store(postgres_url)) as store:
        store.prepared = False
        store.migrate()
        open_worker(store)
        for n in (1, 30, 1):
            ids = enqueue(store, n)
            assert [lease.id for lease in claim(store, n)] == ids
            with store.begin() as tx:
                finished = WorkerQueries(tx).list_leases("w1")
            settle_leases(store, finished)
        assert {row.state for row in all_rows(store)} == {"succeeded"}
        with store.transaction() as connection:
            assert connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (
                0,
            )


def test_the_shown_url_has_no_password(postgres, postgres_url):
    secret = postgres_url.split(":")[2].split("@")[0]
    assert secret not in postgres.url
    assert secret not in str(postgres.facts())


# --- Notifications ---
LISTENERS = "SELECT pid, query FROM pg_stat_activity WHERE query LIKE 'LISTEN %'"


@pytest.mark.parametrize("listen_url", ["", "{url}?sslmode=prefer"], ids=["same", "separate"])
def test_the_listening_connection_runs_no_other_statement(postgres, postgres_url, listen_url):
    store = open_store(postgres_url, listen_url=listen_url.format(url=postgres_url))
    with closing(store), closing(store.open_listener()) as listener:
        until(lambda: listener.wait(0.1) is None or listener.state is ListenState.LISTENING, 10)
        while listener.wait(0):
            pass
        ((pid, _),) = sql(postgres, LISTENERS)
        for _ in range(3):
            insert(postgres, a_job())
            assert listener.wait(10)
            with store.dedicated().single_statement() as tx:
                assert tx._connection.info.backend_pid != pid
        assert sql(postgres, LISTENERS) == [(pid, f'LISTEN "{store.channel}"')]


# --- Connections ---
def count_connections(url):
    with psycopg.connect(url) as connection:
        query = "SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()"
        return connection.execute(query).fetchone()[0]


def test_a_store_uses_the_last_connection_again_and_closes_unneeded_ones(
    postgres, postgres_url, monkeypatch
):
    with postgres.begin() as one, postgres.begin() as two:
        one.now(), two.now()
    until(lambda: count_connections(postgres_url) == 2, 10)
    monkeypatch.setattr("mulligan.storage.postgres_connections.MAX_IDLE", 0.0)
    for _ in range(3):
        with postgres.begin() as tx:
            tx.now()
    until(lambda: count_connections(postgres_url) <= 1, 10)


def test_a_closed_store_leaves_no_connection_open_if_a_late_thread_uses_it(postgres, postgres_url):
    postgres.close()
    with postgres.read() as tx:
        tx.now()
    until(lambda: count_connections(postgres_url) == 0, 10)


def test_a_statement_without_an_answer_is_given_up_with_its_connection(postgres_url):
    with closing(open_store(postgres_url)) as store:
        store.limit_statements(0.2)
        with store.read() as tx:
            before = tx._connection.info.backend_pid
            tx._connection.execute("SET statement_timeout = 0")  # like a server that hangs
        with pytest.raises(StoreUnavailable, match="no answer for"), store.begin() as tx:
            tx._connection.execute("SELECT pg_sleep(60)")
        with store.read() as tx:
            assert tx._connection.info.backend_pid != before


def test_the_server_ends_a_statement_that_is_given_up(postgres_url):
    with closing(open_store(postgres_url)) as store:
        store.limit_statements(0.1)
        with pytest.raises(StoreUnavailable, match="statement timeout"), store.read() as tx:
            tx._connection.execute("SELECT pg_sleep(60)")


def test_a_transaction_of_a_dedicated_store_begins_with_its_first_statement(postgres):
    """BEGIN needs no round trip of its own, and an error still undoes everything."""
    dedicated = postgres.dedicated()
    with dedicated.begin() as tx:
        JobQueries(tx).insert_jobs([a_job()], announce=True)
    with contextlib.suppress(ZeroDivisionError), dedicated.begin() as tx:
        JobQueries(tx).insert_jobs([a_job()], announce=True)
        raise ZeroDivisionError
    assert len(all_rows(postgres)) == 1


def test_an_idle_connection_is_checked_only_if_it_has_input(postgres, postgres_url, monkeypatch):
    answers, checked = postgres_store.answers, []
    monkeypatch.setattr(postgres_store, "IDLE_TRUST", 0.0)
    monkeypatch.setattr(postgres_store, "answers", lambda one: checked.append(one) or answers(one))
    enqueue(postgres)
    checked.clear()
    enqueue(postgres)
    assert checked == []
    end_all_others(postgres_url)
    enqueue(postgres)
    assert checked != []


# --- Plans ---
def rows_of_jobs_read(node):
    """Count the rows of the job table that the scans of a plan read."""
    row_count = 0
    if node.get("Relation Name") == "job" and "Scan" in node["Node Type"]:
        removed = node.get("Rows Removed by Filter", 0) + node.get(
            "Rows Removed by Index Recheck", 0
        )
        row_count = (node["Actual Rows"] + removed) * node["Actual Loops"]
    return row_count + sum(rows_of_jobs_read(child) for child in node.get("Plans", []))


def explained(store, verb, params, *, prepared, **variant):
    """Return the executed plan. `prepared`: the generic plan."""
    statement = "EXPLAIN (ANALYZE, FORMAT JSON) " + load_statement(
        verb, "postgres", store.prefix, **variant
    )
    with store.transaction() as connection:
        if prepared:
            connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        return connection.execute(statement, params, prepare=prepared).fetchone()[0][0]["Plan"]


@pytest.fixture(params=["never analysed", "analysed", "analysed while all was finished"])
def old_jobs(postgres, request):
    """Fill the table with finished jobs, with different statistics."""
    open_worker(postgres)
    sql(postgres, "ALTER TABLE {p}job SET (autovacuum_enabled = false)")
    insert(postgres, *jobs(6000))
    sql(
        postgres,
        "UPDATE {p}job SET state = 'succeeded', finished_at = 1, attempt = 1, token = 1 WHERE state = 'queued'",
    )
    if request.param == "analysed while all was finished":
        sql(postgres, "ANALYZE {p}job")
    ids = enqueue(postgres, 300)
    if request.param == "analysed":
        sql(postgres, "ANALYZE {p}job")
    return ids


@pytest.mark.parametrize("prepared", [False, True], ids=["custom plan", "generic plan"])
def test_a_claim_by_id_reads_only_its_rows(postgres, old_jobs, prepared):
    params = {"worker": "w1", "ids": format_array(old_jobs), "limit": 100}
    plan = explained(postgres, "claim_jobs", params, prepared=prepared)
    assert rows_of_jobs_read(plan) <= 3 * len(old_jobs)
    assert len(all_rows(postgres)) == 6300


LANES = {"lanes": format_array(["default|render||0"]), "priorities": format_array([0])}


@pytest.mark.parametrize("prepared", [False, True], ids=["custom plan", "generic plan"])
def test_a_claim_from_lanes_reads_only_its_rows(postgres, old_jobs, prepared):
    shares = {
        "lane": format_array(["default|render||0", "other|render||0"]),
        "priority": format_array([0, 0]),
        "since": format_array([0, 0]),
        "jobs": format_array([100, 100]),
    }
    plan = explained(postgres, "claim_from_lanes", {"worker": "w1", **shares}, prepared=prepared)
    assert 0 < rows_of_jobs_read(plan) <= 3 * len(old_jobs)


@pytest.mark.parametrize("prepared", [False, True], ids=["custom plan", "generic plan"])
def test_reading_the_state_with_candidates_reads_only_these_rows(postgres, old_jobs, prepared):
    window = {"after_lane": "", "after_priority": -10, "max_lanes": 100}
    params = {"depth": 50, **window, **LANES}
    plan = explained(postgres, "read_claim_state", params, prepared=prepared)
    assert 50 <= rows_of_jobs_read(plan) <= 60
    assert len(old_jobs) == 300


@pytest.mark.parametrize("prepared", [False, True], ids=["custom plan", "generic plan"])
def test_listing_due_jobs_reads_only_these_rows(postgres, old_jobs, prepared):
    plan = explained(postgres, "list_due_jobs", {"depth": 50, **LANES}, prepared=prepared)
    assert 50 <= rows_of_jobs_read(plan) <= 60
    assert len(old_jobs) == 300


def test_every_statement_is_short_enough_for_the_drivers_cache():
    verbs = statement_names("postgres")
    long = {
        verb
        for verb in verbs
        if len(load_statement(verb, "postgres", '"mulligan".')) > MAX_CACHED_STATEMENT_LENGTH
    }
    assert verbs
    assert not long


def test_a_slow_cached_plan_is_discarded(postgres, monkeypatch):
    monkeypatch.setattr(
        "mulligan.storage.postgres_transaction.SLOW_STATEMENT", 1e9
    )  # a busy machine must not discard it early
    open_worker(postgres)
    sql(postgres, "ALTER TABLE {p}job SET (autovacuum_enabled = false)")
    with psycopg.connect(postgres.dsn, autocommit=True) as other:
        other.execute(f"VACUUM ANALYZE {postgres.prefix}job")  # now it is known to be empty
    with postgres.begin() as tx:  # plans are cached per connection
        for _ in range(12):
            enqueue_and_take(tx)
        JobQueries(tx).insert_jobs(jobs(9000, delay=HOUR), announce=True)
        assert rows_read_by(tx, enqueue_and_take) > 9000, "the cached plan reads the whole table"
        monkeypatch.setattr("mulligan.storage.postgres_transaction.SLOW_STATEMENT", 0.0)
        enqueue_and_take(tx)
        assert rows_read_by(tx, enqueue_and_take) < 10


def cached(store):
    """Return the plan mode and the prepare threshold of its connections."""
    with store.begin() as tx:
        mode = tx._connection.execute("SHOW plan_cache_mode", prepare=False).fetchone()[0]
        return mode, tx._connection.prepare_threshold


def test_a_dedicated_store_caches_plans_at_once(postgres):
    dedicated = postgres.dedicated()
    assert dedicated is postgres.dedicated() is not postgres
    assert cached(dedicated) == ("force_generic_plan", 1)
    assert cached(postgres) == ("auto", 5)
    open_worker(dedicated)
    ids = enqueue(postgres, 3)
    assert [lease.id for lease in claim(dedicated, 3)] == ids
    postgres.close()
    assert not dedicated._connections._idle


def test_cached_plans_are_not_compiled(postgres):
    """With many waiting jobs the planner expects a tenth of them, which looks expensive."""
    with postgres.dedicated().begin() as tx:
        assert tx._connection.execute("SHOW jit", prepare=False).fetchone()[0] == "off"


def test_no_setting_is_left_behind_on_a_pooler(postgres, monkeypatch):
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", 1)
    assert cached(postgres.dedicated()) == ("auto", None)


def test_behind_a_pooler_no_statement_is_prepared(postgres):
    dedicated = postgres.dedicated()
    postgres.disable_prepared_statements()
    assert cached(dedicated)[1] is None
    assert cached(postgres)[1] is None


def enqueue_and_take(tx):
    JobQueries(tx).insert_jobs([a_job()], announce=True)
    picked = GuardQueries(tx).list_due_jobs([("default|render||0", 0)], 20)
    assert len(LeaseQueries(tx).claim_candidates("w1", picked)) == 1


def rows_read_by(tx, what):
    table = f"'{tx._store.prefix}job'::regclass"
    statement = (
        f"SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = {table}"  # noqa: S608
    )

    def so_far():
        return tx._connection.execute(statement).fetchone()[0]

    before = so_far()
    what(tx)
    return so_far() - before


@pytest.mark.parametrize("prepared", [False, True], ids=["custom plan", "generic plan"])
@pytest.mark.parametrize(
    ("outcome", "state", "defaulted"),
    [
        (RETURNED, "succeeded", frozenset()),
        (RETURNED, "succeeded", ATTEMPT_COLUMNS | RARE_COLUMNS),
        (FAILED, "queued", RARE_COLUMNS),
    ],
    ids=["all columns", "success", "failure"],
)
def test_a_settlement_reads_only_its_rows(postgres, old_jobs, prepared, outcome, state, defaulted):
    leases = claim_by_id(postgres, *old_jobs)
    with postgres.begin() as tx:
        now = tx.now()
    rows = [
        settlement_row(
            Ending(lease, outcome),
            decide(lease, outcome, POLICIES.for_job(lease), now, Random(7)),
            POLICIES,
            now,
            "w1",
        )
        for lease in leases
    ]
    columns = dict(zip(rows[0]._fields, zip(*rows, strict=True), strict=True))
    types = set_columns(Settlement)
    params = format_columns({name: columns[name] for name in types.keys() - defaulted}, types)
    params["rows"] = str(len(rows))
    plan = explained(postgres, "settle", params, prepared=prepared, defaulted=defaulted)
    assert rows_of_jobs_read(plan) <= 3 * len(old_jobs)
    assert {row.state for row in all_rows(postgres)} == {"succeeded", state}


@pytest.mark.parametrize(
    "column",
    [
        [None, "", "NULL", "a,b", "{c}", 'quote " inside', "back \\ slash", "é 🎈", " ", "'", "%s"],
        ["", ""],
        [None, None],
        [None, "\x1e", "a"],
        ["\x1f", "a", None],
        ["\x1f\ue000", "\ue003", "\x1e", None],
    ],
)
def test_texts_of_a_set_arrive_unchanged(postgres, column):
    types = {"column": "text", "other": "text"}
    params = format_columns({"column": column, "other": ["a", None]}, types)
    split = "SELECT string_to_array(%(column)s, %(sep)s, %(nil)s)"
    with postgres.transaction() as connection:
        assert connection.execute(split, params).fetchone()[0] == column


def test_formatted_arrays_equal_those_of_the_driver(postgres):
    values = [
        None,
        "",
        "NULL",
        "null",
        "a,b",
        "{c}",
        'quote " inside',
        "back \\ slash",
        "\\",
        "é 🎈",
        " spaces ",
        "'",
        "%s",
    ]
    with postgres.transaction() as connection:
        for column in (values, values[1:], [None, None], [""]):
            assert (
                connection.execute("SELECT CAST(%s AS text[])", (format_array(column),)).fetchone()[
                    0
                ]
                == column
            )
        for numbers in ([None, 0, -(2**62), 7], [0, -(2**62), 7], [7], []):
            assert (
                connection.execute(
                    "SELECT CAST(%s AS bigint[])", (format_array(numbers),)
                ).fetchone()[0]
                == numbers
            )
        for flags in ([True, None, False], [True, False], [False]):
            assert (
                connection.execute(
                    "SELECT CAST(%s AS boolean[])", (format_array(flags),)
                ).fetchone()[0]
                == flags
            )
        floats = [0.1, 1e300, -0.0, None]
        assert (
            connection.execute(
                "SELECT CAST(%s AS double precision[])", (format_array(floats),)
            ).fetchone()[0]
            == floats
        )


def test_a_callers_long_transaction_delays_no_claim_or_settlement(postgres):
    open_worker(postgres)
    with postgres.transaction() as caller:
        JobQueries(postgres.join(caller)).insert_jobs([*jobs(5), unique_job("k")], announce=False)
        ids = enqueue(postgres, 5)
        assert len(settle_leases(postgres, claim(postgres, 5))) == 5
        assert {get(postgres, job_id).state for job_id in ids} == {"succeeded"}


def test_an_unexpected_result_raises_unavailable_and_closes_the_connection(postgres_url):
    proxies = Proxies()
    parts = psycopg.conninfo.conninfo_to_dict(postgres_url)
    proxy = proxies.to(int(parts["port"]))
    url = postgres_url.replace(f":{parts['port']}/", f":{proxy.port}/")
    try:
        with closing(open_store(url)) as store:
            store.prepare()
            enqueue(store)
            proxy.insert(b"C\x00\x00\x00\x0dSELECT 1\x00")
            with pytest.raises(StoreUnavailable, match="2 results"):
                insert(store, unique_job("a"))
            assert enqueue(store)
    finally:
        proxies.close()


def test_options_in_the_url_are_kept(postgres_url: str) -> None:
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}application_name=shop"
    with closing(PostgresStore(url)) as store, store.transaction() as connection:
        assert connection.execute("SHOW application_name").fetchone() == ("shop",)
    options = connect_options(f"{url}&connect_timeout=3&keepalives_idle=60")
    assert not {"application_name", "connect_timeout", "keepalives_idle"} & options.keys()
    assert options["tcp_user_timeout"] == 10_000
