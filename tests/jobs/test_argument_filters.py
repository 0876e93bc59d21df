"""`arg.` filters: fast where a kind declares an index, bounded elsewhere, and answers that say what they are."""

from __future__ import annotations

import asyncio

import pytest

from mulligan import Context, Fail, Policy
from mulligan.core.errors import ConfigError, NotFound, Refused
from mulligan.jobs import queries as skimming
from mulligan.jobs.search import index_kind, reindex_job
from mulligan.manifest.specs import KindSpec, Manifest
from support.store import sql


@pytest.fixture
def bill(app):
    @app.job(name="bill", index=("customer", "address.city"), policy=Policy(max_retries=0))
    def bill(
        customer: int, address: dict[str, str] | None = None, fail: bool = False
    ) -> Fail | None:
        return Fail("BAD_CARD", "no", public="The card was refused.", final=True) if fail else None

    return bill


@pytest.fixture
def note(app):
    @app.job(name="note")
    def note(customer: int, order: dict[str, int] | None = None) -> None: ...

    return note


def ids(jobs):
    return [job.id for job in jobs]


def test_an_indexed_argument_alone_finds_jobs(app, bill):
    made = [bill.enqueue(customer=n % 3, address={"city": "Rome"}) for n in range(6)]
    assert ids(app.jobs.list("arg.customer:1")) == [made[4].id, made[1].id]
    assert ids(app.jobs.list("arg.customer:1 arg.address.city:Rome kind:bill")) == [
        made[4].id,
        made[1].id,
    ]
    assert app.jobs.count("arg.address.city:Rome") == 6
    assert app.jobs.list("arg.customer:7") == []


def test_jobs_enqueued_in_bulk_or_by_name_are_indexed(app, bill):
    many = bill.enqueue_many([{"customer": n} for n in range(4)])
    named = app.enqueue("bill", {"customer": 2})
    assert ids(app.jobs.list("arg.customer:2")) == [named.id, many[2].id]


def test_an_app_without_handlers_indexes_by_the_manifest(app, make_app, bill):
    app.run_inline()
    other = make_app()
    job = other.enqueue("bill", {"customer": 9})
    assert ids(other.jobs.list("arg.customer:9")) == [job.id]


def test_jobs_of_a_schedule_are_indexed(app, bill):
    app.schedule("nightly", "0 3 * * *", bill, payload={"customer": 5})
    app.run_inline()
    app.schedules.run("nightly")
    assert app.jobs.count("arg.customer:5") == 1


def test_kinds_without_an_index_write_no_index_rows(app, note):
    note.enqueue(customer=1)
    assert sql(app.store, "SELECT count(*) FROM {p}job_arg") == [(0,)]


def test_an_unindexed_argument_needs_a_narrow_filter(app, note):
    job = note.options(owner="acme").enqueue(customer=1)
    note.enqueue(customer=2, order={"customer": 1})
    for narrow in ("kind:note", "owner:acme"):
        assert ids(app.jobs.list(f"arg.customer:1 since:1h {narrow}")) == [job.id]
        assert app.jobs.count(f"arg.customer:1 since:1h {narrow}") == 1
    for more in ("", "kind:note", "since:1h", "state:queued"):
        text = f"arg.customer:1 {more}"
        with pytest.raises(
            Refused, match=r'index=\("customer",\).*since:1d.*kind:, group:, batch:, owner:'
        ):
            app.jobs.list(text)
        with pytest.raises(Refused):
            app.jobs.count(text)


def test_a_kind_without_the_index_is_searched_by_payload(app, bill, note):
    bill.enqueue(customer=1)
    job = note.enqueue(customer=1)
    with pytest.raises(Refused, match="indexed only by bill"):
        app.jobs.list("arg.customer:1 kind:note")
    assert ids(app.jobs.list("arg.customer:1 kind:note since:1h")) == [job.id]
    assert len(app.jobs.list("arg.customer:1 kind:note,bill since:1h")) == 2
    assert len(app.jobs.list("arg.customer:1")) == 1


