"""The menu, access checks, template rendering and database access of all dashboard screens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mulligan.access.keys import Role, Sessions, Visitor, hash_token
from mulligan.app.status import count_attention
from mulligan.config import Settings
from mulligan.core.durations import Micros
from mulligan.core.errors import Refused, unknown_job
from mulligan.core.event import Event, EventType
from mulligan.core.format import encode_text, mask_password
from mulligan.core.ids import LENGTH
from mulligan.core.job import AttemptRow, Job, JobRow
from mulligan.events.queries import EventQueries
from mulligan.events.service import build_owner_filter
from mulligan.failures.redact import remove_secrets
from mulligan.http.api.event_hub import EventHub, Listener
from mulligan.http.api.event_stream import EventReplay, EventStreamResponse
from mulligan.http.dashboard import sessions
from mulligan.http.dashboard.sessions import Flash, NotAllowed, NotSignedIn
from mulligan.http.services import DatabaseThreads, StoreOpener, VisitorServices
from mulligan.jobs.queries import JobQueries

# --- Routes and menu ---

SECTIONS = ("", "More")  # of the menu; the first has no heading


class MenuEntry(NamedTuple):
    """Place of a screen in the menu."""

    section: str
    position: int
    name: str  # passed to `Renderer.page` as `here`
    title: str
    icon: str
    shared: bool = False  # about all owners: a visitor with the scope of one owner may not open it


class Screen(NamedTuple):
    """One entry of the menu."""

    name: str
    path: str
    title: str
    icon: str
    shared: bool


class ScreenRoute(NamedTuple):
    """A path of the dashboard, and the method of a class of screens that answers it."""

    path: str
    methods: tuple[str, ...]
    handler: str
    menu: MenuEntry | None = None


Menu = tuple[tuple[str, tuple[Screen, ...]], ...]
H = TypeVar("H", bound=Callable[..., Any])
_ROUTES = "screen_routes"  # attribute of a decorated method


def screen(path: str, menu: MenuEntry | None = None) -> Callable[[H], H]:
    """Answer GET requests to a path with the decorated method."""
    return _route(path, ("GET", "HEAD"), menu)


def form_route(path: str) -> Callable[[H], H]:
    """Answer forms that are sent to a path with the decorated method."""
    return _route(path, ("POST",), None)


def _route(path: str, methods: tuple[str, ...], menu: MenuEntry | None) -> Callable[[H], H]:
    def decorate(method: H) -> H:
        route = ScreenRoute(path, methods, method.__name__, menu)
        setattr(method, _ROUTES, (route, *getattr(method, _ROUTES, ())))
        return method

    return decorate


def routes_of(screens: type) -> list[ScreenRoute]:
    """Return the routes that the methods of a class declare."""
    routes: list[ScreenRoute] = []
    for method in vars(screens).values():
        routes += getattr(method, _ROUTES, ())
    return routes


def specificity(route: ScreenRoute) -> list[bool]:
    """Return a sort key: fixed parts of a path come before parameters."""
    return [part.startswith("{") for part in route.path.split("/")]


def build_menu(classes: Iterable[type]) -> Menu:
    """Return the sections of the menu, each with its screens in order."""
    routes = [route for screens in classes for route in routes_of(screens)]
    return tuple((section, _section_screens(section, routes)) for section in SECTIONS)


def menu_of(menu: Menu, visitor: Visitor) -> Menu:
    """Return the sections with the screens that a visitor may open."""
    if visitor.owner is None:
        return menu
    sections = []
    for heading, screens in menu:
        own = tuple(screen for screen in screens if not screen.shared)
        if own:
            sections.append((heading, own))
    return tuple(sections)


def _section_screens(section: str, routes: Iterable[ScreenRoute]) -> tuple[Screen, ...]:
    entries = [
        (route.menu, route.path)
        for route in routes
        if route.menu is not None and route.menu.section == section
    ]
    return tuple(
        Screen(entry.name, path, entry.title, entry.icon, entry.shared)
        for entry, path in sorted(entries, key=lambda pair: pair[0].position)
    )


# --- Rendering ---

T = TypeVar("T")

LIVE_EVENTS = " ".join(EventType)  # event types on which a page reloads itself
THEMES = ("light", "dark")
CLOCKS = ("local", "utc")
ICON_SPRITE = Path(__file__).parent / "static" / "vendor" / "icons.svg"
ATTENTION_SECONDS = 2.0  # how long the numbers in the menu are kept
# Pages without inputs: they may reload themselves where there is no JavaScript.
RELOADED_PAGES = {"overview.html", "events.html", "message.html"}


class Renderer:
    """Checks the visitor of a request, runs its database work and renders its page."""

    def __init__(self, runner: VisitorRunner, settings: Settings, menu: Menu) -> None:
        self.runner = runner
        self.settings = settings
        self._menu = menu
        self._database = remove_secrets(mask_password(settings.database_url))
        self._templates = Environment(
            loader=PackageLoader("mulligan.http.dashboard"),
            autoescape=True,  # payloads and error texts are untrusted
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        # Our own file: inlined in every page, because a macro does not know the address of files.
        sprite = Markup(ICON_SPRITE.read_text(encoding="utf-8"))  # noqa: S704
        self._templates.globals["sprite"] = sprite
        self._attention: dict[str | None, tuple[float, dict[str, int]]] = {}  # by owner

    # --- Access ---

    async def visitor(self, request: Request) -> Visitor:
        """Return the visitor of a request, or raise NotSignedIn."""
        hosted = sessions.hosted_visitor(request)
        if hosted is not None:
            request.state.visitor = hosted
            return hosted
        token = sessions.session_token(request)
        if not token:
            raise NotSignedIn
        visitor = await self.runner.with_sessions(lambda store: store.authenticate(token))
        if visitor is None:
            raise NotSignedIn
        request.state.visitor = visitor
        return visitor

    async def read(
        self, request: Request, work: Callable[[VisitorServices], T], *, shared: bool = False
    ) -> T:
        """Run `work` for the visitor. `shared`: it shows all owners, so it needs scope *."""
        visitor = await self.visitor(request)
        _check_access(visitor, Role.VIEWER, shared=shared)

        def run(services: VisitorServices) -> T:
            request.state.attention = self._read_attention(services)
            return work(services)

        return await self.runner.run_as(visitor, run)

    def _read_attention(self, services: VisitorServices) -> dict[str, int]:
        """Return the numbers in the menu. They may be two seconds old: every page needs them."""
        read_at, counts = self._attention.get(services.owner, (0.0, {}))
        now = time.monotonic()
        if not read_at or now - read_at > ATTENTION_SECONDS:
            counts = count_attention(services, services.owner)
            self._attention[services.owner] = (now, counts)
        return counts

    async def submit(
        self,
        request: Request,
        work: Callable[[VisitorServices, dict[str, str]], T],
        role: Role,
        *,
        shared: bool = False,
    ) -> T:
        """Run `work` with the fields of a form that a visitor with `role` sent from our pages."""
        sessions.check_origin(request)
        form = await sessions.read_form(request)
        visitor = await self.visitor(request)
        sessions.check_csrf(visitor, form)
        _check_access(visitor, role, shared=shared)
        return await self.runner.run_as(visitor, lambda services: work(services, form))

    # --- Responses ---

    def page(
        self, request: Request, template: str, here: str = "", status: int = 200, **values: Any
    ) -> HTMLResponse:
        """Render a template. `here` is the name of its screen in the menu."""
        visitor: Visitor | None = getattr(request.state, "visitor", None)
        flash = sessions.read_flash(request, visitor)
        is_refresh = "x-mulligan-live" in request.headers
        context = {
            **self._base_context(request, visitor),
            "flash": flash,
            "here": here,
            "attention": getattr(request.state, "attention", {}),
            "refresh": is_refresh,
            "reloads": template in RELOADED_PAGES,
            **values,
        }
        html = self._templates.get_template(template).render(context)
        response = HTMLResponse(encode_text(html), status)
        if flash is not None and not is_refresh:
            sessions.delete_flash(request, response)
        return response

    def _base_context(self, request: Request, visitor: Visitor | None) -> dict[str, Any]:
        database = ""
        menu: Menu = ()
        may_act = may_act_on_all = False
        if visitor is not None:
            database = self._database
            menu = menu_of(self._menu, visitor)
            may_act = visitor.role.includes(Role.OPERATOR)
            may_act_on_all = may_act and visitor.owner is None
        return {
            "database": database,
            "root": root_path(request),
            "menu": menu,
            "theme": chosen_theme(request),
            "clock": chosen_clock(request),
            "filter": "",
            "is_public": False,  # a page for owners, without our name and links
            "still": False,  # a response to a form: reloading its address would show another page
            "visitor": visitor,
            "live_events": LIVE_EVENTS,
            "may_act": may_act,
            "may_act_on_all": may_act_on_all,
        }

    def redirect(self, request: Request, path: str, text: str, tone: str = "") -> Response:
        """Redirect after a form to a page that can be reloaded, with `text` at its top."""
        response = RedirectResponse(f"{root_path(request)}{path}", 303)
        visitor: Visitor | None = getattr(request.state, "visitor", None)
        if visitor is not None and text:
            text, link = _split_link(request, text)
            sessions.set_flash(request, response, visitor, Flash(text, tone, link))
        return response


def _split_link(request: Request, text: str) -> tuple[str, str]:
    """Split a message that ends with an address of ours. Make the address absolute."""
    start, _, last = text.rpartition(" ")
    if last.startswith(("http://", "https://")):
        return start, last
    if last.startswith(("/status/", "/jobs/")):
        base = str(request.base_url).rstrip("/")
        return start, f"{base}{root_path(request)}{last}"
    return text, ""


def _check_access(visitor: Visitor, role: Role, *, shared: bool) -> None:
    if not visitor.role.includes(role):
        message = f"this needs a key of role {role}; yours is {visitor.role}"
        raise NotAllowed(message)
    if shared and visitor.owner is not None:
        message = "this is shared by all owners and needs a key of scope *"
        raise NotAllowed(message)


def root_path(request: Request) -> str:
    """Return the prefix under which the dashboard is mounted."""
    return str(request.scope.get("root_path", ""))


def chosen_theme(request: Request) -> str:
    """Return the theme that the visitor chose, or an empty string for the system's theme."""
    theme = request.cookies.get("mulligan_theme", "")
    return theme if theme in THEMES else ""


