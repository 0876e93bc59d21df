"""Counting of events: every event once, by any worker, through any failure."""

from __future__ import annotations

import json
from collections import Counter

from mulligan.core.attempt import Ended, Ending, Outcome
from mulligan.core.durations import SECOND
from mulligan.events.queries import HOUR, MINUTE, EventQueries, StatQueries, StatRow
from mulligan.observability import event_counts as folding
from mulligan.observability.event_counts import (
    MAX_LABELS,
    CounterState,
    EventCounter,
    LabelNames,
    build_stat_rows,
    group_events,
)
from mulligan.worker.settle import SettleContext, settle
from support.store import (
    FAILED,
    FATAL,
    LOST,
    POLICIES,
    RETURNED,
    SNOOZED,
    Random,
    claim_new_job,
    claim_when_due,
    enqueue,
    now,
    rolled_back,
    run_once,
    settle_leases,
    sql,
)


def begun(store, every=0.0):
    """Start counting now."""
    fold = EventCounter(every)
    fold.run_once(store)
    return fold


def ever(store, name):
    """Return (n, total) by labels."""
    with store.read() as tx:
        return {
            row.labels: (row.n, row.total)
            for row in StatQueries(tx).list_stat_totals()
            if row.name == name
        }


def n_of(store, name, **labels):
    return sum(
        n
        for text, (n, _) in ever(store, name).items()
        if labels.items() <= json.loads(text).items()
    )


def test_outcomes_of_jobs_are_counted_by_labels(store):
    fold = begun(store)
    run_once(store, RETURNED, uses="gateway")
    run_once(store, FATAL, kind="mail", queue="slow")
    lease = claim_new_job(store)
    settle_leases(store, lease, FAILED)
    settle_leases(store, claim_when_due(store, lease.id), RETURNED)
    run_once(store, SNOOZED)
    fold.run_once(store)
    assert n_of(store, "enqueued", kind="render") == 3
    assert n_of(store, "ends", state="succeeded", kind="render", queue="default") == 2
    assert (
        n_of(
            store,
            "ends",
            state="dead",
            kind="mail",
            queue="slow",
            code="BROKEN",
            **{"class": "permanent"},
        )
        == 1
    )
    assert n_of(store, "attempts", outcome="succeeded") == 2
    assert n_of(store, "attempts", outcome="retry", **{"class": "transient"}) == 1
    assert n_of(store, "attempts", outcome="snoozed") == 1
    assert n_of(store, "tries", outcome="succeeded", **{"try": "2"}) == 1
    assert n_of(store, "calls", dependency="gateway", outcome="succeeded") == 1
    assert n_of(store, "needed", le="2") == 1
    assert (
        n_of(store, "retries", **{"class": "transient"})
        == n_of(store, "delay", **{"class": "transient"})
        == 1
    )
    assert n_of(store, "wait", kind="render") == 4


def test_durations_and_costs_of_attempts_are_summed(store):
    fold = begun(store)
    lease = claim_new_job(store)
    outcome = Outcome(Ended.RETURNED, result="1", cost=0.25)
    with store.begin() as tx:
        settle(tx, [Ending(lease, outcome, 2500)], SettleContext(POLICIES, tx.now(), Random(7)))
    fold.run_once(store)
    assert ever(store, "run") == {'{"kind":"render","le":"2.5","queue":"default"}': (1, 2.5)}
    (cost,) = ever(store, "cost").items()
    assert json.loads(cost[0]) == {
        "kind": "render",
        "nth": "first",
        "outcome": "succeeded",
        "class": "",
    }
    assert cost[1] == (1, 0.25)


def test_internal_kinds_are_counted_only_as_deliveries(store):
    fold = begun(store)
    run_once(store, RETURNED, kind="mulligan.probe")
    run_once(
        store, RETURNED, kind="mulligan.deliver", uses="mulligan.endpoint.webhook.0123456789ab"
    )
    run_once(store, FAILED, kind="mulligan.deliver.boss", uses="mulligan.endpoint.0123456789ab")
    fold.run_once(store)
    with store.read() as tx:
        names = {
            row.name
            for row in StatQueries(tx).list_stat_totals()
            if "mulligan" in row.labels or row.name == "attempts"
        }
    assert names == set()
    assert n_of(store, "deliveries", channel="webhook", outcome="succeeded") == 1
    assert n_of(store, "deliveries", channel="unknown", outcome="retry") == 1


