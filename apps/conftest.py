"""What the tests of every application may ask for. A store of each kind: see conftest.py above."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mulligan import Mulligan
from mulligan.testing import Helper, temporary


@pytest.fixture(params=["sqlite", "postgres"])
def on_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[Mulligan, str], Helper]]:
    """`on_store(app, "watermark.jobs:app")`: the application on a fresh store; a test that takes it runs on each."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    with ExitStack() as stack:

        def bind(app: Mulligan, spec: str) -> Any:
            return Helper(stack.enter_context(temporary(app, url, folder=tmp_path)), spec)

        yield bind
