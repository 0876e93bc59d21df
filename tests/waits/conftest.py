"""Fixtures: an app on a fresh database of each store."""

from support.app_fixtures import *  # noqa: F403 - pytest finds fixtures by name here