def test_a_lost_attempt_and_lost_workers_are_counted(store):
    fold = begun(store)
    run_once(store, LOST)
    fold.run_once(store)
    assert n_of(store, "attempts", outcome="lost") == 1
    assert n_of(store, "workers", what="started") == 1


def test_every_event_is_counted_once(store, monkeypatch):
    """Count by three workers in steps of seven events, with occasional failures."""
    monkeypatch.setattr(folding, "MAX_EVENTS", 7)
    folds = [begun(store) for _ in range(3)]
    for _ in range(20):
        run_once(store, RETURNED)
    again = True
    while again:
        again = max(fold.run_once(store) for fold in folds)
        with rolled_back(store.begin()) as tx:
            EventQueries(tx).lock_reader("fold")
            EventQueries(tx).advance_reader("fold", 10**9)
    assert n_of(store, "enqueued") == n_of(store, "ends", state="succeeded") == 20


def test_events_before_the_first_count_are_counted(store):
    """A job that dies within a second of the first worker of a new database must raise alerts."""
    run_once(store, FATAL)
    fold = begun(store)
    fold.run_once(store)
    assert n_of(store, "ends", state="dead") == 1
    assert n_of(store, "enqueued") == 1


def test_a_fleet_counts_at_most_once_a_second(store):
    first, second = EventCounter(3600), EventCounter(3600)
    first.run_once(store)
    run_once(store, RETURNED)
    store.shift_clock(3600 * SECOND)
    first.run_once(store)
    run_once(store, RETURNED)
    second.run_once(store)
    assert n_of(store, "enqueued") == 1
    store.shift_clock(3600 * SECOND)
    second.run_once(store)
    assert n_of(store, "enqueued") == 2


def test_without_events_nothing_is_written(store):
    fold = begun(store)
    fold.run_once(store)
    before = sql(store, "SELECT * FROM {p}reader")
    store.shift_clock(SECOND)
    assert fold.run_once(store) is False
    assert sql(store, "SELECT * FROM {p}reader") == before


def test_an_unreadable_event_is_skipped(store):
    fold = begun(store)
    strange = (
        '{"kind":7,"code":{"a":1},"class":[],"uses":3,"cost":NaN,"wait_ms":-Infinity,"retries":"x"}'
    )
    for data in (
        "[]",
        "{",
        strange,
        '{"next_retry_at":"soon","duration_ms":"x"}',
        '{"kind":"a\\u0000b"}',
    ):
        sql(
            store,
            "INSERT INTO {p}event (at, type, attempt, data) VALUES (0, 'job.retry_scheduled', 1, :data)",
            {"data": data},
        )
    run_once(store, RETURNED)
    fold.run_once(store)
    assert n_of(store, "ends") == 1
    assert n_of(store, "attempts", outcome="retry") == 3


def test_without_events_it_checks_only_now_and_then(store, monkeypatch):
    fold = begun(store)
    fold.run_once(store)
    at = now(store) // MINUTE // HOUR * HOUR
    with store.begin() as tx:
        StatQueries(tx).add_stats(
            [StatRow(at + minute, "ends", '{"kind":"a"}', 1, 0.5) for minute in (0, 1)]
        )
    store.shift_clock(26 * HOUR * MINUTE)
    for again, rows in ((60.0, 2), (0.0, 1)):
        monkeypatch.setattr("mulligan.observability.event_counts.ROLL_UP_CHECK_SECONDS", again)
        while fold.run_once(store):
            pass
        with store.read() as tx:
            assert len(StatQueries(tx).list_stats(["ends"], 0)) == rows


def test_cached_state_of_a_restored_database_does_not_stop_counting(store):
    fold = begun(store)
    fold.run_once(store)
    fold._cursor += 1000  # events that do not exist any more
    run_once(store, RETURNED)
    fold.run_once(store)
    assert n_of(store, "ends") == 1


