"""Insight: what many jobs came to."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fastapi import Request, Response

from mulligan.engine.insight import Insight, insight
from mulligan.policy.advice import percent
from mulligan.policy.estimate import Share
from mulligan.policy.insight import Numbers
from mulligan.policy.phrase import duration, ordinal
from mulligan.policy.sentences import MEANS
from mulligan.web.charts import Columns, columns
from mulligan.web.desk import Visited
from mulligan.web.house import House
from mulligan.web.outcomes import WINDOWS, outcomes

SPANS = {"1d": 1, "7d": 7, "30d": 30}
CELLS = 12
ATTEMPTS = 14
RATES = (
    ("retry success", "retry_success", "of jobs that were tried again"),
    ("rescue", "rescue", "of all jobs whose first attempt failed"),
    ("permanent failure", "permanent_failure", "of jobs that ended; bad input not counted"),
    ("bad input", "user_failure", "of jobs that ended, dead of their input"),
    ("unknown cause", "unknown", "of failures: no rule knows them"),
    ("by hand", "false_permanent", "of jobs refused a retry, when somebody tried all the same"),
)


class KnowledgeScreens:
    def __init__(self, house: House) -> None:
        self._house = house

    async def insight(self, request: Request, since: str = "7d", kind: str = "") -> Response:
        chosen = since if since in SPANS else "7d"

        def look(desk: Visited) -> dict[str, Any]:
            found = insight(desk.store, desk.settings, timedelta(days=SPANS[chosen]), kind or None, None)
            window = WINDOWS["24h" if chosen == "1d" else "7d"]
            with desk.store.read() as unit:
                ended = outcomes(unit, unit.now(), window, kind)
            return _insight(found) | {"kinds": desk.policies.kinds(), "ended": ended, "each": window.words}

        found = await self._house.ask(request, look, shared=True)
        return self._house.page(request, "insight.html", "insight", since=chosen, spans=list(SPANS), kind=kind, **found)


def _insight(found: Insight) -> dict[str, Any]:
    numbers = found.numbers
    days = [
        (f"{day.day:%d %b}", {"succeeded": day.succeeded, "dead": day.dead, "waiting": day.pending})
        for day in numbers.days[-60:]
    ]
    return {
        "jobs": f"{numbers.jobs:,}",
        "attempts": f"{numbers.attempts:,}",
        "empty": numbers.jobs == 0,
        "days": columns(days, ("succeeded", "dead", "waiting")),
        "rates": [(name, _share(getattr(numbers, field)), words) for name, field, words in RATES],
        "cells": _cells(numbers),
        "by_attempt": _by_attempt(numbers),
        "chances": [
            {"cls": one.cls, "attempt": ordinal(one.attempt), "percent": percent(one.chance.mean),
             "share": round(one.chance.mean * 100, 1), "trials": one.chance.trials, "means": MEANS.get(one.cls, "")}
            for one in numbers.chances if not one.code
        ],
        "wasted": [(one.cls, f"{one.failures:,}", duration(round(one.seconds, 3)), f"{one.cost:g}" if one.cost else "–")
                   for one in numbers.wasted],
        "retry_cost": None if numbers.retry_cost_per_job is None else f"{numbers.retry_cost_per_job:.4g}",
        "half": _time(numbers.time_to_success.p50),
        "most": _time(numbers.time_to_success.p95),
        "amplification": None if numbers.amplification is None else f"{numbers.amplification:.2f}",
        "advice": [one.text for one in found.advice],
        "notes": found.notes,
    }  # fmt: skip


def _by_attempt(numbers: Numbers) -> Columns:
    """Of all second, third, … attempts: how many succeeded."""
    sums: dict[int, list[int]] = {}
    for one in numbers.cells:
        good, whole = sums.setdefault(one.attempt, [0, 0])
        sums[one.attempt] = [good + one.success.part, whole + one.success.whole]
    steps = [
        (f"{ordinal(attempt)} attempt", {"succeeded": good, "dead": whole - good})
        for attempt, (good, whole) in sorted(sums.items())[:ATTEMPTS]
    ]
    return columns(steps, ("succeeded", "dead"))


def _cells(numbers: Numbers) -> list[dict[str, Any]]:
    commonest = sorted(numbers.cells, key=lambda one: -one.success.whole)[:CELLS]
    return [
        {"code": one.code, "cls": one.cls, "dependency": one.dependency, "attempt": ordinal(one.attempt),
         **_share(one.success)}
        for one in sorted(commonest, key=lambda one: one[:4])
    ]  # fmt: skip


def _share(share: Share) -> dict[str, Any]:
    return {
        "percent": percent(share.value),
        "share": round((share.value or 0.0) * 100, 1),
        "counts": f"{share.part:,} of {share.whole:,}" if share.whole else "no data",
        "sure": f"{share.low * 100:.0f}–{share.high * 100:.0f} %" if share.whole else "",
    }


def _time(seconds: float | None) -> str:
    return "never did, so far" if seconds is None else f"within {duration(seconds)}"
