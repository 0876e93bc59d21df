"""Find structure in texts: `An error occurred (SlowDown)`, `HTTP Error 404:`, `[Errno 28]`.

The patterns are data. Each is anchored by the words next to the value, so that a number alone never
counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from errno import errorcode
from http import HTTPStatus
from signal import Signals
from typing import NamedTuple

from mulligan.failures.facts import GRPC_STATUSES, Facts, canonical_grpc_status, split_exit_status
from mulligan.failures.regex import ascii_probe, lazy_regex


class TextPattern(NamedTuple):
    """A pattern whose group that matched is the value of a fact."""

    fact: str  # http, code, grpc, sqlstate, mail, errno, exit, signal
    substrings: tuple[str, ...]  # the pattern is tried only if the text contains one of these
    pattern: re.Pattern[str]
    system: str  # prefix of a code that other systems use too
    needs: re.Pattern[str] | None  # the pattern is tried only if this one, much faster, matches

    @property
    def needs_status(self) -> bool:
        return self.fact == "http" or self.substrings is _STATUS_STARTS

    @property
    def needs_capitals(self) -> bool:
        """True if each of the substrings begins with capitals, and a third one follows."""
        return all(start.isalpha() and start.isupper() for start in self._starts())

    def _starts(self) -> list[str]:
        return [substring[:2] for substring in self.substrings]


def _pattern(
    fact: str,
    substrings: str | tuple[str, ...],
    pattern: str,
    system: str = "",
    flags: int = 0,
    needs: str = "",
) -> TextPattern:
    if isinstance(substrings, str):
        substrings = (substrings,)
    regex = lazy_regex(pattern, flags | re.MULTILINE)
    needed = lazy_regex(needs) if needs else None
    return TextPattern(fact, substrings, regex, system, needed)


SubstringIndex = dict[tuple[str, ...], list[int]]


class PatternGroup:
    """Patterns of one fact, in the order in which they are tried."""

    def __init__(self, *patterns: TextPattern) -> None:
        self.patterns = patterns
        # Substrings → numbers of the patterns that need one of them. Most texts contain neither a
        # status nor three capitals in a row, which half of the patterns need.
        self._of_status: SubstringIndex = {}
        self._of_capitals: SubstringIndex = {}
        self._of_others: SubstringIndex = {}
        for number, pattern in enumerate(patterns):
            self._index_of(pattern).setdefault(pattern.substrings, []).append(number)

    def _index_of(self, pattern: TextPattern) -> SubstringIndex:
        if pattern.needs_status:
            return self._of_status
        return self._of_capitals if pattern.needs_capitals else self._of_others

    def candidates(self, text: TextScan) -> list[TextPattern]:
        """Return the patterns of which the text contains a substring."""
        numbers = _find_numbers(self._of_others, text.probe)
        if text.has_capitals:
            numbers += _find_numbers(self._of_capitals, text.probe)
        if text.may_have_status:
            numbers += _find_numbers(self._of_status, text.probe)
        return [self.patterns[number] for number in sorted(set(numbers))] if numbers else []


def _find_numbers(index: SubstringIndex, text: str) -> list[int]:
    numbers: list[int] = []
    for substrings, found in index.items():
        for substring in substrings:
            if substring in text:
                numbers += found
                break
    return numbers


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
_HTTP_PATTERNS = tuple(
    _pattern("http", substrings, pattern, flags=_I, needs="".join(needs))
    for substrings, pattern, *needs in (
        (_STATUS_STARTS, rf"\b{_STATUS}(?=\{{)", r"[45]\d\d\{"),
        (_STATUS_STARTS, rf"(?:Error|Exception)\({_STATUS}(?=,|\))", r"\([45]\d\d[,)]"),
        (("ode", "tatus", "CODE"), rf"[\"'](?:code|status)[\"']:\s?[\"']?{_STATUS}\b"),
        (
            ("tatus",),
            rf"\bstatus(?: ?code)?[\"']?\s?(?:[:=(]|was|of|is|code)?\s?[\"'(\[]?{_STATUS}\b",
        ),
        (
            ("ode",),
            rf"\b(?:error|response|status|return(?:ed)?)[_ -]?code[\"']?\s?(?:[:=]|was|of|is)?\s?[\"'(]?{_STATUS}\b(?!\.\d)",
            r"[eE](?<=[dD][eE])[\"']?\s?(?i:[:=]|was|of|is)?\s?[\"'(]?[45]\d\d",
        ),
        (
            ("eturned", "ot ", "eceived", "esponse", "nswered", "esponded"),
            rf"(?<!bytes, )\b(?:returned|responded with|response|got|received|answered)(?: an?)?(?: error| HTTP| status| code| response)*:? ?[\"'(]?{_STATUS}(?: (?:{_STATUS_PHRASES})|[\"')]? (?:error|response|from|status)\b|$)",
            r"(?m)[45]\d\d(?:[\"')]? [A-Za-zſ]|$)",
        ),
        (
            ("lient", "erver"),
            rf"\b{_STATUS} (?:Client|Server) Error\b|\b(?:Client|Server) error [\"']{_STATUS}\b",
            r"[45](?:\d\d [cCsSſ]|(?<=[\"'].)\d\d)",
        ),
        (
            ("ttp", "TTP"),
            rf"\bHTTP(?:/\d(?:\.\d)?)?[\"']? ?(?:error|status|code|response|request failed with status)?(?: ?code)?[ :=(]{{1,2}}{_STATUS}\b|\bHttpError {_STATUS}\b|\bhttp_?status(?:_?code)?[\"']?\s?[:=]\s?[\"']?{_STATUS}\b",
            r"[tT](?<=[tT][tT])[pP](?s:.{0,60}?)[45]\d\d",
        ),
        (
            _STATUS_STARTS,
            rf"([45](?<![\w.:-].)\d\d)[\"']?,?[ :-]{{1,3}}[\"']?(?:{_STATUS_PHRASES})",
            r"[45]\d\d[\"']?,?[ :-]{1,3}[\"']?[A-Za-z]",
        ),
        (
            ("URL", "erver"),
            rf"\b(?:URL returned error|Server returned|server responded with)(?: status)?(?: code)?[: ]{{1,2}}{_STATUS}\b",
        ),
    )
)
LEADING_HTTP_STATUS = lazy_regex(
    rf"^(?:[\w:.]+: )?{_STATUS}(?=[ :]{{1,2}}(?:[A-Z][A-Za-z_ ]+[.:({{]|GET|POST|PUT|PATCH|DELETE|HEAD))"
)

CODE_PATTERNS = PatternGroup(
    _pattern("code", "occurred (", r" error occurred \(([A-Za-z][\w.]{2,60})\)"),
    _pattern("code", "</", r"<(?:Code|Error|code)>([A-Za-z][\w.]{2,60})</"),
    _pattern(
        "code",
        ('":', "':", '" :'),
        r"u?[\"'](?:code|type|status|reason|error|errorCode|error_code|error_type|quotaId|__type|name|Code|errcode|error_name)[\"']\s?:\s?u?[\"']([A-Za-z][\w.#/-]{2,80})[\"']",
    ),
    _pattern(
        "code",
        ("ode", "eason"),
        r"\b(?:ErrorCode|Error Code|error code|error_code|Code|code|reason|Reason|errorCode)\s{0,8}[:=]\s?[\"']?([A-Za-z][A-Za-z_]{3,60}\w*)\b",
        needs="ode ?[:=]|eason(?::| ?=)",
    ),
    _pattern(
        "code",
        (": ", ", "),
        r"(?:^|: |, )([a-z]{2,}(?:[A-Z][a-z]+){1,5})(?=: |$)",
        needs="(?m)[A-Z](?<=[a-z][A-Z])[a-z]+(?:: |$)",
    ),
    _pattern("code", "_", r"\(([a-z]+(?:_[a-z]+){1,5})\)"),
    _pattern(
        "grpc", ("StatusCode.", "code = "), r"\b(?:StatusCode\.|code = )([A-Z][A-Za-z_]{4,})\b"
    ),
    _pattern(
        "grpc",
        _STATUS_STARTS,
        r"\b[45]\d\d ([A-Z]{4,}(?:_[A-Z]+)*)\b",
        needs=r"[45]\d\d [A-Z]{4}",
    ),
    _pattern("grpc", ("ED:", "ND:", "NT:", "LE:", "ON:"), rf"\b({_GRPC_NAMES}): "),
    _pattern("grpc", ("ED", "ND", "NT", "LE", "ON"), rf"[\"']({_GRPC_NAMES})[\"']"),
    _pattern("sqlstate", "SQLSTATE", r"SQLSTATE[\"']?\s?[:=(\[]?\s?[\"']?([0-9A-Z]{5})\b"),
    _pattern("sqlstate", "ERROR ", r"\bERROR \d{4} \(([0-9A-Z]{5})\)"),
    _pattern(
        "code",
        "(",
        r"\(\s?([12]\d{3}),\s?['\"u]|^(?:\w+(?:\.\w+)*: )?([12]\d{3}) \([0-9A-Z]{5}\):",
        "mysql",
        needs=r"[12]\d{3}(?:,| \()",
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
        ("4.", "5."),
        r"(?<![\w.(/:-])#?([45]\.[0-7]\.\d{1,3})(?=[ :,)'\"\]]|$)(?!\.\d)",
        needs=r"[45]\.[0-7]\.\d",
    ),
    _pattern("mail", ("b'", 'b"'), r"\(\s?([45]\d\d),\s?b['\"]", needs=r"\( ?[45]"),
    _pattern(
        "mail",
        _STATUS_STARTS,
        r"(?<![\w.])([45]\d\d)[ -](?:#?[45]\.\d{1,2}\.\d{1,3})\b",
        needs=r"[45]\d\d[ -]#?[45]\.",
    ),
    _pattern(
        "mail",
        _STATUS_STARTS,
        rf"^(?:\d\d:\d\d:\d\d )?({_SMTP_CODES})[ -](?!{_STATUS_PHRASES})(?=.{{0,120}}\b(?:e?mail\w*|recipient|rcpt\w*|sender|relay\w*|delivery|message|greylist\w*|resend)\b)",
        flags=_I,
    ),
)

_ERRNO_PATTERNS = (
    _pattern(
        "errno",
        ("rrno", "os error"),
        r"(?<!ERR! )\b(?:Errno|os error|errno)[\]: =(]{1,2}(\d{1,3})\b",
    ),
    # Begins with a literal, which is searched for much faster than a boundary.
    _pattern("errno", "E", r"(E(?<=\bE)(?:[A-Z]{3,14}|2BIG))\b(?=[:,' )\"\]]|$| -)"),
)

_EXIT_PATTERNS = (
    _pattern("exit", "CalledProcessError(", r"\bCalledProcessError\((-?\d{1,3})\b"),
    _pattern(
        "exit",
        ("tatus", "code", "Code"),
        r"\b(?:exit(?:ed|s|ing)?|returned|finished|terminated|failed|completed|quit)(?: (?:with|unexpectedly with))? (?:an? )?(?:non-?zero )?(?:exit |return |error )?(?:status|code) ?(?:of )?[:=]? ?(-?\d{1,3})\b(?!\.)",
        flags=_I,
        needs=r"[sSſeE](?<=[uU][sSſ]|[dD][eE]) ?(?:[oO][fF] )?[:=]? ?-?\d{1,3}\b(?!\.)",
    ),
    _pattern(
        "exit",
        ("xit", "eturn", "ret"),
        r"\bexit(?: (?:code|status)|code|_code)['\"]? ?[:=]? ?\(?(-?\d{1,3})\b|\b(?:return|rc|ret)[ _-]?code ?[:=]? ?(-?\d{1,3})\b",
        flags=_I,
        needs=r"[sSſeE](?<=[uU][sSſ]|[dD][eE])['\"]? ?[:=]? ?\(?-?\d",
    ),
    _pattern(
        "exit",
        ("xited (", "eturned -"),
        r"\bExited \((\d{1,3})\)|\breturned (-\d{1,2})\b",
        flags=_I,
    ),
)

_SIGNAL_PATTERNS = (
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

NUMBER_PATTERNS = PatternGroup(
    *_HTTP_PATTERNS, *_ERRNO_PATTERNS, *_EXIT_PATTERNS, *_SIGNAL_PATTERNS
)

_TYPE_ENDINGS = (
    "Error",
    "Exception",
    "Timeout",
    "Expired",
    "Exit",
    "Interrupt",
    "Disconnected",
    "Refused",
    "Failed",
    "Failure",
    "Busy",
    "Aborted",
    "Denied",
    "Exceeded",
    "NotFound",
    "Redirects",
    "Cancelled",
    "Canceled",
    "Detected",
    "Violation",
    "Lost",
    "Full",
    "Fault",
    "Unavailable",
    "Mismatch",
    "TooLarge",
    "TooLong",
    "Required",
    "Missing",
    "Invalid",
    "Unsupported",
    "Shutdown",
    "Overflow",
    "Closed",
    "Died",
    "Unknown",
)
# A dotted name, or a capitalised word, which counts if it ends like the name of an exception.
_AFTER_TYPE = r"(?=:|\(|\)|\s*$|,| -|<|;)"
EXCEPTION_TYPE = lazy_regex(
    r"([a-zA-Z_](?<![\w./'\"-].)(?:\w*+(?:\.|::)(?:[a-zA-Z_]\w*+(?:\.|::))*_?[A-Z]\w*+|(?<=[A-Z])\w*+))"
    + _AFTER_TYPE,
    re.MULTILINE,
)
# Every text with such a name matches one of these, which are much faster.
_TYPE_ENDING = lazy_regex(rf"(?:{'|'.join(_TYPE_ENDINGS)})\d?{_AFTER_TYPE}", re.MULTILINE)
_DOTTED_TYPE = lazy_regex(rf"[.:]_?[A-Z]\w*+{_AFTER_TYPE}", re.MULTILINE)


# --- Reading a text ---

_CAPITALS = lazy_regex("[A-Z]{3}")

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
# In every pattern a status is a whole number, and nothing but a letter may touch it.
_MAY_BE_STATUS = lazy_regex(r"[45](?<!\d[45])\d\d\b")
_MAIL_TEXT = lazy_regex(
    r"smtp|mail|recipient|sender|relay|address|postmaster|\b[45]\d\d[ -]", re.IGNORECASE
)
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


class TextScan:
    """Read the structure of one text: its codes at once, all other facts on request."""

    def __init__(self, text: str, within: TextScan | None = None) -> None:
        """Read `text`. `within`: the scan of a text of which this one is a whole line."""
        self.text = text
        self.probe = text if text.isascii() else ascii_probe(text)
        self.has_capitals = _CAPITALS.search(self.probe) is not None
        self.may_have_status = _MAY_BE_STATUS.search(text) is not None
        self.code_patterns: list[TextPattern] = []  # those that found a code
        candidates = CODE_PATTERNS.candidates(self) if within is None else within.code_patterns
        self._codes = self._find_codes(candidates) if candidates else []

    @property
    def provider_codes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._codes_of("code")))

    def _codes_of(self, fact: str) -> list[str]:
        return [code for found, code in self._codes if found == fact]

    def read_facts(self) -> Facts:
        """Return everything that the text says, with the text as message."""
        numbers = self._find_numbers()
        exit_code = int(numbers["exit"][0]) if numbers["exit"] else None
        exit_code, signal = split_exit_status(exit_code, _read_signal(numbers["signal"]))
        http_status = int(numbers["http"][-1]) if numbers["http"] else None
        grpc_codes = self._codes_of("grpc")
        sqlstates = self._codes_of("sqlstate")
        return Facts(  # positional, in the order of `Facts`: half the time of keyword arguments
            self._find_types(),
            self.text,
            "",
            "",
            self.provider_codes,
            http_status,
            grpc_codes[0] if grpc_codes else "",
            sqlstates[0] if sqlstates else "",
            _read_errno(numbers["errno"]),
            exit_code,
            signal,
        )

    def _find_numbers(self) -> dict[str, list[str]]:
        """Return the values of `http`, `errno`, `exit` and `signal`, as texts."""
        found: dict[str, list[str]] = {"http": [], "errno": [], "exit": [], "signal": []}
        for pattern in NUMBER_PATTERNS.candidates(self):
            found[pattern.fact] += self._match_values(pattern)
        leading = LEADING_HTTP_STATUS.match(self.text) if self.may_have_status else None
        if leading:
            found["http"].append(leading[1])
        return found

    def _match_values(self, pattern: TextPattern) -> list[str]:
        if pattern.needs is not None and not pattern.needs.search(self.text):
            return []
        # Of the groups of a pattern, exactly one matches.
        return [match[match.lastindex or 0] for match in pattern.pattern.finditer(self.text)]

    def _find_types(self) -> tuple[str, ...]:
        """Return the exception types in the text, the last first: it is nearest to the cause."""
        if not _may_name_types(self.text):
            return ()
        names = [
            name.replace("::", ".") for name in EXCEPTION_TYPE.findall(self.text) if _is_type(name)
        ]
        return tuple(dict.fromkeys(reversed(names)))

    def _find_codes(self, patterns: list[TextPattern]) -> list[tuple[str, str]]:
        """Return (fact, value) pairs, where fact is code, grpc or sqlstate."""
        found: list[tuple[str, str]] = []
        for pattern in patterns:
            values = self._match_values(pattern)
            if values:
                self.code_patterns.append(pattern)
                for value in dict.fromkeys(values):
                    found += self._read_code(pattern, value)
        return found

    def _read_code(self, pattern: TextPattern, value: str) -> Iterator[tuple[str, str]]:
        if pattern.fact == "mail":
            # A version number looks like an enhanced status code.
            if "." not in value or _MAIL_TEXT.search(self.text):
                yield "code", f"smtp:{value}"
        elif pattern.fact == "grpc" or value.upper() in GRPC_STATUSES:
            if name := canonical_grpc_status(value):
                yield "grpc", name
        elif pattern.fact == "sqlstate":
            yield "sqlstate", value
        elif value.lower() in _NON_CODES:
            return
        elif pattern.system:
            yield "code", f"{pattern.system}:{value}"
        else:
            yield "code", value


def _read_errno(values: list[str]) -> int | None:
    last = None
    for value in values:
        number = int(value) if value.isdigit() else _ERRNO_OF.get(value)
        last = number or last
    return last


def _read_signal(values: list[str]) -> int | None:
    if not values:
        return None
    value = values[0]
    if value.isdigit():
        return int(value)
    # The values that are no names of signals are reports of the OOM killer.
    return _SIGNAL_OF.get(value) or _SIGNAL_OF.get(value.lower(), _OOM_SIGNAL)


def _is_type(name: str) -> bool:
    """True if a name is dotted or ends like the name of an exception, perhaps with a digit."""
    if "." in name or "::" in name or name.endswith(_TYPE_ENDINGS, 1):
        return True
    return name[-1].isdecimal() and name.endswith(_TYPE_ENDINGS, 1, len(name) - 1)


def _may_name_types(text: str) -> bool:
    """True if the text contains the end of a type's name, or a dotted name."""
    return bool(_TYPE_ENDING.search(text) or _DOTTED_TYPE.search(text))
