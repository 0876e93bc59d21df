"""What a check finds: ok, warn or fail, one sentence, and what to type next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

OK, WARN, FAIL = "ok", "warn", "fail"


class Check(NamedTuple):
    status: str
    check: str
    found: str
    next: str = ""


Checks = Iterable[Check]
