"""The built-in rule table: one module per subject, one rulebook per rank."""

from __future__ import annotations

import re
from functools import lru_cache

from mulligan.failures.builtin import clouds, databases, libraries, protocols, runtime, texts
from mulligan.failures.matcher import Rulebook
from mulligan.failures.rules import Rule, row

UNKNOWN = row("unknown", "UNKNOWN_ERROR", verdict="UNKNOWN_ERROR")
PROCESS_FAILED = row("process.failed", "PROCESS_FAILED", verdict="PROCESS_FAILED")


def version() -> str:
    """Return the version of the whole table, which every part of it reports."""
    return _whole_table().version


@lru_cache(maxsize=1)
def _whole_table() -> Rulebook:
    return Rulebook(RULES)


def _part(rules: tuple[Rule, ...]) -> Rulebook:
    return Rulebook(rules, get_version=version)


# One rulebook per rank. `ranking.RuleFinder.match_builtin` decides when each is tried.
STRUCTURE = _part(
    (
        *clouds.RULES,
        *protocols.SMTP_RULES,
        *databases.RULES,
        *runtime.PYTHON_RULES,
        *protocols.HTTP_RULES,
        *protocols.GRPC_RULES,
        *runtime.PROCESS_RULES,
        *libraries.RULES,
        *texts.OVERRIDE_RULES,
    )
)
SPECIFIC = _part(texts.SPECIFIC)
NORMAL = _part(texts.NORMAL)
WEAK = _part(texts.WEAK)
WEAKEST = _part(texts.WEAKEST)
TRANSIENT_SIGN = re.compile(texts.TRANSIENT_SIGN, re.IGNORECASE)
FALLBACK = _part((*runtime.PYTHON_FALLBACK_RULES, *libraries.FALLBACK_RULES))
BOOKS = (STRUCTURE, SPECIFIC, NORMAL, WEAK, FALLBACK, WEAKEST)
RULES = tuple(rule for book in BOOKS for rule in book.rules)
