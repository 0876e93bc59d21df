"""Search by filter: the same jobs with every plan, in bounded time."""

from __future__ import annotations

import json
from itertools import combinations

import pytest

from mulligan.core.job import NewJob
from mulligan.core.json import index_value
from mulligan.jobs import queries as skimming
from mulligan.jobs.filter import (
    ALL_JOBS,
    build_conditions,
    choose_plan,
    follow_plan,
    leading_conditions,
)
from mulligan.jobs.queries import ArgRow, JobQueries, SearchQueries
from mulligan.storage.statements import load_statement
from support.store import (
    CANCELLED,
    FATAL,
    HOUR,
    PARKED,
    RETURNED,
    a_job,
    all_rows,
    claim,
    claim_new_job,
    enqueue,
    get,
    insert,
    is_postgres,
    jobs,
    now,
    open_worker,
    settle_leases,
    sql,
    unique_job,
)


def found(store, where, limit=100, before=None):
    with store.read() as tx:
        return [row.id for row in SearchQueries(tx).list_jobs_bounded(where, limit, before).rows]


def args_of(store):
    return {tuple(row) for row in sql(store, "SELECT name, value, job_id, kind FROM {p}job_arg")}


def billed(customer, **changes):
    payload = json.dumps({"customer": customer}, separators=(",", ":"))
    return a_job(
        **({"kind": "bill", "payload": payload, "args": (("customer", str(customer)),)} | changes)
    )


# --- Arguments ---
def test_indexed_arguments_are_inserted_with_their_jobs(store):
    one, *many = [billed(n % 3) for n in range(7)]
    insert(store, one)
    insert(store, *many, a_job())
    assert args_of(store) == {
        ("customer", str(n % 3), job.id, "bill") for n, job in enumerate([one, *many])
    }
    assert found(store, {"indexed.customer": "0"}) == [many[5].id, many[2].id, one.id]


def test_indexed_values_are_stored_unchanged(store):
    texts = [
        "",
        "a b",
        '"q"',
        "back\\slash",
        "{}",
        "NULL",
        "ü 😀",
        "a,b",
        "line\nbreak",
        "x" * 500,
        "a\x00b",
    ]
    made = [billed(text, args=(("customer", index_value(text)),)) for text in texts]
    insert(store, *made)
    for job, text in zip(made, texts, strict=True):
        assert found(store, {"indexed.customer": text}) == [job.id]
        assert found(store, {"arg.customer": text}) == [job.id]


def test_a_bulk_insert_with_arguments_on_a_server_is_two_statements(store, monkeypatch):
    if not is_postgres(store):
        pytest.skip("SQLite has no trips")
    with store.begin() as tx:
        value = []
        run = tx._run
        monkeypatch.setattr(
            tx,
            "_run",
            lambda verb, *args, **more: (value.append(verb), run(verb, *args, **more))[1],
        )
        JobQueries(tx).insert_jobs([billed(n) for n in range(50)], announce=True)
        JobQueries(tx).insert_jobs([a_job() for _ in range(50)], announce=True)
    assert value == ["insert_jobs", "write_args", "insert_jobs"]
    assert len(args_of(store)) == 50


def test_a_deduplicated_job_leaves_no_arguments(store):
    first = unique_job("k", kind="bill", args=(("customer", "1"),))
    twin = unique_job("k", kind="bill", args=(("customer", "1"),))
    insert(store, first)
    insert(store, twin)
    assert args_of(store) == {("customer", "1", first.id, "bill")}


def test_pruning_deletes_the_arguments(store):
    open_worker(store)
    old, new = billed(1, kind="render"), billed(1, kind="render")
    insert(store, old)
    settle_leases(store, claim(store))
    insert(store, new)
    with store.begin() as tx:
        JobQueries(tx).prune_jobs("succeeded", now(store) + HOUR, 10, kind=None, except_kinds=[])
    assert {row[2] for row in args_of(store)} == {new.id}


