"""The built-in table: one tuple of rules per subject, filed once."""

from __future__ import annotations

import re
from functools import lru_cache

from mulligan.failures.builtin import clouds, databases, libraries
from mulligan.failures.builtin import protocols as http
from mulligan.failures.builtin import protocols as mail
from mulligan.failures.builtin import protocols as rpc
from mulligan.failures.builtin import runtime as process
from mulligan.failures.builtin import runtime as python
from mulligan.failures.builtin import texts as phrases
from mulligan.failures.builtin import texts as turned
from mulligan.failures.matcher import Rulebook
from mulligan.failures.rules import Rule, row

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
        *mail.SMTP_RULES,
        *databases.RULES,
        *python.PYTHON_RULES,
        *http.HTTP_RULES,
        *rpc.GRPC_RULES,
        *process.PROCESS_RULES,
        *libraries.RULES,
        *turned.OVERRIDE_RULES,
    )
)
SPECIFIC = _part(phrases.SPECIFIC)
NORMAL = _part(phrases.NORMAL)
WEAK = _part(phrases.WEAK)
FAINT = _part(phrases.FAINT)
HOPE = re.compile(phrases.HOPE, re.IGNORECASE)
LAST = _part((*python.PYTHON_LAST, *libraries.LAST))
BOOKS = (STRUCTURE, SPECIFIC, NORMAL, WEAK, LAST, FAINT)
RULES = tuple(rule for book in BOOKS for rule in book.rules)
