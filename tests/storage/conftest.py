"""Stores with an empty schema."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mulligan.storage import Store
from support.store import migrated


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with migrated(store_url) as opened:
        yield opened


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[Store]:
    with migrated(sqlite_url) as opened:
        yield opened


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Store]:
    with migrated(postgres_url) as opened:
        yield opened
