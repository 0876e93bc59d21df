"""Every setting with its origin, what the database says of itself, and what can go wrong."""

from __future__ import annotations

import platform
from typing import Any

from fastapi import Request, Response

from mulligan._version import __version__
from mulligan.checks import FAIL, OK, WARN, Check, examine, in_force
from mulligan.engine.keys import Role
from mulligan.web.desk import Visited
from mulligan.web.house import House
from mulligan.web.present import Badge
from mulligan.web.visits import NotAllowed

BADGES = {OK: Badge("✓", "ok", "good"), WARN: Badge("!", "look", "warn"), FAIL: Badge("✕", "fails", "bad")}
ORDER = (FAIL, WARN, OK)


class DoctorScreen:
    def __init__(self, house: House) -> None:
        self._house = house

    async def show(self, request: Request) -> Response:
        def look(desk: Visited) -> dict[str, Any]:
            if not desk.visitor.role.may(Role.ADMIN):
                message = f"the configuration is for keys of role {Role.ADMIN}"
                raise NotAllowed(message)
            facts, checks = examine(desk.settings)
            here = {"mulligan": __version__, "python": platform.python_version(), "system": platform.platform()}
            ranked = sorted(checks, key=lambda check: ORDER.index(check.status))
            return {
                "facts": here | facts,
                "checks": [_check(one) for one in ranked],
                "settings": in_force(desk.settings),
            }

        return self._house.page(request, "doctor.html", "doctor", **await self._house.ask(request, look, shared=True))


def _check(check: Check) -> dict[str, Any]:
    return {**check._asdict(), "badge": BADGES[check.status]}
