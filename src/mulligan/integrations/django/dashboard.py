"""Dashboard under a URL of Django, for its staff users, under ASGI and WSGI.

The dashboard is an ASGI application. It runs on an event loop in a thread of this process, so that
it works under every server and whatever middleware the site has. Live updates need ASGI: under WSGI
each open page would occupy a thread of the server, so pages poll there.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import URLPattern, path
from django.utils.crypto import salted_hmac
from django.views.decorators.csrf import csrf_exempt

from mulligan.access.keys import Role, Visitor
from mulligan.core.extras import check_extra
from mulligan.core.job import ALL_OWNERS
from mulligan.integrations.django.databases import (
    DEFAULT_BACKEND,
    call_before_drop,
    get_app,
)

T = TypeVar("T")
RoleOf = Callable[[Any], Role | str | None]
# Parts that do not need a staff user: the API has keys, status pages have signed links.
PUBLIC_PREFIXES = ("api/v1/", "static/", "status/")
PUBLIC_PATHS = ("livez", "readyz", "startupz", "metrics", "openapi.json")
EVENT_STREAM = b"text/event-stream"
STREAM_SECONDS = 300.0  # then the browser connects again, and its user is checked again
MAX_CHUNKS = 100  # of a stream that the client does not read


def staff_role(user: Any) -> Role | None:
    """Return what a user of Django may do: superusers everything, staff users act on jobs."""
    if not (user.is_active and user.is_staff):
        return None
    return Role.ADMIN if user.is_superuser else Role.OPERATOR


def dashboard_urls(
    backend: str = DEFAULT_BACKEND, *, role: RoleOf = staff_role
) -> list[URLPattern]:
    """Return URL patterns for `include()`. `role`: the role of a user, or None for no access."""
    mounted = MountedDashboard(backend, role)
    return [
        path("", csrf_exempt(mounted.view), {"below": ""}, name="dashboard"),
        path("<path:below>", csrf_exempt(mounted.view)),
    ]


class MountedDashboard:
    """One dashboard in a site of Django."""

    def __init__(self, backend: str, role: RoleOf) -> None:
        self._backend = backend
        self._role = role
        self._lock = threading.Lock()
        self._served: tuple[str, Any] = ("", None)  # database URL, ASGI application
        call_before_drop(self.close)

    async def view(self, request: HttpRequest, below: str) -> HttpResponseBase:
        """Answer a request for a page of the dashboard."""
        request.get_host()  # refuses a host that is not in ALLOWED_HOSTS
        visitor = None
        if not is_public(below):
            user = await request.auser()
            if not user.is_authenticated:
                return redirect_to_login(request.get_full_path())
            visitor = self._visitor(request, user)
        scope = build_scope(request, below, visitor)
        call = Exchange(self._application(), scope, request.body)
        head = await asyncio.wrap_future(_loop.submit(call.begin()))
        if not head.is_stream:
            body = await asyncio.wrap_future(_loop.submit(call.read_all()))
            return head.apply_to(HttpResponse(body, status=head.status))
        if not isinstance(request, ASGIRequest):
            _loop.submit(call.close())
            return HttpResponse(status=204)  # the browser does not ask again
        return head.apply_to(StreamingHttpResponse(stream(call), status=head.status))

    def _visitor(self, request: HttpRequest, user: Any) -> Visitor:
        role = self._role(user)
        if role is None:
            raise PermissionDenied
        session = getattr(getattr(request, "session", None), "session_key", None) or ""
        csrf = salted_hmac("mulligan.dashboard", f"{user.pk} {session}", algorithm="sha256")
        actor = f"django:{user.get_username()}"
        return Visitor(ALL_OWNERS, Role(role), actor, csrf.hexdigest(), is_hosted=True)

    def _application(self) -> Any:
        """Return the dashboard of the database. A test run may have moved it."""
        app = get_app(self._backend)
        url = app.settings.database_url
        with self._lock:
            if self._served[0] != url:
                check_extra("web", "the dashboard")
                from mulligan.http.app import create_app  # noqa: PLC0415 - an extra

                app.open()
                self._served = (url, create_app(app))
            return self._served[1]

    def close(self) -> None:
        """Close the database. The next request opens it again."""
        with self._lock:
            application, self._served = self._served[1], ("", None)
        if application is not None:
            _loop.submit(shut_down(application)).result()


async def shut_down(application: Any) -> None:
    """Do what a server does when it stops an application."""
    async with application.router.lifespan_context(application):
        pass


def is_public(below: str) -> bool:
    """True if a path below the dashboard needs no staff user."""
    return below in PUBLIC_PATHS or below.startswith(PUBLIC_PREFIXES)


# --- Requests and responses ---


def build_scope(request: HttpRequest, below: str, visitor: Visitor | None) -> dict[str, Any]:
    """Return the ASGI scope of a request."""
    root = request.path[: len(request.path) - len(below)].rstrip("/")
    headers = [
        (name.lower().encode("latin-1"), str(value).encode("latin-1", "replace"))
        for name, value in request.headers.items()
    ]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": quote(request.path).encode(),
        "root_path": root,
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1", "replace"),
        "headers": headers,
        "client": (request.META.get("REMOTE_ADDR") or "", 0),
        "server": (request.META.get("SERVER_NAME") or "", int(request.get_port() or 0)),
        "state": {},
    }
    if visitor is not None:
        from mulligan.http.dashboard.sessions import HOSTED_VISITOR  # noqa: PLC0415 - an extra

        scope[HOSTED_VISITOR] = visitor
    return scope


class ResponseHead(NamedTuple):
    """Status and headers of a response."""

    status: int
    headers: list[tuple[bytes, bytes]]

    @property
    def is_stream(self) -> bool:
        """True if the response never ends by itself."""
        return any(
            name.lower() == b"content-type" and value.startswith(EVENT_STREAM)
            for name, value in self.headers
        )

    def apply_to(self, response: HttpResponseBase) -> HttpResponseBase:
        """Copy the headers to a response of Django. Cookies may occur several times."""
        del response.headers["Content-Type"]
        for name, value in self.headers:
            text = value.decode("latin-1")
            if name.lower() == b"set-cookie":
                response.cookies.load(text)
            elif name.lower() != b"content-length" or not self.is_stream:
                response.headers[name.decode("latin-1")] = text
        return response


class Exchange:
    """One request and its response on the loop of the dashboard."""

    def __init__(self, application: Any, scope: Mapping[str, Any], body: bytes) -> None:
        self._application = application
        self._scope = scope
        self._body: bytes | None = body
        self._messages: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue(MAX_CHUNKS)
        self._task: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    async def begin(self) -> ResponseHead:
        """Start the application. Returns when its response has begun."""
        self._task = asyncio.create_task(self._run())
        head = await self._next()
        return ResponseHead(head["status"], list(head.get("headers", ())))

    async def read(self) -> bytes | None:
        """Return the next part of the body; None at its end."""
        message = await self._next()
        body: bytes = message.get("body", b"")
        if message["type"] == END or (not body and not message.get("more_body")):
            return None
        return body

    async def read_all(self) -> bytes:
        """Return the whole body."""
        parts = []
        while (part := await self.read()) is not None:
            parts.append(part)
        await self.close()
        return b"".join(parts)

    async def close(self) -> None:
        """End the application: its client is gone, or has the whole response."""
        self._closed.set()
        if self._task is not None:
            self._task.cancel()

    async def _next(self) -> Mapping[str, Any]:
        message = await self._messages.get()
        error = message.get("error")
        if error is not None:
            raise error
        return message

    async def _run(self) -> None:
        try:
            await self._application(self._scope, self._receive, self._messages.put)
        except Exception as error:  # noqa: BLE001 - Django reports it
            await self._messages.put({"type": END, "error": error})
        else:
            await self._messages.put({"type": END})

    async def _receive(self) -> Mapping[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._closed.wait()
        return {"type": "http.disconnect"}


END = "mulligan.end"  # type of the message behind the last one


async def stream(call: Exchange) -> AsyncIterator[bytes]:
    """Yield the parts of an endless response, for a limited time."""
    end = time.monotonic() + STREAM_SECONDS
    try:
        while (left := end - time.monotonic()) > 0:
            read = _loop.submit(call.read())
            try:
                part = await asyncio.wait_for(asyncio.wrap_future(read), left)
            except TimeoutError:
                return
            if part is None:
                return
            yield part
    finally:
        _loop.submit(call.close())


# --- The loop of the dashboard ---


class DashboardLoop:
    """Event loop in a daemon thread, started on first use in each process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._running())

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():  # a server may have forked
                self._pid = os.getpid()
                self._loop = asyncio.new_event_loop()
                run = partial(self._loop.run_forever)
                threading.Thread(target=run, name="mulligan-dashboard", daemon=True).start()
            return self._loop


_loop = DashboardLoop()
