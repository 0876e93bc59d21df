"""Retries and time limits of the application; the rule pack that classifies its failures."""

from __future__ import annotations

import os

from mulligan import Policy, Table, pack

PACK = pack("watermark")
MAX_RETRIES = int(os.environ.get("WATERMARK_MAX_RETRIES", "3"))
RETRIES = Policy(max_retries=MAX_RETRIES, backoff=Table([60, 300, 900]), max_losses=2)
ONCE = Policy(max_retries=0, max_losses=0)  # a failed detection is shown on its page, never retried

HALF_AN_HOUR = 1800
# An encode may take as long as it makes progress: without a new frame for so long it is stuck.
STALL_SECONDS = int(os.environ.get("WATERMARK_STALL", HALF_AN_HOUR))
TIME_LIMIT = int(os.environ.get("WATERMARK_TIME_LIMIT", 48 * HALF_AN_HOUR))
