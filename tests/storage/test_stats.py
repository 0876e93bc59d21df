"""Statistics: they add up and are found by time and name; one worker counts at a time."""

from __future__ import annotations

from mulligan.events.queries import ALL_TIME, MINUTE, EventQueries, StatQueries, StatRow
from support.store import enqueue, is_postgres, rolled_back


def test_counts_add_up_and_are_included_in_the_totals(store):
    first = [
        StatRow(10, "ends", '{"kind":"a"}', 2, 0.5),
        StatRow(11, "ends", '{"kind":"a"}', 1, 0.25),
    ]
    with store.begin() as tx:
        StatQueries(tx).add_stats(first)
        StatQueries(tx).add_stats([StatRow(11, "ends", '{"kind":"a"}', 4, 1.0)])
    with store.read() as tx:
        assert StatQueries(tx).list_stats(["ends"], 0) == [
            first[0],
            StatRow(11, "ends", '{"kind":"a"}', 5, 1.25),
        ]
        assert StatQueries(tx).list_stat_totals() == [
            StatRow(ALL_TIME, "ends", '{"kind":"a"}', 7, 1.75)
        ]


def test_stats_are_found_by_minute_and_name(store):
    with store.begin() as tx:
        StatQueries(tx).add_stats(
            [
                StatRow(minute, name, "{}", 1, 0.0)
                for minute in (5, 6, 7)
                for name in ("x", "y", "z")
            ]
        )
    with store.read() as tx:
        found = StatQueries(tx).list_stats(["x", "z"], 6 * MINUTE + 1, 7 * MINUTE)
    assert [(row.minute, row.name) for row in found] == [(6, "x"), (6, "z")]


def test_a_reader_starts_at_the_newest_event_and_continues_from_its_position(store):
    enqueue(store, 3)
    with store.begin() as tx:
        begun = EventQueries(tx).lock_reader("fold")
        assert begun is not None
        assert begun.cursor == EventQueries(tx).newest_event() == 3
        EventQueries(tx).advance_reader("fold", 7, '{"a":1}')
    with store.begin() as tx:
        assert EventQueries(tx).lock_reader("fold")[:3] == ("fold", 7, '{"a":1}')
        assert [row.name for row in EventQueries(tx).list_readers()] == ["fold"]


def test_a_locked_reader_is_reported_without_waiting(postgres):
    assert is_postgres(postgres)
    with postgres.begin() as tx:
        EventQueries(tx).lock_reader("fold")
    with postgres.begin() as mine:
        assert EventQueries(mine).lock_reader("fold") is not None
        with postgres.begin() as other:
            assert EventQueries(other).lock_reader("fold") is None
            assert EventQueries(other).lock_reader("alerts") is not None


def test_a_failed_turn_changes_neither_reader_nor_counts(store):
    with rolled_back(store.begin()) as tx:
        StatQueries(tx).add_stats([StatRow(5, "x", "{}", 1, 0.0)])
        EventQueries(tx).advance_reader("fold", 7)
    with store.read() as tx:
        assert StatQueries(tx).list_stats(["x"], 0) == []
        assert EventQueries(tx).list_readers() == []
