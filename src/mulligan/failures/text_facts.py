"""Find structure in texts: `An error occurred (SlowDown)`, `HTTP Error 404:`, `[Errno 28]`.

The patterns are data. Each is anchored by the words next to the value, so that a number alone never
counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from errno import errorcode
from functools import lru_cache
from http import HTTPStatus
from signal import Signals
from typing import NamedTuple

from mulligan.failures.facts import GRPC_STATUSES, Facts, canonical_grpc_status, split_exit_status
from mulligan.failures.regex import lazy_regex


class TextPattern(NamedTuple):
    """A pattern whose first group that matched is the value of a fact."""

    fact: str  # http, code, grpc, sqlstate, mail, errno, exit, signal
    substrings: tuple[str, ...]  # the pattern is tried only if the text contains one of these
    pattern: re.Pattern[str]
    system: str = ""  # prefix of a code that other systems use too


def _pattern(
    fact: str, substrings: str | tuple[str, ...], pattern: str, system: str = "", flags: int = 0
) -> TextPattern:
    if isinstance(substrings, str):
        substrings = (substrings,)
    return TextPattern(fact, substrings, lazy_regex(pattern, flags | re.MULTILINE), system)


_I = re.IGNORECASE
_STATUS_PHRASES = "|".join(
    sorted(
        (re.escape(status.phrase) for status in HTTPStatus if status >= 400), key=len, reverse=True
    )
)
_SMTP_CODES = "421|450|451|452|454|550|551|552|553|554"
_STATUS = r"([45]\d\d)"
_STATUS_STARTS = ("40", "41", "42", "43", "44", "45", "49", "50", "52", "53", "59")
_GRPC_NAMES = "CANCELLED|DEADLINE_EXCEEDED|NOT_FOUND|PERMISSION_DENIED|RESOURCE_EXHAUSTED|FAILED_PRECONDITION|ABORTED|UNIMPLEMENTED|UNAVAILABLE|UNAUTHENTICATED|INVALID_ARGUMENT"
_REDIS_CODES = "LOADING|BUSY|MASTERDOWN|READONLY|OOM|MISCONF|CLUSTERDOWN|TRYAGAIN|NOAUTH|WRONGPASS|WRONGTYPE|NOSCRIPT|NOPERM|EXECABORT|MOVED|ASK|CROSSSLOT"

# The last match wins, so the patterns are ordered from vague to specific.
HTTP_PATTERNS = tuple(
    _pattern("http", substrings, pattern, flags=_I)
    for substrings, pattern in (
        (_STATUS_STARTS, rf"\b{_STATUS}(?=\{{)"),
        (_STATUS_STARTS, rf"(?:Error|Exception)\({_STATUS}(?=,|\))"),
        (("ode", "tatus", "CODE"), rf"[\"'](?:code|status)[\"']:\s?[\"']?{_STATUS}\b"),
        (
            ("tatus",),
            rf"\b(?:response |bad |unexpected |with |http )?status(?: ?code)?[\"']?\s?(?:[:=(]|was|of|is|code)?\s?[\"'(\[]?{_STATUS}\b",
        ),
        (
            ("ode",),
            rf"\b(?:error|response|status|return(?:ed)?)[_ -]?code[\"']?\s?(?:[:=]|was|of|is)?\s?[\"'(]?{_STATUS}\b(?!\.\d)",
        ),
        (
            ("eturned", "ot ", "eceived", "esponse", "nswered", "esponded"),
            rf"(?<!bytes, )\b(?:returned|responded with|response|got|received|answered)(?: an?)?(?: error| HTTP| status| code| response)*:? ?[\"'(]?{_STATUS}(?: (?:{_STATUS_PHRASES})|[\"')]? (?:error|response|from|status)\b|$)",
        ),
        (
            ("lient", "erver"),
            rf"\b{_STATUS} (?:Client|Server) Error\b|\b(?:Client|Server) error [\"']{_STATUS}\b",
        ),
        (
            ("ttp", "TTP"),
            rf"\bHTTP(?:/\d(?:\.\d)?)?[\"']? ?(?:error|status|code|response|request failed with status)?(?: ?code)?[ :=(]{{1,2}}{_STATUS}\b|\bHttpError {_STATUS}\b|\bhttp_?status(?:_?code)?[\"']?\s?[:=]\s?[\"']?{_STATUS}\b|\(HTTP {_STATUS}\)",
        ),
        (_STATUS_STARTS, rf"(?<![\w.:-]){_STATUS}[\"']?,?[ :-]{{1,3}}[\"']?(?:{_STATUS_PHRASES})"),
        (
            ("URL", "erver"),
            rf"\b(?:URL returned error|Server returned|server responded with)(?: status)?(?: code)?[: ]{{1,2}}{_STATUS}\b",
        ),
    )
)
LEADING_HTTP_STATUS = lazy_regex(
    rf"^(?:[\w:.]+: )?{_STATUS}(?=[ :]{{1,2}}(?:[A-Z][A-Za-z_ ]+[.:({{]|GET|POST|PUT|PATCH|DELETE|HEAD))"
)

CODE_PATTERNS = (
    _pattern("code", "occurred (", r" error occurred \(([A-Za-z][\w.]{2,60})\)"),
    _pattern("code", "</", r"<(?:Code|Error|code)>([A-Za-z][\w.]{2,60})</"),
    _pattern(
        "code",
        ('":', "':", '" :'),
        r"u?[\"'](?:code|type|status|reason|error|errorCode|error_code|error_type|quotaId|__type|name|Code|errcode|error_name)[\"']\s?:\s?u?[\"']([A-Za-z][\w.#/-]{2,80})[\"']",
    ),
    _pattern(
        "code",
        ("ode:", "ode=", "ode =", "ode :", "eason:", "eason=", "eason ="),
        r"\b(?:ErrorCode|Error Code|error code|error_code|Code|code|reason|Reason|errorCode)\s{0,8}[:=]\s?[\"']?([A-Za-z][A-Za-z_]{3,60}\w*)\b",
    ),
    _pattern("code", (": ", ", "), r"(?:^|: |, )([a-z]{2,}(?:[A-Z][a-z]+){1,5})(?=: |$)"),
    _pattern("code", "(", r"\(([a-z]+(?:_[a-z]+){1,5})\)"),
    _pattern(
        "grpc", ("StatusCode.", "code = "), r"\b(?:StatusCode\.|code = )([A-Z][A-Za-z_]{4,})\b"
    ),
    _pattern("grpc", _STATUS_STARTS, r"\b[45]\d\d ([A-Z]{4,}(?:_[A-Z]+)*)\b"),
    _pattern("grpc", ("ED:", "ND:", "NT:", "LE:", "ON:"), rf"\b({_GRPC_NAMES}): "),
    _pattern("grpc", ("ED", "ND", "NT", "LE", "ON"), rf"[\"']({_GRPC_NAMES})[\"']"),
    _pattern("sqlstate", "SQLSTATE", r"SQLSTATE[\"']?\s?[:=(\[]?\s?[\"']?([0-9A-Z]{5})\b"),
    _pattern("sqlstate", "ERROR ", r"\bERROR \d{4} \(([0-9A-Z]{5})\)"),
    _pattern(
        "code",
        "(",
        r"\(\s?([12]\d{3}),\s?['\"u]|^(?:\w+(?:\.\w+)*: )?([12]\d{3}) \([0-9A-Z]{5}\):",
        "mysql",
    ),
    _pattern("code", "ERROR ", r"\bERROR ([12]\d{3}) \([0-9A-Z]{5}\)", "mysql"),
    _pattern("code", "curl: (", r"\bcurl: \((\d{1,3})\)", "curl"),
    _pattern("code", "ORA-", r"\bORA-(\d{5})\b", "ora"),
    _pattern("code", ("[SSL", "[X509"), r"\[(?:SSL|X509):?\ ?([A-Z0-9_]{6,})\]", "ssl"),
    _pattern("code", "SQLITE_", r"\b(SQLITE_[A-Z]+)\b", "sqlite"),
    _pattern(
        "code",
        tuple(_REDIS_CODES.split("|")),
        rf"(?:^(?:\w+(?:\.\w+)*: )?-?|\([\"']-?|[: ]-)({_REDIS_CODES}) [A-Zcdkt]",
        "redis",
    ),
    _pattern("code", "Error: /", r"\bError: /([A-Za-z]{5,24})\b", "gs"),
    _pattern("code", "_", r"^\[?([A-Z]{2,}(?:_[A-Z0-9]+){1,6}|[a-z]{2,}(?:_[a-z0-9]+){1,6})\]?$"),
    _pattern("code", "AADSTS", r"\b(AADSTS\d+)\b"),
    _pattern(
        "mail",
        (".0", ".1", ".2", ".3", ".4", ".5", ".6", ".7"),
        r"(?<![\w.(/:-])#?([45]\.[0-7]\.\d{1,3})(?=[ :,)'\"\]]|$)(?!\.\d)",
    ),
    _pattern("mail", ("(4", "(5", "( 4", "( 5"), r"\(\s?([45]\d\d),\s?b['\"]"),
    _pattern("mail", _STATUS_STARTS, r"(?<![\w.])([45]\d\d)[ -](?:#?[45]\.\d{1,2}\.\d{1,3})\b"),
    _pattern(
        "mail",
        _STATUS_STARTS,
        rf"^(?:\d\d:\d\d:\d\d )?({_SMTP_CODES})[ -](?!{_STATUS_PHRASES})(?=.{{0,120}}\b(?:e?mail\w*|recipient|rcpt\w*|sender|relay\w*|delivery|message|greylist\w*|resend)\b)",
        flags=_I,
    ),
)

ERRNO_PATTERNS = (
    _pattern(
        "errno",
        ("rrno", "os error"),
        r"(?<!ERR! )\b(?:Errno|os error|errno)[\]: =(]{1,2}(\d{1,3})\b",
    ),
    _pattern("errno", "E", r"(?:\b|code: ?['\"])(E[A-Z]{3,14}|E2BIG)\b(?=[:,' )\"\]]|$| -)"),
)

EXIT_PATTERNS = (
    _pattern("exit", "CalledProcessError(", r"\bCalledProcessError\((-?\d{1,3})\b"),
    _pattern(
        "exit",
        ("tatus", "code", "Code"),
        r"\b(?:exit(?:ed|s|ing)?|returned|finished|terminated|failed|completed|quit)(?: (?:with|unexpectedly with))? (?:an? )?(?:non-?zero )?(?:exit |return |error )?(?:status|code) ?(?:of )?[:=]? ?(-?\d{1,3})\b(?!\.)",
        flags=_I,
    ),
    _pattern(
        "exit",
        ("xit", "eturn", "ret"),
        r"\bexit(?: (?:code|status)|code|_code)['\"]? ?[:=]? ?\(?(-?\d{1,3})\b|\b(?:return|rc|ret)[ _-]?code ?[:=]? ?(-?\d{1,3})\b",
        flags=_I,
    ),
    _pattern(
        "exit",
        ("xited (", "eturned -"),
        r"\bExited \((\d{1,3})\)|\breturned (-\d{1,2})\b",
        flags=_I,
    ),
)

SIGNAL_PATTERNS = (
    _pattern("signal", "SIG", r"\b(SIG[A-Z]{3,5})\b"),
    _pattern(
        "signal",
        "ignal",
        r"\b[sS]ignal[: ]\s?(\d{1,2})\b|\b(?:signal:|by signal|with signal) (killed|terminated|aborted|interrupt)",
    ),
    _pattern(
        "signal",
        ("Killed", "Terminated"),
        r"^(?:\S+: )?(?:line \d+: +\d+ )?(Killed|Terminated)\b(?=\s|$)",
    ),
    _pattern(
        "signal",
        ("OOM", "oom", "Out of"),
        r"\b(OOMKilled|oom[-_ ]kill(?:ed|er)?|Out of memory: Kill(?:ed)? process)\b",
    ),
    _pattern(
        "signal",
        ("fault", "dumped", "instruction", "Bus error", "Floating"),
        r"(Segmentation fault|Aborted \(core dumped\)|Illegal instruction|Bus error|Floating point exception)",
    ),
)

_TYPE_SUFFIXES = (
    "Error|Exception|Timeout|Expired|Exit|Interrupt|Disconnected|Refused|Failed|Failure|Busy|Aborted|Denied|Exceeded|NotFound|"
    "Redirects|Cancelled|Canceled|Detected|Violation|Lost|Full|Fault|Unavailable|Mismatch|TooLarge|TooLong|Required|Missing|Invalid|Unsupported|Shutdown|Overflow|Closed|Died|Unknown"
)
EXCEPTION_TYPE = lazy_regex(
    rf"(?<![\w./'\"-])((?:[a-zA-Z_]\w*(?:\.|::))+_?[A-Z]\w*|[A-Z]\w*?(?:{_TYPE_SUFFIXES})\d?)(?=:|\(|\)|\s*$|,| -|<|;)",
    re.MULTILINE,
)


# --- Reading a text ---

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
_MAY_BE_STATUS = lazy_regex(r"[45]\d\d")
_MAIL_TEXT = lazy_regex(
    r"smtp|mail|recipient|sender|relay|address|postmaster|\b[45]\d\d[ -]", re.IGNORECASE
)
_WORD_BOUNDARY = lazy_regex(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[_:-]+")
# Values in the place of a code that mean nothing.
_NON_CODES = frozenset(
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
_OOM_SIGNAL = 9


def split_identifier(name: str) -> str:
    """Split a name into words: `ContentNotFoundError` becomes `Content Not Found Error`."""
    return _WORD_BOUNDARY.sub(" ", name.rsplit(".", 1)[-1])


@lru_cache(maxsize=64)
def extract_facts(text: str) -> Facts:
    """Return the structure found in a text, with `text` as message."""
    codes = _find_codes(text)
    exit_code = next((int(value) for value in _find_values(EXIT_PATTERNS, text)), None)
    exit_code, signal = split_exit_status(exit_code, _find_signal(text))
    return Facts(
        exception_types=_find_types(text),
        message=text,
        provider_codes=tuple(dict.fromkeys(code for fact, code in codes if fact == "code")),
        grpc_status=next((code for fact, code in codes if fact == "grpc"), ""),
        sqlstate=next((code for fact, code in codes if fact == "sqlstate"), ""),
        http_status=_find_http_status(text),
        errno=_find_errno(text),
        exit_code=exit_code,
        signal=signal,
    )


def _match_values(pattern: TextPattern, text: str) -> Iterator[str]:
    if any(substring in text for substring in pattern.substrings):
        for match in pattern.pattern.finditer(text):
            yield next(group for group in match.groups() if group is not None)


def _find_values(patterns: Iterable[TextPattern], text: str) -> Iterator[str]:
    for pattern in patterns:
        yield from _match_values(pattern, text)


def _find_types(text: str) -> tuple[str, ...]:
    """Return the exception types in a text, the last first: it is the nearest to the cause."""
    names = [match[1].replace("::", ".") for match in EXCEPTION_TYPE.finditer(text)]
    return tuple(dict.fromkeys(reversed(names)))


def _find_http_status(text: str) -> int | None:
    if not _MAY_BE_STATUS.search(text):
        return None
    leading = LEADING_HTTP_STATUS.search(text)
    if leading:
        return int(leading[1])
    found = list(_find_values(HTTP_PATTERNS, text))
    return int(found[-1]) if found else None


def _find_codes(text: str) -> list[tuple[str, str]]:
    """Return (fact, value) pairs, where fact is code, grpc or sqlstate."""
    found: list[tuple[str, str]] = []
    for pattern in CODE_PATTERNS:
        values = list(dict.fromkeys(_match_values(pattern, text)))
        if values and pattern.fact == "mail" and not _MAIL_TEXT.search(text):
            # A version number looks like an enhanced status code.
            values = [value for value in values if "." not in value]
        for value in values:
            found.extend(_classify_code(pattern, value))
    return found


def _classify_code(pattern: TextPattern, value: str) -> Iterator[tuple[str, str]]:
    if pattern.fact == "mail":
        yield "code", f"smtp:{value}"
    elif pattern.fact == "grpc" or value.upper() in GRPC_STATUSES:
        if name := canonical_grpc_status(value):
            yield "grpc", name
    elif pattern.fact == "sqlstate":
        yield "sqlstate", value
    elif value.lower() not in _NON_CODES:
        yield "code", f"{pattern.system}:{value}" if pattern.system else value


def _find_errno(text: str) -> int | None:
    last = None
    for value in _find_values(ERRNO_PATTERNS, text):
        number = int(value) if value.isdigit() else _ERRNO_OF.get(value)
        last = number or last
    return last


def _find_signal(text: str) -> int | None:
    value = next(_find_values(SIGNAL_PATTERNS, text), None)
    if value is None:
        return None
    if value.isdigit():
        return int(value)
    # The values that are no names of signals are reports of the OOM killer.
    return _SIGNAL_OF.get(value) or _SIGNAL_OF.get(value.lower(), _OOM_SIGNAL)
