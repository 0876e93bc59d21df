"""Metrics for Prometheus: correct, monotonic, and harmless to workers."""

from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mulligan import Mulligan
from mulligan.config import read_settings
from mulligan.core.durations import SECOND
from mulligan.core.job import Gate, NewJob
from mulligan.events.queries import HOUR, MINUTE, EventQueries
from mulligan.failures.service import Failures
from mulligan.guards.queries import GuardQueries
from mulligan.insight.service import load_insight
from mulligan.manifest.declared import publish_manifest
from mulligan.observability import exporter
from mulligan.observability.event_counts import EventCounter
from mulligan.observability.exporter import GAUGES
from mulligan.observability.metrics import COUNTERS, HISTOGRAMS
from support.store import (
    FAILED,
    FATAL,
    PARKED,
    RETURNED,
    claim_new_job,
    claim_when_due,
    enqueue,
    insert,
    now,
    open_worker,
    run_once,
    settle_leases,
    sql,
)


@pytest.fixture
def folded(store):
    """Count all events so far."""
    fold = EventCounter(0)
    fold.run_once(store)

    def count():
        while fold.run_once(store):
            pass

    return count


def read(store):
    """Return samples as {name: {labels: value}}."""
    found = {}
    for family in text_string_to_metric_families(exporter.render(store)):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def value(store, name, **labels):
    return sum(n for found, n in read(store)[name].items() if labels.items() <= dict(found).items())


def test_the_five_basic_metrics_exist(store, folded):
    run_once(store, FATAL)
    run_once(store, RETURNED)
    enqueue(store, 3)
    claim_new_job(store)
    folded()
    assert value(store, "mulligan_jobs_failed_total", error_code="BROKEN") == 1
    assert value(store, "mulligan_queue_depth", queue="default") == 3
    assert value(store, "mulligan_jobs_active", queue="default") == 1
    assert value(store, "mulligan_manual_retry_total") == 0
    assert "# TYPE mulligan_job_processing_duration_seconds histogram" in exporter.render(store)


def test_metrics_of_failures_and_dead_jobs_exist(store, folded):
    run_once(store, FATAL)
    run_once(store, FAILED)
    folded()
    assert (
        value(store, "mulligan_worker_failures_total", error_type="BROKEN", is_permanent="true")
        == 1
    )
    assert (
        value(store, "mulligan_worker_failures_total", error_type="BOOM", is_permanent="false") == 1
    )
    dead = sum(group.count for group in Failures(lambda: store).groups())
    assert value(store, "mulligan_dlq_size") == value(store, "mulligan_dead_letters") == dead == 1


def test_every_metric_exists_before_the_first_event(store):
    text = exporter.render(store)
    for metric in (*COUNTERS, *HISTOGRAMS, *GAUGES):
        assert f"# HELP {metric.name} " in text
    metrics = read(store)
    assert (
        metrics["mulligan_attempt_ends_total"][
            frozenset({"outcome": "dead", "error_class": "timeout", "nth": "retry"}.items())
        ]
        == 0
    )
    assert metrics["mulligan_runners_died_total"] == {frozenset(): 0}


def test_gauges_count_jobs_by_phase_and_measure_the_oldest(store):
    enqueue(store, 2)
    enqueue(store, 3, uses="gateway")
    enqueue(store, 4, delay=HOUR * MINUTE)
    claim_new_job(store)
    with store.begin() as tx:
        GuardQueries(tx).close_gate(Gate("dependency", "gateway", tx.now(), None, "down", "test"))
    store.shift_clock(90 * SECOND)
    for phase, n in {"ready": 2, "held": 3, "scheduled": 4, "running": 1}.items():
        assert value(store, "mulligan_queue_jobs", queue="default", phase=phase) == n
    assert value(store, "mulligan_oldest_job_age_seconds", queue="default") == pytest.approx(
        90, abs=5
    )
    assert value(store, "mulligan_oldest_held_age_seconds", queue="default") == pytest.approx(
        90, abs=5
    )
    assert value(store, "mulligan_breaker_state", dependency="gateway", state="open") == 1
    assert value(store, "mulligan_breaker_state", dependency="gateway", state="closed") == 0
    assert value(store, "mulligan_breaker_open_seconds", dependency="gateway") == pytest.approx(
        90, abs=5
    )
    assert value(store, "mulligan_held_jobs", dependency="gateway") == 3


