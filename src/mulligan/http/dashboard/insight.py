"""Screens of statistics (insight) and of the configuration check (doctor)."""

from __future__ import annotations

import platform
from collections import Counter
from datetime import timedelta
from typing import Any

from fastapi import Request, Response

from mulligan._version import __version__
from mulligan.access.keys import Role
from mulligan.core.durations import SECOND, to_micros
from mulligan.core.format import format_cost, format_duration, format_ordinal
from mulligan.core.statistics import Share
from mulligan.doctor import FAIL, OK, WARN, Check, effective_settings, format_setting, run_checks
from mulligan.http.dashboard.charts import (
    WINDOWS,
    ColumnChart,
    column_chart,
    load_outcomes,
    release_marks,
)
from mulligan.http.dashboard.renderer import MenuEntry, Renderer, screen
from mulligan.http.dashboard.sessions import NotAllowed
from mulligan.http.dashboard.view_models import Badge
from mulligan.http.services import VisitorServices
from mulligan.insight.rules import Numbers, format_percent
from mulligan.insight.service import Insight, load_insight
from mulligan.jobs.sentences import CLASS_MEANINGS
from mulligan.storage.base import Transaction

# --- Insight ---

PERIODS = {"1d": 1, "7d": 7, "30d": 30}  # days
DAY = 86_400 * SECOND
MAX_CELLS = 12
MAX_ATTEMPTS = 14
DAY_TONES = ("succeeded", "dead", "waiting")
RATES = (
    ("retry success", "retry_success", "of jobs that were retried"),
    ("rescue", "rescue", "of all jobs whose first attempt failed"),
    ("permanent failure", "permanent_failure", "of ended jobs, without invalid input"),
    ("invalid input", "user_failure", "of ended jobs, dead because of their input"),
    ("unknown cause", "unknown", "of failures, of class unknown"),
    ("manual retry", "false_permanent", "of jobs that were refused a retry and retried manually"),
)