def test_arguments_can_be_indexed_later_and_repeatedly(store):
    job = a_job(kind="bill")
    insert(store, job)
    for _ in range(2):
        with store.begin() as tx:
            SearchQueries(tx).write_args([ArgRow(job.id, "bill", "customer", "7")])
    assert found(store, {"indexed.customer": "7", "kind": "bill"}) == [job.id]
    with store.begin() as tx:
        SearchQueries(tx).delete_args([job.id])
    assert found(store, {"indexed.customer": "7"}) == []


def test_an_argument_without_an_index_is_compared_in_the_payload(store):
    def made(payload):
        return insert(store, a_job(payload=json.dumps(payload, separators=(",", ":"))))[0].id

    top, text = made({"customer": 42}), made({"x": 1, "customer": "42"})
    made({"customer": 421})
    inside = made({"order": {"customer": 42}})
    made({"note": '"customer":42,'})
    made({"customer": [42]})
    assert found(store, {"arg.customer": "42"}) == [text, top]
    assert found(store, {"arg.order.customer": "42"}) == [inside]
    with store.read() as tx:
        assert SearchQueries(tx).count_jobs({"arg.customer": "42"}, 10) == 2
        assert SearchQueries(tx).count_jobs({"arg.customer": "42"}, 1) == 1


def test_pages_are_full_although_some_payloads_only_look_similar(store):
    right = [a_job(payload='{"customer":1}') for _ in range(6)]
    wrong = [a_job(payload='{"order":{"customer":1}}') for _ in range(6)]
    insert(store, *(job for pair in zip(right, wrong, strict=True) for job in pair))
    ids = [job.id for job in reversed(right)]
    assert found(store, {"arg.customer": "1"}, 4) == ids[:4]
    assert found(store, {"arg.customer": "1"}, 4, ids[3]) == ids[4:]


