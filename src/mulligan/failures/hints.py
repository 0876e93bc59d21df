"""When a server says how long to wait: its headers, its details, and as a last resort its words.

Each reader returns (seconds, where it was read) or None. What is negative, unreadable or longer than a week is no
hint. The moment `now` is an argument, in seconds since the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from mulligan.failures.regex import late

Hint = tuple[float, str]

LONGEST = 7 * 86_400
_EPOCH = 1e9  # a larger number of seconds is a moment, not a length
_EPOCH_MS = 1e11
_SLOW_DOWN = frozenset({403, 429, 503})  # statuses on which the reset of a limit is a wait
_READ = 2_000  # characters of a text that may hold a hint

HEADERS = frozenset(
    {
        "date",
        "retry-after",
        "retry-after-ms",
        "x-ms-retry-after-ms",
        "x-amz-retry-after",
        "ratelimit",
        "ratelimit-remaining",
        "ratelimit-reset",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "x-ratelimit-reset-after",
        "x-rate-limit-remaining",
        "x-rate-limit-reset",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-requests",
        "x-ratelimit-reset-tokens",
    }
)


def from_headers(headers: Mapping[str, str], status: int | None, now: float) -> Hint | None:
    """`headers` by their names in small letters; those of HEADERS are enough."""
    for name in ("retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after"):
        if name in headers and (hint := within(_scaled(headers[name], 1000), name)):
            return hint
    if "retry-after" in headers and (hint := within(_retry_after(headers, now), "Retry-After")):
        return hint
    return _from_limits(headers, status, now) if status in _SLOW_DOWN else None


def within(seconds: float | None, source: str) -> Hint | None:
    """A hint, if it is a sensible one; NaN is not."""
    return (float(seconds), source) if seconds is not None and 0 <= seconds <= LONGEST else None


def _scaled(text: str, scale: float = 1) -> float | None:
    try:
        return float(text) / scale
    except ValueError:
        return None


def _retry_after(headers: Mapping[str, str], now: float) -> float | None:
    text = headers["retry-after"].strip()
    seconds = _scaled(text)
    if seconds is not None:
        return seconds
    at = _http_date(text)
    return None if at is None else max(0.0, at - _their_now(headers, now))


def _their_now(headers: Mapping[str, str], now: float) -> float:
    """Their clock, if they told it: a moment they name is one of theirs."""
    at = _http_date(headers.get("date", ""))
    return now if at is None else at


def _http_date(text: str) -> float | None:
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


# Limits tell when they begin anew. That is a wait only for somebody who has nothing left.


def _from_limits(headers: Mapping[str, str], status: int | None, now: float) -> Hint | None:
    spent_only = status == 403  # a 403 with something left is about permission
    if "ratelimit" in headers and (
        hint := _rate_limit(headers["ratelimit"], spent_only=spent_only)
    ):
        return hint
    for name in (
        "x-ratelimit-reset",
        "ratelimit-reset",
        "x-rate-limit-reset",
        "x-ratelimit-reset-after",
    ):
        if name in headers:
            left = headers.get(name.removesuffix("-after").replace("reset", "remaining"))
            if _spent(left, spent_only=spent_only):
                return within(_reset(headers[name], headers, now), name)
    return None if spent_only else _per_kind(headers)


def _spent(left: str | None, *, spent_only: bool) -> bool:
    return not spent_only if left is None else _scaled(left) == 0


_PARAMETER = late(r"(?:^|[;,\s])(r|t|remaining|reset)=(\d{1,12})")


def _rate_limit(text: str, *, spent_only: bool) -> Hint | None:
    """`"default";r=0;t=30`, and the older `limit=100, remaining=0, reset=30`."""
    found = dict(_PARAMETER.findall(text[:500]))
    until = found.get("t", found.get("reset"))
    if until is None or not _spent(found.get("r", found.get("remaining")), spent_only=spent_only):
        return None
    return within(float(until), "RateLimit")


def _reset(text: str, headers: Mapping[str, str], now: float) -> float | None:
    value = _scaled(text)
    if value is None:
        return duration(text)
    if value > _EPOCH_MS:
        value /= 1000
    return value - _their_now(headers, now) if value > _EPOCH else value


def _per_kind(headers: Mapping[str, str]) -> Hint | None:
    """Requests and tokens have limits of their own: the one that is spent, else the longer wait."""
    waits: list[tuple[bool, float, str]] = []
    for kind in ("requests", "tokens"):
        seconds = duration(headers.get(f"x-ratelimit-reset-{kind}", ""))
        if seconds is not None:
            spent = _spent(headers.get(f"x-ratelimit-remaining-{kind}"), spent_only=True)
            waits.append((spent, seconds, f"x-ratelimit-reset-{kind}"))
    if not waits:
        return None
    _, seconds, name = max(waits)
    return within(seconds, name)


# Lengths as programs write them

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_LENGTH = late(r"(?:\d{1,12}(?:\.\d{0,12})?(?:ms|us|µs|ns|h|m|s))+")
_STEP = late(r"(\d{1,12}(?:\.\d{0,12})?)(ms|us|µs|ns|h|m|s)")


def duration(value: Any) -> float | None:
    """`1m3.5s`, `350ms`, `21s`, a protobuf Duration as an object or as a dict, a timedelta, or seconds."""
    if isinstance(value, str):
        return _length(value.strip())
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, Mapping):
        seconds, nanos = value.get("seconds", 0), value.get("nanos", 0)
    elif callable(total := getattr(value, "total_seconds", None)):
        return duration(total())
    else:
        seconds, nanos = getattr(value, "seconds", None), getattr(value, "nanos", 0)
    try:
        return None if seconds is None else int(seconds) + int(nanos) / 1e9
    except (TypeError, ValueError, OverflowError):
        return None


def _length(text: str) -> float | None:
    if not _LENGTH.fullmatch(text[:100]):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _STEP.findall(text))


# Words, in small letters

_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
_UNIT = r"(milliseconds?|msecs?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)"
_SAID = (
    r"(?:(?:try(?: it)? again|retry|retrying|available again|resets)(?: your request)? (?:in|after)"
    r"|wait(?: for| at least)?)(?: about| approximately)?:? "
)
_WORDS = late(rf"\b{_SAID}{_NUMBER} ?{_UNIT}\b(?!/)")
_GO = late(rf"\b{_SAID}((?:\d{{1,9}}(?:\.\d{{1,9}})?(?:ms|h|m|s)){{1,4}})(?![\w/])")
_BARE = late(r"\bretry[-_ ]after[\"']?[:=]? ?[\"']?(\d{1,9})(?![\w.])")  # Telegram says no unit
_CLOCK = late(r"\bresets at (\d{1,2}):(\d{2})(?::(\d{2}))? ?(?:utc|gmt|z)\b")
_LEAD = late("try|retry|available|resets|wait")  # with which each of these begins
_SCALES = {"m": 60.0, "s": 1.0, "h": 3600.0, "d": 86_400.0}


def from_words(text: str, now: float) -> Hint | None:
    """Only from a sentence that says it: `Please try again in 350ms`, `resets at 00:00 UTC`."""
    lowered = text[:_READ].lower()
    if not may_say_when(lowered):
        return None
    starts = [found.start() for found in _LEAD.finditer(lowered)]
    if found := _first(_GO, lowered, starts):
        return within(_length(found[1]), "wording")
    if found := _first(_WORDS, lowered, starts):
        return within(float(found[1]) * _scale(found[2]), "wording")
    if found := _first(_BARE, lowered, starts):
        return within(float(found[1]), "wording")
    if found := _first(_CLOCK, lowered, starts):
        return within(_until(int(found[1]), int(found[2]), int(found[3] or 0), now), "wording")
    return None


def may_say_when(lowered: str) -> bool:
    """Is one of the words in it, without which no sentence says it?"""
    return "retry" in lowered or "again" in lowered or "wait " in lowered or "resets " in lowered


def _first(pattern: re.Pattern[str], text: str, starts: list[int]) -> re.Match[str] | None:
    """As `search`, where it is known where a match could begin: far quicker."""
    return next((found for at in starts if (found := pattern.match(text, at))), None)


def _scale(unit: str) -> float:
    if unit.startswith(("ms", "mil")):
        return 0.001
    return _SCALES[unit[0]]


def _until(hour: int, minute: int, second: int, now: float) -> float | None:
    """Seconds until that time of day comes next."""
    if hour > 23 or minute > 59 or second > 59:
        return None
    at = datetime.fromtimestamp(now, UTC)
    passed = at.hour * 3600 + at.minute * 60 + at.second + at.microsecond / 1e6
    return (hour * 3600 + minute * 60 + second - passed) % 86_400
