"""An app that is deployed in several releases, for tests."""

from __future__ import annotations

from support.app_tools import count_events


def deploy(app, release):
    """Let the next workers of the app run this release."""
    app.settings = app.settings.model_copy(update={"release": release})


def run_as(app, release):
    """Run all due jobs with a worker of this release, and count what happened."""
    deploy(app, release)
    app.run_inline()
    count_events(app)
