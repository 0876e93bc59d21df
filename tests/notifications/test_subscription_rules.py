"""Who is told of an event."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.core.errors import Refused
from mulligan.core.event import Event
from mulligan.notifications.rules import (
    SubscriptionBook,
    SubscriptionMatcher,
    checked_form,
    is_ours,
    parsed_filter,
    split,
    types_of,
)


def event(
    type: str = "job.died",
    *,
    id: int = 10,
    owner: str = "acme",
    batch: str | None = None,
    **data: Any,
) -> Event:  # noqa: A002
    return Event(id, 0, type, "job", batch, owner, 1, 1, "", data)


def sub(on: str = "job.died", **said: Any) -> SubscriptionMatcher:
    return SubscriptionMatcher(**{"id": "s", "types": types_of(on), **said})


def hears(one: SubscriptionMatcher, what: Event) -> bool:
    return one in SubscriptionBook([one]).may_hear(what) and one.hears(what, what.data)


@pytest.mark.parametrize(
    ("on", "type", "heard"),
    [
        ("job.died", "job.died", True),
        ("job.died", "job.parked", False),
        ("batch.*", "batch.partial", True),
        ("batch.*", "job.died", False),
        ("job.died, batch.*", "batch.failed", True),
        ("*", "worker.lost", True),
    ],
)
def test_a_pattern_names_events(on, type, heard):  # noqa: A002
    assert hears(sub(on), event(type)) is heard


def test_a_name_that_no_event_has_is_refused_with_the_nearest():
    with pytest.raises(Refused, match=r"did you mean job\.died"):
        types_of("job.dead")


@pytest.mark.parametrize("on", ["", " , ", [], [1], None, 5])
def test_what_names_nothing_is_refused(on):
    with pytest.raises(Refused, match="on "):
        split(on)


def test_an_owner_hears_of_his_own_and_of_nothing_that_has_no_owner():
    one = sub(owner="acme")
    assert hears(one, event())
    assert not hears(one, event(owner="other"))
    assert not hears(one, event(owner=""))
    assert hears(sub(owner=""), event(owner=""))


def test_a_batch_is_heard_of_alone():
    assert hears(sub(batch="b"), event(batch="b"))
    assert not hears(sub(batch="b"), event(batch=None))


def test_what_was_before_it_is_not_heard():
    assert not hears(sub(after=10), event(id=10))
    assert hears(sub(after=10), event(id=11))


@pytest.mark.parametrize(
    ("words", "data", "heard"),
    [
        ("kind:render", {"kind": "render"}, True),
        ("kind:render", {"kind": "encode"}, False),
        ("kind:render", {}, False),
        ("kind:render,encode code:X", {"kind": "encode", "code": "X"}, True),
        ("kind:render code:X", {"kind": "render", "code": "Y"}, False),
        ("class:transient queue:pdf", {"class": "transient", "queue": "pdf"}, True),
    ],
)
def test_a_filter_compares_what_the_event_holds(words, data, heard):
    assert hears(sub(filter=parsed_filter(words)), event(**data)) is heard


@pytest.mark.parametrize(
    "words", ["render", "state:dead", "kind:", "kind:a kind:b", "kind:" + ",".join("abc" * 9)]
)
def test_a_filter_that_cannot_be_is_refused(words):
    with pytest.raises(Refused, match="filter"):
        parsed_filter(words)


def test_nobody_hears_of_himself():
    assert not hears(sub("subscription.*"), event("subscription.disabled", subscription="s"))
    assert hears(sub("subscription.*"), event("subscription.disabled", subscription="another"))


@pytest.mark.parametrize(
    "facts", [{"kind": "mulligan.deliver"}, {"queue": "mulligan.x"}, {"dependency": "mulligan.e"}]
)
def test_what_is_of_our_own_is_known_as_such(facts):
    assert is_ours(facts)
    assert not is_ours({"kind": "render", "queue": "pdf"})


def test_only_failures_fold_into_an_incident():
    one = sub("job.*", form="incident")
    assert one.folds(event("job.died"))
    assert one.folds(event("job.parked"))
    assert not one.folds(event("job.succeeded"))
    assert not sub(form="each").folds(event())


def test_a_form_is_one_of_two():
    assert checked_form(None, "each") == "each"
    with pytest.raises(Refused, match="each, incident"):
        checked_form("digest", "each")
