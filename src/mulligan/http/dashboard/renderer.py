"""What every screen needs: who visits, pictures of the database, and one way to print them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from mulligan.access.keys import Role, Sessions, Visitor, hash_of
from mulligan.config import Settings
from mulligan.core.errors import NotFound, Refused
from mulligan.core.event import Event, EventType
from mulligan.core.ids import LENGTH
from mulligan.core.job import AttemptRow, Job, JobRow, Micros
from mulligan.events.service import concerns
from mulligan.failures.redact import without_secrets
from mulligan.http.api.event_hub import Hub, Listener
from mulligan.http.api.event_stream import EventStream, Stream
from mulligan.http.dashboard import sessions as visits
from mulligan.http.dashboard.sessions import Flash, NotAllowed, NotSignedIn, session_of
from mulligan.http.services import CallerServices, Opening, Threads
from mulligan.storage.url import shown_url

# The screens there are, in the order in which one looks for them.


class Screen(NamedTuple):
    name: str
    path: str
    title: str
    icon: str


MENU: tuple[tuple[str, tuple[Screen, ...]], ...] = (
    (
        "Now",
        (
            Screen("overview", "/", "Overview", "◉"),
            Screen("failures", "/failures", "Failures", "✕"),
            Screen("jobs", "/jobs", "Jobs", "≣"),
            Screen("batches", "/batches", "Batches", "▤"),
        ),
    ),
    (
        "Machinery",
        (
            Screen("queues", "/queues", "Queues and workers", "⇶"),
            Screen("dependencies", "/dependencies", "Dependencies", "⊗"),
            Screen("operations", "/operations", "Operations", "⚙"),
            Screen("schedules", "/schedules", "Schedules", "◷"),
        ),
    ),
    (
        "Knowledge",
        (
            Screen("alerts", "/alerts", "Alerts", "▲"),
            Screen("notifications", "/notifications", "Notifications", "✉"),
            Screen("insight", "/insight", "Insight", "▥"),
            Screen("policies", "/policies", "Policies", "↻"),
            Screen("events", "/events", "Events", "∿"),
            Screen("audit", "/audit", "Audit", "✎"),
            Screen("doctor", "/doctor", "Doctor", "✚"),
        ),
    ),
)


# What every screen needs: who visits, pictures of the database, and one way to print them.

T = TypeVar("T")

EVENTS = " ".join(EventType)  # what a page may hear
THEMES = ("light", "dark")
LOOKED_AT = {
    "overview.html",
    "events.html",
    "message.html",
}  # read again without JavaScript: nobody types there


class Renderer:
    def __init__(self, reader: Reader, settings: Settings) -> None:
        self.reader = reader
        self._database = without_secrets(shown_url(settings.database_url))
        self._templates = Environment(
            loader=PackageLoader("mulligan.http"),
            autoescape=True,  # everything from a payload or an error is hostile
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    # -- who --------------------------------------------------------------------------------------
    async def visitor(self, request: Request) -> Visitor:
        text = visits.session_of(request)
        found = (
            await self.reader.with_sessions(lambda sessions: sessions.known(text)) if text else None
        )
        if found is None:
            raise NotSignedIn
        request.state.visitor = found
        return found

    # -- look and do ------------------------------------------------------------------------------
    async def ask(
        self, request: Request, work: Callable[[CallerServices], T], *, shared: bool = False
    ) -> T:
        """`shared`: of all owners, so one owner's key is not enough."""
        visitor = await self.visitor(request)
        _check(visitor, Role.VIEWER, shared=shared)
        return await self.reader.at_desk(work, visitor)

    async def act(
        self,
        request: Request,
        work: Callable[[CallerServices, dict[str, str]], T],
        role: Role,
        *,
        shared: bool = False,
    ) -> T:
        """What a form asks for, by somebody who may, from one of our own pages."""
        visits.check_origin(request)
        said = await visits.form_of(request)
        visitor = await self.visitor(request)
        visits.check_mark(visitor, said)
        _check(visitor, role, shared=shared)
        return await self.reader.at_desk(lambda desk: work(desk, said), visitor)

    # -- print ------------------------------------------------------------------------------------
    def page(
        self, request: Request, template: str, here: str = "", status: int = 200, **values: Any
    ) -> HTMLResponse:
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
            "may_share": visitor is not None
            and visitor.role.may(Role.OPERATOR)
            and visitor.owner is None,
        }
        response = HTMLResponse(
            self._templates.get_template(template).render({**around, **values}), status
        )
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


# The database as screens ask it: on threads, and in the name of who visits.

COUNT_CAP = 10_000
PAGE = 50


class Shown(NamedTuple):
    job: Job
    note: str  # what its handler last said about its progress


class Story(NamedTuple):
    now: Micros
    row: JobRow
    job: Job
    attempts: list[AttemptRow]
    events: list[Event]


class Reader:
    def __init__(self, settings: Settings, opening: Opening) -> None:
        self._settings = settings
        self._opening = opening
        self._threads = Threads("mulligan-web")

    async def at_desk(self, work: Callable[[CallerServices], T], visitor: Visitor) -> T:
        return await self._threads.ask(
            lambda: work(CallerServices(self._opening(), self._settings, visitor))
        )

    async def with_sessions(self, work: Callable[[Sessions], T]) -> T:
        return await self._threads.ask(lambda: work(Sessions(self._opening)))

    def close(self) -> None:
        self._threads.close()


def checked_words(words: str, before: str = "") -> str:
    if not f"{words}{before}".isprintable():
        message = "a filter holds printable characters only"
        raise Refused(message)
    return words.strip()


def story_of(desk: CallerServices, job_id: str) -> Story:
    """Somebody else's is answered like one that does not exist."""
    if len(job_id) != LENGTH or not job_id.isalnum():
        raise NotFound(_no_such(job_id))
    job = desk.jobs.get(job_id, owner=desk.owner)
    with desk.store.read() as unit:
        row = unit.get(job_id)
        if row is None:
            raise NotFound(_no_such(job_id))
        return Story(unit.now(), row, job, unit.attempts(job_id), unit.story(job_id))


def _no_such(job_id: str) -> str:
    return f"no job {job_id!r:.80}"


# What a page listens to: the events that concern its visitor. The page then reads itself again.


class LiveStream:
    def __init__(self, house: Renderer, hub: Hub) -> None:
        self._house = house
        self._hub = hub

    async def listen(self, request: Request) -> Response:
        visitor = await self._house.visitor(request)
        listener = Listener(
            visitor.key_id,
            visitor.owner,
            concerns(visitor.owner),
            session=hash_of(session_of(request)),
        )
        stream = Stream(self._hub, listener, None, private=False)
        self._hub.enter(listener)
        return EventStream(self._hub, listener, stream)
