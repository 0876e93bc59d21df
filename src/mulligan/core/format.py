"""Durations, times, sizes, rates and foreign text, formatted for people."""

from __future__ import annotations

import re
from typing import Any

from mulligan.core.durations import SECOND, Micros, to_datetime
from mulligan.core.errors import Refused

TEXT_LIMIT = 8192
MAX_TEXT_LENGTH = 500  # of names that callers choose

_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))


# --- Numbers and times ---


def format_duration(seconds: float) -> str:
    """Format a duration: `4 ms`, `0.4 s`, `41 s`, `5 min`, `1.5 h`, `2 d`."""
    if 0 < seconds < 0.095:
        return f"{max(1, round(seconds * 1000))} ms"
    for size, unit in _UNITS:
        if seconds >= 2 * size or seconds == size:
            return f"{_short(seconds / size)} {unit}"
    return f"{_short(seconds)} s"


def _short(value: float) -> str:
    """Format a number with one decimal, or none if it is at least 10 or whole."""
    if value >= 10 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}"


def format_rate(rate: float) -> str:
    """Format a rate in a unit in which it is at least 1: `5 a second`, `1.7 a minute`."""
    for seconds, unit in ((1, "a second"), (60, "a minute"), (3600, "an hour")):
        if rate * seconds >= 0.9995:
            return f"{_short(round(rate * seconds, 3))} {unit}"
    return f"{_short(round(rate * 86_400, 3))} a day"


def format_size(count: int) -> str:
    """Format a number of bytes: `512 B`, `1.9 GB`."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{_short(value)} {unit}"
        value /= 1000
    return f"{_short(value)} TB"


_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kMGT]i?)?B?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int | None:
    """Return the bytes of `500MB`, `2 GiB`, `512M` or `4096`; None for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    number, unit = found.groups("")
    base = 1024 if unit.lower().endswith("i") else 1000
    return int(float(number) * base ** _POWERS[unit[:1].lower()])


MIN_COST = 0.001


def format_cost(cost: float) -> str:
    """Format a cost without an exponent: `0.14`, `12.50`, `less than 0.001`."""
    if 0 < cost < MIN_COST:
        return f"less than {MIN_COST}"
    if cost >= 1:
        return f"{cost:,.2f}"
    return f"{cost:.3f}".rstrip("0").rstrip(".") or "0"


def format_ordinal(n: int) -> str:
    """Format an ordinal number: `1st`, `2nd`, `3rd`, `4th`, `11th`."""
    if n % 100 in {11, 12, 13}:
        return f"{n}th"
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"


def format_time(at: Micros) -> str:
    """Format a time: `2026-01-02 03:04:05 UTC`."""
    try:
        return f"{to_datetime(at):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return "the end of time"


def format_time_after(at: Micros, previous: Micros) -> str:
    """Format a time that follows another one in a sentence: without its date on the same day."""
    text = format_time(at)
    date_length = 10
    same_day = text[:date_length] == format_time(previous)[:date_length]
    if same_day and text.endswith("UTC"):
        return text[date_length + 1 :]
    return text


def format_elapsed(start: Micros, end: Micros) -> str:
    """Format the duration between two times. If the clock was set back, it is 0 s."""
    seconds = max(0, end - start) / SECOND
    if seconds >= 10:
        seconds = round(seconds)
    return format_duration(seconds)


# --- Actors ---

_ACTORS = {
    "": "an unknown user",
    "python": "a Python program",
    "handler": "a job's handler",
    "upkeep": "Mulligan",
    "schedule": "a schedule",
    "breaker": "its breaker",
    "guard": "its guard",
    "hint": "its own retry hint",
}


def format_actor(actor: str) -> str:
    """Name an actor in a sentence: `kim (on the command line)`, `a Python program`."""
    if actor.startswith("cli:"):
        return f"{one_line(actor.removeprefix('cli:'))} (on the command line)"
    return _ACTORS.get(actor) or one_line(actor)


# --- Foreign text ---

_CUT_NOTE = 48  # characters reserved for the note that says how much was cut

# C0 and C1 controls except \t and \n, lone surrogates, and marks that change the text direction.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def safe_text(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return at most `limit` characters that every database and terminal accepts."""
    if len(text) <= limit and text.isprintable():
        return text
    return replace_unsafe(cut_middle(text, limit, 0))


def one_line(text: str, limit: int = 500) -> str:
    """Return a safe text without line breaks, to be used within a sentence."""
    return " ".join(safe_text(text, limit).split())


def cut_end(text: str, width: int) -> str:
    """Shorten a text to `width` characters. A cut is marked by …."""
    if len(text) <= width:
        return text
    return f"{text[: width - 1].rstrip()}…"


def as_sentence(text: str) -> str:
    """Return one safe line that ends with a punctuation mark."""
    line = one_line(text, 2000)
    if not line or line[-1] in ".!?…":
        return line
    return f"{line}."


def replace_unsafe(text: str) -> str:
    """Replace characters that a database or terminal may refuse by U+FFFD."""
    if text.isprintable():
        return text
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    # Several times faster than the regular expression, and usually sufficient.
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return _UNSAFE.sub("\ufffd", text)


def encode_text(text: str) -> bytes:
    """Encode a text as UTF-8. Lone surrogates, which have no encoding, become U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text).encode()


def cut_middle(text: str, limit: int, already_cut: int) -> str:
    """Shorten a text to `limit` characters: two thirds from its head, one third from its tail.

    The end of an error text often says most. `already_cut` characters were cut before this call.
    """
    if len(text) <= limit and not already_cut:
        return text
    remaining = min(limit - _CUT_NOTE, len(text))
    if remaining < _CUT_NOTE:
        return text[:limit]
    tail = remaining // 3
    cut = len(text) + already_cut - remaining
    return f"{text[: remaining - tail]}\n[{cut} characters cut]\n{text[-tail:]}"


# --- Secrets ---

_PASSWORD = re.compile(r"(?i)\b((?:ssl)?password)=[^&]*")


def mask_password(url: str) -> str:
    """Replace the password of a database URL by `***`.

    In a malformed URL, rather mask too much than too little.
    """
    if url.startswith("sqlite"):
        return url
    scheme, colon, rest = url.partition(":")
    name = rest.lstrip("/")
    slashes = rest[: len(rest) - len(name)]
    credentials, at, host = name.rpartition("@")
    user, has_password, _ = credentials.partition(":")
    masked = f"{user}:***@{host}" if has_password else f"{credentials}{at}{host}"
    return _PASSWORD.sub(r"\1=***", f"{scheme}{colon}{slashes}{masked}")


def check_text(name: str, value: Any, *, min_length: int = 0) -> str:
    """Return a short text that every database can store."""
    is_valid = isinstance(value, str) and min_length <= len(value) <= MAX_TEXT_LENGTH
    if not is_valid or "\x00" in value:
        raise Refused(
            f"{name} must be a string of {min_length} to {MAX_TEXT_LENGTH} characters without NUL, "
            f"not {value!r:.80}"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(f"{name} must be valid Unicode, but it contains a lone surrogate") from None
    return str.__str__(value)  # Never store an instance of a caller's str subclass.
