"""Hints of servers about how long to wait before a retry: headers, details, and texts last.

A hint that is negative, unreadable or longer than a week is ignored. `now` is passed in, in
seconds since the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from mulligan.failures.regex import lazy_regex


class Hint(NamedTuple):
    """Seconds to wait, and where they were found: a header, a field or `wording`."""

    seconds: float
    source: str


MAX_HINT = 7 * 86_400
_MIN_EPOCH = 1e9  # a larger number of seconds is a time, not a duration
_MIN_EPOCH_MS = 1e11
_LIMIT_STATUSES = frozenset({403, 429, 503})  # with these, the reset of a limit is a hint
_MAX_TEXT = 2_000  # characters of a text that are searched

HINT_HEADERS = frozenset(
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


def hint_from_headers(headers: Mapping[str, str], status: int | None, now: float) -> Hint | None:
    """Return the hint in these headers. Their names must be in lower case."""
    for name in ("retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after"):
        if name in headers:
            hint = make_hint(_parse_number(headers[name], 1000), name)
            if hint:
                return hint
    if "retry-after" in headers:
        hint = make_hint(_parse_retry_after(headers, now), "Retry-After")
        if hint:
            return hint
    if status in _LIMIT_STATUSES:
        return _hint_from_limits(headers, status, now)
    return None


def make_hint(seconds: float | None, source: str) -> Hint | None:
    """Return a hint, or None if `seconds` is missing, NaN or out of range."""
    if seconds is None or not 0 <= seconds <= MAX_HINT:
        return None
    return Hint(float(seconds), source)


def _parse_number(text: str, scale: float = 1) -> float | None:
    try:
        return float(text) / scale
    except ValueError:
        return None


def _parse_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    text = headers["retry-after"].strip()
    seconds = _parse_number(text)
    if seconds is not None:
        return seconds
    at = _parse_http_date(text)
    return None if at is None else max(0.0, at - _server_time(headers, now))


def _server_time(headers: Mapping[str, str], now: float) -> float:
    """Return the time of the server's clock, to which the times in its headers refer."""
    at = _parse_http_date(headers.get("date", ""))
    return now if at is None else at


def _parse_http_date(text: str) -> float | None:
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return at.timestamp()


# --- Rate limit headers: the reset of a limit is a hint only if nothing of the limit is left ---


def _hint_from_limits(headers: Mapping[str, str], status: int | None, now: float) -> Hint | None:
    # A 403 that leaves something of the limit, or does not mention it, is about permissions.
    must_be_spent = status == 403
    if "ratelimit" in headers:
        hint = _parse_ratelimit(headers["ratelimit"], must_be_spent=must_be_spent)
        if hint:
            return hint
    for name in (
        "x-ratelimit-reset",
        "ratelimit-reset",
        "x-rate-limit-reset",
        "x-ratelimit-reset-after",
    ):
        if name in headers:
            remaining = headers.get(name.removesuffix("-after").replace("reset", "remaining"))
            if _is_spent(remaining, must_be_spent=must_be_spent):
                return make_hint(_parse_reset(headers[name], headers, now), name)
    return None if must_be_spent else _hint_by_resource(headers)


def _is_spent(remaining: str | None, *, must_be_spent: bool) -> bool:
    """True if nothing is left. A server that does not say is believed unless it must be spent."""
    if remaining is None:
        return not must_be_spent
    return _parse_number(remaining) == 0


_PARAMETER = lazy_regex(r"(?:^|[;,\s])(r|t|remaining|reset)=(\d{1,12})")


def _parse_ratelimit(text: str, *, must_be_spent: bool) -> Hint | None:
    """Parse `"default";r=0;t=30` and the older `limit=100, remaining=0, reset=30`."""
    parameters = dict(_PARAMETER.findall(text[:500]))
    reset = parameters.get("t", parameters.get("reset"))
    remaining = parameters.get("r", parameters.get("remaining"))
    if reset is None or not _is_spent(remaining, must_be_spent=must_be_spent):
        return None
    return make_hint(float(reset), "RateLimit")


def _parse_reset(text: str, headers: Mapping[str, str], now: float) -> float | None:
    value = _parse_number(text)
    if value is None:
        return parse_delay(text)
    if value > _MIN_EPOCH_MS:
        value /= 1000
    return value - _server_time(headers, now) if value > _MIN_EPOCH else value


def _hint_by_resource(headers: Mapping[str, str]) -> Hint | None:
    """Return the hint of the limit on requests or tokens: the spent one, else the longer one."""
    candidates: list[tuple[bool, float, str]] = []
    for resource in ("requests", "tokens"):
        name = f"x-ratelimit-reset-{resource}"
        seconds = parse_delay(headers.get(name, ""))
        if seconds is not None:
            remaining = headers.get(f"x-ratelimit-remaining-{resource}")
            candidates.append((_is_spent(remaining, must_be_spent=True), seconds, name))
    if not candidates:
        return None
    _, seconds, name = max(candidates)
    return make_hint(seconds, name)


