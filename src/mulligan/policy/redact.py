"""Texts from outside, made fit to be stored and shown.

`safe` makes any string storable: valid UTF-8, no control characters, bounded. `redact` removes what has the shape
of a secret. `scrub` does both, in the order that lets no half of a secret slip through the cut.
"""

from __future__ import annotations

import re

LIMIT = 8192
_WINDOW = 65_536  # what is searched for secrets before the final cut
_MARK = 48  # room for the words that say how much was cut
_GONE = "[redacted]"

# C0 and C1 controls but \t and \n, lone surrogates, and the marks that turn the direction of text around.
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def safe(text: str, limit: int = LIMIT) -> str:
    """At most `limit` characters that any store and any screen can take; what is cut is counted."""
    if len(text) <= limit and text.isprintable():
        return text
    return _clean(_cut(text, limit, 0))


def scrub(text: str, limit: int = LIMIT) -> str:
    """Safe and without secrets. Huge texts lose their middle first, so that time is bounded too."""
    if len(text) <= limit:
        return redact(safe(text, limit))
    window = text if len(text) <= _WINDOW else text[: _WINDOW // 2] + text[-_WINDOW // 2 :]
    return _cut(redact(_clean(window)), limit, len(text) - len(window))


def _clean(text: str) -> str:
    if text.isprintable():
        return text
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
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


_KEY = r"api[_-]?key|access[_-]?key|secret|passw(?:or)?d|passphrase|pwd|credential|private[_-]?key|signature"
_SEPARATOR = r"(?:[_-][\w-]{1,40})?\\?[\"']?\s{0,8}(?:=>|[=:])\s{0,8}"
_VALUE = r"(?:\\?\"[^\"\n]{1,4096}\"|\\?'[^'\n]{1,4096}'|\[redacted\]|\\?[\"']?[^\s&,;\"'<>)}\]\\]{1,4096})"

# (words of which one must be there, shape). The words are what ordinary texts pay for: a search for a plain
# string costs a fraction of a regex. No shape can start again inside what it has already looked through.
_SHAPES = tuple(
    (hints, re.compile(pattern, re.IGNORECASE))
    for hints, pattern in (
        # A key in PEM, also one that lost its end.
        (("-----begin",), r"(?P<keep>)-----BEGIN [A-Z0-9 ]{1,40}-----(?s:.*?)(?:-----END [A-Z0-9 ]{1,40}-----|\Z)"),
        # user:password@ in an address; a password may hold a slash, but `host:8080/path` is none.
        (
            ("://",),
            r"(?P<keep>://)(?:[^\s/?#'\"<>]{1,512}|[^\s/:@]{0,256}:(?!\d{1,5}/)[^\s:@'\"<>]{1,256})(?=@)",
        ),
        (
            ("authorization",),
            r"(?P<keep>authorization\\?[\"']?\s{0,8}[:=]\s{0,8}\\?[\"']?(?:[a-z]{1,20}\s{1,8})?)[^\s\"',;\\]{4,4096}",
        ),
        (
            ("bearer", "basic"),
            r"(?P<keep>\b(?:bearer|basic)\s{1,8})(?=[a-z._~+/=-]{0,200}\d)[\w.~+/=-]{8,4096}",
        ),
        (
            ("key", "secret", "passw", "passphrase", "pwd", "credential", "signature"),
            rf"(?P<keep>(?:{_KEY}){_SEPARATOR}){_VALUE}",
        ),
        (("token",), rf"(?P<keep>token{_SEPARATOR})(?=\\?[\"']?[^\s\"']{{6}}){_VALUE}"),
        (("akia", "asia"), r"(?<![\w-])(?P<keep>)(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
        (("eyj",), r"(?<![\w-])(?P<keep>)eyJ[\w-]{8,8192}\.[\w-]{2,8192}(?:\.[\w-]{0,8192})?"),
        (
            ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "glpat-", "xox", "sk-", "sk_"),
            r"(?<![\w-])(?P<keep>)(?:gh[pousr]_|glpat-|xox[abeprs]-|sk[-_](?:live|test|proj|ant)[-_])[\w-]{10,255}",
        ),
    )
)


def redact(text: str) -> str:
    """The text with every known shape of a secret replaced; doing it twice changes nothing."""
    lowered = text.lower()
    for hints, shape in _SHAPES:
        for hint in hints:
            if hint in lowered:
                text = shape.sub(rf"\g<keep>{_GONE}", text)
                break
    return text
