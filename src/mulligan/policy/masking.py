"""Texts made comparable: addresses, paths and ids are replaced, so that no rule can match inside them."""

from __future__ import annotations

import re

_LONG = 12  # digits of an id
_HIDDEN = re.compile(
    r"""
      [a-z][a-z0-9+.-]{1,15}://[^\s"'<>]+                                    # an address
    | \b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+                           # e-mail
    | (?<![\w/<])(?:~|\.{1,2})?/(?!/)[\w.@+~%=:-]+(?:/[\w.@+~%=:-]*)*           # a path
    | \b[A-Za-z]:\\[^\s"'<>]+
    | \b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b
    | \b(?=[0-9a-f]*\d)[0-9a-f]{12,}\b
    """,
    re.IGNORECASE | re.VERBOSE,
)


def masked(text: str) -> str:
    """Word by word: most words hold nothing to hide, and looking is much cheaper than trying the pattern."""
    return " ".join([_HIDDEN.sub("<>", word) if _may_hide(word) else word for word in text.split(" ")])


def _may_hide(word: str) -> bool:
    return "/" in word or "@" in word or "\\" in word or len(word) >= _LONG


_QUOTED = re.compile(r"(?<!\w)'[^'\n]{1,80}'(?!\w)|\"[^\"\n]{1,80}\"|`[^`\n]{1,80}[`']|\\\w+")


def unquoted(text: str) -> str:
    return _QUOTED.sub("<>", text)
