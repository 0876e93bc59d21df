"""Fixtures of the security tests: those of the command line tests."""

from __future__ import annotations

from support.cli_fixtures import app, call, file_app, folder, impatient, start  # noqa: F401 - fixtures
