"""Fixtures: commands run as a user runs them."""

from support.cli_fixtures import *  # noqa: F403 - pytest finds fixtures by name here
