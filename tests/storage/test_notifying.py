"""Readers of the log, subscriptions and incidents, on both stores."""

from __future__ import annotations

from contextlib import closing

import pytest

from mulligan.core.durations import SECOND
from mulligan.core.event import EventType, NewEvent
from mulligan.storage import Store, open_store
from mulligan.storage.notification_queries import IncidentRow, MessageCountRow, SubscriptionRow
from support.store import enqueue, is_postgres, now

DAY = 86_400 * SECOND


def row(subscription: str = "sub_1", **changes: object) -> SubscriptionRow:
    made = SubscriptionRow(
        id=subscription,
        declared=False,
        name="",
        patterns="job.died",
        owner=None,
        batch_id=None,
        filter="",
        form="each",
        channel="webhook",
        body="{}",
        endpoint="e",
        after=0,
        state="on",
        reason="",
        version=1,
        failures=0,
        failing_since=None,
        created_at=0,
        created_by="me",
    )
    return made._replace(**changes)


def incident(name: str = "i1", **changes: object) -> IncidentRow:
    return IncidentRow(name, "sub_1", "acme", "v1-a", "{}", 5, 1, None)._replace(**changes)


def something(store: Store) -> None:
    with store.begin() as unit:
        unit.write_events([NewEvent(EventType.QUEUE_PAUSED, data={"queue": "x"})])


def test_a_reader_begins_with_what_comes_unless_told_otherwise(store):
    something(store)
    with store.begin() as unit:
        assert unit.lock_reader("a").cursor == unit.newest_event()
        assert unit.lock_reader("b", start=0).cursor == 0
        unit.advance_reader("a", 7, '{"x":1}')
        assert unit.get_reader("a")[:3] == ("a", 7, '{"x":1}')
        assert unit.get_reader("c") is None


def test_who_finds_a_reader_in_another_hand_passes_by(store, store_url):
    if not is_postgres(store):
        pytest.skip("one writer at a time")
    with store.begin() as unit:
        unit.lock_reader("a")
    with closing(open_store(store_url)) as other, store.begin() as unit:
        assert unit.lock_reader("a") is not None
        with other.begin() as second:
            assert second.lock_reader("a") is None


def test_a_subscription_is_written_once_and_changed_by_who_saw_it_last(store):
    with store.begin() as unit:
        assert unit.insert_subscription(row())
        assert not unit.insert_subscription(row(name="another"))
        found = unit.get_subscription("sub_1")
        assert found == row(created_at=found.created_at)
        assert unit.update_subscription(found._replace(state="off"))
        assert not unit.update_subscription(found._replace(state="on"))
        assert unit.get_subscription("sub_1").state == "off"
        assert unit.find_subscriptions("sub", 5) == ["sub_1"]


def test_whatever_changes_about_subscriptions_changes_their_mark(store):
    marks = []
    for change in (
        lambda unit: None,
        lambda unit: unit.insert_subscription(row("zz")),
        lambda unit: unit.insert_subscription(row("a")),
        lambda unit: unit.update_subscription(unit.get_subscription("a")._replace(state="off")),
        lambda unit: (
            unit.delete_subscription("a"),
            unit.insert_subscription(row("b")),
            unit.record_failed_delivery("b"),
        ),
        lambda unit: unit.delete_subscription("b"),
    ):
        with store.begin() as unit:
            change(unit)
            marks.append(unit.subscriptions_version())
    assert len(set(marks[:-1])) == len(marks) - 1
    assert [mark[0] for mark in marks] == [0, 1, 2, 2, 2, 1]


def test_failures_in_a_row_are_counted_until_one_arrives(store):
    with store.begin() as unit:
        unit.insert_subscription(row())
        unit.record_failed_delivery("sub_1")
        second = unit.record_failed_delivery("sub_1")
        assert (second.failures, second.failing_since is not None) == (2, True)
        unit.record_delivery("sub_1")
        assert unit.get_subscription("sub_1")[15:17] == (0, None)
        assert unit.record_failed_delivery("nobody") is None


def test_of_one_cause_one_owner_and_one_subscription_one_incident_is_open(store):
    with store.begin() as unit:
        unit.insert_incident(incident())
    with pytest.raises(Exception, match=r"(?i)unique"), store.begin() as unit:
        unit.insert_incident(incident("i2"))
    with store.begin() as unit:
        unit.update_incident(incident(closed_at=9))
        unit.insert_incident(incident("i2"))
        assert [one.id for one in unit.list_open_incidents(["v1-a", "x"])] == ["i2"]
        assert [one.id for one in unit.list_incidents(None, 5)] == ["i2", "i1"]
        assert unit.next_incident_due() == 5
        assert unit.list_due_incidents(4, 5) == []
        assert [one.id for one in unit.list_due_incidents(5, 5)] == ["i2"]
        assert unit.prune_incidents(10, 5) == 1


def test_with_a_subscription_its_incidents_are_over(store):
    with store.begin() as unit:
        unit.insert_subscription(row())
        unit.insert_incident(incident())
        assert unit.delete_subscription("sub_1")
        assert unit.list_open_incidents(["v1-a"]) == []
        assert not unit.delete_subscription("sub_1")


def test_how_much_was_told_is_kept_for_each_owner(store):
    with store.begin() as unit:
        unit.write_message_count(MessageCountRow("s", "acme", 5, 1, 0))
        unit.write_message_count(MessageCountRow("s", "acme", 5, 2, 3))
        assert unit.get_message_count("s", "acme") == MessageCountRow("s", "acme", 5, 2, 3)
        assert unit.get_message_count("s", "other") is None
        assert unit.oldest_message_count() == 5
        assert len(unit.list_message_counts(5, 9)) == 1
        unit.delete_message_count("s", "acme")
        assert unit.oldest_message_count() is None


def test_subscriptions_of_batches_that_have_left_are_forgotten(store):
    with store.begin() as unit:
        unit.insert_subscription(row(batch_id="gone"))
        unit.insert_subscription(row("sub_2"))
        assert unit.delete_orphaned_subscriptions(now(store) - DAY) == 0
        assert unit.delete_orphaned_subscriptions(now(store) + DAY) == 1
        assert [one.id for one in unit.list_subscriptions()] == ["sub_2"]


def test_events_are_found_by_their_types(store):
    for _ in range(3):
        something(store)
    with store.begin() as unit:
        top = unit.newest_event()
        found = unit.list_events_of_types(["queue.paused", "job.died"], 0, top, 2)
        assert [event.type for event in found] == ["queue.paused"] * 2
        assert len(unit.list_events_of_types(["queue.paused"], found[-1].id, top, 9)) == 1
        assert unit.list_events_of_types(["job.died"], 0, top, 9) == []
        assert unit.list_events_of_types(["queue.paused"], 0, 0, 9) == []


def test_kinds_are_found_by_jobs(store):
    (job,) = enqueue(store, kind="render", queue="pdf")
    with store.begin() as unit:
        assert unit.get_kinds_and_queues([job, "nobody"]) == {job: ("render", "pdf")}
        assert unit.get_kinds_and_queues([]) == {}
