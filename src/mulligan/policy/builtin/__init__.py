"""The built-in table: one tuple of rules per subject, filed once."""

from __future__ import annotations

import re

from mulligan.policy.builtin import clouds, databases, http, mail, phrases, process, python, rpc
from mulligan.policy.builtin.row import row
from mulligan.policy.rulebook import Rulebook

UNKNOWN = row("unknown", "UNKNOWN_ERROR", verdict="UNKNOWN_ERROR")
PROCESS_FAILED = row("process.failed", "PROCESS_FAILED", verdict="PROCESS_FAILED")

STRUCTURE = Rulebook(
    (*clouds.RULES, *mail.RULES, *databases.RULES, *python.RULES, *http.RULES, *rpc.RULES, *process.RULES)
)
SPECIFIC = Rulebook(phrases.SPECIFIC)
NORMAL = Rulebook(phrases.NORMAL)
WEAK = Rulebook(phrases.WEAK)
FAINT = Rulebook(phrases.FAINT)
HOPE = re.compile(phrases.HOPE, re.IGNORECASE)
LAST = Rulebook(python.LAST)
BOOKS = (STRUCTURE, SPECIFIC, NORMAL, WEAK, LAST, FAINT)
RULES = tuple(rule for book in BOOKS for rule in book.rules)
