"""Lengths and moments as people say them."""

from __future__ import annotations

import re

from mulligan.core.job import SECOND, Micros, to_datetime

_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))


def duration(seconds: float) -> str:
    """`4 ms`, `0.4 s`, `41 s`, `5 min`, `1.5 h`, `2 d`."""
    if 0 < seconds < 0.095:
        return f"{max(1, round(seconds * 1000))} ms"
    for size, unit in _UNITS:
        if seconds >= 2 * size or seconds == size:
            return f"{_short(seconds / size)} {unit}"
    return f"{_short(seconds)} s"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def per(rate: float) -> str:
    """A rate in the unit in which it is at least one: `5 a second`, `1.7 a minute`, `2 an hour`."""
    for seconds, unit in ((1, "a second"), (60, "a minute"), (3600, "an hour")):
        if rate * seconds >= 0.9995:
            return f"{_short(round(rate * seconds, 3))} {unit}"
    return f"{_short(round(rate * 86_400, 3))} a day"


def moment(at: Micros) -> str:
    """`2026-01-02 03:04:05 UTC`."""
    try:
        return f"{to_datetime(at):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return "the end of time"


def size(count: int) -> str:
    """`512 B`, `1.9 GB`."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{_short(value)} {unit}"
        value /= 1000
    return f"{_short(value)} TB"


_ACTORS = {
    "": "somebody",
    "python": "a program (through Python)",
    "handler": "a job's own code",
    "upkeep": "Mulligan's upkeep",
    "schedule": "a schedule",
    "breaker": "its breaker",
    "guard": "its guard",
    "hint": "its own answer",
}


def who(actor: str) -> str:
    """An actor as one names them in a sentence: `kim (on the command line)`, `a program (through Python)`."""
    if actor.startswith("cli:"):
        return f"{one_line(actor.removeprefix('cli:'))} (on the command line)"
    return _ACTORS.get(actor) or one_line(actor)


def span(start: Micros, end: Micros) -> str:
    """How long from one moment to another; clocks that went back make it nothing."""
    seconds = max(0, end - start) / SECOND
    return duration(round(seconds) if seconds >= 10 else seconds)


def one_line(text: str, limit: int = 500) -> str:
    """A text from outside, fit for the middle of a sentence."""
    return " ".join(safe(text, limit).split())


def stopped(text: str) -> str:
    """One line with a full stop at its end, where it has none."""
    said = one_line(text, 2000)
    return said if not said or said[-1] in ".!?…" else f"{said}."


def clock(at: Micros, beside: Micros) -> str:
    """A moment that is told beside another: without its date where that is the same."""
    said, other = moment(at), moment(beside)
    return said[11:] if said[:10] == other[:10] and said.endswith("UTC") else said


def ordinal(n: int) -> str:
    """`1st`, `2nd`, `3rd`, `4th`, `11th`."""
    ending = "th" if n % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


LIMIT = 8192


_MARK = 48  # room for the words that say how much was cut


# C0 and C1 controls but \t and \n, lone surrogates, and the marks that turn the direction of text around.
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def safe(text: str, limit: int = LIMIT) -> str:
    """At most `limit` characters that any store and any screen can take; what is cut is counted."""
    if len(text) <= limit and text.isprintable():
        return text
    return _clean(_cut(text, limit, 0))


def _clean(text: str) -> str:
    if text.isprintable():
        return text
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if (
        text.replace("\n", "").replace("\t", "").isprintable()
    ):  # several times faster than the search
        return text
    return _UNFIT.sub("\ufffd", text)


def _cut(text: str, limit: int, already: int) -> str:
    """Two thirds head, one third tail: the end of an error text often says most, the beginning what it was."""
    if len(text) <= limit and not already:
        return text
    kept = min(limit - _MARK, len(text))
    if kept < _MARK:
        return text[:limit]
    tail = kept // 3
    return f"{text[: kept - tail]}\n[{len(text) + already - kept} characters cut]\n{text[-tail:]}"
