"""How attempts ended over time, from what was counted minute by minute."""

from __future__ import annotations

import json
from collections import Counter
from typing import NamedTuple

from mulligan.job import Micros
from mulligan.policy.phrase import duration, moment
from mulligan.store.base import Unit
from mulligan.store.counting import MINUTE
from mulligan.web.charts import Columns, columns

TONES = {"succeeded": "succeeded", "retry": "retried", "lost": "retried", "dead": "dead"}
ORDER = ("succeeded", "retried", "dead")


class Window(NamedTuple):
    steps: int
    minutes: int  # of each

    @property
    def words(self) -> str:
        return f"each column is {duration(self.minutes * 60)}"


WINDOWS = {"1h": Window(60, 1), "24h": Window(96, 15), "7d": Window(84, 120)}


def outcomes(unit: Unit, now: Micros, window: Window, kind: str = "") -> Columns:
    width = window.minutes
    last = now // MINUTE // width
    begins = last - window.steps + 1
    counts: list[Counter[str]] = [Counter() for _ in range(window.steps)]
    for row in unit.stats(["verdicts"], begins * width * MINUTE):
        labels = json.loads(row.labels)
        tone, place = TONES.get(labels["outcome"]), row.minute // width - begins
        if tone is not None and 0 <= place < window.steps and kind in ("", labels.get("kind")):
            counts[place][tone] += row.n
    names = [_name((begins + place) * width, now) for place in range(window.steps)]
    return columns(list(zip(names, counts, strict=True)), ORDER)


def _name(minute: int, now: Micros) -> str:
    at = minute * MINUTE
    said, today = moment(at)[:16], moment(now)[:10]
    return said[11:] if said.startswith(today) else said
