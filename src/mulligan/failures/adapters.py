"""The structure of one exception, read by the shapes that libraries give their errors. Imports none of them.

Attributes are fetched first, each on its own, because a property is foreign code; from then on readers work on plain
values. A reader that meets nonsense gives up, what it had found stays, and the next one goes on.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from functools import lru_cache
from ssl import SSLError
from subprocess import CalledProcessError, TimeoutExpired
from typing import Any, NamedTuple

from mulligan.core.errors import MulliganError, OutcomeRequest, ProcessFailed
from mulligan.core.format import safe
from mulligan.failures import hints
from mulligan.failures.redact import scrub
from mulligan.failures.responses import (
    CANONICAL,
    DRIVERS,
    ResponseFacts,
    as_code,
    from_trailer,
    number_of,
    read_body,
    read_details,
    read_driver,
)

_NAME = 200
_CODES = 8
_HEADERS = 200  # of a response that are looked at
_STDERR = 65_536

# Libraries whose numbers mean something of their own: the first word of a class's module, and whose numbers they are.
FAMILIES = {
    **dict.fromkeys(("pymysql", "MySQLdb", "mysql", "aiomysql", "asyncmy", "mariadb"), "mysql"),
    **dict.fromkeys(("redis", "valkey", "aioredis"), "redis"),
    **dict.fromkeys(("apsw", "sqlite3"), "sqlite"),
    **dict.fromkeys(("smtplib", "aiosmtplib"), "smtp"),
    **dict.fromkeys(("pymongo", "motor"), "mongo"),
    **dict.fromkeys(("clickhouse_driver", "clickhouse_connect", "asynch"), "clickhouse"),
    **dict.fromkeys(("pika", "amqp", "aiormq", "aio_pika"), "amqp"),
    **dict.fromkeys(("pycurl", "curl_cffi"), "curl"),
    **dict.fromkeys(("oracledb", "cx_Oracle"), "oracle"),
    **dict.fromkeys(("boto3", "botocore", "aiobotocore", "s3transfer"), "aws"),
    **dict.fromkeys(("grpc", "grpclib"), "grpc"),
    **dict.fromkeys(("ftplib", "aioftp"), "ftp"),
    **{
        name: name
        for name in (
            "pymssql",
            "pyodbc",
            "twilio",
            "websockets",
            "discord",
            "sqlalchemy",
            "mulligan",
        )
    },
    "snowflake": "snowflake",
    "confluent_kafka": "kafka",
    "tenacity": "tenacity",
}
_OWN_NUMBERS = frozenset(FAMILIES.values()) - {
    "aws",
    "grpc",
    "tenacity",
}  # their `code` is no HTTP status
_SILENT = frozenset({"sqlalchemy", "mulligan"})  # their `code` names a page of a manual

WANTED = frozenset(
    {
        "status_code",
        "status",
        "code",
        "http_status",
        "http_code",
        "errcode",
        "response",
        "resp",
        "headers",
        "body",
        "json_body",
        "http_body",
        "content",
        "data",
        "response_body",
        "details",
        "errors",
        "error",
        "error_code",
        "type",
        "reason",
        "grpc_status_code",
        "trailing_metadata",
        "retry_after",
        "sqlstate",
        "pgcode",
        "errno",
        "msg",
        "sqlite_errorname",
        "sqlite_errorcode",
        "result",
        "smtp_code",
        "smtp_error",
        "recipients",
        "returncode",
        "exit_code",
        "exit_status",
        "retcode",
        "cmd",
        "command",
        "full_cmd",
        "stderr",
        "output",
        "orig",
        "os_error",
        "cause",
        "inner_exception",
        "original_exception",
        "original_error",
        "last_attempt",
        "reply_code",
        "message",
    }
)
_NESTED = (
    "orig",
    "os_error",
    "reason",
    "cause",
    "inner_exception",
    "original_exception",
    "original_error",
)


_STATUSES = ("status_code", "http_status", "status", "http_code", "errcode")
_CODES_IN = ("error_code", "code", "reply_code", "type", "reason")
_BODIES = ("body", "json_body", "content", "data", "response_body", "http_body")


class ExceptionShape(NamedTuple):
    """What can be known from the class alone."""

    names: tuple[str, ...]  # dotted, most special first
    family: str
    wanted: frozenset[str]  # names that the class itself has
    request: bool  # one of ours, whose attributes are no facts


class Found:
    """What the readers put together about one exception."""

    # Most exceptions tell none of these.
    status: int | None = None
    grpc = ""
    sqlstate = ""
    errno: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    timed_out = False
    program = ""
    hint: hints.Hint | None = None
    said = ""
    stderr = ""

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.nested: list[BaseException] = []

    @property
    def provider_codes(self) -> tuple[str, ...]:
        if not self.codes:
            return ()
        return tuple([_fit(code) for code in dict.fromkeys(self.codes) if code][:_CODES])


def _fit(code: str) -> str:
    """A code is short; what is longer may be something else in its place."""
    return code if len(code) <= 20 and code.isprintable() else scrub(code, 100)


args_of = BaseException.__dict__["args"].__get__  # whatever the class makes of the name
Values = dict[str, Any]
Reader = Callable[[BaseException, ExceptionShape, Values, Found], None]


def kind_of(cls: type) -> ExceptionShape:
    """Metaclasses run foreign code even for a hash."""
    try:
        return _kind(cls)
    except BaseException:  # noqa: BLE001 - see above
        return _describe(cls)


@lru_cache(maxsize=1024)
def _kind(cls: type) -> ExceptionShape:
    return _describe(cls)


_BARE = (object, BaseException, Exception, OSError)  # what these have is read in a way of its own
_PLAIN = frozenset({"builtins.object", "builtins.BaseException", "builtins.Exception"})
_bases = type.__dict__["__mro__"].__get__
_members = type.__dict__["__dict__"].__get__


def _describe(cls: Any) -> ExceptionShape:
    """By identity only: a metaclass may have opinions about equality."""
    bases = _bases(cls)
    names = [type_name(base) for base in bases]
    roots = (name.partition(".")[0] for name in names)
    members = {
        name for base in bases if not any(base is bare for bare in _BARE) for name in _members(base)
    }
    ours = any(base is root for base in bases for root in (OutcomeRequest, MulliganError))
    return ExceptionShape(
        names=tuple(name for name in names if name not in _PLAIN) or (names[0],),
        family=next((FAMILIES[root] for root in roots if root in FAMILIES), ""),
        wanted=WANTED if "__getattr__" in members else WANTED & members,
        request=ours and not any(base is ProcessFailed for base in bases),
    )


def type_name(cls: Any) -> str:
    """Dotted, as far as it can be known."""
    try:
        module = cls.__module__
    except BaseException:  # noqa: BLE001 - a metaclass may make it a property
        module = "?"
    try:
        return safe(f"{module}.{cls.__qualname__}", _NAME)
    except BaseException:  # noqa: BLE001 - the same
        return "?.?"


def read(exc: BaseException, kind: ExceptionShape, now: float) -> Found:
    """Everything its shape tells. Never raises."""
    found = Found()
    values = _attributes(exc, kind)
    for reader in (
        _readers(kind.family, kind.request, frozenset(values)) if values or kind.family else _ALWAYS
    ):
        try:
            reader(exc, kind, values, found)
        except BaseException:  # noqa: BLE001, S112 - foreign code may raise anything; what was found stays
            continue
    try:
        if values:
            _hints(values, found, now)
    except BaseException:  # noqa: BLE001 - the same
        return found
    return found


@lru_cache(maxsize=1024)
def _readers(family: str, request: bool, names: frozenset[str]) -> tuple[Reader, ...]:  # noqa: FBT001 - a key of a cache
    """Those that could find something in these attributes."""
    if request or family == "mulligan":
        return (_inside,) if request else (_inside, _process)
    return tuple(
        reader
        for reader, wanted, families in _READERS
        if not wanted or wanted & names or family in families
    )


def _attributes(exc: BaseException, kind: ExceptionShape) -> dict[str, Any]:
    """What of interest it has. A property that raises is one fact less."""
    if kind.request:
        return {}
    try:
        own = object.__getattribute__(exc, "__dict__")
    except BaseException:  # noqa: BLE001 - it has its class at least
        own = {}
    values: dict[str, Any] = {}
    for name in (own.keys() & WANTED) | kind.wanted if own else kind.wanted:
        try:
            value = getattr(exc, name)
        except BaseException:  # noqa: BLE001, S112 - see above
            continue
        if value is not None:
            values[name] = value
    return values


# Numbers of the system


def _system(exc: BaseException, kind: ExceptionShape, values: Values, found: Found) -> None:
    """`errno`, unless the number is one of a resolver's or of a TLS library's, who use the same field."""
    if not isinstance(exc, OSError):
        return
    if isinstance(exc, _RESOLVERS):
        number = number_of(exc.errno)
        found.codes.append("" if number is None else f"gai:{_GAI.get(number, number)}")
    elif isinstance(exc, SSLError):
        found.codes.append(f"ssl:{reason}" if (reason := as_code(exc.reason)) else "")
    elif "os_error" not in values and kind.family != "smtp":
        number = number_of(exc.errno)
        found.errno = number if number is not None and 0 < number < 4096 else None


_RESOLVERS = (socket.gaierror, socket.herror)  # a tuple: `|` would make a new union at each call
# Resolvers number their errors differently from system to system; what we store is Linux's.
_GAI = {
    getattr(socket, name): number
    for name, number in (
        ("EAI_BADFLAGS", -1),
        ("EAI_NONAME", -2),
        ("EAI_AGAIN", -3),
        ("EAI_FAIL", -4),
        ("EAI_NODATA", -5),
        ("EAI_FAMILY", -6),
        ("EAI_SOCKTYPE", -7),
        ("EAI_SERVICE", -8),
        ("EAI_MEMORY", -10),
        ("EAI_SYSTEM", -11),
    )
    if hasattr(socket, name)
}


# Exceptions inside


def _inside(exc: BaseException, kind: ExceptionShape, values: Values, found: Found) -> None:
    """`requests` and others put what happened into their arguments, drivers' wrappers into an attribute."""
    held = [values[name] for name in _NESTED if name in values] if values else []
    for value in (*held, *args_of(exc)[:3]):
        if issubclass(type(value), BaseException):
            found.nested.append(value)
    if kind.family == "tenacity" and "last_attempt" in values:
        found.nested.append(values["last_attempt"].exception(timeout=0))


