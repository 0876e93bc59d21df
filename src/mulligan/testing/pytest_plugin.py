"""Pytest plugin: fixtures that put the user's app on a fresh database for each test.

Pytest loads this file wherever Mulligan is installed, so other modules are imported only when a
fixture is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mulligan.app.mulligan import Mulligan
    from mulligan.testing import Helper

URL_VARIABLE = "MULLIGAN_TEST_URL"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("mulligan_app", "Mulligan: the app under test, module:attribute")
    parser.addini(
        "mulligan_url",
        "Mulligan: a postgresql:// URL; each test gets a schema there. Default: a SQLite file per "
        f"test. The environment variable {URL_VARIABLE} takes precedence",
    )


@pytest.fixture(scope="session")
def mulligan_url(pytestconfig: pytest.Config) -> str:
    """Return the URL of the test database; empty means a SQLite file per test."""
    return os.environ.get(URL_VARIABLE) or str(pytestconfig.getini("mulligan_url"))


@pytest.fixture
def mulligan_app(
    pytestconfig: pytest.Config, mulligan_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mulligan]:
    """Return the app named by the ini option `mulligan_app`, on an empty database.

    A project without that option defines a fixture of this name that returns its app. The fixture
    `mulligan` then uses it.
    """
    from mulligan.testing import temporary  # noqa: PLC0415 - see the module docstring
    from mulligan.worker.startup import load_app  # noqa: PLC0415 - see the module docstring

    spec = str(pytestconfig.getini("mulligan_app"))
    if not spec:
        pytest.fail(
            "no app configured. Set the ini option mulligan_app = module:attribute, or define a "
            "fixture mulligan_app that returns your app.",
            pytrace=False,
        )
    with temporary(
        load_app(spec), mulligan_url or None, folder=tmp_path_factory.mktemp("mulligan")
    ) as app:
        yield app


@pytest.fixture
def mulligan(
    pytestconfig: pytest.Config,
    mulligan_app: Mulligan,
    mulligan_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Helper]:
    """Return a helper with `drain`, `force` and assertions for the app, on an empty database."""
    from mulligan.testing import Helper, temporary  # noqa: PLC0415 - see the module docstring
    from mulligan.testing.workers import is_temporary  # noqa: PLC0415 - see the module docstring

    spec = str(pytestconfig.getini("mulligan_app"))
    if is_temporary(mulligan_app):
        yield Helper(mulligan_app, spec)
        return
    with temporary(
        mulligan_app, mulligan_url or None, folder=tmp_path_factory.mktemp("mulligan")
    ) as app:
        yield Helper(app, spec)