def chosen_clock(request: Request) -> str:
    """Return how scripts show times: in the browser's time zone, or in UTC."""
    clock = request.cookies.get("mulligan_clock", "")
    return clock if clock in CLOCKS else CLOCKS[0]


# --- Database access ---

PAGE = 50


class JobStory(NamedTuple):
    """A job with its attempts and events, read in one transaction."""

    now: Micros
    row: JobRow
    job: Job
    attempts: list[AttemptRow]
    events: list[Event]


class VisitorRunner:
    """Runs database work on threads, with the services of one visitor."""

    def __init__(self, opener: StoreOpener) -> None:
        self._opener = opener
        self._threads = DatabaseThreads("mulligan-web", 4)

    async def run_as(self, visitor: Visitor, work: Callable[[VisitorServices], T]) -> T:
        """Run `work` with the services of `visitor`."""

        def run() -> T:
            store = self._opener()
            return work(VisitorServices(store, self._opener.settings, visitor))

        return await self._threads.run(run, holder=visitor.actor)

    async def with_sessions(self, work: Callable[[Sessions], T]) -> T:
        """Run `work` with the session service, before a visitor is known."""
        return await self._threads.run(lambda: work(Sessions(self._opener)))

    def close(self) -> None:
        self._threads.close()


def check_filter(text: str, before: str = "") -> str:
    """Return a filter without surrounding spaces. Refuse control characters."""
    if not f"{text}{before}".isprintable():
        message = "the filter contains characters that are not printable"
        raise Refused(message)
    return text.strip()