# Programs


def _process(exc: BaseException, _kind: ExceptionShape, values: Values, found: Found) -> None:
    cls = type(exc)
    if issubclass(cls, ProcessFailed):
        _program_ended(found, exc.program, number_of(exc.exit_code), number_of(exc.signal))  # type: ignore[attr-defined]
        found.timed_out = bool(exc.timed_out)  # type: ignore[attr-defined]
    elif issubclass(cls, _ENDED) or _like_a_program(values):
        code = next((number_of(values[name]) for name in _EXITS if name in values), None)
        command = next((values[name] for name in _COMMANDS if name in values), "")
        _program_ended(found, command, code, None)
        found.timed_out = issubclass(cls, TimeoutExpired)
    else:
        return
    said = values.get("stderr") or values.get("output") or ""
    if isinstance(said, _BYTES):
        said = bytes(said[-_STDERR:]).decode("utf-8", "replace")
    if isinstance(said, str):
        text = str.__str__(said)
        banner = _BANNER.match(text)
        found.stderr = f"{banner[1]}{text[banner.end() :]}" if banner else text


# What ffmpeg says of itself before it says anything else; its version is enough.
_BANNER = re.compile(r"(ff\w{2,5} version [^\n]{0,200}\n)(?:  [^\n]*+\n)*+")
_ENDED = (CalledProcessError, TimeoutExpired)
_BYTES = (bytes, bytearray)
_EXITS = ("returncode", "exit_code", "exit_status", "retcode")
_COMMANDS = ("cmd", "command", "full_cmd")


