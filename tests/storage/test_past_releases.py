"""Manifests of past releases: they leave, and a sweep does not pay for them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from mulligan import Mulligan
from mulligan.config import Settings
from mulligan.core.durations import SECOND
from mulligan.manifest import declared
from mulligan.manifest.declared import load_kinds, prune_manifests, publish_manifest
from mulligan.manifest.queries import ManifestQueries
from mulligan.manifest.specs import KindSpec
from mulligan.worker.supervisor.chores import Chores

HOUR = 3600 * SECOND
DAY = 24 * HOUR


@pytest.fixture
def manifest():
    """The manifest of an app with a few kinds and a schedule."""
    app = Mulligan("sqlite:///unused.db")

    @app.job(name="render")
    def render(clip: int, size: int = 3) -> None: ...

    @app.job(name="mail")
    def mail(to: str) -> None: ...

    app.schedule("nightly", "0 3 * * *", mail, {"to": "ops"})
    return app.manifest("shop:app")


def publish(store, *manifests):
    for manifest in manifests:
        with store.begin() as tx:
            publish_manifest(tx, manifest)


def prune(store):
    with store.begin() as tx:
        return prune_manifests(tx, tx.now(), 1000)


def releases(store):
    with store.read() as tx:
        return [row.release for row in ManifestQueries(tx).list_manifests()]


def release(manifest, name, **changes):
    return replace(manifest, release=name, **changes)


def test_a_release_that_was_replaced_is_removed(store, manifest):
    publish(store, release(manifest, "r1"), release(manifest, "r2"))
    assert prune(store) == 0  # both may have workers
    store.shift_clock(HOUR)
    publish(store, release(manifest, "r2"))
    assert prune(store) == 1
    assert releases(store) == ["r2"]


def test_the_last_release_of_an_app_without_workers_stays(store, manifest):
    publish(store, release(manifest, "r1"))
    store.shift_clock(60 * DAY)
    publish(store, replace(manifest, app="other:app", release="o1"))
    assert prune(store) == 0
    assert set(releases(store)) == {"r1", "o1"}


def test_a_release_that_was_rolled_back_is_removed(store, manifest):
    publish(store, release(manifest, "r1"), release(manifest, "r2"))
    store.shift_clock(HOUR)
    publish(store, release(manifest, "r1"))
    assert prune(store) == 1
    assert releases(store) == ["r1"]


@pytest.mark.parametrize("removed", ["kinds", "schedules"])
def test_the_last_release_with_a_kind_or_schedule_stays_for_a_month(store, manifest, removed):
    kinds = {**manifest.kinds, "old": KindSpec("old")}
    first = release(manifest, "r1", kinds=kinds)
    second = release(manifest, "r2", kinds=kinds)
    third = release(manifest, "r3")
    if removed == "schedules":
        first = release(manifest, "r1")
        second = release(manifest, "r2")
        third = release(manifest, "r3", schedules={})
    publish(store, first)
    store.shift_clock(HOUR)
    publish(store, second)
    store.shift_clock(HOUR)
    publish(store, third)
    assert prune(store) == 1
    assert releases(store) == ["r3", "r2"]
    with store.read() as tx:
        assert "old" in load_kinds(tx) or removed == "schedules"
    store.shift_clock(31 * DAY)
    publish(store, third)
    assert prune(store) == 1
    assert releases(store) == ["r3"]


def many_kinds(manifest):
    """Return the manifest with 60 kinds, as a large app has."""
    spec = manifest.kinds["render"]
    kinds = {f"kind{n}": replace(spec, name=f"kind{n}") for n in range(60)}
    return replace(manifest, kinds={**manifest.kinds, **kinds})


def sweep_cost(chores, sweeps=30):
    """Return the CPU seconds of a sweep, after those that fill the caches and prune."""
    for _ in range(3):
        chores.request_full_sweep()
        chores.sweep("w1")
    costs = []
    for _ in range(sweeps):
        before = time.thread_time()
        chores.sweep("w1")
        costs.append(time.thread_time() - before)
    return median(costs)


@pytest.mark.slow
def test_a_sweep_with_1000_past_releases_costs_at_most_twice_one_with_one(
    store, manifest, tmp_path
):
    manifest = many_kinds(manifest)
    chores = Chores(store, Settings(), Path(tmp_path))
    chores._manifest = manifest
    one = sweep_cost(chores)
    with store.begin() as tx:
        for n in range(1000):
            past = release(manifest, f"r{n}")
            ManifestQueries(tx).store_manifest(past.id, past.app, past.release, past.to_json())
    # Within minutes of their last publication, all of them may have workers.
    recent = sweep_cost(chores)
    store.shift_clock(2 * HOUR)
    past = sweep_cost(chores)
    assert releases(store) == [""]
    assert past <= 2 * one, (one, past)
    assert recent <= one + 0.02, (one, recent)


def test_a_manifest_is_read_and_parsed_once(store, manifest, monkeypatch):
    publish(store, manifest)
    declared._parsed.clear()
    with store.read() as tx:
        load_kinds(tx)
    monkeypatch.setattr(ManifestQueries, "read_manifest", lambda *_: pytest.fail("read again"))
    with store.read() as tx:
        assert "render" in load_kinds(tx)
