"""Fixtures: an app, and receivers of its messages."""

from support.app_fixtures import *  # noqa: F403 - pytest finds fixtures by name here
from support.notification_fixtures import *  # noqa: F403
