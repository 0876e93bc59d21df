"""Compute the fingerprint of a failure: equal for failures of one cause.

It is made of what stays the same from job to job and from deploy to deploy: codes, numbers, the
type of the exception, and the functions of the job's code. The message counts only if these say too
little, and then without ids, numbers, paths, hosts and quoted texts.

The end of an attempt without an exception, such as a time limit or the death of its process, has
none of these. Its fingerprint is made of the code, the kind, and where or how it ended.

A fingerprint begins with the version of its algorithm. A new algorithm gets a new version, and
existing groups keep their fingerprints: v2 for exceptions, v3 for ends of attempts (before: v2).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from operator import attrgetter
from typing import Any

from mulligan.failures.facts import Facts
from mulligan.failures.regex import lazy_regex

VERSION = "v2"
END_VERSION = "v3"
_FRAMES = 3  # innermost frames that count
_MAX_LINE = 300  # characters of a line that count

# Types that are used for everything, so that only the message tells causes apart.
_VAGUE_TYPES = frozenset(
    f"builtins.{name}"
    for name in (
        "Exception",
        "BaseException",
        "RuntimeError",
        "ValueError",
        "OSError",
        "SystemExit",
    )
)
_VAGUE_EXIT_CODES = frozenset({1, 2, 255})  # "something went wrong"


def compute_fingerprint(facts: Facts, code: str, cls: str, link: Facts | None = None) -> str:
    """Return `v2-` and twelve hex digits.

    `link` is the exception that decided the classification: `facts` itself, one of its causes, or
    a leaf of a group.
    """
    return _hash(*_parts(facts, code, cls, link), facts.step)


def fingerprint_end(code: str, place: Sequence[str]) -> str:
    """Return the fingerprint of an end without an exception.

    `place`: the kind, then the innermost functions of the app, or the signal or exit code.
    """
    return _format(END_VERSION, "\0".join((END_VERSION, code, *place)))


def _format(version: str, text: str) -> str:
    return f"{version}-{blake2b(text.encode('utf-8', 'replace'), digest_size=6).hexdigest()}"


@lru_cache(maxsize=1024)  # one cause, many jobs
def _hash(
    cls: str,
    code: str,
    type_name: str,
    signal: str,
    frames: tuple[str, ...],
    message: str,
    step: str,
) -> str:
    parts = [VERSION, cls, code, type_name, signal, *frames, message]
    if step:
        parts += ["step", step]
    text = "\0".join(parts)
    return _format(VERSION, text)


def explain_fingerprint(
    facts: Facts, code: str, cls: str, link: Facts | None = None
) -> dict[str, Any]:
    """Return what the fingerprint is computed from, without empty parts."""
    names = ("class", "code", "type", "signal", "frames", "words")
    values = _parts(facts, code, cls, link)
    explanation: dict[str, Any] = {"version": VERSION}
    for name, value in zip(names, values, strict=True):
        if value:
            explanation[name] = list(value) if isinstance(value, tuple) else value
    if facts.step:
        explanation["step"] = facts.step
    return explanation


def _parts(
    facts: Facts, code: str, cls: str, link: Facts | None
) -> tuple[str, str, str, str, tuple[str, ...], str]:
    """Return (class, code, type, signal, frames, masked message)."""
    if link is None:
        link = facts
    link_signal = _signal(link)
    type_name = _type_name(facts, link, has_signal=link_signal is not None)
    found = link_signal
    if found is None and link is not facts:
        found = _signal(facts)
    signal, is_specific = found or ("", False)
    frames = tuple((link.frames or facts.frames)[-_FRAMES:])
    has_place = frames and type_name and type_name not in _VAGUE_TYPES and not signal
    message = ""
    if not (is_specific or facts.code or has_place):
        message = mask_variable_parts(_relevant_line(facts, link))
    return str(cls), code, type_name, signal, frames, message


def _type_name(facts: Facts, link: Facts, *, has_signal: bool) -> str:
    """Return the type of the exception that decided, else of the deepest explicit cause."""
    if link is facts and not has_signal:
        for cause in reversed(facts.causes):
            if cause.exception_types and not cause.implied:
                return cause.exception_types[0]
    return link.exception_types[0] if link.exception_types else ""


_get_signals = attrgetter(
    "provider_codes",
    "sqlstate",
    "grpc_status",
    "http_status",
    "errno",
    "timed_out",
    "signal",
    "exit_code",
)
_NO_SIGNALS = _get_signals(Facts())


def _signal(link: Facts) -> tuple[str, bool] | None:
    """Return a machine-readable cause, and whether it is specific enough to tell causes apart."""
    if _get_signals(link) == _NO_SIGNALS:
        return None
    if link.provider_codes:
        return link.provider_codes[0], True
    if link.sqlstate:
        return f"sqlstate:{link.sqlstate}", True
    if link.grpc_status:
        return f"grpc:{link.grpc_status}", True
    if link.http_status:
        return f"http:{link.http_status}", True
    if link.errno is not None:
        return f"errno:{errno.errorcode.get(link.errno, link.errno)}", True
    return _process_signal(link)


def _process_signal(link: Facts) -> tuple[str, bool] | None:
    program = link.program or "process"
    if link.timed_out:
        return f"{program}:timeout", True
    if link.signal is not None:
        return f"{program}:signal {link.signal}", True
    if link.exit_code is not None:
        return f"{program}:{link.exit_code}", link.exit_code not in _VAGUE_EXIT_CODES
    return None


# --- Messages ---

_IRRELEVANT_LINE = lazy_regex(
    r"(?:conversion failed!|exiting|aborted|error opening (?:input|output) files?\b.*|done|failed)?"
    r"[.!]?|(?:frame|size)=.*|\[?\d{1,3}%.*|traceback \(most recent call last\):|\s+.*",
    re.IGNORECASE,
)
_ERROR_LINE = lazy_regex(
    r"error|fail|cannot|can't|could not|unable|invalid|not found|denied|refused|no such"
    r"|unsupported|fatal",
    re.IGNORECASE,
)


def _relevant_line(facts: Facts, link: Facts) -> str:
    """Return the last line with an error of a program's stderr, else the start of the message."""
    text = facts.stderr or link.message or facts.message or facts.detail
    last_lines = text[-4096:].split("\n")[-40:]
    lines = [line for line in last_lines if not _IRRELEVANT_LINE.fullmatch(line)]
    if not lines:
        return text.strip()
    if not facts.stderr:
        return lines[0]
    return next((line for line in reversed(lines) if _ERROR_LINE.search(line)), lines[-1])


