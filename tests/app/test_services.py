"""The app, the command line and HTTP share one list of services; `app.aio` awaits their methods."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from functools import cached_property

import pytest

from mulligan import Mulligan
from mulligan.app.aio import AsyncService
from mulligan.app.services import Services, StoreServices
from support.store import run_concurrently

NAMES = [name for name, part in vars(Services).items() if isinstance(part, cached_property)]


class Clock:
    """A service with a blocking method and one with a coroutine."""

    def thread(self, name: str = "", *, suffix: str = "") -> str:
        return f"{name}{threading.current_thread().name}{suffix}"

    def wait(self) -> str:
        return "on a thread"

    async def wait_async(self) -> str:
        return threading.current_thread().name


@pytest.mark.parametrize("name", NAMES)
def test_every_service_acts_in_the_name_of_its_actor(app, name):
    services = StoreServices(lambda: app.store, app.settings, "cli:ann")
    service = getattr(services, name)
    assert type(service) is type(getattr(app, name))
    assert getattr(service, "_actor", "cli:ann") == "cli:ann"
    assert getattr(getattr(app, name), "_actor", "python") == "python"


def test_threads_that_use_an_app_at_once_share_one_store(store_url):
    with closing(Mulligan(store_url)) as app:
        stores = run_concurrently(*[lambda: app.store for _ in range(8)])
        assert {id(store) for store in stores} == {id(app.store)}


def test_a_method_of_a_service_runs_on_a_thread_when_awaited():
    found = asyncio.run(AsyncService(Clock()).thread("a-", suffix="-z"))
    assert found.startswith("a-")
    assert found.endswith("-z")
    assert "MainThread" not in found


def test_a_coroutine_method_of_a_service_runs_on_the_event_loop():
    assert asyncio.run(AsyncService(Clock()).wait()) == "MainThread"


def test_unknown_services_and_methods_are_attribute_errors(app):
    with pytest.raises(AttributeError, match="there is no service 'workers'"):
        _ = app.aio.workers
    with pytest.raises(AttributeError, match="nothing"):
        _ = app.aio.jobs.nothing
    with pytest.raises(AttributeError):
        _ = app.aio.jobs._settings


def test_aio_has_every_service(app):
    assert {name: type(getattr(app.aio, name)) for name in NAMES} == dict.fromkeys(
        NAMES, AsyncService
    )
