"""How long to wait: headers, fields and texts of a server."""

from __future__ import annotations

from datetime import timedelta
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.failures.hints import hint_from_headers, hint_from_text, parse_delay

NOW = 1_700_000_000.0  # 22:13:20 UTC
LATER = str(int(NOW) + 90)


@pytest.mark.parametrize(
    ("headers", "status", "hint"),
    [
        ({"retry-after": "30"}, 503, (30.0, "Retry-After")),
        ({"retry-after": "1.5"}, None, (1.5, "Retry-After")),
        ({"retry-after": "0"}, 429, (0.0, "Retry-After")),
        ({"retry-after": formatdate(NOW + 90, usegmt=True)}, 429, (90.0, "Retry-After")),
        # the server's clock is an hour ahead: its date header counts, not our clock
        (
            {
                "retry-after": formatdate(NOW + 3690, usegmt=True),
                "date": formatdate(NOW + 3600, usegmt=True),
            },
            503,
            (90.0, "Retry-After"),
        ),
        ({"retry-after": formatdate(NOW - 90, usegmt=True)}, 503, (0.0, "Retry-After")),
        ({"retry-after-ms": "350", "retry-after": "1"}, 429, (0.35, "retry-after-ms")),
        ({"x-ms-retry-after-ms": "2000"}, 429, (2.0, "x-ms-retry-after-ms")),
        ({"x-amz-retry-after": "1500"}, 503, (1.5, "x-amz-retry-after")),
        ({"ratelimit": '"default";r=0;t=30'}, 429, (30.0, "RateLimit")),
        ({"ratelimit": "limit=100, remaining=0, reset=50"}, 429, (50.0, "RateLimit")),
        ({"ratelimit": '"default";r=12;t=30'}, 429, None),
        (
            {"x-ratelimit-reset": LATER, "x-ratelimit-remaining": "0"},
            403,
            (90.0, "x-ratelimit-reset"),
        ),
        (
            {"x-ratelimit-reset": LATER + "000", "x-ratelimit-remaining": "0"},
            429,
            (90.0, "x-ratelimit-reset"),
        ),
        ({"x-ratelimit-reset": "17"}, 429, (17.0, "x-ratelimit-reset")),
        ({"x-rate-limit-reset": LATER}, 429, (90.0, "x-rate-limit-reset")),
        ({"x-ratelimit-reset-after": "1.25"}, 429, (1.25, "x-ratelimit-reset-after")),
        # a 403 with requests left, or without that header, is about permissions
        ({"x-ratelimit-reset": LATER, "x-ratelimit-remaining": "4999"}, 403, None),
        ({"x-ratelimit-reset": LATER}, 403, None),
        ({"x-ratelimit-reset": LATER}, 500, None),
        ({"x-ratelimit-reset-requests": "1m3.5s"}, 429, (63.5, "x-ratelimit-reset-requests")),
        (
            {
                "x-ratelimit-reset-requests": "1h2m",
                "x-ratelimit-remaining-requests": "59",
                "x-ratelimit-reset-tokens": "350ms",
                "x-ratelimit-remaining-tokens": "0",
            },
            429,
            (0.35, "x-ratelimit-reset-tokens"),
        ),
        ({"retry-after": "-5"}, 503, None),
        ({"retry-after": "nan"}, 503, None),
        ({"retry-after": "inf"}, 503, None),
        ({"retry-after": "soon"}, 503, None),
        ({"retry-after": "604801"}, 503, None),
        ({"retry-after": "Fri, 99 Foo 9999 99:99:99 GMT"}, 503, None),
        ({"retry-after": "nonsense", "x-ratelimit-reset": "17"}, 429, (17.0, "x-ratelimit-reset")),
        ({}, 429, None),
    ],
)
def test_a_hint_is_found_in_headers(headers, status, hint):
    found = hint_from_headers(headers, status, NOW)
    assert found == (hint and (pytest.approx(hint[0], abs=1e-6), hint[1]))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Rate limit reached. Please try again in 350ms. Visit", 0.35),
        ("Please retry in 21.5s.", 21.5),
        ("Please retry in 13h2m24.5s", 46_944.5),
        ("Please try again in 1m3.5s", 63.5),
        ("retry after 30 seconds", 30),
        ("Flood control exceeded. Retry in 7 seconds", 7),
        ("Too Many Requests: retry after 35", 35),
        ("{'retry_after': 12}", 12),
        ("please wait 5 minutes before", 300),
        ("try again in about 2 hours", 7200),
        ("your quota resets in 1 day", 86_400),
        ("quota resets at 00:00 UTC", 6400),
        ("quota resets at 22:13:19 utc", 86_399),
    ],
)
def test_a_hint_is_found_in_a_sentence(text, seconds):
    assert hint_from_text(text, NOW) == (pytest.approx(seconds), "wording")


@pytest.mark.parametrize(
    "text",
    [
        "try again later",
        "Max retries exceeded with url: /x",
        "retry 3 of 5 failed after 30 seconds",
        "Connection reset by peer in 5s",
        "Process 7 waits for ShareLock on transaction 49",
        "retry in -5s",
        "try again in 30 days",
        "resets at 25:00 UTC",
        "waited 30 seconds",
        "retry after 7.5.1 is installed",
    ],
)
def test_other_sentences_contain_no_hint(text):
    assert hint_from_text(text, NOW) is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("21s", 21),
        ("21.5s", 21.5),
        ("1h2m3s", 3723),
        ("250us", 0.00025),
        (7, 7),
        ({"seconds": "9", "nanos": 500_000_000}, 9.5),
        (type("Duration", (), {"seconds": 3, "nanos": 1})(), 3.000000001),
        (timedelta(minutes=1), 60),
        ("soon", None),
        ("", None),
        (None, None),
        (True, None),
        ({"seconds": "x"}, None),
    ],
)
def test_delays_are_parsed_in_every_notation(value, seconds):
    assert parse_delay(value) == (None if seconds is None else pytest.approx(seconds))


@given(
    st.dictionaries(
        st.sampled_from(
            ["retry-after", "retry-after-ms", "ratelimit", "x-ratelimit-reset", "date"]
        ),
        st.text(),
    )
)
def test_a_malformed_header_does_no_harm(headers):
    hint = hint_from_headers(headers, 429, NOW)
    assert hint is None or 0 <= hint[0] <= 7 * 86_400


@given(st.text("0123456789 .:smhd" + "retry in again wait resets after UTC"))
def test_any_text_is_searched_without_error(text):
    hint = hint_from_text(text, NOW)
    assert hint is None or 0 <= hint[0] <= 7 * 86_400


@pytest.mark.timeout(5)
@pytest.mark.parametrize("piece", ["retry in ", "wait 1", "1", "resets at 1", "try again "])
def test_no_text_makes_it_slow(piece):
    hint_from_text(piece * 200_000, NOW)
