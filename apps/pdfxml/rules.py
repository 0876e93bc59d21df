"""The rule pack: what the answers of the gateway and of the disk mean, and the text for owners.

The rules are data, `mulligan/failures/packs/pdfxml.toml`. The ten codes of API, job record, log,
metrics and page all come from there: its last rules give every other failure the code UNKNOWN.
"""

from __future__ import annotations

from dataclasses import replace

from mulligan import Policy, pack
from mulligan.apps.pdfxml.settings import SETTINGS

PACK = pack("pdfxml")
UNKNOWN = "UNKNOWN"
BREAKER = "pdfxml/breaker"  # rule of jobs that were not sent because the breaker fails fast
BUSY = "Gateway busy, paused. Will retry automatically."

# Operators find the steps for a code with each failure, on the dashboard and the command line.
RULES = [replace(rule, runbook=f"{SETTINGS.public_url}/runbook#{rule.code}") for rule in PACK.rules]

# Message of the first rule of each code. The promise of a retry is added while one is scheduled.
MESSAGES = {rule.code: rule.public for rule in reversed(PACK.rules)}

# RETRY_MAX_ATTEMPTS counts attempts, a policy counts retries.
POLICY = Policy(max_retries=SETTINGS.attempts - 1, backoff=PACK.policy.backoff)


def message_for_code(code: str) -> str:
    return MESSAGES.get(code, MESSAGES[UNKNOWN])
