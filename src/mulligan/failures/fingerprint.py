"""One cause, one name: what 412 failures of the same kind have in common.

A name is made of what machines say (codes, numbers, the type of the exception, the functions of the job's own code it
happened in), because that stays the same from job to job and from deploy to deploy. Words count only where these say
too little, and then without what differs: ids, numbers, paths, hosts, quoted texts.

The name begins with the version of the recipe. A better recipe gets a new version; old groups keep theirs.
"""

from __future__ import annotations

import errno
import re
from functools import lru_cache
from hashlib import blake2b
from operator import attrgetter
from typing import Any

from mulligan.failures.facts import Facts
from mulligan.failures.regex import late

VERSION = "v2"
TOP = 3  # frames that count, innermost
_READ = 300  # characters of a line that count

# Types that everybody uses for everything: what they say is all they tell.
_VAGUE = frozenset(
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
_VAGUE_EXITS = frozenset({1, 2, 255})  # a program's way to say that something went wrong


def fingerprint(facts: Facts, code: str, cls: str, link: Facts | None = None) -> str:
    """`v2-` and twelve hex digits. `link` is the one that was judged, of the chain or of a group."""
    return _name(*_parts(facts, code, cls, facts if link is None else link))


@lru_cache(maxsize=1024)  # one cause, many jobs
def _name(cls: str, code: str, kind: str, signal: str, frames: tuple[str, ...], words: str) -> str:
    text = "\0".join((VERSION, cls, code, kind, signal, *frames, words))
    return f"{VERSION}-{blake2b(text.encode('utf-8', 'replace'), digest_size=6).hexdigest()}"


def explain_fingerprint(
    facts: Facts, code: str, cls: str, link: Facts | None = None
) -> dict[str, Any]:
    """What the name is made of; parts that say nothing are left out."""
    names = ("class", "code", "type", "signal", "frames", "words")
    values = _parts(facts, code, cls, facts if link is None else link)
    said = {name: value for name, value in zip(names, values, strict=True) if value}
    return {"version": VERSION} | said | ({"frames": [*values[4]]} if values[4] else {})


def _parts(
    facts: Facts, code: str, cls: str, link: Facts
) -> tuple[str, str, str, str, tuple[str, ...], str]:
    own = _signal(link)
    kind = _root_type(facts, link, own)
    signal, telling = own or (None if link is facts else _signal(facts)) or ("", False)
    frames = tuple((link.frames or facts.frames)[-TOP:])
    wordless = telling or facts.code or (frames and kind and kind not in _VAGUE and not signal)
    return str(cls), code, kind, signal, frames, "" if wordless else mask(_line(facts, link))


def _root_type(facts: Facts, link: Facts, own: tuple[str, bool] | None) -> str:
    """Of the link that was judged; where none was, of the deepest cause somebody named."""
    if link is facts and not own:
        for cause in reversed(facts.causes):
            if cause.exception_types and not cause.implied:
                return cause.exception_types[0]
    return link.exception_types[0] if link.exception_types else ""


_told_of = attrgetter(
    "provider_codes",
    "sqlstate",
    "grpc_status",
    "http_status",
    "errno",
    "timed_out",
    "signal",
    "exit_code",
)
_NOTHING = _told_of(Facts())


def _signal(link: Facts) -> tuple[str, bool] | None:
    """What a machine said, as one word, and whether that is enough to tell causes apart."""
    if _told_of(link) == _NOTHING:
        return None
    if link.provider_codes:
        return link.provider_codes[0], True
    for system, value in (
        ("sqlstate", link.sqlstate),
        ("grpc", link.grpc_status),
        ("http", link.http_status),
    ):
        if value:
            return f"{system}:{value}", True
    if link.errno is not None:
        return f"errno:{errno.errorcode.get(link.errno, link.errno)}", True
    return _ended(link)


def _ended(link: Facts) -> tuple[str, bool] | None:
    program = link.program or "process"
    if link.timed_out:
        return f"{program}:timeout", True
    if link.signal is not None:
        return f"{program}:signal {link.signal}", True
    if link.exit_code is not None:
        return f"{program}:{link.exit_code}", link.exit_code not in _VAGUE_EXITS
    return None


# Words

_NO_NEWS = late(
    r"(?:conversion failed!|exiting|aborted|error opening (?:input|output) files?\b.*|done|failed)?[.!]?"
    r"|(?:frame|size)=.*|\[?\d{1,3}%.*|traceback \(most recent call last\):|\s+.*",
    re.IGNORECASE,
)
_TROUBLE = late(
    r"error|fail|cannot|can't|could not|unable|invalid|not found|denied|refused|no such|unsupported|fatal",
    re.IGNORECASE,
)


def _line(facts: Facts, link: Facts) -> str:
    """The line that says most: of a program's stderr the last one with trouble in it, else of the message."""
    text = facts.stderr or link.message or facts.message or facts.detail
    lines = [line for line in text[-4096:].split("\n")[-40:] if not _NO_NEWS.fullmatch(line)]
    if not lines:
        return text.strip()
    if not facts.stderr:
        return lines[0]
    return next((line for line in reversed(lines) if _TROUBLE.search(line)), lines[-1])


_EXTENSIONS = (
    "mp4|mov|mkv|avi|webm|mp3|wav|m4a|flac|ogg|jpe?g|png|gif|webp|svg|pdf|docx?|xlsx?|pptx?|csv|tsv|txt|json|xml"
    "|ya?ml|toml|zip|gz|tar|tmp|part|log|sql|db|html?|parquet"
)
_QUOTED = late(r"\"[^\"\n]*\"|(?<!\w)'[^'\n]*'(?!\w)|`[^`\n]*`")
_ADDRESS = late(r"[a-z][a-z0-9+.-]*://[^\s]+", re.IGNORECASE)
_PATH = late(r"(?<![\w/])(?:~|\.{1,2})?/[\w.@+~%-]+(?:/[\w.@+~%-]*)*|\b[A-Za-z]:\\[^\s]+")
_HOST = late(
    rf"[\w.+-]+@[\w.-]+|\b[\w-]+(?:\.[\w-]+){{2,}}\b|\b[\w-]+\.(?:{_EXTENSIONS}|com|org|net|io|internal|local)\b",
    re.IGNORECASE,
)
_NUMBERED = late(r"\w*\d\w*(?:[.,:-]\w*\d\w*)*")  # numbers, ids and names with a number in them
_KNOWN = frozenset({"[redacted]", "[path]", "[ip]"})


def mask(message: str) -> str:
    """The message without what differs from job to job."""
    text = message[:_READ]
    if "'" in text or '"' in text or "`" in text:
        text = _QUOTED.sub("*", text)
    return " ".join(
        [word if word.isalpha() or word in _KNOWN else _masked(word) for word in text.split()]
    )


def _masked(word: str) -> str:
    if "/" in word or "\\" in word:
        word = _PATH.sub("*", _ADDRESS.sub("*", word))
    if "." in word or "@" in word:
        word = _HOST.sub("*", word)
    return _NUMBERED.sub("*", word)
