"""Fixtures for the tests of all applications. The stores come from the conftest.py above."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mulligan import Mulligan
from mulligan.testing import Helper, workers


@pytest.fixture(params=["sqlite", "postgres"])
def on_store(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[Mulligan, str], Helper]]:
    """Put an application on a fresh store: `on_store(app, "mulligan.apps.watermark.jobs:app")`.

    A test that uses it runs once per store. Works like `mulligan.testing.temporary`, but on a copy
    of a migrated database: creating the tables takes longer than most tests.
    """
    url = request.getfixturevalue(f"ready_{request.param}_url")
    with ExitStack() as stack:

        def bind(app: Mulligan, spec: str) -> Helper:
            worker_settings = app.settings.worker.model_copy(
                update={"state_dir": str(tmp_path / "state")}
            )
            settings = app.settings.model_copy(
                update={"database_url": url, "worker": worker_settings}
            )
            workers._active.append(settings)
            stack.callback(workers._active.remove, settings)
            overrides = list(app.registry.overrides)
            stack.callback(lambda: app.registry.overrides.__setitem__(slice(None), overrides))
            stack.enter_context(app.redirected(settings))
            return Helper(app, spec)

        yield bind
