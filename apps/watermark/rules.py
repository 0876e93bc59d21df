"""Retry policy of the application, and the rule pack that classifies failures of an encode."""

from __future__ import annotations

import os

from mulligan import Policy, Table, pack

PACK = pack("watermark")
MAX_RETRIES = int(os.environ.get("WATERMARK_MAX_RETRIES", "3"))
RETRIES = Policy(max_retries=MAX_RETRIES, backoff=Table([60, 300, 900]), max_losses=2)
ONCE = Policy(max_retries=0, max_losses=0)  # a failed detection is shown on its page, never retried
