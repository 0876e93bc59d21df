"""The filter language: what is understood, and what a refusal says."""

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
        ("owner:a,b", {"owner": "a,b"}),
        ("owner:'a b'", {"owner": "a b"}),
        ("'owner:a b'", {"owner": "a b"}),
        ("owner:", {"owner": ""}),
        ('"moov atom"', {"words": ("moov atom",)}),
        ("kind:render 'moov atom' \"x: y\"", {"kind": "render", "words": ("moov atom", "x: y")}),
        ("arg.customer:42", {"arg.customer": "42"}),
        ("arg.a.b:x,y arg.note:", {"arg.a.b": "x,y", "arg.note": ""}),
        ("'arg.city:New York'", {"arg.city": "New York"}),
        ('arg.city:"New York"', {"arg.city": "New York"}),
        ("arg.url:http://x", {"arg.url": "http://x"}),
    ],
)
def test_understood(text, found):
    assert parse_filter(text) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stat:dead", "did you mean state:?"),
        (
            "colour:red",
            "fields: state, phase, kind, queue, owner, batch, since, code, class, group",
        ),
        ("moov", 'quote it: "moov"'),
        ("state:gone", "no such state; one of queued, running"),
        ("state:", "no such state; one of queued, running"),
        ("code:A,,B", "a value is missing"),
        ("class:weird", "no such class; one of transient"),
        ("phase:weird", "no such phase; one of scheduled"),
        ("phase:ready", "write state:queued"),
        ("state:dead state:parked", "state:a,b"),
        ("state:queued code:X", "leave one of them out"),
        ("arg.customer", "arg.customer:42"),
        ("arg.:42", "arg.customer:42"),
        ("arg..a:42", "arg.customer:42"),
        ("arg.a:1 arg.a:2", "leave one of them out"),
        ("owner:a owner:b", "leave one of them out"),
        (" ".join(f"arg.a{n}:1" for n in range(6)), "5 arguments at most"),
        ("since:soon", "since:30s"),
        ('"moov', "No closing quotation"),
        ('""', "the quotes are empty"),
        ("group:" + ",".join(map(str, range(21))), "20 at most"),
        ('"a" "b" "c" "d" "e" "f"', "5 at most"),
        ("state:dead\x07", "cannot be printed"),
    ],
)
def test_refused_with_what_would_be_right(text, words):
    with pytest.raises(Refused, match=r"^filter") as refused:
        parse_filter(text)
    assert words in str(refused.value)
