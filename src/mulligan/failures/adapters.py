"""Read the structure of an exception by the shapes that libraries give their errors.

No library is imported. Attributes are fetched first, each on its own, because a property is foreign
code; the readers then work on simple values. A reader that raises is skipped: what it had found
stays, and the next reader runs.
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
from mulligan.core.format import safe_text
from mulligan.failures import hints
from mulligan.failures.facts import FATAL_SIGNALS, GRPC_STATUSES
from mulligan.failures.redact import scrub
from mulligan.failures.responses import (
    DRIVER_FAMILIES,
    ResponseFacts,
    parse_code,
    parse_int,
    read_body,
    read_details,
    read_driver,
    read_trailer,
)

_MAX_NAME = 200
_MAX_CODES = 8
_MAX_TRAILERS = 200
_MAX_STDERR = 65_536
_MAX_COMMAND = 1000
_MAX_SERVICE_MESSAGE = 500

# Top-level package of a library → the family whose numbers its errors use.
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
# In these families `code` is not an HTTP status.
_NUMBERED_FAMILIES = frozenset(FAMILIES.values()) - {"aws", "grpc", "tenacity"}
# In these families `code` names a page of the manual.
_FAMILIES_WITHOUT_CODES = frozenset({"sqlalchemy", "mulligan"})

KNOWN_ATTRIBUTES = frozenset(
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


_STATUS_ATTRIBUTES = ("status_code", "http_status", "status", "http_code", "errcode")
_CODE_ATTRIBUTES = ("error_code", "code", "reply_code", "type", "reason")
_BODY_ATTRIBUTES = ("body", "json_body", "content", "data", "response_body", "http_body")


class ExceptionShape(NamedTuple):
    """Facts about an exception class."""

    names: tuple[str, ...]  # dotted, the class before its bases
    family: str
    attributes: frozenset[str]  # known attributes that the class defines
    is_internal: bool  # an exception of Mulligan whose attributes are no facts


class ExceptionDetails:
    """Facts that the readers found in one exception."""

    # Class attributes as defaults: most exceptions have none of these.
    http_status: int | None = None
    grpc_status = ""
    sqlstate = ""
    errno: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    timed_out = False
    program = ""
    hint: hints.Hint | None = None
    service_message = ""
    stderr = ""

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.nested: list[BaseException] = []

    @property
    def provider_codes(self) -> tuple[str, ...]:
        if not self.codes:
            return ()
        unique = [_scrub_code(code) for code in dict.fromkeys(self.codes) if code]
        return tuple(unique[:_MAX_CODES])


def _scrub_code(code: str) -> str:
    """Scrub a code that is too long to be one: it could be a secret in its place."""
    if len(code) <= 20 and code.isprintable():
        return code
    return scrub(code, 100)


# Read the interpreter's field even if the class defines a property of this name.
get_args = BaseException.__dict__["args"].__get__
Attributes = dict[str, Any]
Reader = Callable[[BaseException, ExceptionShape, Attributes, ExceptionDetails], None]


def exception_shape(cls: type) -> ExceptionShape:
    """Return the shape of an exception class, cached if its metaclass allows hashing."""
    try:
        return _cached_shape(cls)
    except BaseException:  # noqa: BLE001 - a metaclass runs foreign code, even for a hash
        return _describe_class(cls)


@lru_cache(maxsize=1024)
def _cached_shape(cls: type) -> ExceptionShape:
    return _describe_class(cls)


_BASE_CLASSES = (object, BaseException, Exception, OSError)  # `_read_system_error` reads these
_OMITTED_NAMES = frozenset({"builtins.object", "builtins.BaseException", "builtins.Exception"})
_get_bases = type.__dict__["__mro__"].__get__
_get_members = type.__dict__["__dict__"].__get__


def _describe_class(cls: Any) -> ExceptionShape:
    bases = _get_bases(cls)
    names = [qualified_name(base) for base in bases]
    packages = [name.partition(".")[0] for name in names]
    members: set[str] = set()
    for base in bases:
        # Compare by identity: a metaclass may override equality.
        if not _is_one_of(base, _BASE_CLASSES):
            members.update(_get_members(base))
    is_ours = any(_is_one_of(base, (OutcomeRequest, MulliganError)) for base in bases)
    is_process_error = any(base is ProcessFailed for base in bases)
    attributes = KNOWN_ATTRIBUTES
    if "__getattr__" not in members:
        attributes = KNOWN_ATTRIBUTES & members
    shown_names = [name for name in names if name not in _OMITTED_NAMES]
    families = [FAMILIES[package] for package in packages if package in FAMILIES]
    return ExceptionShape(
        names=tuple(shown_names or names[:1]),
        family=families[0] if families else "",
        attributes=attributes,
        is_internal=is_ours and not is_process_error,
    )


def _is_one_of(cls: Any, others: tuple[type, ...]) -> bool:
    return any(cls is other for other in others)


def qualified_name(cls: Any) -> str:
    """Return the dotted name of a class; `?` for parts that cannot be read."""
    try:
        module = cls.__module__
    except BaseException:  # noqa: BLE001 - a metaclass may make it a property
        module = "?"
    try:
        return safe_text(f"{module}.{cls.__qualname__}", _MAX_NAME)
    except BaseException:  # noqa: BLE001 - a metaclass may make it a property
        return "?.?"


def read_exception(exc: BaseException, shape: ExceptionShape, now: float) -> ExceptionDetails:
    """Return everything that the readers find in `exc`. Never raises."""
    details = ExceptionDetails()
    attributes = _read_attributes(exc, shape)
    readers = _DEFAULT_READERS
    if attributes or shape.family:
        readers = _select_readers(shape.family, shape.is_internal, frozenset(attributes))
    for reader in readers:
        try:
            reader(exc, shape, attributes, details)
        except BaseException:  # noqa: BLE001, S112 - foreign code may raise; findings stay
            continue
    try:
        if attributes:
            _read_hints(attributes, details, now)
    except BaseException:  # noqa: BLE001 - foreign code may raise; findings stay
        return details
    return details


@lru_cache(maxsize=1024)
def _select_readers(
    family: str,
    is_internal: bool,  # noqa: FBT001 - part of the cache key
    attributes: frozenset[str],
) -> tuple[Reader, ...]:
    """Return the readers that can find something in these attributes."""
    if is_internal:
        return (_read_nested,)
    if family == "mulligan":
        return (_read_nested, _read_process)
    return tuple(
        reader
        for reader, needed, families in _READERS
        if not needed or needed & attributes or family in families
    )


def _read_attributes(exc: BaseException, shape: ExceptionShape) -> Attributes:
    """Return the known attributes of an exception, without those that are None or raise."""
    if shape.is_internal:
        return {}
    try:
        instance_attributes = object.__getattribute__(exc, "__dict__")
    except BaseException:  # noqa: BLE001 - the class is still readable
        instance_attributes = {}
    names = shape.attributes
    if instance_attributes:
        names = (instance_attributes.keys() & KNOWN_ATTRIBUTES) | names
    attributes: Attributes = {}
    for name in names:
        try:
            value = getattr(exc, name)
        except BaseException:  # noqa: BLE001, S112 - a property is foreign code
            continue
        if value is not None:
            attributes[name] = value
    return attributes


# --- Errors of the operating system ---


def _read_system_error(
    exc: BaseException, shape: ExceptionShape, attributes: Attributes, details: ExceptionDetails
) -> None:
    """Read `errno`. Resolvers and TLS libraries use the same field for their numbers."""
    if not isinstance(exc, OSError):
        return
    if isinstance(exc, _RESOLVER_ERRORS):
        number = parse_int(exc.errno)
        if number is not None:
            details.codes.append(f"gai:{_LINUX_GAI.get(number, number)}")
    elif isinstance(exc, SSLError):
        reason = parse_code(exc.reason)
        if reason:
            details.codes.append(f"ssl:{reason}")
    elif "os_error" not in attributes and shape.family != "smtp":
        number = exc.errno
        if isinstance(number, int) and type(number) is not bool and 0 < number < 4096:
            details.errno = int(number)


# A tuple: the union `a | b` would be built anew at each call.
_RESOLVER_ERRORS = (socket.gaierror, socket.herror)
# Systems number the errors of their resolvers differently. Linux's numbers are stored.
_LINUX_GAI = {
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


# --- Exceptions inside an exception ---


def _read_nested(
    exc: BaseException, shape: ExceptionShape, attributes: Attributes, details: ExceptionDetails
) -> None:
    """Read exceptions in arguments (as in `requests`) and attributes (as in database wrappers)."""
    values: list[Any] = []
    if attributes:
        values = [attributes[name] for name in _NESTED if name in attributes]
    for value in (*values, *get_args(exc)[:3]):
        if issubclass(type(value), BaseException):
            details.nested.append(value)
    if shape.family == "tenacity" and "last_attempt" in attributes:
        details.nested.append(attributes["last_attempt"].exception(timeout=0))


# --- Programs ---


def _read_process(
    exc: BaseException, _shape: ExceptionShape, attributes: Attributes, details: ExceptionDetails
) -> None:
    cls = type(exc)
    if issubclass(cls, ProcessFailed):
        process: Any = exc  # `isinstance` would ask `__class__`, which may be a property
        _set_exit(details, process.program, parse_int(process.exit_code), parse_int(process.signal))
        details.timed_out = bool(process.timed_out)
    elif issubclass(cls, _SUBPROCESS_ERRORS) or _looks_like_process_error(attributes):
        exit_code = parse_int(_first_value(attributes, _EXIT_CODE_ATTRIBUTES))
        command = _first_value(attributes, _COMMAND_ATTRIBUTES)
        if command is None:
            command = ""
        _set_exit(details, command, exit_code, None)
        details.timed_out = issubclass(cls, TimeoutExpired)
    else:
        return
    details.stderr = _read_output(attributes.get("stderr") or attributes.get("output"))


def _first_value(attributes: Attributes, names: tuple[str, ...]) -> Any:
    for name in names:
        if name in attributes:
            return attributes[name]
    return None


def _read_output(output: Any) -> str:
    if isinstance(output, _BYTES):
        output = bytes(output[-_MAX_STDERR:]).decode("utf-8", "replace")
    if not isinstance(output, str):
        return ""
    text = str.__str__(output)
    banner = _BANNER.match(text)
    return f"{banner[1]}{text[banner.end() :]}" if banner else text


# Start-up banner of ffmpeg; only its first line, the version, is stored.
_BANNER = re.compile(r"(ff\w{2,5} version [^\n]{0,200}\n)(?:  [^\n]*+\n)*+")
_SUBPROCESS_ERRORS = (CalledProcessError, TimeoutExpired)
_BYTES = (bytes, bytearray)
_EXIT_CODE_ATTRIBUTES = ("returncode", "exit_code", "exit_status", "retcode")
_COMMAND_ATTRIBUTES = ("cmd", "command", "full_cmd")


def _looks_like_process_error(attributes: Attributes) -> bool:
    """True if there is an exit code, and a command or its output.

    The error of a command line parser has an exit code alone.
    """
    if not any(type(attributes.get(name)) is int for name in _EXIT_CODE_ATTRIBUTES):
        return False
    if "stderr" in attributes:
        return True
    commands = [attributes.get(name) for name in _COMMAND_ATTRIBUTES]
    return any(isinstance(command, str | list | tuple) for command in commands)


_HIGH_EXIT_CODES = frozenset({"ffmpeg", "ffprobe"})  # their exit code is a byte of an error number


def _set_exit(
    details: ExceptionDetails, command: Any, exit_code: int | None, signal: int | None
) -> None:
    """Store how a program ended. Shells report a death by signal n as 128 + n, Python as -n."""
    details.program = program_name(command)
    details.exit_code = exit_code
    details.signal = signal
    if exit_code is None:
        return
    is_shell_code = exit_code - 128 in FATAL_SIGNALS and details.program not in _HIGH_EXIT_CODES
    if exit_code < 0:
        details.exit_code = None
        details.signal = -exit_code
    elif is_shell_code:
        details.exit_code = None
        details.signal = exit_code - 128


def program_name(command: Any) -> str:
    """Return the name of a program, without folder, arguments and environment settings."""
    if isinstance(command, str):
        parts = str.__str__(command)[:_MAX_COMMAND].split()
    else:
        parts = [str(part)[:_MAX_COMMAND] for part in list(command)[:_MAX_CODES]]
    return next((_base_name(part) for part in parts if "=" not in part), "")


@lru_cache(maxsize=256)
def _base_name(path: str) -> str:
    name = path.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".exe")
    return name if _PROGRAM.fullmatch(name) else ""


_PROGRAM = re.compile(r"[A-Za-z0-9][\w.+-]{0,60}", re.ASCII)


# --- Responses of services ---


def _read_status(
    _exc: BaseException, shape: ExceptionShape, attributes: Attributes, details: ExceptionDetails
) -> None:
    """Read the HTTP status and the gRPC status."""
    for name in _STATUS_ATTRIBUTES:
        if name in attributes:
            _set_http_status(attributes[name], details)
    code = attributes.get("code")
    is_system_exit = "builtins.SystemExit" in shape.names
    if code is not None and shape.family not in _NUMBERED_FAMILIES and not is_system_exit:
        _set_http_status(code, details)
    status = attributes.get("grpc_status_code", attributes.get("status"))
    if callable(code) and (shape.family == "grpc" or "trailing_metadata" in attributes):
        status = code()
    status_name = getattr(status, "name", status)
    if isinstance(status_name, str) and status_name in GRPC_STATUSES:
        details.grpc_status = str.__str__(status_name)


def _set_http_status(value: Any, details: ExceptionDetails) -> None:
    number = parse_int(value)
    if details.http_status is None and number is not None and 100 <= number <= 599:
        details.http_status = number


def _read_response(
    _exc: BaseException, _shape: ExceptionShape, attributes: Attributes, details: ExceptionDetails
) -> None:
    response = attributes.get("response", attributes.get("resp"))
    if response is None:
        return
    if isinstance(response, dict) and ("Error" in response or "ResponseMetadata" in response):
        error = response.get("Error") or {}
        metadata = response.get("ResponseMetadata") or {}
        details.codes.append(parse_code(error.get("Code")))
        _set_http_status(metadata.get("HTTPStatusCode"), details)
        return
    for name in ("status_code", "status"):
        _set_http_status(getattr(response, name, None), details)


def _read_codes(
    _exc: BaseException, shape: ExceptionShape, attributes: Attributes, details: ExceptionDetails
) -> None:
    """Read codes that the library has already extracted from a response."""
    if shape.family in _FAMILIES_WITHOUT_CODES:
        return
    for name in _CODE_ATTRIBUTES:
        value = attributes.get(name)
        if value is None or callable(value):
            continue
        if name == "reason" and "ssl.SSLError" in shape.names:
            continue
        number = parse_int(value)
        if number is not None and shape.family in _NUMBERED_FAMILIES:
            details.codes.append(f"{shape.family}:{number}")
            continue
        code = parse_code(value)
        is_phrase = name == "reason" and not _CODE_LIKE.search(code)
        if code and code not in GRPC_STATUSES and not is_phrase:
            details.codes.append(code)
    error = attributes.get("error")
    if error is not None:
        details.codes.append(parse_code(getattr(error, "code", None)))


_CODE_LIKE = re.compile(r"[A-Z]{2}|[a-z][A-Z]|_")  # a code, not the phrase of an HTTP status


def _read_bodies(
    _exc: BaseException, _shape: ExceptionShape, attributes: Attributes, details: ExceptionDetails
) -> None:
    """Read the body of a response: from an attribute, from `details` or `errors`, or cached."""
    ok = details.http_status is not None and details.http_status < 400
    for name in _BODY_ATTRIBUTES:
        if name in attributes:
            _add_facts(read_body(attributes[name], ok=ok), details)
            return
    rpc_details = attributes.get("details")
    if isinstance(rpc_details, dict):
        _add_facts(read_body(rpc_details), details)
        return
    if isinstance(rpc_details, _LISTS) and rpc_details:
        _add_facts(read_details(rpc_details), details)
    errors = attributes.get("errors")
    if isinstance(errors, _LISTS) and errors:
        _add_facts(read_body({"errors": errors}), details)
    body = _cached_body(attributes.get("response"))
    if body:
        _add_facts(read_body(body, ok=ok), details)


def _cached_body(response: Any) -> Any:
    """Return the body of a response that was already read, or None.

    Properties are not called: they could read from the connection now.
    """
    fields = getattr(response, "__dict__", None)
    if type(fields) is dict:
        for name in ("_content", "_body", "data", "body", "content"):
            value = fields.get(name)
            if isinstance(value, _BODY_TYPES) and value:
                return value
    return None


_LISTS = (list, tuple)
_BODY_TYPES = (bytes, bytearray, str, dict, list)


def _add_facts(facts: ResponseFacts, details: ExceptionDetails) -> None:
    details.codes += facts.codes
    details.service_message = details.service_message or facts.message
    details.grpc_status = details.grpc_status or facts.grpc_status
    details.hint = details.hint or facts.hint
    if details.http_status is None:
        details.http_status = facts.http_status


def _read_trailers(
    _exc: BaseException, shape: ExceptionShape, attributes: Attributes, details: ExceptionDetails
) -> None:
    """Read the trailing metadata and the details of a gRPC call."""
    trailers = attributes.get("trailing_metadata")
    if shape.family != "grpc" and trailers is None:
        return
    if callable(trailers):
        trailers = trailers()
    for key, value in list(trailers or ())[:_MAX_TRAILERS]:
        if key == "grpc-retry-pushback-ms":
            details.hint = hints.make_hint(float(value) / 1000, key) or details.hint
        elif key == "grpc-status-details-bin" and isinstance(value, bytes):
            _add_facts(read_trailer(value), details)
    text = attributes.get("details")
    if callable(text):
        text = text()
    if isinstance(text, str):
        details.service_message = details.service_message or text[:_MAX_SERVICE_MESSAGE]


def _read_database_driver(
    exc: BaseException, shape: ExceptionShape, attributes: Attributes, details: ExceptionDetails
) -> None:
    sqlstate, codes = read_driver(shape.family, shape.names[0], attributes, get_args(exc))
    details.sqlstate = sqlstate
    details.codes[:0] = codes


# --- Hints and headers ---


def _read_hints(attributes: Attributes, details: ExceptionDetails, now: float) -> None:
    """Read how long to wait, and the codes that services put into headers."""
    retry_after = attributes.get("retry_after")
    if retry_after is not None and details.hint is None:
        details.hint = hints.make_hint(hints.parse_delay(retry_after), "retry_after")
    headers = _read_headers(attributes)
    if not headers:
        return
    for name in _CODE_HEADERS:
        if name in headers:
            details.codes.append(parse_code(headers[name].partition(":")[0]))
    details.hint = details.hint or hints.hint_from_headers(headers, details.http_status, now)


_CODE_HEADERS = ("x-amzn-errortype", "x-ms-error-code")
_KNOWN_HEADERS: dict[Any, str] = {}
for _header in (*hints.HINT_HEADERS, *_CODE_HEADERS):
    _KNOWN_HEADERS[_header] = _header
    _KNOWN_HEADERS[_header.encode()] = _header


def _read_headers(attributes: Attributes) -> dict[str, str]:
    """Return the known headers of a response by their names in lower case."""
    response = attributes.get("response", attributes.get("resp"))
    headers: Any = None
    if isinstance(response, dict):
        headers = (response.get("ResponseMetadata") or {}).get("HTTPHeaders") or response
    elif response is not None:
        headers = getattr(response, "headers", None)
    headers = headers or attributes.get("headers")
    if headers is None:
        return {}
    pairs = getattr(headers, "raw", None)  # of httpx: `items` would build a dict first
    if not isinstance(pairs, list):
        pairs = headers.items()
    known: dict[str, str] = {}
    for key, value in pairs:
        name = _KNOWN_HEADERS.get(key.lower())
        if name is None:
            continue
        if isinstance(value, bytes):
            known[name] = value.decode("latin-1")
        else:
            known[name] = str(value)
    return known


_DEFAULT_READERS: tuple[Reader, ...] = (_read_system_error, _read_nested)
# Each reader with the attributes and the families it needs one of; none: it always runs.
_READERS: tuple[tuple[Reader, frozenset[str], frozenset[str]], ...] = (
    (_read_system_error, frozenset(), frozenset()),
    (_read_nested, frozenset(), frozenset()),
    (_read_process, frozenset({*_EXIT_CODE_ATTRIBUTES, *_COMMAND_ATTRIBUTES}), frozenset()),
    (_read_response, frozenset({"response", "resp"}), frozenset()),
    (_read_status, frozenset({*_STATUS_ATTRIBUTES, "code", "grpc_status_code"}), frozenset()),
    (_read_bodies, frozenset({*_BODY_ATTRIBUTES, "details", "errors", "response"}), frozenset()),
    (_read_codes, frozenset({*_CODE_ATTRIBUTES, "error"}), frozenset()),
    (_read_trailers, frozenset({"trailing_metadata"}), frozenset({"grpc"})),
    (_read_database_driver, frozenset({"sqlstate", "pgcode"}), frozenset(DRIVER_FAMILIES)),
)
