"""Read the responses of services and databases: codes, messages, how long to wait.

Bodies are values that are already in memory; nothing here reads from a connection. They may be
large, deep and malformed: only the beginning is read, and callers catch what is raised.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from mulligan.failures.facts import GRPC_STATUSES
from mulligan.failures.hints import Hint, make_hint, parse_delay

MAX_BODY = 65_536
_MAX_ENTRIES = 8  # of a list
_MAX_MESSAGE = 500
_BYTES = (bytes, bytearray)
_LISTS = (list, tuple)
_CODE = re.compile(r"[A-Za-z_][\w.:-]{1,99}")
# Values in the place of a code that mean nothing.
_NON_CODES = frozenset(
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
_XML_CODE = re.compile(r"<(?:\w{1,20}:)?Code>([\w.-]{1,100})</")
_XML_MESSAGE = re.compile(r"<(?:\w{1,20}:)?Message>([^<]{1,500})</")
_QUOTA_PERIODS = (
    ("PerDay", "quota:day"),
    ("PerMinute", "quota:minute"),
    ("PerMonth", "quota:month"),
)


class ResponseFacts(NamedTuple):
    """Facts in the body of a response."""

    codes: Sequence[str] = ()  # most specific first
    message: str = ""
    http_status: int | None = None
    grpc_status: str = ""
    hint: Hint | None = None


def parse_code(value: Any) -> str:
    """Return a provider code, or "" if `value` is none. A small number is too ambiguous."""
    if isinstance(value, str):
        text = value if type(value) is str else str(getattr(value, "value", value))
        is_code = text.lower() not in _NON_CODES and _CODE.fullmatch(text)
        return text if is_code else ""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1000:
        return str(int(value))
    return ""


def parse_int(value: Any) -> int | None:
    """Return a whole number, also one of an enum. A bool is none."""
    if isinstance(value, int) and type(value) is not bool and abs(value) < 2**31:
        return int(value)
    return None


# --- Bodies ---


def read_body(body: Any, *, ok: bool = False) -> ResponseFacts:
    """Read a body given as bytes, as text or parsed. `ok`: the status was a success."""
    if isinstance(body, _BYTES):
        body = bytes(body[: MAX_BODY + 1]).decode("utf-8", "replace")
    if isinstance(body, str):
        if len(body) > MAX_BODY:
            return ResponseFacts()
        first = body.lstrip()[:1]
        if first == "<":
            return _read_xml(body)
        if first not in {"{", "["}:
            message = "" if ok else body[:_MAX_MESSAGE]
            return ResponseFacts(message=message)
        body = json.loads(body)
    if isinstance(body, _LISTS) and body:
        body = body[0]
    if isinstance(body, dict):
        return _read_document(body, ok=ok)
    return ResponseFacts()


def _read_xml(text: str) -> ResponseFacts:
    """Read an XML error of S3 or Azure. An HTML page has nothing of interest."""
    beginning = text[:4096]
    code = _XML_CODE.search(beginning)
    message = _XML_MESSAGE.search(beginning)
    facts = ResponseFacts()
    if code:
        facts = facts._replace(codes=[code[1]])
    if message:
        facts = facts._replace(message=message[1])
    return facts


def _read_document(body: dict[Any, Any], *, ok: bool) -> ResponseFacts:
    if ok:
        # GraphQL reports errors with a success status. The other fields are the result.
        body = {name: body[name] for name in ("error", "errors") if body.get(name)}
    error = body.get("error", body.get("Error"))
    parts = (error, body) if isinstance(error, dict) else (body,)
    codes: list[str] = []
    hint = None
    rpc_details = (parts[0] or body).get("details")
    if rpc_details:
        detail_facts = read_details(rpc_details)
        codes = list(detail_facts.codes)
        hint = detail_facts.hint
    http_status = None
    grpc_status = ""
    message = ""
    for part in parts:
        code = part.get("code")
        status = part.get("status")
        _collect_codes(part, codes)
        http_status = http_status or _parse_error_status(code) or _parse_error_status(status)
        if not grpc_status and status in GRPC_STATUSES:
            grpc_status = status
        message = message or _find_message(part)
    codes.append(parse_code(error))
    unique = [code for code in dict.fromkeys(codes) if code]
    return ResponseFacts(unique[:_MAX_ENTRIES], message, http_status, grpc_status, hint)


def _parse_error_status(value: Any) -> int | None:
    is_error = type(value) is int and 400 <= value <= 599
    return value if is_error else None


_CODE_FIELDS = ("code", "error_code", "errorCode", "Code", "reason", "type", "__type", "codeName")
_MESSAGE_FIELDS = ("message", "error_description", "Message", "detail", "title", "msg")


def _collect_codes(part: dict[Any, Any], codes: list[str]) -> None:
    nested = part.get("innererror", part.get("extensions"))
    if isinstance(nested, dict):
        codes.append(parse_code(nested.get("code")))
    for name in _CODE_FIELDS:
        value = part.get(name)
        if value is None:
            continue
        if isinstance(value, str) and ("#" in value or "/" in value):  # a URL that ends in a code
            value = re.split("[#/]", value[:300])[-1]
        code = parse_code(value)
        if code not in GRPC_STATUSES:
            codes.append(code)
    for entry in _dict_entries(part.get("errors")):
        _collect_codes(entry, codes)


def _dict_entries(errors: Any) -> list[dict[Any, Any]]:
    if not isinstance(errors, _LISTS):
        return []
    return [entry for entry in errors[:_MAX_ENTRIES] if isinstance(entry, dict)]


def _find_message(part: dict[Any, Any]) -> str:
    for name in _MESSAGE_FIELDS:
        value = part.get(name)
        if isinstance(value, str) and value:
            return str.__str__(value)[:_MAX_MESSAGE]
    return ""


# --- google.rpc details: as JSON, as protobuf objects, or as bytes in the trailers of a call ---


def read_details(details: Any) -> ResponseFacts:
    """Read ErrorInfo, QuotaFailure and RetryInfo, as JSON or as protobuf objects."""
    codes: list[str] = []
    hint: Hint | None = None
    if details and isinstance(details, _LISTS):
        for entry in details[:_MAX_ENTRIES]:
            codes += _quota_codes(_get_field(entry, "violations"))
            codes.append(parse_code(_get_field(entry, "reason")))
            delay = _get_field(entry, "retryDelay", "retry_delay")
            if delay and not hint:
                hint = make_hint(parse_delay(delay), "RetryInfo")
    if not codes:
        return ResponseFacts(hint=hint)
    quotas_first = sorted(filter(None, codes), key=lambda code: not code.startswith("quota:"))
    return ResponseFacts(list(dict.fromkeys(quotas_first)), hint=hint)


def _get_field(entry: Any, json_name: str, python_name: str = "") -> Any:
    """Return a field of a message that is JSON or a protobuf object."""
    python_name = python_name or json_name
    if isinstance(entry, dict):
        return entry.get(json_name, entry.get(python_name))
    return getattr(entry, python_name, None)


def _quota_codes(violations: Any) -> Iterator[str]:
    for entry in list(violations or ())[:_MAX_ENTRIES]:
        quota = _get_field(entry, "quotaId", "quota_id")
        if isinstance(quota, str) and quota:
            for period, code in _QUOTA_PERIODS:
                if period in quota:
                    yield code
            yield parse_code(quota)


def read_trailer(data: bytes) -> ResponseFacts:
    """Read `grpc-status-details-bin`: a google.rpc.Status whose field 3 holds the details."""
    codes: list[str] = []
    hint: Hint | None = None
    for packed in _parse_protobuf(data).get(3, [])[:_MAX_ENTRIES]:
        wrapper = _parse_protobuf(packed)
        type_url = wrapper.get(1, [b""])[0]
        fields = _parse_protobuf(wrapper.get(2, [b""])[0])
        if type_url.endswith(b"ErrorInfo"):
            codes.append(_decode_text(fields.get(1)))
        elif type_url.endswith(b"QuotaFailure"):
            codes = [*_quota_codes(_decode_violations(fields.get(1, []))), *codes]
        elif type_url.endswith(b"RetryInfo"):
            hint = hint or make_hint(_decode_duration(fields.get(1, [b""])[0]), "RetryInfo")
    return ResponseFacts([code for code in codes if parse_code(code)], hint=hint)


def _decode_violations(violations: list[Any]) -> list[dict[str, str]]:
    quotas = [_parse_protobuf(violation).get(5) for violation in violations[:_MAX_ENTRIES]]
    return [{"quotaId": _decode_text(quota)} for quota in quotas]


def _decode_text(values: list[Any] | None) -> str:
    if not values:
        return ""
    return bytes(values[0]).decode("utf-8", "replace")


def _decode_duration(data: bytes) -> float | None:
    fields = _parse_protobuf(data)
    seconds = fields.get(1, [0])[0]
    nanos = fields.get(2, [0])[0]
    if seconds >= 2**62:  # negative: the wire format has no sign
        return None
    return float(seconds + nanos / 1e9)


def _parse_protobuf(data: bytes) -> dict[int, list[Any]]:
    """Return the fields of a protobuf message by number: integers and bytes.

    Parsing stops at the first field of another type.
    """
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(data) <= MAX_BODY:
        key, at = _parse_varint(data, at)
        wire_type = key & 7
        if wire_type == 0:
            value, at = _parse_varint(data, at)
            fields.setdefault(key >> 3, []).append(value)
        elif wire_type == 2:
            size, at = _parse_varint(data, at)
            fields.setdefault(key >> 3, []).append(data[at : at + size])
            at += size
        else:
            break
    return fields


def _parse_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        shift += 7
        if byte < 128:
            break
    return value, at


# --- Drivers of databases, brokers, mail and file servers ---

Attributes = dict[str, Any]


def read_driver(
    family: str, name: str, attributes: Attributes, args: tuple[Any, ...]
) -> tuple[str, list[str]]:
    """Return the SQLSTATE and the provider codes of a driver's exception.

    `name` is the class name, `args` are the arguments of the exception.
    """
    first = args[0] if args else None
    sqlstate = attributes.get("sqlstate", attributes.get("pgcode"))
    if family == "pyodbc":
        sqlstate = first
    if not isinstance(sqlstate, str) or not _SQLSTATE.fullmatch(sqlstate):
        sqlstate = ""
    reader = _DRIVER_READERS.get(family)
    codes = reader(family, name, attributes, first) if reader else []
    return str(sqlstate), codes


_SQLSTATE = re.compile(r"[0-9A-Z]{5}")


def _read_numbered(family: str, _name: str, attributes: Attributes, first: Any) -> list[str]:
    number = parse_int(attributes.get("errno"))
    if number is None:
        number = parse_int(first)
    if number is None or number <= 0:
        return []
    return [f"{family}:{number}"]


def _read_sqlite(_family: str, _name: str, attributes: Attributes, _first: Any) -> list[str]:
    """Return the extended name, the primary name and the primary result code."""
    codes: list[str] = []
    name = attributes.get("sqlite_errorname")
    if isinstance(name, str):
        codes.append(f"sqlite:{str.__str__(name)}")
    number = parse_int(attributes.get("sqlite_errorcode", attributes.get("result")))
    if number is not None:
        primary = number & 255
        if primary in _SQLITE:
            codes.append(f"sqlite:SQLITE_{_SQLITE[primary]}")
        codes.append(f"sqlite:{primary}")
    return codes


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


def _read_redis(_family: str, name: str, attributes: Attributes, first: Any) -> list[str]:
    """Return the word that the server's error begins with.

    Older clients map that word to an exception class and remove it from the text.
    """
    word = attributes.get("status_code") or _REDIS.get(name.rpartition(".")[2], "")
    if not word and isinstance(first, str):
        match = _REDIS_WORD.match(first)
        if match:
            word = match[0]
    return [f"redis:{word}"] if parse_code(word) else []


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


def _read_oracle(_family: str, _name: str, _attributes: Attributes, first: Any) -> list[str]:
    return [parse_code(getattr(first, "full_code", None))]


def _read_kafka(_family: str, _name: str, _attributes: Attributes, first: Any) -> list[str]:
    name = parse_code(first.name())
    return [f"kafka:{name}"] if name else []


def _read_mongo(_family: str, _name: str, attributes: Attributes, _first: Any) -> list[str]:
    details = attributes.get("details")
    if not isinstance(details, dict):
        return []
    return [parse_code(details.get("codeName"))]


def _read_ftp(_family: str, _name: str, _attributes: Attributes, first: Any) -> list[str]:
    if isinstance(first, str) and first[:3].isdecimal():
        return [f"ftp:{first[:3]}"]
    return []


def _read_smtp(_family: str, _name: str, attributes: Attributes, _first: Any) -> list[str]:
    """Return the codes of all replies, temporary refusals first.

    While one recipient may still be reached, a retry makes sense.
    """
    replies: list[tuple[int, list[str]]] = []
    for code, text in _smtp_replies(attributes):
        number = parse_int(code)
        if number is not None and 200 <= number <= 599:
            replies.append((number, [*_enhanced_codes(text), f"smtp:{number}"]))
    replies.sort(key=lambda reply: reply[0] // 100)
    found: list[str] = []
    for _, codes in replies:
        found += codes
    return found


def _smtp_replies(attributes: Attributes) -> list[tuple[Any, ...]]:
    """Return (code, text) of the server's reply and of the reply for each recipient."""
    code = attributes.get("smtp_code", attributes.get("code"))
    text = attributes.get("smtp_error", attributes.get("message"))
    replies: list[tuple[Any, ...]] = [(code, text)]
    recipients = attributes.get("recipients")
    if isinstance(recipients, dict):
        entries = list(recipients.values())[:_MAX_ENTRIES]
        replies += [entry for entry in entries if isinstance(entry, tuple)]
    elif isinstance(recipients, list | tuple):
        for entry in recipients[:_MAX_ENTRIES]:
            replies.append((getattr(entry, "code", None), getattr(entry, "message", None)))
    return replies


_ENHANCED = re.compile(r"[245]\.\d{1,3}\.\d{1,3}(?!\.?\d)")


def _enhanced_codes(text: Any) -> list[str]:
    if isinstance(text, bytes):
        text = text[:100].decode("utf-8", "replace")
    if not isinstance(text, str):
        return []
    match = _ENHANCED.match(text.lstrip())
    return [f"smtp:{match[0]}"] if match else []


_DRIVER_READERS: dict[str, Callable[[str, str, Attributes, Any], list[str]]] = {
    **dict.fromkeys(("mysql", "pymssql", "curl", "snowflake"), _read_numbered),
    "sqlite": _read_sqlite,
    "redis": _read_redis,
    "oracle": _read_oracle,
    "kafka": _read_kafka,
    "mongo": _read_mongo,
    "ftp": _read_ftp,
    "smtp": _read_smtp,
}
DRIVER_FAMILIES = frozenset({*_DRIVER_READERS, "pyodbc"})
