"""Sign in with a key or a one-time link, and sign out."""

from __future__ import annotations

from urllib.parse import urlencode

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from mulligan.core.errors import Refused
from mulligan.http.dashboard import sessions
from mulligan.http.dashboard.renderer import Renderer, form_route, root_path, screen
from mulligan.http.middleware import TokenBuckets, client_network

SIGN_IN_BURST = 10  # wrong keys from one network at once
SECONDS_PER_TRY = 6.0  # seconds until it may try another one


class SignInScreens:
    """The sign-in page and the forms to sign in and out."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._tries = TokenBuckets(1 / SECONDS_PER_TRY, SIGN_IN_BURST)

    @screen("/sign-in")
    async def show(self, request: Request, next: str = "/", link: str = "") -> Response:  # noqa: A002 - as in the URL
        """Show the form. A link is redeemed by POST only: previews and crawlers send GET."""
        return self._renderer.page(
            request, "sign_in.html", next=local_path(next), link=link, error=""
        )

    @form_route("/sign-in")
    async def sign_in(self, request: Request) -> Response:
        sessions.check_origin(request)
        form = await sessions.read_form(request)
        if not self._tries.peek(client_network(request)).allowed:
            error = "Too many wrong keys. Wait a minute, then try again."
            return self._show_again(request, form, error, 429)
        key = form.get("key", "")
        link = form.get("link", "")
        try:
            token = await self._renderer.runner.with_sessions(
                lambda store: store.redeem(link) if link else store.sign_in(key)
            )
        except Refused as refused:
            self._tries.take(client_network(request))
            return self._show_again(request, {**form, "link": ""}, f"{refused}.", 401)
        path = local_path(form.get("next", "/"))
        response = RedirectResponse(f"{root_path(request)}{path}", 303)
        sessions.set_session(request, response, token)
        return response

    @form_route("/sign-out")
    async def sign_out(self, request: Request) -> Response:
        sessions.check_origin(request)
        form = await sessions.read_form(request)
        visitor = await self._renderer.visitor(request)
        sessions.check_csrf(visitor, form)
        token = sessions.session_token(request)
        await self._renderer.runner.with_sessions(lambda store: store.sign_out(token))
        response = RedirectResponse(f"{root_path(request)}/sign-in", 303)
        sessions.delete_session(request, response)
        return response

    def _show_again(
        self, request: Request, form: dict[str, str], error: str, status: int
    ) -> Response:
        values = {
            "next": local_path(form.get("next", "/")),
            "link": form.get("link", ""),
            "error": error,
        }
        return self._renderer.page(request, "sign_in.html", "", status, **values)


def local_path(path: str) -> str:
    """Return `path` if it stays on this site, else "/": a sign-in must not redirect elsewhere."""
    is_local = (
        path.startswith("/")
        and not path.startswith(("//", "/\\"))
        and path.isprintable()
        and "\\" not in path
    )
    return path if is_local else "/"


def redirect_to_sign_in(request: Request) -> Response:
    """Redirect to the sign-in page, which leads back to this page."""
    here = request.url.path.removeprefix(root_path(request)) or "/"
    if request.url.query:
        here = f"{here}?{request.url.query}"
    return RedirectResponse(f"{root_path(request)}/sign-in?{urlencode({'next': here})}", 303)
