"""Which subscription matches an event, and how patterns and filters are parsed."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.core.errors import Refused
from mulligan.core.event import Event
from mulligan.notifications.rules import (
    SubscriptionIndex,
    SubscriptionMatcher,
    check_form,
    expand_patterns,
    is_internal,
    parse_filter,
    split_patterns,
)


def event(
    type_: str = "job.died",
    *,
    event_id: int = 10,
    owner: str = "acme",
    batch: str | None = None,
    **data: Any,
) -> Event:
    return Event(event_id, 0, type_, "job", batch, owner, 1, 1, "", data)


def subscription(on: str = "job.died", **options: Any) -> SubscriptionMatcher:
    return SubscriptionMatcher(**{"id": "s", "types": expand_patterns(on), **options})


def matches(subscription: SubscriptionMatcher, event: Event) -> bool:
    candidates = SubscriptionIndex([subscription]).candidates(event)
    return subscription in candidates and subscription.matches(event, event.data)


@pytest.mark.parametrize(
    ("on", "type_", "expected"),
    [
        ("job.died", "job.died", True),
        ("job.died", "job.parked", False),
        ("batch.*", "batch.partial", True),
        ("batch.*", "job.died", False),
        ("job.died, batch.*", "batch.failed", True),
        ("*", "worker.lost", True),
    ],
)
def test_a_pattern_matches_event_types(on, type_, expected):
    assert matches(subscription(on), event(type_)) is expected


def test_an_unknown_event_type_is_refused_with_a_suggestion():
    with pytest.raises(Refused, match=r"Did you mean job\.died\?"):
        expand_patterns("job.dead")


@pytest.mark.parametrize("on", ["", " , ", [], [1], None, 5])
def test_an_invalid_pattern_is_refused(on):
    with pytest.raises(Refused, match=r"^(invalid on=|on has)"):
        split_patterns(on)


def test_an_owners_subscription_matches_only_events_of_that_owner():
    one = subscription(owner="acme")
    assert matches(one, event())
    assert not matches(one, event(owner="other"))
    assert not matches(one, event(owner=""))
    assert matches(subscription(owner=""), event(owner=""))


def test_a_batch_subscription_matches_only_its_batch():
    assert matches(subscription(batch="b"), event(batch="b"))
    assert not matches(subscription(batch="b"), event(batch=None))


def test_events_before_the_subscription_do_not_match():
    assert not matches(subscription(after=10), event(event_id=10))
    assert matches(subscription(after=10), event(event_id=11))


@pytest.mark.parametrize(
    ("text", "data", "expected"),
    [
        ("kind:render", {"kind": "render"}, True),
        ("kind:render", {"kind": "encode"}, False),
        ("kind:render", {}, False),
        ("kind:render,encode code:X", {"kind": "encode", "code": "X"}, True),
        ("kind:render code:X", {"kind": "render", "code": "Y"}, False),
        ("class:transient queue:pdf", {"class": "transient", "queue": "pdf"}, True),
    ],
)
def test_a_filter_compares_event_data(text, data, expected):
    assert matches(subscription(filter=parse_filter(text)), event(**data)) is expected


@pytest.mark.parametrize(
    "text", ["render", "state:dead", "kind:", "kind:a kind:b", "kind:" + ",".join("abc" * 9)]
)
def test_an_invalid_filter_text_is_refused(text):
    with pytest.raises(Refused, match="filter"):
        parse_filter(text)


def test_a_subscription_does_not_match_events_about_itself():
    assert not matches(
        subscription("subscription.*"), event("subscription.disabled", subscription="s")
    )
    assert matches(
        subscription("subscription.*"), event("subscription.disabled", subscription="another")
    )


@pytest.mark.parametrize(
    "facts", [{"kind": "mulligan.deliver"}, {"queue": "mulligan.x"}, {"dependency": "mulligan.e"}]
)
def test_internal_events_are_recognised(facts):
    assert is_internal(facts)
    assert not is_internal({"kind": "render", "queue": "pdf"})


def test_only_deaths_and_parked_jobs_form_incidents():
    one = subscription("job.*", form="incident")
    assert one.groups_into_incident(event("job.died"))
    assert one.groups_into_incident(event("job.parked"))
    assert not one.groups_into_incident(event("job.succeeded"))
    assert not subscription(form="each").groups_into_incident(event())


def test_an_unknown_form_is_refused():
    assert check_form(None, "each") == "each"
    with pytest.raises(Refused, match="Use each or incident"):
        check_form("digest", "each")
