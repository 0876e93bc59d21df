"""Tests of the filter language: what is parsed, and what refusals say."""

from __future__ import annotations

import pytest

from mulligan.core.errors import Refused
from mulligan.jobs.filter import parse_filter


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("state:dead", {"state": "dead"}),
        ("state:dead,parked", {"state": ("dead", "parked")}),
        ("state:dead,dead", {"state": "dead"}),
        (
            "code:GW_5XX class:timeout group:v2-9f2a",
            {"code": "GW_5XX", "class": "timeout", "group": "v2-9f2a"},
        ),
        ("code:A,B state:dead,parked", {"code": ("A", "B"), "state": ("dead", "parked")}),
        ("phase:held", {"phase": "held"}),
        ("since:2h", {"since": "7200000000"}),
        (
            "ended:1970-01-01T00:01..1970-01-01T00:02:30",
            {"ended": "60000000..150000000"},
        ),
        ("owner:a,b", {"owner": "a,b"}),
        ("owner:'a b'", {"owner": "a b"}),
        ("'owner:a b'", {"owner": "a b"}),
        ("owner:", {"owner": ""}),
        ('"moov atom"', {"terms": ("moov atom",)}),
        ("kind:render 'moov atom' \"x: y\"", {"kind": "render", "terms": ("moov atom", "x: y")}),
        ("arg.customer:42", {"arg.customer": "42"}),
        ("arg.a.b:x,y arg.note:", {"arg.a.b": "x,y", "arg.note": ""}),
        ("'arg.city:New York'", {"arg.city": "New York"}),
        ('arg.city:"New York"', {"arg.city": "New York"}),
        ("arg.url:http://x", {"arg.url": "http://x"}),
    ],
)
def test_filters_are_parsed(text, found):
    assert parse_filter(text) == found


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("stat:dead", "did you mean state:?"),
        (
            "colour:red",
            "fields: state, phase, kind, queue, owner, batch, since, ended, code, class, group",
        ),
        ("moov", 'quote it: "moov"'),
        ("state:gone", "no such state; one of queued, running"),
        ("state:", "no such state; one of queued, running"),
        ("code:A,,B", "a value is missing"),
        ("class:weird", "no such class; one of transient"),
        ("phase:weird", "no such phase; one of waiting, scheduled"),
        ("phase:ready", "Use state:queued"),
        ("state:dead state:parked", "state:a,b"),
        ("state:queued code:X", "Remove one of the two"),
        ("arg.customer", "arg.customer:42"),
        ("arg.:42", "arg.customer:42"),
        ("arg..a:42", "arg.customer:42"),
        ("arg.a:1 arg.a:2", "Remove one of them"),
        ("owner:a owner:b", "Remove one of them"),
        (" ".join(f"arg.a{n}:1" for n in range(6)), "at most 5 arguments"),
        ("since:soon", "since:30s"),
        ("ended:today", "Write two UTC times: ended:2026-11-18T14:02"),
        ("ended:2026-11-18T14:02..2026-11-18T14:02", "Write two UTC times"),
        ("ended:2026-11-18T14:02Z..2026-11-18T14:03Z", "Write two UTC times"),
        ('"moov', "No closing quotation"),
        ('""', "a quoted term is empty"),
        ("group:" + ",".join(map(str, range(21))), "at most 20"),
        ('"a" "b" "c" "d" "e" "f"', "at most 5"),
        ("state:dead\x07", "unprintable characters"),
    ],
)
def test_a_refused_filter_says_what_to_write_instead(text, hint):
    with pytest.raises(Refused, match=r"^filter") as refused:
        parse_filter(text)
    assert hint in str(refused.value)
