"""What attackers try. The same fixtures as people at the doors have."""

from __future__ import annotations

from support.cli_fixtures import app, call, file_app, folder, impatient, start  # noqa: F401 - fixtures
