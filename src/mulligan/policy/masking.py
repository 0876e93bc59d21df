"""Texts made comparable: addresses, paths and ids are replaced, so that no rule can match inside them."""

from __future__ import annotations

import re

from mulligan.policy.late import late

_LONG = 12  # digits of an id
_ADDRESS = r"[a-z][a-z0-9+.-]{1,15}://[^\s\"'<>]+"
_MAIL = r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+"
_PATH = r"(?<![\w/<])(?:~|\.{1,2})?/(?!/)[\w.@+~%=:-]+(?:/[\w.@+~%=:-]*)*|\b[A-Za-z]:\\[^\s\"'<>]+"
_NUMBER = r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b(?=[0-9a-f]*\d)[0-9a-f]{12,}\b"
_ANY = late(f"{_ADDRESS}|{_MAIL}|{_PATH}|{_NUMBER}", re.IGNORECASE)
_NO_MAIL = late(f"{_ADDRESS}|{_PATH}|{_NUMBER}", re.IGNORECASE)
_ID = late(_NUMBER, re.IGNORECASE)


def masked(text: str) -> str:
    """Word by word: most words hold nothing to hide, and looking is much cheaper than trying a pattern."""
    if "/" in text or "@" in text or "\\" in text:
        return " ".join([_hidden(word) for word in text.split(" ")])
    return " ".join([_ID.sub("<>", word) if len(word) >= _LONG else word for word in text.split(" ")])


def _hidden(word: str) -> str:
    """By the pattern that has no more than this word could hold."""
    if "@" in word:
        return _ANY.sub("<>", word)
    if "/" in word or "\\" in word:
        return _NO_MAIL.sub("<>", word)
    return _ID.sub("<>", word) if len(word) >= _LONG else word


_QUOTED = late(r"(?<!\w)'[^'\n]{1,80}'(?!\w)|\"[^\"\n]{1,80}\"|`[^`\n]{1,80}[`']|\\\w+")


def unquoted(text: str) -> str:
    return _QUOTED.sub("<>", text)