def _like_a_program(values: Values) -> bool:
    """It has an exit code, and a command or its output; a command line parser's error has the first alone."""
    if not any(type(values.get(name)) is int for name in _EXITS):
        return False
    commands = (values.get(name) for name in _COMMANDS)
    return "stderr" in values or any(
        isinstance(command, str | list | tuple) for command in commands
    )


# Shells, containers and wrappers report the death of a child as 128 and the signal's number.
_DEATHS = frozenset({1, 2, 3, 4, 6, 7, 8, 9, 11, 13, 15})
_OWN_BYTES = frozenset({"ffmpeg", "ffprobe"})  # their exit code is a byte of an error number


def _program_ended(found: Found, command: Any, code: int | None, signal: int | None) -> None:
    found.program = program_name(command)
    died = None if code is None else -code if code < 0 else code - 128
    if (
        died is not None
        and (code or 0) >= 0
        and (died not in _DEATHS or found.program in _OWN_BYTES)
    ):
        died = None
    found.exit_code, found.signal = (code, signal) if died is None else (None, died)


def program_name(command: Any) -> str:
    """Its name alone: arguments, folders and settings before it are nobody's business."""
    if isinstance(command, str):
        words = str.__str__(command)[:_LINE].split()
    else:
        words = [str(word)[:_LINE] for word in list(command)[:_CODES]]
    return next((_base_name(word) for word in words if "=" not in word), "")


