"""The fold: every event is group_events once, by whichever worker, whatever happens in between."""

from __future__ import annotations

import json
from collections import Counter

from mulligan.core.attempt import Ended, Ending, Outcome
from mulligan.core.durations import SECOND
from mulligan.observability import event_counts as folding
from mulligan.observability.event_counts import (
    MAX_LABELS,
    CounterState,
    EventCounter,
    LabelNames,
    build_stat_rows,
    group_events,
)
from mulligan.storage.stat_queries import HOUR, MINUTE, StatRow
from mulligan.worker.settle import settle
from support.store import (
    FAILED,
    FATAL,
    LOST,
    POLICIES,
    RETURNED,
    SNOOZED,
    Random,
    ended,
    enqueue,
    finish,
    now,
    once_more,
    running,
    sql,
    undone,
)


def begun(store, every=0.0):
    """A fold that begins now."""
    fold = EventCounter(every)
    fold.run_once(store)
    return fold


def ever(store, name):
    """By labels, (n, total) of all that was group_events."""
    with store.read() as unit:
        return {row.labels: (row.n, row.total) for row in unit.list_stat_totals() if row.name == name}


def n_of(store, name, **labels):
    return sum(
        n
        for text, (n, _) in ever(store, name).items()
        if labels.items() <= json.loads(text).items()
    )


def test_what_jobs_came_to_is_counted_by_what_they_are(store):
    fold = begun(store)
    ended(store, RETURNED, uses="gateway")
    ended(store, FATAL, kind="mail", queue="slow")
    lease = running(store)
    finish(store, lease, FAILED)
    finish(store, once_more(store, lease.id), RETURNED)
    ended(store, SNOOZED)
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


def test_how_long_attempts_ran_and_what_they_cost_is_summed(store):
    fold = begun(store)
    lease = running(store)
    outcome = Outcome(Ended.RETURNED, result="1", cost=0.25)
    with store.begin() as unit:
        settle(unit, [Ending(lease, outcome, 2500)], POLICIES, unit.now(), Random(7))
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


def test_our_own_kinds_are_in_no_number_but_that_of_deliveries(store):
    fold = begun(store)
    ended(store, RETURNED, kind="mulligan.probe")
    ended(store, RETURNED, kind="mulligan.deliver", uses="mulligan.endpoint.webhook.0123456789ab")
    ended(store, FAILED, kind="mulligan.deliver.boss", uses="mulligan.endpoint.0123456789ab")
    fold.run_once(store)
    with store.read() as unit:
        names = {
            row.name
            for row in unit.list_stat_totals()
            if "mulligan" in row.labels or row.name == "attempts"
        }
    assert names == set()
    assert n_of(store, "deliveries", channel="webhook", outcome="succeeded") == 1
    assert n_of(store, "deliveries", channel="unknown", outcome="retry") == 1


def test_a_lost_attempt_and_lost_workers_are_counted(store):
    fold = begun(store)
    ended(store, LOST)
    fold.run_once(store)
    assert n_of(store, "attempts", outcome="lost") == 1
    assert n_of(store, "workers", what="started") == 1


def test_what_was_counted_is_not_counted_again_and_nothing_is_left_out(store, monkeypatch):
    """Three folds by turns, in steps of seven events, one of them failing at its end now and then."""
    monkeypatch.setattr(folding, "MAX_EVENTS", 7)
    folds = [begun(store) for _ in range(3)]
    for _ in range(20):
        ended(store, RETURNED)
    again = True
    while again:
        again = max(fold.run_once(store) for fold in folds)
        with undone(store.begin()) as unit:
            unit.lock_reader("fold")
            unit.advance_reader("fold", 10**9)
    assert n_of(store, "enqueued") == n_of(store, "ends", state="succeeded") == 20


def test_one_fold_of_a_fleet_in_a_second_is_enough(store):
    first, second = EventCounter(3600), EventCounter(3600)
    first.run_once(store)
    ended(store, RETURNED)
    store.shift_clock(3600 * SECOND)
    first.run_once(store)
    ended(store, RETURNED)
    second.run_once(store)
    assert n_of(store, "enqueued") == 1
    store.shift_clock(3600 * SECOND)
    second.run_once(store)
    assert n_of(store, "enqueued") == 2


def test_a_fold_with_nothing_to_count_writes_nothing(store):
    fold = begun(store)
    fold.run_once(store)
    before = sql(store, "SELECT * FROM {p}reader")
    store.shift_clock(SECOND)
    assert fold.run_once(store) is False
    assert sql(store, "SELECT * FROM {p}reader") == before


