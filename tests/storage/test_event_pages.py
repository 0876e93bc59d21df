"""Pages of the event log: an owner's page reads their events only, and examines few others."""

from __future__ import annotations

import pytest

from mulligan.core.event import EventType, NewEvent
from mulligan.events import queries
from mulligan.events.queries import EventQueries
from support.store import insert, jobs


def write(store, owner, count=1):
    with store.begin() as tx:
        EventQueries(tx).write_events(
            [NewEvent(EventType.QUEUE_PAUSED, owner=owner) for _ in range(count)]
        )


def read_all(store, owner, limit=10):
    cursor, found, pages = 0, [], 0
    with store.read() as tx:
        while True:
            page = EventQueries(tx).read_page(cursor, limit, owner)
            found += page.events
            pages += 1
            assert page.cursor > cursor or page.is_last
            cursor = page.cursor
            if page.is_last:
                return found, pages


@pytest.mark.parametrize("owner", ["acme", "é 'quoted\"", "%_"])
def test_an_owner_reads_all_their_events_and_no_others(store, monkeypatch, owner):
    monkeypatch.setattr(queries, "PAGE_SPAN", 50)
    write(store, "globex", 120)
    write(store, owner, 25)
    insert(store, *jobs(30, owner=owner), *jobs(30, owner="globex"), *jobs(5, owner=owner))
    write(store, "globex", 120)
    write(store, owner)
    everything, _ = read_all(store, None, 1000)
    found, pages = read_all(store, owner)
    assert found == [event for event in everything if event.owner == owner]
    assert len(found) == 61
    assert pages < 20
    assert read_all(store, "nobody")[0] == []


def test_a_page_ends_at_the_newest_event(store):
    write(store, "globex", 3)
    with store.read() as tx:
        page = EventQueries(tx).read_page(0, 10, "acme")
        assert page.is_last
        assert page.cursor == EventQueries(tx).newest_event()
        assert EventQueries(tx).read_page(page.cursor, 10, "acme") == ([], page.cursor, True)