def test_many_missed_hours_are_rolled_up_at_once(store, monkeypatch):
    monkeypatch.setattr("mulligan.observability.event_counts.ROLL_UP_CHECK_SECONDS", 0.0)
    fold = begun(store)
    fold.run_once(store)
    at = now(store) // MINUTE // HOUR * HOUR
    with store.begin() as tx:
        StatQueries(tx).add_stats(
            [
                StatRow(at + 60 * hour + n, "ends", "{}", 1, 0.5)
                for hour in range(5)
                for n in range(3)
            ]
        )
    store.shift_clock(32 * HOUR * MINUTE)
    assert fold.run_once(store)
    monkeypatch.setattr(
        "mulligan.observability.event_counts.ROLL_UP_CHECK_SECONDS", 60.0
    )  # it was checked just now
    while fold.run_once(store):
        pass
    with store.read() as tx:
        assert [row.n for row in StatQueries(tx).list_stats(["ends"], 0)] == [3] * 5


def test_minutes_become_hours_after_a_day_and_totals_after_thirty(store, monkeypatch):
    monkeypatch.setattr("mulligan.observability.event_counts.ROLL_UP_CHECK_SECONDS", 0.0)
    fold = begun(store)
    at = now(store) // MINUTE // HOUR * HOUR
    rows = [StatRow(at + minute, "ends", '{"kind":"a"}', 1, 0.5) for minute in (0, 1, 59, 60)]
    with store.begin() as tx:
        StatQueries(tx).add_stats(rows)
    store.shift_clock(26 * HOUR * MINUTE)
    while fold.run_once(store):
        pass
    with store.read() as tx:
        hours = [(row.minute, row.n, row.total) for row in StatQueries(tx).list_stats(["ends"], 0)]
    assert hours == [(at, 3, 1.5), (at + 60, 1, 0.5)]
    store.shift_clock(31 * 24 * HOUR * MINUTE)
    while fold.run_once(store):
        pass
    with store.read() as tx:
        assert StatQueries(tx).list_stats(["ends"], 0) == []
    assert ever(store, "ends") == {'{"kind":"a"}': (4, 2.0)}


def test_labels_beyond_the_limit_are_counted_together():
    names = LabelNames({})
    limited = Counter(names.limit("kind", f"kind-{n}") for n in range(MAX_LABELS["kind"] + 50))
    assert len(limited) == MAX_LABELS["kind"] + 1
    assert limited["other"] == 50
    again = LabelNames(names.known)
    assert again.limit("kind", "kind-3") == "kind-3"
    assert again.limit("kind", "kind-999") == "other"
    assert again.limit("code", "X" * 1000) == "X" * 100


def test_a_thousand_kinds_are_a_bounded_number_of_rows(store):
    fold = begun(store)
    for n in range(MAX_LABELS["queue"] + 20):
        enqueue(store, queue=f"q{n}")
    fold.run_once(store)
    assert len(ever(store, "enqueued")) == MAX_LABELS["queue"] + 1
    assert n_of(store, "enqueued") == MAX_LABELS["queue"] + 20


def test_cached_event_data_counts_like_parsed_data(monkeypatch):
    data = {"kind": "a", "queue": "q", "duration_ms": 51, "wait_ms": 7}
    odd = [
        data,
        {**data, "duration_ms": 49},
        {"kind": 'x"run_at":3', "queue": "é\n", "run_at": 12},
        {
            "kind": "a",
            "queue": "q",
            "duration_ms": 5,
            "uses": "a,b",
            "retries": 2,
            "wait_ms": 3,
        },
        {"kind": "a", "queue": "q", "duration_ms": 5, "cost": 0.5, "wait_ms": 3},
        {"kind": "a", "queue": "q", "wait_ms": 3},
        {"kind": "a", "queue": "q", "duration_ms": 5},
        {"wait_ms": 3, "duration_ms": 5, "kind": "b"},
        {"kind": "a", "queue": "q", "duration_ms": 5, "reason": '"wait_ms":9', "wait_ms": 3},
        {"run_at": 12, "kind": "late"},
        {"run_at": 12, "kind": "later"},
        {},
    ]
    events = [
        (n * MINUTE * HOUR, kind, 1, json.dumps(data, separators=separators))
        for n, data in enumerate(odd)
        for kind in ("job.succeeded",)
        for separators in ((",", ":"), (", ", " : "))
    ]
    quick = group_events(events)
    monkeypatch.setattr(folding, "_count_success", lambda *_: False)
    assert list(build_stat_rows(quick, CounterState(""))) == list(
        build_stat_rows(group_events(events), CounterState(""))
    )
