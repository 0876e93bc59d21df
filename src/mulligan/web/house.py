"""What every screen needs: who visits, pictures of the database, and one way to print them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from mulligan.config import Settings
from mulligan.engine.keys import Role
from mulligan.engine.sessions import Visitor
from mulligan.event import EventType
from mulligan.policy.redact import without_secrets
from mulligan.store.urls import shown_url
from mulligan.web import visits
from mulligan.web.desk import Visited
from mulligan.web.menu import MENU
from mulligan.web.reading import Reader
from mulligan.web.visits import Flash, NotAllowed, NotSignedIn

T = TypeVar("T")

EVENTS = " ".join(EventType)  # what a page may hear
THEMES = ("light", "dark")
LOOKED_AT = {"overview.html", "events.html", "message.html"}  # read again without JavaScript: nobody types there


class House:
    def __init__(self, reader: Reader, settings: Settings) -> None:
        self.reader = reader
        self._database = without_secrets(shown_url(settings.database_url))
        self._templates = Environment(
            loader=PackageLoader("mulligan.web"),
            autoescape=True,  # everything from a payload or an error is hostile
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    # -- who --------------------------------------------------------------------------------------
    async def visitor(self, request: Request) -> Visitor:
        text = visits.session_of(request)
        found = await self.reader.with_sessions(lambda sessions: sessions.known(text)) if text else None
        if found is None:
            raise NotSignedIn
        request.state.visitor = found
        return found

    # -- look and do ------------------------------------------------------------------------------
    async def ask(self, request: Request, work: Callable[[Visited], T], *, shared: bool = False) -> T:
        """`shared`: of all owners, so one owner's key is not enough."""
        visitor = await self.visitor(request)
        _check(visitor, Role.VIEWER, shared=shared)
        return await self.reader.at_desk(work, visitor)

    async def act(
        self, request: Request, work: Callable[[Visited, dict[str, str]], T], role: Role, *, shared: bool = False
    ) -> T:
        """What a form asks for, by somebody who may, from one of our own pages."""
        visits.check_origin(request)
        said = await visits.form_of(request)
        visitor = await self.visitor(request)
        visits.check_mark(visitor, said)
        _check(visitor, role, shared=shared)
        return await self.reader.at_desk(lambda desk: work(desk, said), visitor)

    # -- print ------------------------------------------------------------------------------------
    def page(self, request: Request, template: str, here: str = "", status: int = 200, **values: Any) -> HTMLResponse:
        visitor: Visitor | None = getattr(request.state, "visitor", None)
        flash = visits.flash_of(request, visitor)
        around = {
            "database": self._database if visitor is not None else "",
            "root": root_of(request),
            "menu": MENU if visitor is not None else (),
            "here": here,
            "theme": theme_of(request),
            "flash": flash,
            "filter": "",
            "fresh": template in LOOKED_AT,
            "still": False,  # an answer to a form: to read the address again would be another page
            "visitor": visitor,
            "events": EVENTS,
            "may_act": visitor is not None and visitor.role.may(Role.OPERATOR),
            "may_share": visitor is not None and visitor.role.may(Role.OPERATOR) and visitor.owner is None,
        }
        response = HTMLResponse(self._templates.get_template(template).render({**around, **values}), status)
        if flash is not None and "x-mulligan-live" not in request.headers:
            visits.drop_flash(request, response)
        return response

    def back(self, request: Request, path: str, words: str, tone: str = "") -> Response:
        """After a form: to a page that can be reloaded, with what was done at its top."""
        response = RedirectResponse(f"{root_of(request)}{path}", 303)
        visitor: Visitor | None = getattr(request.state, "visitor", None)
        if visitor is not None:
            visits.set_flash(request, response, visitor, Flash(words, tone))
        return response


def _check(visitor: Visitor, role: Role, *, shared: bool) -> None:
    if not visitor.role.may(role):
        message = f"this needs a key of role {role}; yours is {visitor.role}"
        raise NotAllowed(message)
    if shared and visitor.owner is not None:
        message = "this is shared by all owners and needs a key of scope *"
        raise NotAllowed(message)


def root_of(request: Request) -> str:
    """The prefix under which the dashboard is mounted."""
    return str(request.scope.get("root_path", ""))


def theme_of(request: Request) -> str:
    """What the visitor chose; anything else is the system's choice."""
    said = request.cookies.get("mulligan_theme", "")
    return said if said in THEMES else ""
