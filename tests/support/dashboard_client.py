"""A client of the dashboard without JavaScript: links and forms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from typing import Any

from fastapi.testclient import TestClient

from mulligan import Mulligan
from mulligan.access.keys import Sessions
from mulligan.http.app import create_app

CSRF_FIELD = re.compile(r'name="csrf" value="([0-9a-f]+)"')


class DashboardClient:
    """Requests pages and submits forms."""

    def __init__(self, app: Mulligan, client: TestClient) -> None:
        self._app = app
        self.client = client

    def sign_in(self, scope: str = "*", role: str = "operator") -> None:
        key = self._app.keys.create(scope, role).text
        assert (
            self.client.post("/sign-in", data={"key": key}, follow_redirects=False).status_code
            == 303
        )

    def page(self, path: str, **params: Any) -> str:
        answer = self.client.get(path, params=params or None)
        assert answer.status_code == 200, (path, answer.status_code)
        return unescape(answer.text)

    def submit(self, path: str, **form: Any) -> str:
        """Submit a form and return the page it redirects to."""
        csrf = CSRF_FIELD.search(self.client.get("/failures").text)
        assert csrf is not None
        answer = self.client.post(path, data={"csrf": csrf[1], **form})
        assert answer.status_code == 200, (path, answer.status_code)
        return unescape(answer.text)


@contextmanager
def sign_in_with_key(
    app: Mulligan, scope: str = "*", role: str = "operator"
) -> Iterator[DashboardClient]:
    app.store.prepare()
    with TestClient(create_app(app.settings), base_url="http://localhost") as client:
        guest = DashboardClient(app, client)
        guest.sign_in(scope, role)
        yield guest


@contextmanager
def sign_in_with_link(app: Mulligan) -> Iterator[DashboardClient]:
    """Sign in without a key, so that the audit log stays empty."""
    app.store.prepare()
    with TestClient(create_app(app.settings), base_url="http://localhost") as client:
        link = Sessions(lambda: app.store).create_link()
        assert (
            client.post("/sign-in", data={"link": link}, follow_redirects=False).status_code == 303
        )
        yield DashboardClient(app, client)


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())