@lru_cache(maxsize=256)
def _base_name(word: str) -> str:
    name = word.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".exe")
    return name if _PROGRAM.fullmatch(name) else ""


_LINE = 1000
_PROGRAM = re.compile(r"[A-Za-z0-9][\w.+-]{0,60}", re.ASCII)


# Answers of services


def _status(_exc: BaseException, kind: ExceptionShape, values: Values, found: Found) -> None:
    """The HTTP status, and the status of a call."""
    for name in _STATUSES:
        if name in values:
            _take_status(values[name], found)
    code = values.get("code")
    if (
        code is not None
        and kind.family not in _OWN_NUMBERS
        and "builtins.SystemExit" not in kind.names
    ):
        _take_status(code, found)
    call = values.get("grpc_status_code", values.get("status"))
    if callable(code) and (kind.family == "grpc" or "trailing_metadata" in values):
        call = code()
    word = getattr(call, "name", call)
    if isinstance(word, str) and word in CANONICAL:
        found.grpc = str.__str__(word)


def _take_status(value: Any, found: Found) -> None:
    number = number_of(value)
    if found.status is None and number is not None and 100 <= number <= 599:
        found.status = number


def _response(_exc: BaseException, _kind: ExceptionShape, values: Values, found: Found) -> None:
    response = values.get("response", values.get("resp"))
    if response is None:
        return
    if isinstance(response, dict) and ("Error" in response or "ResponseMetadata" in response):
        error, about = response.get("Error") or {}, response.get("ResponseMetadata") or {}
        found.codes.append(as_code(error.get("Code")))
        _take_status(about.get("HTTPStatusCode"), found)
        return
    for name in ("status_code", "status"):
        _take_status(getattr(response, name, None), found)


def _words(_exc: BaseException, kind: ExceptionShape, values: Values, found: Found) -> None:
    """Codes that the library has read already."""
    if kind.family in _SILENT:
        return
    for name in _CODES_IN:
        value = values.get(name)
        if value is None or callable(value) or (name == "reason" and "ssl.SSLError" in kind.names):
            continue
        number = number_of(value)
        if number is not None and kind.family in _OWN_NUMBERS:
            found.codes.append(f"{kind.family}:{number}")
        elif (
            (code := as_code(value))
            and code not in CANONICAL
            and (name != "reason" or _SPECIAL.search(code))
        ):
            found.codes.append(code)
    error = values.get("error")
    found.codes.append(as_code(getattr(error, "code", None)) if error is not None else "")


_SPECIAL = re.compile(
    r"[A-Z]{2}|[a-z][A-Z]|_"
)  # a reason that is a code, not the phrase of a status


def _bodies(_exc: BaseException, _kind: ExceptionShape, values: Values, found: Found) -> None:
    ok = found.status is not None and found.status < 400
    for name in _BODIES:
        if name in values:
            _add(read_body(values[name], ok=ok), found)
            return
    if isinstance(details := values.get("details"), dict):
        _add(read_body(details), found)
        return
    if isinstance(details, _LISTS) and details:
        _add(read_details(details), found)
    if isinstance(errors := values.get("errors"), _LISTS) and errors:
        _add(read_body({"errors": errors}), found)
    body = _in_memory(values.get("response"))
    if body:
        _add(read_body(body, ok=ok), found)