_EXTENSIONS = (
    "mp4|mov|mkv|avi|webm|mp3|wav|m4a|flac|ogg|jpe?g|png|gif|webp|svg|pdf|docx?|xlsx?|pptx?"
    "|csv|tsv|txt|json|xml|ya?ml|toml|zip|gz|tar|tmp|part|log|sql|db|html?|parquet"
)
_QUOTED = lazy_regex(r"\"[^\"\n]*\"|(?<!\w)'[^'\n]*'(?!\w)|`[^`\n]*`")
_URL = lazy_regex(r"[a-z][a-z0-9+.-]*://[^\s]+", re.IGNORECASE)
_PATH = lazy_regex(r"(?<![\w/])(?:~|\.{1,2})?/[\w.@+~%-]+(?:/[\w.@+~%-]*)*|\b[A-Za-z]:\\[^\s]+")
_HOST = lazy_regex(
    r"[\w.+-]+@[\w.-]+|\b[\w-]+(?:\.[\w-]+){2,}\b"
    rf"|\b[\w-]+\.(?:{_EXTENSIONS}|com|org|net|io|internal|local)\b",
    re.IGNORECASE,
)
# Numbers, ids, and names that contain a number.
_NUMBERED = lazy_regex(r"\w*\d\w*(?:[.,:-]\w*\d\w*)*")
_PLACEHOLDERS = frozenset({"[redacted]", "[path]", "[ip]"})


def mask_variable_parts(message: str) -> str:
    """Replace by `*` what differs from job to job: ids, numbers, paths, hosts, quoted texts."""
    text = message[:_MAX_LINE]
    if "'" in text or '"' in text or "`" in text:
        text = _QUOTED.sub("*", text)
    return " ".join([_mask_word(word) for word in text.split()])


def _mask_word(word: str) -> str:
    if word.isalpha() or word in _PLACEHOLDERS:
        return word
    if "/" in word or "\\" in word:
        word = _PATH.sub("*", _URL.sub("*", word))
    if "." in word or "@" in word:
        word = _HOST.sub("*", word)
    return _NUMBERED.sub("*", word)