def test_internal_jobs_are_in_no_gauge(store):
    internal = NewJob(
        id="x",
        kind="mulligan.deliver",
        queue="mulligan.deliveries",
        payload="{}",
        uses="mulligan.endpoint.a",
    )
    insert(store, internal)
    with store.begin() as tx:
        GuardQueries(tx).close_gate(
            Gate("dependency", "mulligan.endpoint.a", tx.now(), None, "down", "test")
        )
    text = exporter.render(store)
    assert "mulligan.deliver" not in text
    assert "mulligan.endpoint" not in text
    assert value(store, "mulligan_jobs", state="queued") == 0


def test_gauges_of_workers_parked_jobs_and_readers(store, folded):
    open_worker(store, "w1")
    open_worker(store, "w2", draining=True, release="r7")
    run_once(store, PARKED)
    folded()
    enqueue(store, 5)
    assert (
        value(store, "mulligan_workers", state="working")
        == value(store, "mulligan_workers", state="draining")
        == 1
    )
    assert value(store, "mulligan_worker_info", release="r7") == 1
    assert value(store, "mulligan_worker_slots") == 20
    assert value(store, "mulligan_parked_jobs") == 1
    assert value(store, "mulligan_reader_lag_events", reader="fold") == 5


def test_failure_rate_retry_success_and_retry_cost_equal_a_manual_count(store, folded):
    """Four jobs: three succeed at once, one at its second attempt, which costs 2."""
    for _ in range(3):
        run_once(store, RETURNED)
    lease = claim_new_job(store)
    settle_leases(store, lease, FAILED)
    settle_leases(
        store,
        claim_when_due(store, lease.id),
        RETURNED.__class__(RETURNED.ended, result="1", cost=2.0),
    )
    folded()
    assert value(store, "mulligan_failure_rate", window="5m") == pytest.approx(1 / 5)
    assert value(store, "mulligan_retry_success_rate", **{"try": "2"}) == 1
    assert value(store, "mulligan_retry_cost_per_job") == pytest.approx(2 / 4)
    store.shift_clock(10 * MINUTE)
    assert value(store, "mulligan_failure_rate", window="5m") == 0
    assert value(store, "mulligan_failure_rate", window="1h") == pytest.approx(1 / 5)


def test_insight_agrees_with_the_metrics_of_the_last_minutes(store, folded):
    run_once(store, RETURNED)
    run_once(store, FATAL, kind="mail")
    lease = claim_new_job(store)
    settle_leases(store, lease, FAILED)
    settle_leases(store, claim_when_due(store, lease.id), RETURNED)
    folded()
    settings = read_settings(environ={})
    five, hour = load_insight(store, settings, 3600, None, None).recent
    assert (five.failed.part, five.failed.whole, five.retries.part) == (2, 4, 1)
    assert (five.minutes, hour.minutes) == (5, 60)
    assert load_insight(store, settings, 3600, "mail", None).recent[0].failed.value == 1
    store.shift_clock(10 * MINUTE)
    five, hour = load_insight(store, settings, 3600, None, "default").recent
    assert (five.failed.whole, hour.failed.whole) == (0, 4)


