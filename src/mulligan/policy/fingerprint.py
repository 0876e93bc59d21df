"""One cause, one name: what 412 failures of the same kind have in common.

The name begins with the version of the recipe. A better recipe gets a new version; old groups keep theirs.
"""

from __future__ import annotations

import re
from hashlib import blake2b

VERSION = "v1"
_READ = 300  # characters of the message that count

_QUOTED = re.compile(r"\"[^\"\n]*\"|(?<!\w)'[^'\n]*'(?!\w)")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[^\s]+", re.IGNORECASE)
_PATH = re.compile(r"(?<![\w/])(?:~|\.{1,2})?/[\w.@+~%-]+(?:/[\w.@+~%-]*)*|\b[A-Za-z]:\\[^\s]+")
_NUMBERED = re.compile(r"\w*\d\w*(?:[.,:-]\w*\d\w*)*")  # numbers, ids and names with a number in them


def fingerprint(code: str, exception_type: str = "", message: str = "", signal: str = "") -> str:
    """`v1-` and twelve hex digits; `signal` is what else tells causes apart, such as `http 503`."""
    text = "\0".join((VERSION, code, exception_type, signal, mask(message)))
    return f"{VERSION}-{blake2b(text.encode('utf-8', 'replace'), digest_size=6).hexdigest()}"


def mask(message: str) -> str:
    """The message without what differs from job to job."""
    text = message[:_READ]
    if "'" in text or '"' in text:
        text = _QUOTED.sub("*", text)
    return " ".join([word if word.isalpha() else _masked(word) for word in text.split()])


def _masked(word: str) -> str:
    if "/" in word or "\\" in word:
        word = _PATH.sub("*", _ADDRESS.sub("*", word))
    return _NUMBERED.sub("*", word)