def test_group_counts_by_an_indexed_argument_match_the_list(app, bill, note):
    for n in range(6):
        bill.enqueue(customer=n % 2, fail=True)
    app.run_inline()
    (group,) = app.failures.groups("arg.customer:1")
    assert group.count == app.jobs.count("state:dead arg.customer:1") == 3
    with pytest.raises(Refused, match="indexed arguments only"):
        app.failures.groups("arg.note:1 kind:note since:1h")


ELEVEN = [f"a{n}" for n in range(11)]


@pytest.mark.parametrize(
    "index", ["", "a b", "x:y", ("customer", 7), 5, "nobody", ELEVEN, "address."]
)
def test_an_index_must_name_existing_arguments(app, index):
    with pytest.raises(ConfigError, match="kind 'work': index"):

        @app.job(name="work", index=index)
        def work(ctx: Context, customer: int, address: dict[str, str]) -> None: ...


def test_free_arguments_may_be_indexed(app):
    @app.job(name="free", index="anything")
    def free(**given: int) -> None: ...

    job = free.enqueue(anything=3)
    assert ids(app.jobs.list("arg.anything:3")) == [job.id]


def test_the_manifest_carries_the_index(app, bill):
    assert Manifest.from_json(app.manifest().to_json()).kinds["bill"].index == (
        "customer",
        "address.city",
    )


# -- jobs that came before -----------------------------------------------------------------------
def test_index_kind_indexes_older_jobs(app, make_app, bill):
    early = make_app()
    old = [early.enqueue("bill", {"customer": 1}) for _ in range(3)]
    app.run_inline()
    new = bill.enqueue(customer=1)
    assert ids(app.jobs.list("arg.customer:1")) == [new.id]
    assert index_kind(app.store, "bill") == 4
    assert ids(app.jobs.list("arg.customer:1")) == [new.id, *ids(reversed(old))]
    assert index_kind(app.store, "bill") == 4


def test_index_kind_refuses_a_kind_without_an_index(app, note):
    with pytest.raises(NotFound):
        index_kind(app.store, "note")
    app.run_inline()
    with pytest.raises(Refused, match="declares no index"):
        index_kind(app.store, "note")


def test_a_changed_payload_is_reindexed(app, bill):
    job = bill.enqueue(customer=1)
    with app.store.begin() as tx:
        reindex_job(tx, KindSpec("bill", index=("customer",)), job.id, '{"customer":2}')
    assert (app.jobs.count("arg.customer:1"), app.jobs.count("arg.customer:2")) == (0, 1)


# -- answers that say what they are --------------------------------------------------------------
def test_a_count_reports_that_it_was_capped(app, note):
    note.enqueue_many([{"customer": n} for n in range(5)])
    whole, cut = app.jobs.count("kind:note"), app.jobs.count("kind:note", cap=3)
    assert (whole, whole.capped, whole.partial) == (5, False, False)
    assert (cut, cut.capped, cut.partial) == (3, True, False)


def test_a_partial_list_and_count_report_it_and_the_cursor(app, bill, note, monkeypatch):
    monkeypatch.setattr(skimming, "EXAMINED_LIMIT", 10)
    monkeypatch.setattr(skimming, "FIRST_EXAMINED", 5)
    old = bill.enqueue(customer=1)
    note.enqueue_many([{"customer": n} for n in range(15)])
    first = app.jobs.list("kind:bill")
    assert (first, first.partial) == ([], True)
    then = app.jobs.list("kind:bill", before=first.cursor)
    assert (ids(then), then.partial, then.cursor) == ([old.id], False, None)
    count = asyncio.run(app.aio.jobs.count("kind:bill"))
    assert (count, count.partial) == (0, True)


def test_a_full_page_has_a_cursor(app, note):
    note.enqueue_many([{"customer": n} for n in range(5)])
    found_ids, cursor = [], None
    for _ in range(3):
        page = app.jobs.list("kind:note", limit=2, before=cursor)
        found_ids += ids(page)
        cursor = page.cursor
    assert (len(set(found_ids)), cursor) == (5, None)
