"""On what ground a job was not tried again, from the sentence that says it: those of `refuse` and `decide`.

Each is known by its beginning, up to where a name or a handler's own words may come: nobody else's words decide here.
"""

from __future__ import annotations

import re
from enum import Enum, auto


class Ground(Enum):
    FINAL = auto()  # the handler said so
    OFF = auto()
    ONLY = auto()
    VERDICT = auto()
    UNKNOWN = auto()
    TOTAL = auto()
    CLASS = auto()
    RULE = auto()
    AGE = auto()


_USED = r"(?:not retried:|\d+ of \d+ retries used that)"
_SENTENCES = (
    (Ground.FINAL, r"not retried: the handler said it is final$"),
    (Ground.OFF, r"not retried: retries are switched off\b"),
    (Ground.ONLY, r"not retried: only .* may be retried \(retry\.only\)"),
    (Ground.VERDICT, r"not retried: rule \S+ says the class is \w+"),
    (Ground.UNKNOWN, r"not retried: the class is unknown and the \w+ says retry_unknown=False"),
    (Ground.AGE, r"not retried: the next try would start later than max_age\b"),
    (Ground.RULE, rf"{_USED} rule \S+ allows\b"),
    (Ground.CLASS, rf"{_USED} (?:the \w+|\S+) allows (?:none )?for class\b"),
    (Ground.TOTAL, r"(?:\d+ of \d+ retries used|not retried: the \w+ allows none)$"),
)
_GROUNDS = tuple((ground, re.compile(sentence)) for ground, sentence in _SENTENCES)


def ground_of(reason: str) -> Ground | None:
    """None: it is none of these."""
    return next((ground for ground, sentence in _GROUNDS if sentence.match(reason)), None)