def test_counters_only_grow_and_histograms_add_up_whatever_retention_does(store, folded):
    before = {}
    for days in (0, 2, 31, 32):
        run_once(store, RETURNED)
        store.shift_clock(days * 24 * HOUR * MINUTE)
        folded()
        now_ = {
            (name, labels): n
            for name, samples in read(store).items()
            for labels, n in samples.items()
            if name.endswith(("_total", "_bucket", "_count"))
        }
        assert all(now_[key] >= n for key, n in before.items())
        before = now_
    assert value(store, "mulligan_jobs_ended_total", state="succeeded") == 4
    assert value(store, "mulligan_job_wait_seconds_count") == value(
        store, "mulligan_job_wait_seconds_bucket", le="+Inf"
    )


def test_hostile_names_are_one_label_each_and_forge_no_line(store, folded):
    code = 'X"} 1\nmulligan_forged_total 9\u2028\x00'
    data = json.dumps(
        {"kind": "render", "queue": 'a"\\b', "code": code, "class": "unknown", "uses": "\ud800"}
    )
    sql(
        store,
        "INSERT INTO {p}event (at, type, attempt, data) VALUES (:at, 'job.died', 1, :data)",
        {"at": now(store), "data": data},
    )
    folded()
    metrics = read(store)
    assert "mulligan_forged_total" not in metrics
    assert (
        value(store, "mulligan_jobs_failed_total", error_code='X"} 1?mulligan_forged_total 9??')
        == 1
    )
    assert value(store, "mulligan_jobs_ended_total", queue='a"\\b') == 1


def test_scrapes_within_five_seconds_share_one_result(store):
    first = exporter.metrics_text(store, now=100.0)
    enqueue(store, 7)
    assert exporter.metrics_text(store, now=104.9) == first
    assert exporter.metrics_text(store, now=105.1) != first
    assert exporter.metrics_text(store) != first


def test_a_scrape_waits_for_no_writer(sqlite):
    enqueue(sqlite, 3)
    with sqlite.begin() as tx:
        EventQueries(tx).advance_reader("fold", 1)
        assert value(sqlite, "mulligan_queue_depth", queue="default") == 3


# --- Declared queues and the prefix ---


def publish(store, **settings):
    app = Mulligan(settings=settings)
    app.queue("mail")
    app.job(name="convert", queue="pdf")(lambda: None)
    with store.begin() as tx:
        publish_manifest(tx, app.manifest("shop:app"))


@pytest.mark.parametrize(
    "name",
    [
        "mulligan_queue_depth",
        "mulligan_jobs_active",
        "mulligan_oldest_job_age_seconds",
        "mulligan_oldest_held_age_seconds",
        "mulligan_queue_jobs",
    ],
)
def test_every_declared_queue_has_series_while_it_is_empty(store, name):
    publish(store)
    queues = {dict(labels)["queue"]: number for labels, number in read(store)[name].items()}
    assert queues == {"mail": 0, "pdf": 0}


def test_a_declared_queue_keeps_its_series_when_its_last_job_has_ended(store):
    publish(store)
    enqueue(store, 1, queue="pdf")
    assert value(store, "mulligan_queue_depth", queue="pdf") == 1
    sql(store, "DELETE FROM {p}job", {})
    assert value(store, "mulligan_queue_depth", queue="pdf") == 0


@pytest.mark.parametrize("prefix", ["", "shop_"])
def test_all_metrics_have_the_configured_prefix(store, folded, prefix):
    publish(store)
    run_once(store, FATAL)
    folded()
    families = list(text_string_to_metric_families(exporter.render(store, prefix)))
    names = {sample.name for family in families for sample in family.samples}
    assert f"{prefix}jobs_failed_total" in names
    assert f"{prefix}job_wait_seconds_bucket" in names
    assert f"{prefix}queue_depth" in names
    assert all(name.startswith(prefix) and "mulligan" not in name for name in names)
    assert "mulligan" not in exporter.render(store, prefix)
    assert len(families) == len(list(text_string_to_metric_families(exporter.render(store))))


def test_another_prefix_is_not_answered_from_the_cache(store):
    assert "\nmulligan_workers" in exporter.metrics_text(store, now=100.0)
    assert "\nshop_workers" in exporter.metrics_text(store, "shop_", now=100.0)
