"""Sentences both stores say, and text neither takes."""

from __future__ import annotations

import re
from typing import Any

from mulligan.errors import UniqueRace, UniqueTaken

_UNFIT = re.compile("[\x00\ud800-\udfff]")


def taken(job_id: str, detail: str) -> UniqueTaken:
    return UniqueTaken(f"another job holds the unique key of job {job_id} now ({detail})")


def unique_race(key: str | None) -> UniqueRace:
    return UniqueRace(
        f"unique key {key!r} is held by a job this transaction cannot see; "
        "enqueue in a READ COMMITTED transaction, or retry the whole transaction"
    )


def fit(value: Any) -> Any:
    """A parameter without what no database takes as text: NUL and lone surrogates."""
    if isinstance(value, str):
        return _UNFIT.sub("\ufffd", value)
    return [fit(one) for one in value] if isinstance(value, list) else value
