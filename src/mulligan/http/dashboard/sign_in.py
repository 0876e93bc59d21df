"""Signing in and out."""

from __future__ import annotations

from urllib.parse import urlencode

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from mulligan.core.errors import Refused
from mulligan.http.dashboard import sessions as visits
from mulligan.http.dashboard.renderer import Renderer, root_of
from mulligan.http.middleware import Buckets, place_of

TRIES = 10  # wrong keys from one place at once
AGAIN = 6.0  # seconds until it may try one more


class SignInScreens:
    def __init__(self, house: Renderer) -> None:
        self._house = house
        self._tries = Buckets(1 / AGAIN, TRIES)

    async def show(self, request: Request, next: str = "/", link: str = "") -> Response:  # noqa: A002 - as in the URL
        """A link is not redeemed by looking: previews and crawlers look too."""
        return self._house.page(request, "sign_in.html", next=local(next), link=link, wrong="")

    async def enter(self, request: Request) -> Response:
        visits.check_origin(request)
        said = await visits.form_of(request)
        if not self._tries.look(place_of(request)).allowed:
            return self._again(
                request, said, "Too many wrong keys. Wait a minute, then try again.", 429
            )
        key, link = said.get("key", ""), said.get("link", "")
        try:
            text = await self._house.reader.with_sessions(
                lambda sessions: sessions.redeem(link) if link else sessions.sign_in(key)
            )
        except Refused as wrong:
            self._tries.take(place_of(request))
            return self._again(request, {**said, "link": ""}, f"{wrong}.", 401)
        response = RedirectResponse(f"{root_of(request)}{local(said.get('next', '/'))}", 303)
        visits.set_session(request, response, text)
        return response

    async def leave(self, request: Request) -> Response:
        visits.check_origin(request)
        said = await visits.form_of(request)
        visitor = await self._house.visitor(request)
        visits.check_mark(visitor, said)
        text = visits.session_of(request)
        await self._house.reader.with_sessions(lambda sessions: sessions.sign_out(text))
        response = RedirectResponse(f"{root_of(request)}/sign-in", 303)
        visits.end_session(request, response)
        return response

    def _again(self, request: Request, said: dict[str, str], words: str, status: int) -> Response:
        values = {
            "next": local(said.get("next", "/")),
            "link": said.get("link", ""),
            "wrong": words,
        }
        return self._house.page(request, "sign_in.html", "", status, **values)


def local(path: str) -> str:
    """A path of ours; anything that a browser could take for another site is the first page."""
    plain = (
        path.startswith("/")
        and not path.startswith(("//", "/\\"))
        and path.isprintable()
        and "\\" not in path
    )
    return path if plain else "/"


def to_sign_in(request: Request) -> Response:
    path = request.url.path.removeprefix(root_of(request)) or "/"
    here = f"{path}?{request.url.query}" if request.url.query else path
    return RedirectResponse(f"{root_of(request)}/sign-in?{urlencode({'next': here})}", 303)
