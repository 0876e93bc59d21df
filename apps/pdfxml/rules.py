"""The rule pack: what the answers of the gateway and of the disk mean, and the text for owners.

The rules are data, `mulligan/failures/packs/pdfxml.toml`. The ten codes of API, job record, log and
page all come from there.
"""

from __future__ import annotations

from mulligan import Policy, pack
from pdfxml.settings import SETTINGS

PACK = pack("pdfxml")
UNKNOWN = "UNKNOWN"
BREAKER = "pdfxml/breaker"  # rule of jobs that were not sent because the breaker fails fast
BUSY = "Gateway busy, paused. Will retry automatically."

# Message of the first rule of each code. The promise of a retry is added while one is scheduled.
MESSAGES = {rule.code: rule.public for rule in reversed(PACK.rules)}

# RETRY_MAX_ATTEMPTS counts attempts, a policy counts retries.
POLICY = Policy(max_retries=SETTINGS.attempts - 1, backoff=PACK.policy.backoff)


def public_code(code: str) -> str:
    """Return one of the ten codes. Internal codes of the engine become UNKNOWN."""
    return code if code in MESSAGES else UNKNOWN


def message_for_code(code: str) -> str:
    return MESSAGES[public_code(code)]