# --- Durations as programs write them ---

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_COMPOUND = lazy_regex(r"(?:\d{1,12}(?:\.\d{0,12})?(?:ms|us|µs|ns|h|m|s))+")
_COMPONENT = lazy_regex(r"(\d{1,12}(?:\.\d{0,12})?)(ms|us|µs|ns|h|m|s)")


def parse_delay(value: Any) -> float | None:
    """Return a delay in seconds, or None if `value` is none.

    Accepts `1m3.5s`, `350ms`, a protobuf Duration as object or dict, a timedelta, and seconds.
    """
    if isinstance(value, str):
        return _parse_compound(value.strip())
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, Mapping):
        return _join_nanos(value.get("seconds", 0), value.get("nanos", 0))
    total_seconds = getattr(value, "total_seconds", None)
    if callable(total_seconds):
        return parse_delay(total_seconds())
    return _join_nanos(getattr(value, "seconds", None), getattr(value, "nanos", 0))


def _join_nanos(seconds: Any, nanos: Any) -> float | None:
    try:
        return None if seconds is None else int(seconds) + int(nanos) / 1e9
    except (TypeError, ValueError, OverflowError):
        return None


def _parse_compound(text: str) -> float | None:
    if not _COMPOUND.fullmatch(text[:100]):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _COMPONENT.findall(text))


# --- Texts, in lower case ---

_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
_UNIT = r"(milliseconds?|msecs?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)"
_WAIT = (
    r"(?:(?:try(?: it)? again|retry|retrying|available again|resets)(?: your request)? (?:in|after)"
    r"|wait(?: for| at least)?)(?: about| approximately)?:? "
)
_NUMBER_AND_UNIT = lazy_regex(rf"\b{_WAIT}{_NUMBER} ?{_UNIT}\b(?!/)")
_COMPOUND_TEXT = lazy_regex(
    rf"\b{_WAIT}((?:\d{{1,9}}(?:\.\d{{1,9}})?(?:ms|h|m|s)){{1,4}})(?![\w/])"
)
# Telegram names no unit.
_SECONDS_ONLY = lazy_regex(r"\bretry[-_ ]after[\"']?[:=]? ?[\"']?(\d{1,9})(?![\w.])")
_TIME_OF_DAY = lazy_regex(r"\bresets at (\d{1,2}):(\d{2})(?::(\d{2}))? ?(?:utc|gmt|z)\b")
_FIRST_WORD = lazy_regex("try|retry|available|resets|wait")  # of every pattern above
_UNIT_SECONDS = {"m": 60.0, "s": 1.0, "h": 3600.0, "d": 86_400.0}


def hint_from_text(text: str, now: float) -> Hint | None:
    """Return the hint in a sentence: `Please try again in 350ms`, `resets at 00:00 UTC`."""
    lowered = text[:_MAX_TEXT].lower()
    if not ("retry" in lowered or "again" in lowered or "wait " in lowered or "resets " in lowered):
        return None  # every hint needs one of these words
    starts = [match.start() for match in _FIRST_WORD.finditer(lowered)]
    if match := _match_at(_COMPOUND_TEXT, lowered, starts):
        return make_hint(_parse_compound(match[1]), "wording")
    if match := _match_at(_NUMBER_AND_UNIT, lowered, starts):
        return make_hint(float(match[1]) * _seconds_per(match[2]), "wording")
    if match := _match_at(_SECONDS_ONLY, lowered, starts):
        return make_hint(float(match[1]), "wording")
    if match := _match_at(_TIME_OF_DAY, lowered, starts):
        hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
        return make_hint(_seconds_until(hour, minute, second, now), "wording")
    return None


def _match_at(pattern: re.Pattern[str], text: str, starts: list[int]) -> re.Match[str] | None:
    """Search only where a match can start, which is much faster than `search`."""
    for start in starts:
        match = pattern.match(text, start)
        if match:
            return match
    return None


def _seconds_per(unit: str) -> float:
    if unit.startswith(("ms", "mil")):
        return 0.001
    return _UNIT_SECONDS[unit[0]]


def _seconds_until(hour: int, minute: int, second: int, now: float) -> float | None:
    """Return the seconds until the next occurrence of a time of day in UTC."""
    if hour > 23 or minute > 59 or second > 59:
        return None
    at = datetime.fromtimestamp(now, UTC)
    passed = at.hour * 3600 + at.minute * 60 + at.second + at.microsecond / 1e6
    return (hour * 3600 + minute * 60 + second - passed) % 86_400