def _in_memory(response: Any) -> Any:
    """The body of a response that somebody has read. Properties are left alone: they might read it now."""
    held = getattr(response, "__dict__", None)
    if type(held) is dict:
        for name in ("_content", "_body", "data", "body", "content"):
            value = held.get(name)
            if isinstance(value, _IN_MEMORY) and value:
                return value
    return None


_LISTS = (list, tuple)
_IN_MEMORY = (bytes, bytearray, str, dict, list)


def _add(told: ResponseFacts, found: Found) -> None:
    found.codes += told.codes
    found.said = found.said or told.said
    found.grpc = found.grpc or told.grpc
    found.hint = found.hint or told.hint
    if found.status is None:
        found.status = told.status


def _trailers(_exc: BaseException, kind: ExceptionShape, values: Values, found: Found) -> None:
    trailing = values.get("trailing_metadata")
    if kind.family != "grpc" and trailing is None:
        return
    for key, value in list((trailing() if callable(trailing) else trailing) or ())[:_HEADERS]:
        if key == "grpc-retry-pushback-ms":
            found.hint = hints.within(float(value) / 1000, "grpc-retry-pushback-ms") or found.hint
        elif key == "grpc-status-details-bin" and isinstance(value, bytes):
            _add(from_trailer(value), found)
    details = values.get("details")
    said = details() if callable(details) else details
    found.said = found.said or (said[:500] if isinstance(said, str) else "")


def _driver(exc: BaseException, kind: ExceptionShape, values: Values, found: Found) -> None:
    state, codes = read_driver(kind.family, kind.names[0], values, args_of(exc))
    found.sqlstate = state
    found.codes[:0] = codes


# How long to wait


def _hints(values: Values, found: Found, now: float) -> None:
    told = values.get("retry_after")
    if told is not None and found.hint is None:
        found.hint = hints.within(hints.duration(told), "retry_after")
    headers = _headers(values)
    if not headers:
        return
    for name in ("x-amzn-errortype", "x-ms-error-code"):
        if name in headers:
            found.codes.append(as_code(headers[name].partition(":")[0]))
    found.hint = found.hint or hints.from_headers(headers, found.status, now)


_HEADERS_WANTED: dict[Any, str] = {
    key: name
    for name in (*hints.HEADERS, "x-amzn-errortype", "x-ms-error-code")
    for key in (name, name.encode())
}


def _headers(values: Values) -> dict[str, str]:
    """Those that tell something, by their names in small letters."""
    response = values.get("response", values.get("resp"))
    if isinstance(response, dict):
        held = (response.get("ResponseMetadata") or {}).get("HTTPHeaders") or response
    else:
        held = getattr(response, "headers", None) if response is not None else None
    held = held or values.get("headers")
    if held is None:
        return {}
    raw = getattr(held, "raw", None)  # of httpx: a list, where `items` would make a dict first
    found: dict[str, str] = {}
    for key, value in raw if isinstance(raw, list) else held.items():
        name = _HEADERS_WANTED.get(key.lower())
        if name is not None:
            found[name] = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    return found


_ALWAYS: tuple[Reader, ...] = (_system, _inside)
_READERS: tuple[tuple[Reader, frozenset[str], frozenset[str]], ...] = (
    (_system, frozenset(), frozenset()),
    (_inside, frozenset(), frozenset()),
    (_process, frozenset({*_EXITS, *_COMMANDS}), frozenset()),
    (_response, frozenset({"response", "resp"}), frozenset()),
    (_status, frozenset({*_STATUSES, "code", "grpc_status_code"}), frozenset()),
    (_bodies, frozenset({*_BODIES, "details", "errors", "response"}), frozenset()),
    (_words, frozenset({*_CODES_IN, "error"}), frozenset()),
    (_trailers, frozenset({"trailing_metadata"}), frozenset({"grpc"})),
    (_driver, frozenset({"sqlstate", "pgcode"}), frozenset(DRIVERS)),
)
