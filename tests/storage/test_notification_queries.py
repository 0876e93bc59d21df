"""Readers of the event log, subscriptions and incidents."""

from __future__ import annotations

from contextlib import closing

import pytest

from mulligan.core.durations import SECOND
from mulligan.core.event import EventType, NewEvent
from mulligan.events.queries import EventQueries
from mulligan.jobs.queries import JobQueries
from mulligan.notifications.queries import (
    IncidentRow,
    MessageCountRow,
    NotificationQueries,
    SubscriptionRow,
)
from mulligan.storage import Store, open_store
from mulligan.worker.queries import RetentionQueries
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
    return IncidentRow(name, "sub_1", "acme", "v1-a", "", "{}", 5, 1, None)._replace(**changes)


def something(store: Store) -> None:
    with store.begin() as tx:
        EventQueries(tx).write_events([NewEvent(EventType.QUEUE_PAUSED, data={"queue": "x"})])


def test_a_new_reader_starts_at_the_newest_event_by_default(store):
    something(store)
    with store.begin() as tx:
        assert EventQueries(tx).lock_reader("a").cursor == EventQueries(tx).newest_event()
        assert EventQueries(tx).lock_reader("b", start=0).cursor == 0
        EventQueries(tx).advance_reader("a", 7, '{"x":1}')
        assert EventQueries(tx).get_reader("a")[:3] == ("a", 7, '{"x":1}')
        assert EventQueries(tx).get_reader("c") is None


def test_a_locked_reader_is_skipped(store, store_url):
    if not is_postgres(store):
        pytest.skip("one writer at a time")
    with store.begin() as tx:
        EventQueries(tx).lock_reader("a")
    with closing(open_store(store_url)) as other, store.begin() as tx:
        assert EventQueries(tx).lock_reader("a") is not None
        with other.begin() as second:
            assert EventQueries(second).lock_reader("a") is None


def test_a_subscription_is_updated_by_compare_and_set(store):
    with store.begin() as tx:
        assert NotificationQueries(tx).insert_subscription(row())
        assert not NotificationQueries(tx).insert_subscription(row(name="another"))
        found = NotificationQueries(tx).get_subscription("sub_1")
        assert found == row(created_at=found.created_at)
        assert NotificationQueries(tx).update_subscription(found._replace(state="off"))
        assert not NotificationQueries(tx).update_subscription(found._replace(state="on"))
        assert NotificationQueries(tx).get_subscription("sub_1").state == "off"
        assert NotificationQueries(tx).find_subscriptions("sub", 5) == ["sub_1"]


def test_every_change_of_a_subscription_changes_the_version(store):
    marks = []
    for change in (
        lambda tx: None,
        lambda tx: NotificationQueries(tx).insert_subscription(row("zz")),
        lambda tx: NotificationQueries(tx).insert_subscription(row("a")),
        lambda tx: NotificationQueries(tx).update_subscription(
            NotificationQueries(tx).get_subscription("a")._replace(state="off")
        ),
        lambda tx: (
            NotificationQueries(tx).delete_subscription("a"),
            NotificationQueries(tx).insert_subscription(row("b")),
            NotificationQueries(tx).record_failed_delivery("b"),
        ),
        lambda tx: NotificationQueries(tx).delete_subscription("b"),
    ):
        with store.begin() as tx:
            change(tx)
            marks.append(NotificationQueries(tx).subscriptions_version())
    assert len(set(marks[:-1])) == len(marks) - 1
    assert [mark[0] for mark in marks] == [0, 1, 2, 2, 2, 1]


def test_consecutive_failed_deliveries_are_counted(store):
    with store.begin() as tx:
        NotificationQueries(tx).insert_subscription(row())
        NotificationQueries(tx).record_failed_delivery("sub_1")
        second = NotificationQueries(tx).record_failed_delivery("sub_1")
        assert (second.failures, second.failing_since is not None) == (2, True)
        NotificationQueries(tx).record_delivery("sub_1")
        assert NotificationQueries(tx).get_subscription("sub_1")[15:17] == (0, None)
        assert NotificationQueries(tx).record_failed_delivery("nobody") is None


