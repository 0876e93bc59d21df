"""Tests of bulk enqueue: what it stores, announces and returns."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from enum import StrEnum
from random import Random

import pytest

from mulligan import Mulligan, Unique
from mulligan.core.errors import PayloadRefused
from mulligan.core.tracing import OPENTELEMETRY
from mulligan.jobs.queries import JobQueries
from mulligan.manifest.arguments import MAX_DEPTH, to_json, to_json_many
from support.call_trace import trace_functions
from support.store import read_event_table, sql

PAYLOADS = [
    {"clip": n, "name": name} for n, name in enumerate(["a", 'b},{"', "\\c", "é", "d\x1fe\ud800"])
]


@pytest.fixture
def app(store_url):
    app = Mulligan(store_url)
    yield app
    app.close()


@pytest.fixture
def render(app):
    @app.job(name="render")
    def render(clip: int, name: str = "") -> None: ...

    return render


def test_the_returned_jobs_are_what_is_stored(app, render):
    jobs = render.options(
        owner="acme", priority=3, delay=60, deadline=600, max_retries=7
    ).enqueue_many(PAYLOADS)
    for job in jobs:
        stored = job.refresh()
        assert replace(stored, why=job.why) == job
        assert repr(replace(stored, why=job.why)) == repr(job)
    assert [job.id for job in jobs] == sorted(job.id for job in jobs)


def test_enqueue_many_returns_a_list_of_any_length(app, render):
    for many in (0, 1, 2, 5):
        jobs = render.enqueue_many(PAYLOADS[:many])
        assert type(jobs) is list
        assert [job.payload for job in jobs] == PAYLOADS[:many]
        assert json.dumps(jobs, default=lambda job: job.id) == json.dumps([job.id for job in jobs])


def test_a_reused_dict_gives_each_job_its_payload(render):
    def rows():
        row = {}
        for clip in range(4):
            row["clip"] = clip
            yield row

    assert [job.refresh().payload for job in render.enqueue_many(rows())] == [
        {"clip": clip} for clip in range(4)
    ]


def test_a_reused_list_gives_each_job_its_payload(app):
    @app.job(name="tag")
    def tag(tags: list[int]) -> None: ...

    def rows():
        tags = []
        for number in range(4):
            tags[:] = [number]
            yield {"tags": tags}

    assert [job.refresh().payload for job in tag.enqueue_many(rows())] == [
        {"tags": [number]} for number in range(4)
    ]


def test_str_subclasses_of_a_caller_are_not_cached_for_others(render):
    class Owner(StrEnum):
        ACME = "acme of somebody"

    render.options(owner=Owner.ACME).enqueue(clip=1)
    assert type(render.options(owner="acme of somebody").enqueue(clip=2).owner) is str


@pytest.mark.parametrize("owner", ["", 'ac"me'])
@pytest.mark.parametrize("many", [2, 12, 1001])
def test_bulk_jobs_have_the_events_of_single_jobs(app, render, owner, many):
    batch = app.batch("all", owner=owner)
    kinds = [render.options(owner=owner), render.options(owner=owner, batch=batch)]
    for kind in kinds:
        alone = kind.enqueue(clip=0)
        together = [job.id for job in kind.enqueue_many([{"clip": n} for n in range(many)])]
        events = {
            event[3]: event for event in read_event_table(app.store) if event[2] == "job.queued"
        }
        assert len({events[job_id][0] for job_id in together}) == many
        assert {_comparable(events[job_id]) for job_id in together} == {
            _comparable(events[alone.id])
        }


def _comparable(event):
    data = json.loads(event[9])
    return tuple(event[4:9]), data["kind"], data["queue"], *sorted(data)


def test_bulk_payloads_are_encoded_like_single_payloads(app, render):
    given = [*PAYLOADS, {"name": "first", "clip": 1}, {"clip": 7}]
    together = [job.id for job in render.enqueue_many(given)]
    alone = [render.enqueue(**payload).id for payload in given]
    texts = dict(sql(app.store, "SELECT id, payload FROM {p}job"))
    assert [texts[job_id] for job_id in together] == [texts[job_id] for job_id in alone]


@pytest.mark.parametrize("wrong", [{"clip": "x"}, {"clop": 1}, {"clip": 1, "name": 7}, {}])
def test_one_invalid_payload_refuses_the_whole_bulk(app, render, wrong):
    with pytest.raises(PayloadRefused):
        render.enqueue_many([*PAYLOADS, wrong])
    assert app.jobs.count("kind:render") == 0


def test_a_uses_function_cannot_change_the_payload(app):
    @app.job(name="greedy", uses=lambda payload: [payload.pop("to")])
    def greedy(to: str) -> None: ...

    given = [{"to": "gateway"}, {"to": "mail"}]
    jobs = greedy.enqueue_many(given)
    assert given == [{"to": "gateway"}, {"to": "mail"}]
    assert [(job.payload, job.uses) for job in jobs] == [(one, (one["to"],)) for one in given]


VALUES = [
    [{"a": 1}, {"a": "},{"}],
    [{"a": [{}, {}]}],
    [{"a": [{}, {}]}, {}],
    [{}, {}, {"b": "é\x1f\x00\ud800"}],
    [{"a": "x" * MAX_DEPTH}, {"a": 1.5, "b": None, "c": True}],
]


@pytest.mark.parametrize("values", VALUES)
def test_encoding_many_payloads_equals_encoding_each(values):
    assert (to_json_many(values) or [to_json(one, "it") for one in values]) == [
        to_json(one, "it") for one in values
    ]


def test_bulk_encoding_falls_back_to_single_encoding():
    deep = {}
    for _ in range(MAX_DEPTH):
        deep = {"a": deep}
    for values in ([{"a": "},{"}], [{"a": float("nan")}], [{"a": object()}], [{}, deep], []):
        assert to_json_many(values) is None


def test_the_payload_of_a_job_is_not_shared(render):
    given = [{"clip": n, "name": "x"} for n in range(3)]
    jobs = render.enqueue_many(given)
    given[0]["clip"] = 7
    jobs[1].payload["clip"] = 8
    assert [job.payload["clip"] for job in jobs] == [0, 8, 2]
    assert [job.refresh().payload["clip"] for job in jobs] == [0, 1, 2]
    assert given[1] == {"clip": 1, "name": "x"}


# A reader follows an enqueue through these many functions and files of the package.
MAX_FUNCTIONS = 22
MAX_FILES = 8


def test_an_enqueue_calls_few_functions_in_few_files(sqlite_url, monkeypatch):
    monkeypatch.delitem(sys.modules, OPENTELEMETRY, raising=False)  # other tests import it
    app = Mulligan(sqlite_url)
    render = app.job(name="render")(_render)
    render.enqueue(clip=1, name="warm")
    functions = trace_functions(lambda: render.enqueue(clip=2, name="counted"))
    app.close()
    assert len(functions) <= MAX_FUNCTIONS, sorted(functions)
    assert len({file for file, _ in functions}) <= MAX_FILES, sorted(functions)


def _render(clip: int, name: str = "") -> None: ...


def test_unique_keys_of_any_length_are_one_job_and_are_found(app):
    @app.job(name="scan", unique=Unique())
    def scan(text: str, z: int = 0) -> None: ...

    # Random text: PostgreSQL compresses repeated text before it measures an index entry.
    text = "".join(Random(1).choices("abcdefghij0123456789é", k=100_000))
    first = scan.enqueue(text=text)
    assert scan.enqueue(text=text).id == first.id
    other = scan.enqueue(text=text, z=1)
    assert other.id != first.id
    jobs = scan.enqueue_many([{"text": text, "z": z} for z in range(4)])
    assert [job.deduplicated for job in jobs] == [True, True, False, False]  # z=0 is the default
    batch = app.batch("long keys")
    members = [scan.options(batch=batch).enqueue(text=text, z=9) for _ in range(2)]
    assert members[0].id == members[1].id
    with app.store.read() as tx:
        find = JobQueries(tx).find_jobs_by_key
        assert set(find(first.unique_key[:1000], 10)) == {
            first.id,
            other.id,
            members[0].id,
            *(job.id for job in jobs),
        }
        assert find(first.unique_key, 10) == [first.id]
        assert find(first.unique_key[:300] + "~", 10) == []
