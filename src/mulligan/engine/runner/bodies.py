"""What a service says in the body of its answer: codes, a sentence, how long to wait.

Bodies come as values that are in memory already; nothing here reads from a connection. They may be as large, as deep
and as wrong as anybody likes: whoever calls guards, and only the beginning counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mulligan.policy.hints import Hint, duration, within

LONGEST = 65_536
_BYTES = (bytes, bytearray)
_LISTS = (list, tuple)
_FEW = 8  # entries of a list that are looked at
_SAID = 500
_CODE = re.compile(r"[A-Za-z_][\w.:-]{1,99}")
_NOISE = frozenset({"error", "errors", "failure", "failed", "fail", "exception", "none", "null", "true", "false", "ok"})
_XML = re.compile(r"<(?:\w{1,20}:)?Code>([\w.-]{1,100})</")
_XML_SAID = re.compile(r"<(?:\w{1,20}:)?Message>([^<]{1,500})</")
_WINDOWS = (("PerDay", "quota:day"), ("PerMinute", "quota:minute"), ("PerMonth", "quota:month"))

CANONICAL = frozenset(
    {
        "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
        "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
        "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
    }
)  # fmt: skip


class Told(NamedTuple):
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


def read_body(body: Any, *, ok: bool = False) -> Told:
    """A body as bytes, as text, or as what somebody has parsed already; `ok`: it came with a status of success."""
    if isinstance(body, _BYTES):
        body = bytes(body[: LONGEST + 1]).decode("utf-8", "replace")
    if isinstance(body, str):
        if len(body) > LONGEST:
            return Told()
        start = body.lstrip()[:1]
        if start == "<":
            return _markup(body)
        if start not in {"{", "["}:
            return Told() if ok else Told(said=body[:_SAID])
        body = json.loads(body)
    if isinstance(body, _LISTS) and body:
        body = body[0]
    return _document(body, ok=ok) if isinstance(body, dict) else Told()


def _markup(text: str) -> Told:
    """S3 and Azure answer in XML; a page for people says nothing to us."""
    code, said = _XML.search(text[:4096]), _XML_SAID.search(text[:4096])
    return Told([code[1]] if code else (), said[1] if said else "")


def _document(body: dict[Any, Any], *, ok: bool) -> Told:
    if ok:  # GraphQL and others say there what went wrong; anything else in it is what was asked for
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
    return Told([code for code in dict.fromkeys(codes) if code][:_FEW], said, status, grpc, hint)


def _status(value: Any) -> int | None:
    return value if type(value) is int and 400 <= value <= 599 else None


def _codes(part: dict[Any, Any], codes: list[str]) -> None:
    nested = part.get("innererror", part.get("extensions"))
    if isinstance(nested, dict):
        codes.append(as_code(nested.get("code")))
    for name in _CODE_NAMES:
        value = part.get(name)
        if value is not None:
            if isinstance(value, str) and ("#" in value or "/" in value):  # a name within an address
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


def read_details(details: Any) -> Told:
    """ErrorInfo, QuotaFailure and RetryInfo, whichever way they came."""
    codes: list[str] = []
    hint: Hint | None = None
    if details and isinstance(details, _LISTS):
        for entry in details[:_FEW]:
            found = _pick(entry)
            codes += [*_quotas(found("violations", "violations")), as_code(found("reason", "reason"))]
            delay = found("retryDelay", "retry_delay")
            hint = hint or (within(duration(delay), "RetryInfo") if delay else None)
    if not codes:
        return Told(hint=hint)
    ordered = sorted(filter(None, codes), key=lambda code: not code.startswith("quota:"))
    return Told(list(dict.fromkeys(ordered)), hint=hint)


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


def from_trailer(data: bytes) -> Told:
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
    return Told([code for code in codes if as_code(code)], hint=hint)


def _text(values: list[Any] | None) -> str:
    return bytes(values[0]).decode("utf-8", "replace") if values else ""


def _delay(data: bytes) -> float | None:
    parts = _fields(data)
    seconds, nanos = (parts.get(number, [0])[0] for number in (1, 2))
    return None if seconds >= 2**62 else seconds + nanos / 1e9  # a negative number is a huge one on the wire


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