def test_an_event_nobody_can_read_is_left_out_and_the_next_one_counted(store):
    fold = begun(store)
    strange = '{"kind":7,"code":{"a":1},"class":[],"uses":3,"cost":NaN,"wait_ms":-Infinity,"failed_before":"x"}'
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
    ended(store, RETURNED)
    fold.run_once(store)
    assert n_of(store, "ends") == 1
    assert n_of(store, "attempts", outcome="retry") == 3


def test_while_nothing_happens_it_asks_now_and_then_whether_it_is_time(store, monkeypatch):
    fold = begun(store)
    fold.run_once(store)
    at = now(store) // MINUTE // HOUR * HOUR
    with store.begin() as unit:
        unit.add_stats([StatRow(at + minute, "ends", '{"kind":"a"}', 1, 0.5) for minute in (0, 1)])
    store.shift_clock(26 * HOUR * MINUTE)
    for again, rows in ((60.0, 2), (0.0, 1)):
        monkeypatch.setattr("mulligan.observability.event_counts.ROLL_UP_CHECK_SECONDS", again)
        while fold.run_once(store):
            pass
        with store.read() as unit:
            assert len(unit.list_stats(["ends"], 0)) == rows


def test_what_it_remembers_of_a_database_that_was_restored_keeps_it_from_nothing(store):
    fold = begun(store)
    fold.run_once(store)
    fold._cursor += 1000  # events that are there no more
    ended(store, RETURNED)
    fold.run_once(store)
    assert n_of(store, "ends") == 1


def test_of_many_hours_that_were_left_all_are_made_at_once(store, monkeypatch):
    monkeypatch.setattr("mulligan.observability.event_counts.ROLL_UP_CHECK_SECONDS", 0.0)
    fold = begun(store)
    fold.run_once(store)
    at = now(store) // MINUTE // HOUR * HOUR
    with store.begin() as unit:
        unit.add_stats(
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
    )  # it was asked just now
    while fold.run_once(store):
        pass
    with store.read() as unit:
        assert [row.n for row in unit.list_stats(["ends"], 0)] == [3] * 5


def test_after_a_day_minutes_are_hours_and_after_thirty_only_the_sum_is_left(store, monkeypatch):
    monkeypatch.setattr("mulligan.observability.event_counts.ROLL_UP_CHECK_SECONDS", 0.0)
    fold = begun(store)
    at = now(store) // MINUTE // HOUR * HOUR
    rows = [StatRow(at + minute, "ends", '{"kind":"a"}', 1, 0.5) for minute in (0, 1, 59, 60)]
    with store.begin() as unit:
        unit.add_stats(rows)
    store.shift_clock(26 * HOUR * MINUTE)
    while fold.run_once(store):
        pass
    with store.read() as unit:
        hours = [(row.minute, row.n, row.total) for row in unit.list_stats(["ends"], 0)]
    assert hours == [(at, 3, 1.5), (at + 60, 1, 0.5)]
    store.shift_clock(31 * 24 * HOUR * MINUTE)
    while fold.run_once(store):
        pass
    with store.read() as unit:
        assert unit.list_stats(["ends"], 0) == []
    assert ever(store, "ends") == {'{"kind":"a"}': (4, 2.0)}


def test_only_so_many_names_are_kept_and_the_rest_is_counted_together():
    names = LabelNames({})
    kept = Counter(names.limit("kind", f"kind-{n}") for n in range(MAX_LABELS["kind"] + 50))
    assert len(kept) == MAX_LABELS["kind"] + 1
    assert kept["other"] == 50
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


def test_what_is_looked_up_counts_as_if_it_had_been_parsed(monkeypatch):
    plain = {"kind": "a", "queue": "q", "duration_ms": 51, "wait_ms": 7}
    odd = [
        plain,
        {**plain, "duration_ms": 49},
        {"kind": 'x"run_at":3', "queue": "é\n", "run_at": 12},
        {
            "kind": "a",
            "queue": "q",
            "duration_ms": 5,
            "uses": "a,b",
            "failed_before": 2,
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
    news = [
        (n * MINUTE * HOUR, kind, 1, json.dumps(data, separators=separators))
        for n, data in enumerate(odd)
        for kind in ("job.succeeded",)
        for separators in ((",", ":"), (", ", " : "))
    ]
    quick = group_events(news)
    monkeypatch.setattr(folding, "_count_success", lambda *_: False)
    assert list(build_stat_rows(quick, CounterState(""))) == list(build_stat_rows(group_events(news), CounterState("")))