class InsightScreens:
    """The screen of job statistics."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen("/insight", MenuEntry("More", 5, "insight", "Insight", "chart-line", shared=True))
    async def insight(self, request: Request, since: str = "7d", kind: str = "") -> Response:
        chosen = since if since in PERIODS else "7d"

        def load(services: VisitorServices) -> dict[str, Any]:
            period = timedelta(days=PERIODS[chosen])
            found = load_insight(services.store, services.settings, period, kind or None, None)
            window_name = "24h" if chosen == "1d" else "7d"
            window = WINDOWS[window_name]
            with services.store.read() as tx:
                outcomes = load_outcomes(tx, tx.now(), window, kind)
                days = _by_day(tx, found.numbers, PERIODS[chosen])
            return {
                **_context(found),
                "days": days,
                "kinds": services.policy.kinds(),
                "outcomes": outcomes,
                "window_label": window.label,
            }

        values = await self._renderer.read(request, load, shared=True)
        return self._renderer.page(
            request,
            "insight.html",
            "insight",
            since=chosen,
            periods=list(PERIODS),
            kind=kind,
            **values,
        )


def _context(found: Insight) -> dict[str, Any]:
    numbers = found.numbers
    retry_cost = amplification = None
    if numbers.retry_cost_per_job is not None:
        retry_cost = format_cost(numbers.retry_cost_per_job)
    if numbers.amplification is not None:
        amplification = f"{numbers.amplification:.2f}"
    return {
        "jobs": f"{numbers.jobs:,}",
        "attempts": f"{numbers.attempts:,}",
        "empty": numbers.jobs == 0,
        "rates": [(name, _share(getattr(numbers, field)), base) for name, field, base in RATES],
        "cells": _cells(numbers),
        "by_attempt": _by_attempt(numbers),
        "chances": _chances(numbers),
        "wasted": _wasted(numbers),
        "retry_cost": retry_cost,
        "median": _time_to_success(numbers.time_to_success.p50),
        "percentile_95": _time_to_success(numbers.time_to_success.p95),
        "amplification": amplification,
        "advice": [advice.text for advice in found.advice],
        "notes": found.notes,
    }


def _by_day(tx: Transaction, numbers: Numbers, days: int) -> ColumnChart:
    """Chart the jobs of each day of the period, also of days without jobs."""
    if not numbers.days:
        return column_chart([], DAY_TONES)
    found = {day.day: day for day in numbers.days}
    first = numbers.days[-1].day - timedelta(days=days)  # a period touches one more date
    steps = []
    for place in range(days + 1):
        day = first + timedelta(days=place)
        counts = {}
        if day in found:
            row = found[day]
            counts = {"succeeded": row.succeeded, "dead": row.dead, "waiting": row.pending}
        steps.append((f"{day:%d %b}", counts))
    return column_chart(steps, DAY_TONES, release_marks(tx, to_micros(first), DAY))


def _by_attempt(numbers: Numbers) -> ColumnChart:
    """Chart how many second, third, … attempts succeeded."""
    succeeded: Counter[int] = Counter()
    total: Counter[int] = Counter()
    for cell in numbers.cells:
        succeeded[cell.attempt] += cell.success.part
        total[cell.attempt] += cell.success.whole
    steps = []
    for attempt in sorted(total)[:MAX_ATTEMPTS]:
        good = succeeded[attempt]
        counts = {"succeeded": good, "dead": total[attempt] - good}
        steps.append((format_ordinal(attempt), counts))
    return column_chart(steps, ("succeeded", "dead"))


def _cells(numbers: Numbers) -> list[dict[str, Any]]:
    """Return the most frequent combinations of failure and attempt."""
    frequent = sorted(numbers.cells, key=lambda cell: -cell.success.whole)[:MAX_CELLS]
    return [
        {
            "code": cell.code,
            "cls": cell.cls,
            "dependency": cell.dependency,
            "attempt": format_ordinal(cell.attempt),
            **_share(cell.success),
        }
        for cell in sorted(frequent, key=lambda cell: cell[:4])
    ]


def _chances(numbers: Numbers) -> list[dict[str, Any]]:
    """Return the chance of the next attempt by class."""
    return [
        {
            "cls": chance.cls,
            "attempt": format_ordinal(chance.attempt),
            "percent": format_percent(chance.chance.mean),
            "share": round(chance.chance.mean * 100, 1),
            "trials": chance.chance.trials,
            "means": CLASS_MEANINGS.get(chance.cls, ""),
        }
        for chance in numbers.chances
        if not chance.code
    ]


def _wasted(numbers: Numbers) -> list[tuple[str, str, str, str]]:
    """Return what failed attempts took: class, failures, time, cost."""
    rows = []
    for waste in numbers.wasted:
        time = format_duration(round(waste.seconds, 3))
        cost = format_cost(waste.cost) if waste.cost else "–"
        rows.append((waste.cls, f"{waste.failures:,}", time, cost))
    return rows


def _share(share: Share) -> dict[str, Any]:
    if not share.whole:
        return {
            "percent": format_percent(share.value),
            "share": round((share.value or 0.0) * 100, 1),
            "counts": "no data",
            "range": "",
        }
    return {
        "percent": format_percent(share.value),
        "share": round((share.value or 0.0) * 100, 1),
        "counts": f"{share.part:,} of {share.whole:,}",
        "range": f"{share.low * 100:.0f}–{share.high * 100:.0f} %",
    }


def _time_to_success(seconds: float | None) -> str:
    return "not yet" if seconds is None else f"within {format_duration(seconds)}"


# --- Doctor ---

CHECK_BADGES = {
    OK: Badge("check", "ok", "good"),
    WARN: Badge("triangle-alert", "warning", "warn"),
    FAIL: Badge("x", "failed", "bad"),
}
DEFAULT_ORIGIN = "default"
ORDER = (FAIL, WARN, OK)


class DoctorScreen:
    """The screen of checks and settings."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    @screen("/doctor", MenuEntry("More", 9, "doctor", "Doctor", "stethoscope", shared=True))
    async def show(self, request: Request) -> Response:
        def load(services: VisitorServices) -> dict[str, Any]:
            if not services.visitor.role.includes(Role.ADMIN):
                message = f"the configuration needs a key of role {Role.ADMIN}"
                raise NotAllowed(message)
            facts, checks = run_checks(services.settings)
            versions = {
                "mulligan": __version__,
                "python": platform.python_version(),
                "system": platform.platform(),
            }
            settings = [
                {**setting, "value": format_setting(setting)}
                for setting in effective_settings(services.settings)
            ]
            ranked = sorted(checks, key=lambda check: ORDER.index(check.status))
            return {
                "facts": versions | facts,
                "checks": [_check(check) for check in ranked],
                "changed": [one for one in settings if one["origin"] != DEFAULT_ORIGIN],
                "defaults": [one for one in settings if one["origin"] == DEFAULT_ORIGIN],
            }

        values = await self._renderer.read(request, load, shared=True)
        return self._renderer.page(request, "doctor.html", "doctor", **values)


def _check(check: Check) -> dict[str, Any]:
    return {**check._asdict(), "badge": CHECK_BADGES[check.status]}
