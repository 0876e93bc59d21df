"""Fixtures for all tests: databases on SQLite and PostgreSQL, and the marks of slow tests."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, settings

from mulligan.http import services
from mulligan.storage import open_store
from support.postgres import PostgresServer

# A slow draw or a slow call on a busy machine is no finding.
settings.register_profile("any_load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any_load")

# How long a page waits for the database; a busy machine may need longer than a person would wait.
services.QUERY_TIMEOUT = 30.0

# In the background SIGINT is ignored, and every program that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Fixtures that start a worker, a server or a browser. Modules that start processes without them set
# the mark themselves.
PROCESS_FIXTURES = frozenset({"start", "terminal", "hire", "on", "chromium"})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the marks that follow from fixtures and parameters, before pytest selects by mark."""
    for item in items:
        if _fixtures(item) & PROCESS_FIXTURES:
            item.add_marker(pytest.mark.processes)
        if _repeats_on_postgres(item):
            item.add_marker(pytest.mark.slow)


def _fixtures(item: pytest.Item) -> set[str]:
    """Return the fixtures of a test, without parameters that share the name of one."""
    return set(getattr(item, "fixturenames", ())) - set(_parameters(item))


def _repeats_on_postgres(item: pytest.Item) -> bool:
    """True for the PostgreSQL variant of a test whose result does not depend on the database."""
    parameters = _parameters(item)
    if parameters.get("on_store") == "postgres":
        return True
    return (
        parameters.get("store_url") == "postgres"
        and item.get_closest_marker("any_store") is not None
    )


def _parameters(item: pytest.Item) -> Mapping[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """PostgreSQL server of the session. If a test stops it, the next new database starts it."""
    server = PostgresServer.for_session()
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """URL of a new, empty PostgreSQL database."""
    url = postgres_server.create_database()
    yield url
    if postgres_server.running:
        postgres_server.drop_database(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/mulligan.db"


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> Iterator[str]:
    """Name of a database with an empty schema. Copying it is faster than migrating."""
    url = postgres_server.create_database()
    with closing(open_store(url)) as store:
        store.prepare()
    yield urlsplit(url).path.lstrip("/")
    if postgres_server.running:
        postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SQLite file with an empty schema, to be copied."""
    file = tmp_path_factory.mktemp("template") / "mulligan.db"
    with closing(open_store(f"sqlite:///{file}")) as store:
        store.prepare()
    return file


@pytest.fixture
def ready_postgres_url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """URL of a new PostgreSQL database with an empty schema."""
    url = postgres_server.create_database(postgres_template)
    yield url
    if postgres_server.running:
        postgres_server.drop_database(url)


@pytest.fixture
def ready_sqlite_url(sqlite_template: Path, sqlite_url: str) -> str:
    """URL of a new SQLite file with an empty schema."""
    file = Path(sqlite_url.removeprefix("sqlite:///"))
    shutil.copyfile(sqlite_template, file)
    file.chmod(0o600)
    return sqlite_url


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    """URL of a new database with an empty schema. The test runs on both databases."""
    return request.getfixturevalue(f"ready_{request.param}_url")


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest) -> str:
    """URL of a new, empty database. The test runs on both databases."""
    return request.getfixturevalue(f"{request.param}_url")