def load_story(services: VisitorServices, job_id: str) -> JobStory:
    """Load a job with its history.

    Raise NotFound for another owner's job too, so that ids cannot be probed.
    """
    if len(job_id) != LENGTH or not job_id.isalnum():
        raise unknown_job(job_id)
    job = services.jobs.get(job_id, owner=services.owner)
    with services.store.read() as tx:
        row = JobQueries(tx).get_job(job_id)
        if row is None:
            raise unknown_job(job_id)
        return JobStory(
            tx.now(),
            row,
            job,
            JobQueries(tx).list_attempts(job_id),
            EventQueries(tx).list_events_of_job(job_id),
        )


# --- Live updates ---


class LiveStream:
    """The event stream that tells an open page to reload itself."""

    def __init__(self, renderer: Renderer, hub: EventHub) -> None:
        self._renderer = renderer
        self._hub = hub

    async def listen(self, request: Request) -> Response:
        visitor = await self._renderer.visitor(request)
        session = "" if visitor.is_hosted else hash_token(sessions.session_token(request))
        listener = Listener(
            visitor.key_id,
            visitor.owner,
            build_owner_filter(visitor.owner),
            session=session,
            holder=visitor.actor if visitor.is_hosted else "",
        )
        replay = EventReplay(self._hub, listener, None, private=False)
        self._hub.register(listener)
        return EventStreamResponse(self._hub, listener, replay)
