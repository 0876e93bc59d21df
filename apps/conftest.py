"""What the tests of every application may ask for. A store of each kind: see conftest.py above."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mulligan import Mulligan
from mulligan.testing import Helper
from mulligan.testing import workers as places


@pytest.fixture(params=["sqlite", "postgres"])
def on_store(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[Mulligan, str], Helper]]:
    """`on_store(app, "watermark.jobs:app")`: the application on a fresh store; a test that takes it runs on each.

    As `mulligan.testing.temporary`, but on a copy of a database that has our tables: to make them takes longer than
    most tests.
    """
    url = request.getfixturevalue(f"ready_{request.param}_url")
    with ExitStack() as stack:

        def bind(app: Mulligan, spec: str) -> Helper:
            worker = app.settings.worker.model_copy(update={"state_dir": str(tmp_path / "state")})
            settings = app.settings.model_copy(update={"database_url": url, "worker": worker})
            places._in_force.append(settings)
            stack.callback(places._in_force.remove, settings)
            forced = list(app.registry.overrides)
            stack.callback(lambda: app.registry.overrides.__setitem__(slice(None), forced))
            stack.enter_context(app.redirected(settings))
            return Helper(app, spec)

        yield bind
