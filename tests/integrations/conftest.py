"""Fixtures: an app on a fresh database of each store, and a real Redis server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench.peers.servers import NoServer, Redis

from support.app_fixtures import *  # noqa: F403 - pytest finds fixtures by name here


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """Start a real Redis server, or skip the test where there is none."""
    try:
        server = Redis()
    except NoServer as error:
        pytest.skip(str(error))
    yield server
    server.close()


@pytest.fixture
def redis_url(redis_server: Redis) -> str:
    """URL of an empty database of the Redis server."""
    return redis_server.fresh()
