"""The shapes in which texts tell of structure, as data. Each is anchored by the words around it.

`hints`: one of these must be in the text, or the pattern is not even tried. The value is the first group that matched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from errno import errorcode
from functools import lru_cache
from http import HTTPStatus
from signal import Signals
from typing import NamedTuple

from mulligan.failures.facts import GRPC, Facts, death, grpc_name
from mulligan.failures.regex import late


class Shape(NamedTuple):
    fact: str  # http, code, grpc, sqlstate, mail, errno, exit, signal
    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    system: str = ""  # goes before a code that could be another system's too


def _shape(
    fact: str, hints: str | tuple[str, ...], pattern: str, system: str = "", flags: int = 0
) -> Shape:
    return Shape(
        fact,
        (hints,) if isinstance(hints, str) else hints,
        late(pattern, flags | re.MULTILINE),
        system,
    )


_I = re.IGNORECASE
_REASONS = "|".join(
    sorted(
        (re.escape(status.phrase) for status in HTTPStatus if status >= 400), key=len, reverse=True
    )
)
_SMTP = "421|450|451|452|454|550|551|552|553|554"
_N = r"([45]\d\d)"
_FOUR_FIVE = ("40", "41", "42", "43", "44", "45", "49", "50", "52", "53", "59")
_GRPC = "CANCELLED|DEADLINE_EXCEEDED|NOT_FOUND|PERMISSION_DENIED|RESOURCE_EXHAUSTED|FAILED_PRECONDITION|ABORTED|UNIMPLEMENTED|UNAVAILABLE|UNAUTHENTICATED|INVALID_ARGUMENT"
_REDIS = "LOADING|BUSY|MASTERDOWN|READONLY|OOM|MISCONF|CLUSTERDOWN|TRYAGAIN|NOAUTH|WRONGPASS|WRONGTYPE|NOSCRIPT|NOPERM|EXECABORT|MOVED|ASK|CROSSSLOT"

# The last one that matches anywhere in the text wins, so the order is from vague to telling.
HTTP = tuple(
    _shape("http", hints, pattern, flags=_I)
    for hints, pattern in (
        (_FOUR_FIVE, rf"\b{_N}(?=\{{)"),
        (_FOUR_FIVE, rf"(?:Error|Exception)\({_N}(?=,|\))"),
        (("ode", "tatus", "CODE"), rf"[\"'](?:code|status)[\"']:\s?[\"']?{_N}\b"),
        (
            ("tatus",),
            rf"\b(?:response |bad |unexpected |with |http )?status(?: ?code)?[\"']?\s?(?:[:=(]|was|of|is|code)?\s?[\"'(\[]?{_N}\b",
        ),
        (
            ("ode",),
            rf"\b(?:error|response|status|return(?:ed)?)[_ -]?code[\"']?\s?(?:[:=]|was|of|is)?\s?[\"'(]?{_N}\b(?!\.\d)",
        ),
        (
            ("eturned", "ot ", "eceived", "esponse", "nswered", "esponded"),
            rf"(?<!bytes, )\b(?:returned|responded with|response|got|received|answered)(?: an?)?(?: error| HTTP| status| code| response)*:? ?[\"'(]?{_N}(?: (?:{_REASONS})|[\"')]? (?:error|response|from|status)\b|$)",
        ),
        (
            ("lient", "erver"),
            rf"\b{_N} (?:Client|Server) Error\b|\b(?:Client|Server) error [\"']{_N}\b",
        ),
        (
            ("ttp", "TTP"),
            rf"\bHTTP(?:/\d(?:\.\d)?)?[\"']? ?(?:error|status|code|response|request failed with status)?(?: ?code)?[ :=(]{{1,2}}{_N}\b|\bHttpError {_N}\b|\bhttp_?status(?:_?code)?[\"']?\s?[:=]\s?[\"']?{_N}\b|\(HTTP {_N}\)",
        ),
        (_FOUR_FIVE, rf"(?<![\w.:-]){_N}[\"']?,?[ :-]{{1,3}}[\"']?(?:{_REASONS})"),
        (
            ("URL", "erver"),
            rf"\b(?:URL returned error|Server returned|server responded with)(?: status)?(?: code)?[: ]{{1,2}}{_N}\b",
        ),
    )
)
HTTP_LEAD = late(
    rf"^(?:[\w:.]+: )?{_N}(?=[ :]{{1,2}}(?:[A-Z][A-Za-z_ ]+[.:({{]|GET|POST|PUT|PATCH|DELETE|HEAD))"
)

CODES = (
    _shape("code", "occurred (", r" error occurred \(([A-Za-z][\w.]{2,60})\)"),
    _shape("code", "</", r"<(?:Code|Error|code)>([A-Za-z][\w.]{2,60})</"),
    _shape(
        "code",
        ('":', "':", '" :'),
        r"u?[\"'](?:code|type|status|reason|error|errorCode|error_code|error_type|quotaId|__type|name|Code|errcode|error_name)[\"']\s?:\s?u?[\"']([A-Za-z][\w.#/-]{2,80})[\"']",
    ),
    _shape(
        "code",
        ("ode:", "ode=", "ode =", "ode :", "eason:", "eason=", "eason ="),
        r"\b(?:ErrorCode|Error Code|error code|error_code|Code|code|reason|Reason|errorCode)\s{0,8}[:=]\s?[\"']?([A-Za-z][A-Za-z_]{3,60}\w*)\b",
    ),
    _shape("code", (": ", ", "), r"(?:^|: |, )([a-z]{2,}(?:[A-Z][a-z]+){1,5})(?=: |$)"),
    _shape("code", "(", r"\(([a-z]+(?:_[a-z]+){1,5})\)"),
    _shape("grpc", ("StatusCode.", "code = "), r"\b(?:StatusCode\.|code = )([A-Z][A-Za-z_]{4,})\b"),
    _shape("grpc", _FOUR_FIVE, r"\b[45]\d\d ([A-Z]{4,}(?:_[A-Z]+)*)\b"),
    _shape("grpc", ("ED:", "ND:", "NT:", "LE:", "ON:"), rf"\b({_GRPC}): "),
    _shape("grpc", ("ED", "ND", "NT", "LE", "ON"), rf"[\"']({_GRPC})[\"']"),
    _shape("sqlstate", "SQLSTATE", r"SQLSTATE[\"']?\s?[:=(\[]?\s?[\"']?([0-9A-Z]{5})\b"),
    _shape("sqlstate", "ERROR ", r"\bERROR \d{4} \(([0-9A-Z]{5})\)"),
    _shape(
        "code",
        "(",
        r"\(\s?([12]\d{3}),\s?['\"u]|^(?:\w+(?:\.\w+)*: )?([12]\d{3}) \([0-9A-Z]{5}\):",
        "mysql",
    ),
    _shape("code", "ERROR ", r"\bERROR ([12]\d{3}) \([0-9A-Z]{5}\)", "mysql"),
    _shape("code", "curl: (", r"\bcurl: \((\d{1,3})\)", "curl"),
    _shape("code", "ORA-", r"\bORA-(\d{5})\b", "ora"),
    _shape("code", ("[SSL", "[X509"), r"\[(?:SSL|X509):?\ ?([A-Z0-9_]{6,})\]", "ssl"),
    _shape("code", "SQLITE_", r"\b(SQLITE_[A-Z]+)\b", "sqlite"),
    _shape(
        "code",
        tuple(_REDIS.split("|")),
        rf"(?:^(?:\w+(?:\.\w+)*: )?-?|\([\"']-?|[: ]-)({_REDIS}) [A-Zcdkt]",
        "redis",
    ),
    _shape("code", "Error: /", r"\bError: /([A-Za-z]{5,24})\b", "gs"),
    _shape("code", "_", r"^\[?([A-Z]{2,}(?:_[A-Z0-9]+){1,6}|[a-z]{2,}(?:_[a-z0-9]+){1,6})\]?$"),
    _shape("code", "AADSTS", r"\b(AADSTS\d+)\b"),
    _shape(
        "mail",
        (".0", ".1", ".2", ".3", ".4", ".5", ".6", ".7"),
        r"(?<![\w.(/:-])#?([45]\.[0-7]\.\d{1,3})(?=[ :,)'\"\]]|$)(?!\.\d)",
    ),
    _shape("mail", ("(4", "(5", "( 4", "( 5"), r"\(\s?([45]\d\d),\s?b['\"]"),
    _shape("mail", _FOUR_FIVE, r"(?<![\w.])([45]\d\d)[ -](?:#?[45]\.\d{1,2}\.\d{1,3})\b"),
    _shape(
        "mail",
        _FOUR_FIVE,
        rf"^(?:\d\d:\d\d:\d\d )?({_SMTP})[ -](?!{_REASONS})(?=.{{0,120}}\b(?:e?mail\w*|recipient|rcpt\w*|sender|relay\w*|delivery|message|greylist\w*|resend)\b)",
        flags=_I,
    ),
)

ERRNO = (
    _shape(
        "errno",
        ("rrno", "os error"),
        r"(?<!ERR! )\b(?:Errno|os error|errno)[\]: =(]{1,2}(\d{1,3})\b",
    ),
    _shape("errno", "E", r"(?:\b|code: ?['\"])(E[A-Z]{3,14}|E2BIG)\b(?=[:,' )\"\]]|$| -)"),
)

EXITS = (
    _shape("exit", "CalledProcessError(", r"\bCalledProcessError\((-?\d{1,3})\b"),
    _shape(
        "exit",
        ("tatus", "code", "Code"),
        r"\b(?:exit(?:ed|s|ing)?|returned|finished|terminated|failed|completed|quit)(?: (?:with|unexpectedly with))? (?:an? )?(?:non-?zero )?(?:exit |return |error )?(?:status|code) ?(?:of )?[:=]? ?(-?\d{1,3})\b(?!\.)",
        flags=_I,
    ),
    _shape(
        "exit",
        ("xit", "eturn", "ret"),
        r"\bexit(?: (?:code|status)|code|_code)['\"]? ?[:=]? ?\(?(-?\d{1,3})\b|\b(?:return|rc|ret)[ _-]?code ?[:=]? ?(-?\d{1,3})\b",
        flags=_I,
    ),
    _shape(
        "exit",
        ("xited (", "eturned -"),
        r"\bExited \((\d{1,3})\)|\breturned (-\d{1,2})\b",
        flags=_I,
    ),
)

SIGNALS = (
    _shape("signal", "SIG", r"\b(SIG[A-Z]{3,5})\b"),
    _shape(
        "signal",
        "ignal",
        r"\b[sS]ignal[: ]\s?(\d{1,2})\b|\b(?:signal:|by signal|with signal) (killed|terminated|aborted|interrupt)",
    ),
    _shape(
        "signal",
        ("Killed", "Terminated"),
        r"^(?:\S+: )?(?:line \d+: +\d+ )?(Killed|Terminated)\b(?=\s|$)",
    ),
    _shape(
        "signal",
        ("OOM", "oom", "Out of"),
        r"\b(OOMKilled|oom[-_ ]kill(?:ed|er)?|Out of memory: Kill(?:ed)? process)\b",
    ),
    _shape(
        "signal",
        ("fault", "dumped", "instruction", "Bus error", "Floating"),
        r"(Segmentation fault|Aborted \(core dumped\)|Illegal instruction|Bus error|Floating point exception)",
    ),
)

_ENDING = (
    "Error|Exception|Timeout|Expired|Exit|Interrupt|Disconnected|Refused|Failed|Failure|Busy|Aborted|Denied|Exceeded|NotFound|"
    "Redirects|Cancelled|Canceled|Detected|Violation|Lost|Full|Fault|Unavailable|Mismatch|TooLarge|TooLong|Required|Missing|Invalid|Unsupported|Shutdown|Overflow|Closed|Died|Unknown"
)
TYPE = late(
    rf"(?<![\w./'\"-])((?:[a-zA-Z_]\w*(?:\.|::))+_?[A-Z]\w*|[A-Z]\w*?(?:{_ENDING})\d?)(?=:|\(|\)|\s*$|,| -|<|;)",
    re.MULTILINE,
)


# Structure that is written in a text: `An error occurred (SlowDown)`, `HTTP Error 404:`, `[Errno 28]`.

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
    exit_code = next((int(value) for value in _found(EXITS, text)), None)
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
    names = [match[1].replace("::", ".") for match in TYPE.finditer(text)]
    return tuple(dict.fromkeys(reversed(names)))


def _http(text: str) -> int | None:
    if not _DIGITS.search(text):
        return None
    lead = HTTP_LEAD.search(text)
    found = [lead[1]] if lead else list(_found(HTTP, text))
    return int(found[-1]) if found else None


def _codes(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for shape in CODES:
        values = dict.fromkeys(_matches(shape, text))
        if (
            values and shape.fact == "mail" and not _MAIL.search(text)
        ):  # a version has the same shape
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
    numbers = [
        int(value) if value.isdigit() else _ERRNO_OF.get(value) for value in _found(ERRNO, text)
    ]
    return next((number for number in reversed(numbers) if number), None)


def _signal(text: str) -> int | None:
    value = next(_found(SIGNALS, text), None)
    if value is None or value.isdigit():
        return None if value is None else int(value)
    return _SIGNAL_OF.get(value) or _SIGNAL_OF.get(
        value.lower(), 9
    )  # what remains tells of the OOM killer