def test_one_incident_is_open_per_cause_owner_and_subscription(store):
    with store.begin() as tx:
        NotificationQueries(tx).insert_incident(incident())
    with pytest.raises(Exception, match=r"(?i)unique"), store.begin() as tx:
        NotificationQueries(tx).insert_incident(incident("i2"))
    with store.begin() as tx:
        NotificationQueries(tx).update_incident(incident(closed_at=9))
        NotificationQueries(tx).insert_incident(incident("i2"))
        assert [one.id for one in NotificationQueries(tx).list_open_incidents(["v1-a", "x"])] == [
            "i2"
        ]
        assert [one.id for one in NotificationQueries(tx).list_incidents(None, 5)] == ["i2", "i1"]
        assert NotificationQueries(tx).next_incident_due() == 5
        assert NotificationQueries(tx).list_due_incidents(4, 5) == []
        assert [one.id for one in NotificationQueries(tx).list_due_incidents(5, 5)] == ["i2"]
        assert RetentionQueries(tx).prune_incidents(10, 5) == 1


def test_deleting_a_subscription_closes_its_incidents(store):
    with store.begin() as tx:
        NotificationQueries(tx).insert_subscription(row())
        NotificationQueries(tx).insert_incident(incident())
        assert NotificationQueries(tx).delete_subscription("sub_1")
        assert NotificationQueries(tx).list_open_incidents(["v1-a"]) == []
        assert not NotificationQueries(tx).delete_subscription("sub_1")


def test_messages_are_counted_per_owner(store):
    with store.begin() as tx:
        NotificationQueries(tx).write_message_count(MessageCountRow("s", "acme", 5, 1, 0))
        NotificationQueries(tx).write_message_count(MessageCountRow("s", "acme", 5, 2, 3))
        assert NotificationQueries(tx).get_message_count("s", "acme") == MessageCountRow(
            "s", "acme", 5, 2, 3
        )
        assert NotificationQueries(tx).get_message_count("s", "other") is None
        assert NotificationQueries(tx).oldest_message_count() == 5
        assert len(NotificationQueries(tx).list_message_counts(5, 9)) == 1
        NotificationQueries(tx).delete_message_count("s", "acme")
        assert NotificationQueries(tx).oldest_message_count() is None


def test_subscriptions_of_deleted_batches_are_deleted(store):
    with store.begin() as tx:
        NotificationQueries(tx).insert_subscription(row(batch_id="gone"))
        NotificationQueries(tx).insert_subscription(row("sub_2"))
        assert RetentionQueries(tx).delete_orphaned_subscriptions(now(store) - DAY) == 0
        assert RetentionQueries(tx).delete_orphaned_subscriptions(now(store) + DAY) == 1
        assert [one.id for one in NotificationQueries(tx).list_subscriptions()] == ["sub_2"]


def test_events_are_listed_by_type(store):
    for _ in range(3):
        something(store)
    with store.begin() as tx:
        top = EventQueries(tx).newest_event()
        found = EventQueries(tx).list_events_of_types(["queue.paused", "job.died"], 0, top, 2)
        assert [event.type for event in found] == ["queue.paused"] * 2
        assert (
            len(EventQueries(tx).list_events_of_types(["queue.paused"], found[-1].id, top, 9)) == 1
        )
        assert EventQueries(tx).list_events_of_types(["job.died"], 0, top, 9) == []
        assert EventQueries(tx).list_events_of_types(["queue.paused"], 0, 0, 9) == []


def test_kinds_and_queues_of_jobs_are_returned(store):
    (job,) = enqueue(store, kind="render", queue="pdf")
    with store.begin() as tx:
        assert JobQueries(tx).get_kinds_and_queues([job, "nobody"]) == {job: ("render", "pdf")}
        assert JobQueries(tx).get_kinds_and_queues([]) == {}
