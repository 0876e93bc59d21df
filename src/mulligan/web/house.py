"""What every screen needs: pictures of the database, and one way to print them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from mulligan.config import Settings
from mulligan.policy.redact import without_secrets
from mulligan.web.desk import Desk
from mulligan.web.menu import MENU
from mulligan.web.reading import Reader

T = TypeVar("T")

THEMES = ("light", "dark")


class House:
    def __init__(self, reader: Reader, settings: Settings) -> None:
        self.reader = reader
        self._database = without_secrets(settings.database_url)
        self._templates = Environment(
            loader=PackageLoader("mulligan.web"),
            autoescape=True,  # everything from a payload or an error is hostile
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    async def ask(self, work: Callable[[Desk], T]) -> T:
        return await self.reader.at_desk(work)

    def page(self, request: Request, template: str, here: str = "", status: int = 200, **values: Any) -> HTMLResponse:
        around = {
            "database": self._database,
            "root": request.scope.get("root_path", ""),
            "menu": MENU,
            "here": here,
            "theme": theme_of(request),
            "flash": None,
            "filter": "",
        }
        return HTMLResponse(self._templates.get_template(template).render({**around, **values}), status)


def theme_of(request: Request) -> str:
    """What the visitor chose; anything else is the system's choice."""
    said = request.cookies.get("mulligan_theme", "")
    return said if said in THEMES else ""
