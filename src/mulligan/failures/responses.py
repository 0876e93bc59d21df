"""What a service says in the body of its answer: codes, a sentence, how long to wait.

Bodies come as values that are in memory already; nothing here reads from a connection. They may be as large, as deep
and as wrong as anybody likes: whoever calls guards, and only the beginning counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from mulligan.failures.hints import Hint, duration, within

LONGEST = 65_536
_BYTES = (bytes, bytearray)
_LISTS = (list, tuple)
_FEW = 8  # entries of a list that are looked at
_SAID = 500
_CODE = re.compile(r"[A-Za-z_][\w.:-]{1,99}")
_NOISE = frozenset(
    {
        "error",
        "errors",
        "failure",
        "failed",
        "fail",
        "exception",
        "none",
        "null",
        "true",
        "false",
        "ok",
    }
)
_XML = re.compile(r"<(?:\w{1,20}:)?Code>([\w.-]{1,100})</")
_XML_SAID = re.compile(r"<(?:\w{1,20}:)?Message>([^<]{1,500})</")
_WINDOWS = (("PerDay", "quota:day"), ("PerMinute", "quota:minute"), ("PerMonth", "quota:month"))

CANONICAL = frozenset(
    {
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    }
)


class ResponseFacts(NamedTuple):
    """What one body says; codes with the most telling first."""

    codes: Sequence[str] = ()
    said: str = ""
    status: int | None = None
    grpc: str = ""
    hint: Hint | None = None


def as_code(value: Any) -> str:
    """A code as a provider spells it, or nothing; a bare number says too little to be one."""
    if isinstance(value, str):
        text = value if type(value) is str else str(getattr(value, "value", value))
        return text if text.lower() not in _NOISE and _CODE.fullmatch(text) else ""
    if isinstance(value, int) and not isinstance(value, bool) and not -1000 < value < 1000:
        return str(int(value))
    return ""


def read_body(body: Any, *, ok: bool = False) -> ResponseFacts:
    """A body as bytes, as text, or as what somebody has parsed already; `ok`: it came with a status of success."""
    if isinstance(body, _BYTES):
        body = bytes(body[: LONGEST + 1]).decode("utf-8", "replace")
    if isinstance(body, str):
        if len(body) > LONGEST:
            return ResponseFacts()
        start = body.lstrip()[:1]
        if start == "<":
            return _markup(body)
        if start not in {"{", "["}:
            return ResponseFacts() if ok else ResponseFacts(said=body[:_SAID])
        body = json.loads(body)
    if isinstance(body, _LISTS) and body:
        body = body[0]
    return _document(body, ok=ok) if isinstance(body, dict) else ResponseFacts()


def _markup(text: str) -> ResponseFacts:
    """S3 and Azure answer in XML; a page for people says nothing to us."""
    code, said = _XML.search(text[:4096]), _XML_SAID.search(text[:4096])
    return ResponseFacts([code[1]] if code else (), said[1] if said else "")


def _document(body: dict[Any, Any], *, ok: bool) -> ResponseFacts:
    if (
        ok
    ):  # GraphQL and others say there what went wrong; anything else in it is what was asked for
        body = {name: body[name] for name in ("error", "errors") if body.get(name)}
    error = body.get("error", body.get("Error"))
    inner = error if isinstance(error, dict) else None
    details = (inner or body).get("details")
    codes: list[str] = []
    hint = None
    if details:
        told = read_details(details)
        codes, hint = list(told.codes), told.hint
    status, grpc, said = None, "", ""
    for part in (body,) if inner is None else (inner, body):
        _codes(part, codes)
        status = status or _status(part.get("code")) or _status(part.get("status"))
        if not grpc and part.get("status") in CANONICAL:
            grpc = part["status"]
        said = said or _sentence(part)
    codes.append(as_code(error))
    return ResponseFacts(
        [code for code in dict.fromkeys(codes) if code][:_FEW], said, status, grpc, hint
    )


def _status(value: Any) -> int | None:
    return value if type(value) is int and 400 <= value <= 599 else None


def _codes(part: dict[Any, Any], codes: list[str]) -> None:
    nested = part.get("innererror", part.get("extensions"))
    if isinstance(nested, dict):
        codes.append(as_code(nested.get("code")))
    for name in _CODE_NAMES:
        value = part.get(name)
        if value is not None:
            if isinstance(value, str) and (
                "#" in value or "/" in value
            ):  # a name within an address
                value = re.split("[#/]", value[:300])[-1]
            code = as_code(value)
            codes.append("" if code in CANONICAL else code)
    for entry in _entries(part.get("errors")):
        _codes(entry, codes)


_CODE_NAMES = ("code", "error_code", "errorCode", "Code", "reason", "type", "__type", "codeName")


def _entries(errors: Any) -> list[dict[Any, Any]]:
    if errors is None or not isinstance(errors, _LISTS):
        return []
    return [entry for entry in errors[:_FEW] if isinstance(entry, dict)]


def _sentence(part: dict[Any, Any]) -> str:
    for name in ("message", "error_description", "Message", "detail", "title", "msg"):
        value = part.get(name)
        if isinstance(value, str) and value:
            return str.__str__(value)[:_SAID]
    return ""


# google.rpc details: as JSON, as protobuf objects, or as bytes in the trailers of a call


def read_details(details: Any) -> ResponseFacts:
    """ErrorInfo, QuotaFailure and RetryInfo, whichever way they came."""
    codes: list[str] = []
    hint: Hint | None = None
    if details and isinstance(details, _LISTS):
        for entry in details[:_FEW]:
            found = _pick(entry)
            codes += [
                *_quotas(found("violations", "violations")),
                as_code(found("reason", "reason")),
            ]
            delay = found("retryDelay", "retry_delay")
            hint = hint or (within(duration(delay), "RetryInfo") if delay else None)
    if not codes:
        return ResponseFacts(hint=hint)
    ordered = sorted(filter(None, codes), key=lambda code: not code.startswith("quota:"))
    return ResponseFacts(list(dict.fromkeys(ordered)), hint=hint)


def _pick(entry: Any) -> Any:
    if isinstance(entry, dict):
        return lambda plain, snake: entry.get(plain, entry.get(snake))
    return lambda _, snake: getattr(entry, snake, None)


def _quotas(violations: Any) -> Iterator[str]:
    for entry in list(violations or ())[:_FEW]:
        found = _pick(entry)
        quota = found("quotaId", "quota_id")
        if isinstance(quota, str) and quota:
            yield from (name for word, name in _WINDOWS if word in quota)
            yield as_code(quota)


def from_trailer(data: bytes) -> ResponseFacts:
    """`grpc-status-details-bin`: a google.rpc.Status whose field 3 holds the details."""
    codes: list[str] = []
    hint: Hint | None = None
    for packed in _fields(data).get(3, [])[:_FEW]:
        inside = _fields(packed)
        kind, value = (inside.get(number, [b""])[0] for number in (1, 2))
        parts = _fields(value)
        if kind.endswith(b"ErrorInfo"):
            codes.append(_text(parts.get(1)))
        elif kind.endswith(b"QuotaFailure"):
            quotas = (_fields(violation).get(5) for violation in parts.get(1, [])[:_FEW])
            codes = [*_quotas([{"quotaId": _text(quota)} for quota in quotas]), *codes]
        elif kind.endswith(b"RetryInfo"):
            hint = hint or within(_delay(parts.get(1, [b""])[0]), "RetryInfo")
    return ResponseFacts([code for code in codes if as_code(code)], hint=hint)


def _text(values: list[Any] | None) -> str:
    return bytes(values[0]).decode("utf-8", "replace") if values else ""


def _delay(data: bytes) -> float | None:
    parts = _fields(data)
    seconds, nanos = (parts.get(number, [0])[0] for number in (1, 2))
    return (
        None if seconds >= 2**62 else seconds + nanos / 1e9
    )  # a negative number is a huge one on the wire


def _fields(data: bytes) -> dict[int, list[Any]]:
    """The fields of a protobuf message: numbers and bytes by their number; stops at what it does not know."""
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(data) <= LONGEST:
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
            found.setdefault(key >> 3, []).append(value)
        elif key & 7 == 2:
            size, at = _varint(data, at)
            found.setdefault(key >> 3, []).append(data[at : at + size])
            at += size
        else:
            break
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            break
    return value, at


# Databases, brokers, mail and file servers: what their drivers put into an exception, whoever the driver is.

Values = dict[str, Any]


def number_of(value: Any) -> int | None:
    """A whole number, also one of an enum; `True` is none."""
    return (
        int(value)
        if isinstance(value, int) and type(value) is not bool and abs(value) < 2**31
        else None
    )


def read_driver(
    family: str, name: str, values: Values, args: tuple[Any, ...]
) -> tuple[str, list[str]]:
    """The SQLSTATE and the provider codes of an exception of this family and name."""
    first = args[0] if args else None
    state = first if family == "pyodbc" else values.get("sqlstate", values.get("pgcode"))
    known = isinstance(state, str) and _SQLSTATE.fullmatch(state) is not None
    reader = _BY_FAMILY.get(family)
    return str(state) if known else "", reader(family, name, values, first) if reader else []


_SQLSTATE = re.compile(r"[0-9A-Z]{5}")


def _numbered(family: str, _name: str, values: Values, first: Any) -> list[str]:
    number = number_of(values.get("errno"))
    number = number_of(first) if number is None else number
    return [] if number is None or number <= 0 else [f"{family}:{number}"]


def _sqlite(_family: str, _name: str, values: Values, _first: Any) -> list[str]:
    name, number = (
        values.get("sqlite_errorname"),
        values.get("sqlite_errorcode", values.get("result")),
    )
    base = None if (whole := number_of(number)) is None else whole & 255
    plain = _SQLITE.get(base, "") if base is not None else ""
    names = [str.__str__(name)] if isinstance(name, str) else []
    names += [f"SQLITE_{plain}"] if plain else []
    return [f"sqlite:{code}" for code in (*names, *([] if base is None else [base]))]


_SQLITE = dict(
    enumerate(
        (
            "ERROR",
            "INTERNAL",
            "PERM",
            "ABORT",
            "BUSY",
            "LOCKED",
            "NOMEM",
            "READONLY",
            "INTERRUPT",
            "IOERR",
            "CORRUPT",
            "NOTFOUND",
            "FULL",
            "CANTOPEN",
            "PROTOCOL",
            "EMPTY",
            "SCHEMA",
            "TOOBIG",
            "CONSTRAINT",
            "MISMATCH",
            "MISUSE",
            "NOLFS",
            "AUTH",
            "FORMAT",
            "RANGE",
            "NOTADB",
        ),
        start=1,
    )
)


def _redis(_family: str, name: str, values: Values, first: Any) -> list[str]:
    """The word a server begins its error with; older clients turn it into a class and take it out of the text."""
    word = values.get("status_code") or _REDIS.get(name.rpartition(".")[2], "")
    if not word and isinstance(first, str) and (found := _REDIS_WORD.match(first)):
        word = found[0]
    return [f"redis:{word}"] if as_code(word) else []


_REDIS_WORD = re.compile(r"[A-Z]{2,20}(?= )")
_REDIS = {
    "BusyLoadingError": "LOADING",
    "ReadOnlyError": "READONLY",
    "ClusterDownError": "CLUSTERDOWN",
    "AskError": "ASK",
    "TryAgainError": "TRYAGAIN",
    "OutOfMemoryError": "OOM",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "NoScriptError": "NOSCRIPT",
    "ExecAbortError": "EXECABORT",
    "NoPermissionError": "NOPERM",
    "ClusterCrossSlotError": "CROSSSLOT",
}


def _oracle(_family: str, _name: str, _values: Values, first: Any) -> list[str]:
    return [as_code(getattr(first, "full_code", None))]


def _kafka(_family: str, _name: str, _values: Values, first: Any) -> list[str]:
    name = as_code(first.name())
    return [f"kafka:{name}"] if name else []


def _mongo(_family: str, _name: str, values: Values, _first: Any) -> list[str]:
    details = values.get("details")
    return [as_code(details.get("codeName"))] if isinstance(details, dict) else []


def _ftp(_family: str, _name: str, _values: Values, first: Any) -> list[str]:
    return [f"ftp:{first[:3]}"] if isinstance(first, str) and first[:3].isdecimal() else []


def _smtp(_family: str, _name: str, values: Values, _first: Any) -> list[str]:
    """Temporary refusals first: as long as one recipient may still be reached, there is hope."""
    answers = [
        (
            values.get("smtp_code", values.get("code")),
            values.get("smtp_error", values.get("message")),
        )
    ]
    recipients = values.get("recipients")
    if isinstance(recipients, dict):
        answers += [
            answer for answer in list(recipients.values())[:_FEW] if isinstance(answer, tuple)
        ]
    elif isinstance(recipients, list | tuple):
        answers += [
            (getattr(one, "code", None), getattr(one, "message", None)) for one in recipients[:_FEW]
        ]
    codes: list[tuple[int, list[str]]] = []
    for code, text in answers:
        number = number_of(code)
        if number is not None and 200 <= number <= 599:
            codes.append((number, [*_enhanced(text), f"smtp:{number}"]))
    return [name for _, names in sorted(codes, key=lambda entry: entry[0] // 100) for name in names]


_ENHANCED = re.compile(r"[245]\.\d{1,3}\.\d{1,3}(?!\.?\d)")


def _enhanced(text: Any) -> list[str]:
    if isinstance(text, bytes):
        text = text[:100].decode("utf-8", "replace")
    found = _ENHANCED.match(text.lstrip()) if isinstance(text, str) else None
    return [f"smtp:{found[0]}"] if found else []


_BY_FAMILY: dict[str, Callable[[str, str, Values, Any], list[str]]] = {
    **dict.fromkeys(("mysql", "pymssql", "curl", "snowflake"), _numbered),
    "sqlite": _sqlite,
    "redis": _redis,
    "oracle": _oracle,
    "kafka": _kafka,
    "mongo": _mongo,
    "ftp": _ftp,
    "smtp": _smtp,
}
DRIVERS = frozenset({*_BY_FAMILY, "pyodbc"})