# --- Plans ---
@pytest.fixture
def zoo(store):
    """Insert jobs in every state, of two owners, kinds and batches."""
    open_worker(store)
    for n, outcome in enumerate((RETURNED, FATAL, PARKED, CANCELLED) * 3):
        named = {"kind": ("render", "mail")[n % 2], "owner": ("acme", "")[n // 4 % 2]}
        insert(store, billed(n % 2, batch_id=("b", None)[n // 2 % 2], **named))
        settle_leases(store, claim(store), outcome)
    insert(store, *(billed(n % 2, kind="render", owner="acme", batch_id="b") for n in range(4)))
    claim(store, 2)
    return store


PARTS = {
    "state": [
        "dead",
        ("dead", "parked"),
        "queued",
        "running",
        "succeeded",
        "cancelled",
        ("queued", "succeeded"),
    ],
    "phase": ["parked", "running"],
    "kind": ["render"],
    "owner": ["acme", ""],
    "batch_id": ["b"],
    "code": ["BROKEN", ("BROKEN", "OTHER")],
    "indexed.customer": ["1"],
    "arg.customer": ["1"],
    "since": [str(HOUR)],
}


def test_a_filter_finds_the_same_jobs_with_every_plan(zoo):
    with zoo.read() as tx:
        for one, other in combinations(PARTS, 2):
            for where in ({one: a, other: b} for a in PARTS[one] for b in PARTS[other]):
                expected = _plainly(zoo, where)
                assert [
                    row.id for row in SearchQueries(tx).list_jobs(where, 100, None)
                ] == expected, where
                assert [
                    row.id for row in SearchQueries(tx).list_jobs_bounded(where, 100, None).rows
                ] == expected, where
                assert (
                    SearchQueries(tx).count_jobs(where, 100)
                    == SearchQueries(tx).count_jobs_bounded(where, 100).jobs
                    == len(expected)
                ), where


def _plainly(store, where):
    """Find the expected jobs by reading all of them."""
    conditions = {
        name: (value,) if isinstance(value, str) else value for name, value in where.items()
    }
    if "code" in conditions:
        conditions["state"] = tuple({*conditions.get("state", ("dead",))} & {"dead"})
    return [
        row.id
        for row in reversed(all_rows(store))
        if all(_says(row, *one) for one in conditions.items())
    ]


def _says(row, name, values):
    if name == "since":
        return True
    if name == "code":
        return json.loads(row.error or "{}").get("code") in values
    if name.endswith(".customer"):
        return str(json.loads(row.payload)["customer"]) in values
    return getattr(row, {"phase": "state"}.get(name, name)) in values


def test_a_bounded_search_reports_where_it_stopped(store, monkeypatch):
    monkeypatch.setattr(skimming, "EXAMINED_LIMIT", 10)
    monkeypatch.setattr(skimming, "FIRST_EXAMINED", 4)
    old = enqueue(store, 3, kind="mail", owner="")
    enqueue(store, 25, kind="render", owner="")
    with store.read() as tx:
        rows, stopped = SearchQueries(tx).list_jobs_bounded({"kind": "mail"}, 5, None)
        assert (rows, stopped is None) == ([], False)
        found, cursor = [], None
        for _ in range(3):
            page = SearchQueries(tx).list_jobs_bounded({"kind": "mail"}, 5, cursor)
            found += [row.id for row in page.rows]
            cursor = page.stopped
        assert (found, cursor) == (old[::-1], None)
        assert SearchQueries(tx).list_jobs_bounded({"kind": "render"}, 5, None).stopped is None
        assert SearchQueries(tx).count_jobs_bounded({"kind": "mail"}, 5).stopped is not None
        assert SearchQueries(tx).count_jobs({"kind": "mail"}, 5) == 3
        assert [row.id for row in SearchQueries(tx).list_jobs({"kind": "mail"}, 5, None)] == old[
            ::-1
        ]


def test_a_bounded_search_by_argument_stops_too(store, monkeypatch):
    monkeypatch.setattr(skimming, "EXAMINED_LIMIT", 10)
    monkeypatch.setattr(skimming, "FIRST_EXAMINED", 4)
    old = insert(store, billed(1, queue="slow"))[0].id
    insert(store, *(billed(1) for _ in range(15)))
    where = {"indexed.customer": "1", "queue": "slow"}
    with store.read() as tx:
        first = SearchQueries(tx).list_jobs_bounded(where, 5, None)
        assert (first.rows, SearchQueries(tx).count_jobs_bounded(where, 5).jobs) == ([], 0)
        assert [
            row.id for row in SearchQueries(tx).list_jobs_bounded(where, 5, first.stopped).rows
        ] == [old]
        assert (
            len(SearchQueries(tx).list_jobs_bounded({"indexed.customer": "1"}, 16, None).rows) == 10
        )


def test_few_jobs_in_a_state_are_found_among_many_newer_ones(store, monkeypatch):
    monkeypatch.setattr(skimming, "EXAMINED_LIMIT", 10)
    monkeypatch.setattr(skimming, "FIRST_EXAMINED", 4)
    open_worker(store)
    waiting = enqueue(store, 3, kind="mail", run_at=now(store) + HOUR)
    for _ in range(3):
        enqueue(store, 5)
        settle_leases(store, claim(store, 5))
    with store.read() as tx:
        found = SearchQueries(tx).list_jobs_bounded({"state": "queued"}, 5, None)
        assert ([row.id for row in found.rows], found.stopped) == (waiting[::-1], None)
        assert dict(SearchQueries(tx).count_jobs_by_state(10)) == {
            "queued": 3,
            "running": 0,
            "succeeded": 10,
            "dead": 0,
            "cancelled": 0,
            "parked": 0,
        }


def test_on_sqlite_every_plan_uses_its_index(sqlite):
    params = {"before": "~", "floor": "", "limit": 5, "cap": 5, "skip": 9, "now": 0}
    expected = {
        "sqlite_autoindex_mulligan_job_1": [
            {},
            {"kind": "k"},
            {"queue": "q", "state": "succeeded"},
            {"owner": ""},
        ],
        "mulligan_job_for_owner": [{"owner": "o"}, {"owner": "o", "kind": "k"}],
        "mulligan_job_for_dead": [
            {"state": "dead"},
            {"state": "dead", "owner": "o"},
            {"class": "timeout"},
        ],
        "mulligan_job_for_group": [{"group": "g", "owner": "o"}],
        "mulligan_job_for_code": [{"code": "C", "kind": "k"}],
        "mulligan_job_for_batch_list": [{"batch_id": "b", "owner": "o"}],
        "mulligan_job_for_parked": [{"state": "parked", "owner": "o"}],
        "mulligan_job_for_cancelled": [{"state": "cancelled", "owner": "o"}],
    }
    for index, wheres in expected.items():
        for where in wheres:
            conditions, plan = build_conditions(where), choose_plan(where)
            for verb in ("list_jobs", "count_jobs", "find_page_end"):
                if verb == "find_page_end":
                    part = leading_conditions(conditions, plan)
                else:
                    part = follow_plan(conditions, plan)
                text = load_statement(verb, "sqlite", "mulligan_", matching=part.text("sqlite"))
                rows = sql(sqlite, f"EXPLAIN QUERY PLAN {text}", conditions.params | params)
                steps = " ".join(row[3] for row in rows)
                assert f"INDEX {index} (" in steps, (where, verb, steps)
                assert "TEMP B-TREE" not in steps, (where, verb, steps)


def test_gathered_jobs_come_from_small_indexes_in_order(sqlite):
    params = {"before": "~", "floor": "", "limit": 5, "now": 0}
    wheres = [
        {"state": "queued"},
        {"state": ("dead", "parked")},
        {"indexed.a": "1"},
        {"group": ("a", "b")},
    ]
    for where in wheres:
        conditions = follow_plan(build_conditions(where), choose_plan(where))
        text = load_statement(
            "list_jobs", "sqlite", "mulligan_", matching=conditions.text("sqlite")
        )
        plan = [
            row[3] for row in sql(sqlite, f"EXPLAIN QUERY PLAN {text}", conditions.params | params)
        ]
        assert not any(
            step.startswith("SCAN mulligan_job") and "INDEX" not in step for step in plan
        ), (where, plan)
        assert "TEMP B-TREE FOR ORDER BY" not in " ".join(plan), (where, plan)
    assert choose_plan({"state": ("queued", "succeeded")}) == ALL_JOBS


def test_a_job_without_owner_is_found_by_the_empty_owner(store):
    job = NewJob(id=a_job().id, kind="render", queue="default", payload="{}")
    insert(store, job, *jobs(3))
    assert found(store, {"owner": ""}) == [job.id]
    assert get(store, job.id).owner == ""
    assert len(all_rows(store)) == 4


# --- Counts ---
def test_counts_by_state_exclude_internal_kinds(store):
    for kind in ("render", "mulligan.deliver"):
        for outcome in (RETURNED, FATAL, PARKED, CANCELLED):
            settle_leases(store, claim_new_job(store, kind=kind), outcome)
        insert(store, a_job(kind=kind), a_job(kind=kind, queue="mulligan.notifications"))
    insert(
        store,
        a_job(queue="mulligan.slow"),
        a_job(kind="mulligan"),
        a_job(kind="amulligan.x", uses="gateway"),
    )
    with store.read() as tx:
        assert dict(SearchQueries(tx).count_jobs_by_state(100)) == {
            "queued": 5,
            "running": 0,
            "succeeded": 1,
            "dead": 1,
            "cancelled": 1,
            "parked": 1,
        }
        assert dict(SearchQueries(tx).count_jobs_by_state(3))["queued"] == 3
        assert (
            SearchQueries(tx)
            .count_jobs_bounded({"state": "queued", "kind": "mulligan.deliver"}, 100)
            .jobs
            == 2
        )
        assert SearchQueries(tx).count_jobs_bounded({"state": ("queued", "parked")}, 100).jobs == 6
