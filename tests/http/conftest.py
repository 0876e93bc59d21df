"""An app whose jobs run inline, and the web server on its database."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import httpx2
import pytest
from fastapi.testclient import TestClient

from mulligan import Fail, Mulligan, Park, Policy
from mulligan.config import Settings, read_settings
from mulligan.http.api import create_api
from mulligan.http.app import create_app
from mulligan.manifest.declared import publish_manifest
from support.schema import Document


@pytest.fixture
def settings(store_url: str, tmp_path: Path) -> Settings:
    return read_settings({"database_url": store_url}, environ={}, file=tmp_path / "none.toml")


@pytest.fixture
def app(settings: Settings) -> Iterator[Mulligan]:
    app = Mulligan(settings=settings)

    @app.job(name="works")
    def works(text: str = "", batch: str = "") -> str:
        return text or batch

    @app.job(name="fails", policy=Policy(max_retries=0))
    def fails(text: str = "") -> Fail:
        logging.getLogger("site").warning("cannot read %s password=hunter2", text)
        return Fail(
            "BAD_FILE", f"private: {text}", public="This file could not be read.", final=True
        )

    @app.job(name="asks")
    def asks() -> Park:
        return Park("which?", choices=("left", "right"))

    app.open()
    yield app
    app.close()


@pytest.fixture
def client(app: Mulligan) -> Iterator[TestClient]:
    """The server as `mulligan web` runs it: without the app, from the stored manifest."""
    with app.store.begin() as tx:
        publish_manifest(tx, app.manifest("site:app"))
    with TestClient(
        create_app(app.settings), base_url="http://localhost", raise_server_exceptions=False
    ) as client:
        client.event_hooks["response"].append(after_reading(document().check))
        yield client


@pytest.fixture
def key(app: Mulligan) -> Callable[..., dict[str, str]]:
    """Return a function that creates a key and returns its headers."""

    def make(scope: str = "*", role: str = "admin") -> dict[str, str]:
        return {"Authorization": f"Bearer {app.keys.create(scope, role).text}"}

    return make


@cache
def document() -> Document:
    return Document(create_api(read_settings({}, environ={})).openapi())


def after_reading(check: Callable[[httpx2.Response], None]) -> Callable[[httpx2.Response], None]:
    def hook(answer: httpx2.Response) -> None:
        if "event-stream" not in answer.headers.get("content-type", ""):
            answer.read()
            check(answer)

    return hook
