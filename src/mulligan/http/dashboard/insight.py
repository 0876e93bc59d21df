"""Insight: what many jobs came to."""

from __future__ import annotations

import platform
from datetime import timedelta
from typing import Any

from fastapi import Request, Response

from mulligan._version import __version__
from mulligan.access.keys import Role
from mulligan.core.format import duration, ordinal
from mulligan.core.statistics import Share
from mulligan.doctor import FAIL, OK, WARN, Check, examine, in_force
from mulligan.http.dashboard.charts import WINDOWS, ColumnChart, columns, outcomes
from mulligan.http.dashboard.renderer import Renderer
from mulligan.http.dashboard.sessions import NotAllowed
from mulligan.http.dashboard.view_models import Badge
from mulligan.http.services import CallerServices
from mulligan.insight.rules import Numbers, percent
from mulligan.insight.service import Insight, insight
from mulligan.jobs.sentences import MEANS

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


class InsightScreens:
    def __init__(self, house: Renderer) -> None:
        self._house = house

    async def insight(self, request: Request, since: str = "7d", kind: str = "") -> Response:
        chosen = since if since in SPANS else "7d"

        def look(desk: CallerServices) -> dict[str, Any]:
            found = insight(
                desk.store, desk.settings, timedelta(days=SPANS[chosen]), kind or None, None
            )
            window = WINDOWS["24h" if chosen == "1d" else "7d"]
            with desk.store.read() as unit:
                ended = outcomes(unit, unit.now(), window, kind)
            return _insight(found) | {
                "kinds": desk.policies.kinds(),
                "ended": ended,
                "each": window.words,
            }

        found = await self._house.ask(request, look, shared=True)
        return self._house.page(
            request, "insight.html", "insight", since=chosen, spans=list(SPANS), kind=kind, **found
        )


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
            {
                "cls": one.cls,
                "attempt": ordinal(one.attempt),
                "percent": percent(one.chance.mean),
                "share": round(one.chance.mean * 100, 1),
                "trials": one.chance.trials,
                "means": MEANS.get(one.cls, ""),
            }
            for one in numbers.chances
            if not one.code
        ],
        "wasted": [
            (
                one.cls,
                f"{one.failures:,}",
                duration(round(one.seconds, 3)),
                f"{one.cost:g}" if one.cost else "–",
            )
            for one in numbers.wasted
        ],
        "retry_cost": None
        if numbers.retry_cost_per_job is None
        else f"{numbers.retry_cost_per_job:.4g}",
        "half": _time(numbers.time_to_success.p50),
        "most": _time(numbers.time_to_success.p95),
        "amplification": None if numbers.amplification is None else f"{numbers.amplification:.2f}",
        "advice": [one.text for one in found.advice],
        "notes": found.notes,
    }


def _by_attempt(numbers: Numbers) -> ColumnChart:
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
        {
            "code": one.code,
            "cls": one.cls,
            "dependency": one.dependency,
            "attempt": ordinal(one.attempt),
            **_share(one.success),
        }
        for one in sorted(commonest, key=lambda one: one[:4])
    ]


def _share(share: Share) -> dict[str, Any]:
    return {
        "percent": percent(share.value),
        "share": round((share.value or 0.0) * 100, 1),
        "counts": f"{share.part:,} of {share.whole:,}" if share.whole else "no data",
        "sure": f"{share.low * 100:.0f}–{share.high * 100:.0f} %" if share.whole else "",
    }


def _time(seconds: float | None) -> str:
    return "never did, so far" if seconds is None else f"within {duration(seconds)}"


# Every setting with its origin, what the database says of itself, and what can go wrong.

BADGES = {
    OK: Badge("✓", "ok", "good"),
    WARN: Badge("!", "look", "warn"),
    FAIL: Badge("✕", "fails", "bad"),
}
ORDER = (FAIL, WARN, OK)


class DoctorScreen:
    def __init__(self, house: Renderer) -> None:
        self._house = house

    async def show(self, request: Request) -> Response:
        def look(desk: CallerServices) -> dict[str, Any]:
            if not desk.visitor.role.may(Role.ADMIN):
                message = f"the configuration is for keys of role {Role.ADMIN}"
                raise NotAllowed(message)
            facts, checks = examine(desk.settings)
            here = {
                "mulligan": __version__,
                "python": platform.python_version(),
                "system": platform.platform(),
            }
            ranked = sorted(checks, key=lambda check: ORDER.index(check.status))
            return {
                "facts": here | facts,
                "checks": [_check(one) for one in ranked],
                "settings": in_force(desk.settings),
            }

        return self._house.page(
            request, "doctor.html", "doctor", **await self._house.ask(request, look, shared=True)
        )


def _check(check: Check) -> dict[str, Any]:
    return {**check._asdict(), "badge": BADGES[check.status]}
