"""Sentences both stores say."""

from __future__ import annotations

from mulligan.errors import UniqueTaken


def taken(job_id: str, detail: str) -> UniqueTaken:
    return UniqueTaken(f"another job holds the unique key of job {job_id} now ({detail})")
