"""The rule pack: what each answer of the gateway and of the disk means, and what people read of it.

The rows are data, `mulligan/failures/packs/pdfxml.toml`; the ten codes of API, job record, log and page all come from there.
"""

from __future__ import annotations

from mulligan import Policy, pack
from pdfxml.settings import SETTINGS

PACK = pack("pdfxml")
UNKNOWN = "UNKNOWN"
BREAKER = "pdfxml/breaker"  # the rule for jobs that were never sent, because the breaker is open and fails fast
BUSY = "Gateway busy, paused. Will retry automatically."

# By code, the sentence of its first row. None of them promises a retry: that is added while there is one to come.
LINES = {rule.code: rule.public for rule in reversed(PACK.rules)}

# RETRY_MAX_ATTEMPTS counts attempts, a policy counts retries.
POLICY = Policy(max_retries=SETTINGS.attempts - 1, backoff=PACK.policy.backoff)


def known(code: str) -> str:
    """One of the ten; whatever else the engine may say of a job is none of its owner's business."""
    return code if code in LINES else UNKNOWN


def line(code: str) -> str:
    return LINES[known(code)]
