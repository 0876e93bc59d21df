"""Structure that is written in a text: `An error occurred (SlowDown)`, `HTTP Error 404:`, `[Errno 28]`.

Anybody can write such a text, so what is read here is believed only where nothing better is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from errno import errorcode
from functools import lru_cache
from signal import Signals

from mulligan.policy import shapes
from mulligan.policy.facts import Facts
from mulligan.policy.late import late
from mulligan.policy.normal import GRPC, death, grpc_name
from mulligan.policy.shapes import Shape

_ERRNO_OF = {name: number for number, name in errorcode.items()}
_SIGNAL_OF = {signal.name: int(signal) for signal in Signals} | {
    "killed": 9,
    "terminated": 15,
    "aborted": 6,
    "interrupt": 2,
    "segmentation fault": 11,
    "aborted (core dumped)": 6,
    "illegal instruction": 4,
    "bus error": 7,
    "floating point exception": 8,
}
_DIGITS = late(r"[45]\d\d")
_MAIL = late(r"smtp|mail|recipient|sender|relay|address|postmaster|\b[45]\d\d[ -]", re.IGNORECASE)
_HUMPS = late(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[_:-]+")
# Words that stand where a code would, and tell nothing.
_EMPTY = frozenset(
    [
        "error",
        "none",
        "null",
        "true",
        "false",
        "unknown",
        "invalid_request_error",
        "api_error",
        "object",
        "string",
        "message",
        "exception",
        "failed",
        "failure",
        "fault",
        "detail",
        "details",
        "code",
        "status",
        "type",
        "bad",
        "request",
        "badrequest",
        "clienterror",
        "servererror",
        "errors",
    ]
)


def spelled(name: str) -> str:
    """A name as words: `ContentNotFoundError` says what `content not found error` says."""
    return _HUMPS.sub(" ", name.rsplit(".", 1)[-1])


@lru_cache(maxsize=64)
def told(text: str) -> Facts:
    """What a text says of structure; all empty where it says nothing."""
    codes = _codes(text)
    exit_code = next((int(value) for value in _found(shapes.EXITS, text)), None)
    exit_code, signal = death(exit_code, _signal(text))
    return Facts(
        exception_types=_types(text),
        message=text,
        provider_codes=tuple(dict.fromkeys(code for fact, code in codes if fact == "code")),
        grpc_status=next((code for fact, code in codes if fact == "grpc"), ""),
        sqlstate=next((code for fact, code in codes if fact == "sqlstate"), ""),
        http_status=_http(text),
        errno=_errno(text),
        exit_code=exit_code,
        signal=signal,
    )


def _matches(shape: Shape, text: str) -> Iterator[str]:
    if any(hint in text for hint in shape.hints):
        for match in shape.pattern.finditer(text):
            yield next(group for group in match.groups() if group is not None)


def _found(of: Iterable[Shape], text: str) -> Iterator[str]:
    for shape in of:
        yield from _matches(shape, text)


def _types(text: str) -> tuple[str, ...]:
    """The last one named is the nearest to the cause."""
    names = [match[1].replace("::", ".") for match in shapes.TYPE.finditer(text)]
    return tuple(dict.fromkeys(reversed(names)))


def _http(text: str) -> int | None:
    if not _DIGITS.search(text):
        return None
    lead = shapes.HTTP_LEAD.search(text)
    found = [lead[1]] if lead else list(_found(shapes.HTTP, text))
    return int(found[-1]) if found else None


def _codes(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for shape in shapes.CODES:
        values = dict.fromkeys(_matches(shape, text))
        if values and shape.fact == "mail" and not _MAIL.search(text):  # a version has the same shape
            values = {value: None for value in values if "." not in value}
        for value in values:
            found.extend(_code(shape, value))
    return found


def _code(shape: Shape, value: str) -> Iterator[tuple[str, str]]:
    if shape.fact == "mail":
        yield "code", f"smtp:{value}"
    elif shape.fact == "grpc" or value.upper() in GRPC:
        if name := grpc_name(value):
            yield "grpc", name
    elif shape.fact == "sqlstate":
        yield "sqlstate", value
    elif value.lower() not in _EMPTY:
        yield "code", f"{shape.system}:{value}" if shape.system else value


def _errno(text: str) -> int | None:
    numbers = [int(value) if value.isdigit() else _ERRNO_OF.get(value) for value in _found(shapes.ERRNO, text)]
    return next((number for number in reversed(numbers) if number), None)


def _signal(text: str) -> int | None:
    value = next(_found(shapes.SIGNALS, text), None)
    if value is None or value.isdigit():
        return None if value is None else int(value)
    return _SIGNAL_OF.get(value) or _SIGNAL_OF.get(value.lower(), 9)  # what remains tells of the OOM killer
