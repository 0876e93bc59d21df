"""What was counted, in the memory: it adds up, it is found by time and name, and whoever counts is alone."""

from __future__ import annotations

from mulligan.storage.stat_queries import ALL_TIME, MINUTE, StatRow
from support.store import enqueue, is_postgres, undone


def test_what_is_added_twice_is_the_sum_and_all_of_it_is_in_what_was_counted_ever(store):
    first = [
        StatRow(10, "ends", '{"kind":"a"}', 2, 0.5),
        StatRow(11, "ends", '{"kind":"a"}', 1, 0.25),
    ]
    with store.begin() as unit:
        unit.add_stats(first)
        unit.add_stats([StatRow(11, "ends", '{"kind":"a"}', 4, 1.0)])
    with store.read() as unit:
        assert unit.list_stats(["ends"], 0) == [first[0], StatRow(11, "ends", '{"kind":"a"}', 5, 1.25)]
        assert unit.list_stat_totals() == [StatRow(ALL_TIME, "ends", '{"kind":"a"}', 7, 1.75)]


def test_stats_are_found_by_minute_and_name(store):
    with store.begin() as unit:
        unit.add_stats(
            [
                StatRow(minute, name, "{}", 1, 0.0)
                for minute in (5, 6, 7)
                for name in ("x", "y", "z")
            ]
        )
    with store.read() as unit:
        found = unit.list_stats(["x", "z"], 6 * MINUTE + 1, 7 * MINUTE)
    assert [(row.minute, row.name) for row in found] == [(6, "x"), (6, "z")]


def test_a_reader_begins_at_the_newest_event_and_goes_on_where_it_was(store):
    enqueue(store, 3)
    with store.begin() as unit:
        begun = unit.lock_reader("fold")
        assert begun is not None
        assert begun.cursor == unit.newest_event() == 3
        unit.advance_reader("fold", 7, '{"a":1}')
    with store.begin() as unit:
        assert unit.lock_reader("fold")[:3] == ("fold", 7, '{"a":1}')
        assert [row.name for row in unit.list_readers()] == ["fold"]


def test_who_finds_a_reader_in_another_hand_is_told_so_and_waits_for_nothing(postgres):
    assert is_postgres(postgres)
    with postgres.begin() as unit:
        unit.lock_reader("fold")
    with postgres.begin() as mine:
        assert mine.lock_reader("fold") is not None
        with postgres.begin() as other:
            assert other.lock_reader("fold") is None
            assert other.lock_reader("alerts") is not None


def test_a_turn_that_fails_leaves_the_reader_and_the_numbers_where_they_were(store):
    with undone(store.begin()) as unit:
        unit.add_stats([StatRow(5, "x", "{}", 1, 0.0)])
        unit.advance_reader("fold", 7)
    with store.read() as unit:
        assert unit.list_stats(["x"], 0) == []
        assert unit.list_readers() == []
