"""The built-in table: one tuple of rules per subject, filed once."""

from __future__ import annotations

import re
from functools import lru_cache

from mulligan.policy.builtin import clouds, databases, http, libraries, mail, phrases, process, python, rpc, turned
from mulligan.policy.builtin.row import row
from mulligan.policy.rule import Rule
from mulligan.policy.rulebook import Rulebook

UNKNOWN = row("unknown", "UNKNOWN_ERROR", verdict="UNKNOWN_ERROR")
PROCESS_FAILED = row("process.failed", "PROCESS_FAILED", verdict="PROCESS_FAILED")


def version() -> str:
    """The whole table has one name, whichever part of it speaks."""
    return _whole().version


@lru_cache(maxsize=1)
def _whole() -> Rulebook:
    return Rulebook(RULES)


def _part(rules: tuple[Rule, ...]) -> Rulebook:
    return Rulebook(rules, part_of=version)


STRUCTURE = _part(
    (
        *clouds.RULES,
        *mail.RULES,
        *databases.RULES,
        *python.RULES,
        *http.RULES,
        *rpc.RULES,
        *process.RULES,
        *libraries.RULES,
        *turned.RULES,
    )
)
SPECIFIC = _part(phrases.SPECIFIC)
NORMAL = _part(phrases.NORMAL)
WEAK = _part(phrases.WEAK)
FAINT = _part(phrases.FAINT)
HOPE = re.compile(phrases.HOPE, re.IGNORECASE)
LAST = _part((*python.LAST, *libraries.LAST))
BOOKS = (STRUCTURE, SPECIFIC, NORMAL, WEAK, LAST, FAINT)
RULES = tuple(rule for book in BOOKS for rule in book.rules)
