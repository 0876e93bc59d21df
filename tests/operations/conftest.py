"""Fixtures: jobs that fail until their cause is fixed, and two dozen dead ones."""

from __future__ import annotations

import pytest

from mulligan import Fail, Policy
from support.app_fixtures import *  # noqa: F403 - pytest finds fixtures by name here
from support.operation_tools import CAUSES, enqueue_jobs


class World:
    """Causes that are broken now, and the jobs that ran."""

    def __init__(self):
        self.broken = set(CAUSES)
        self.ran = []


@pytest.fixture
def app(make_app):
    return make_app(guards__same_cause="0")


@pytest.fixture
def world():
    return World()


@pytest.fixture
def work(app, world):
    @app.job(name="work", policy=Policy(max_retries=0), cost=2.0)
    def work(cause: str = "moov", n: int = 0) -> int | Fail:
        world.ran.append(n)
        if cause in world.broken:
            return Fail(
                CAUSES[cause], f"{cause} in part {n}", public=f"It is the {cause}.", final=True
            )
        return n

    return work


@pytest.fixture
def dead(app, work):
    """Return ids of 20 jobs dead of the gateway and 3 dead of the file, of two owners."""
    ids = enqueue_jobs(work, "gateway", 15, owner="acme") + enqueue_jobs(
        work, "gateway", 5, owner="zenith"
    )
    files = enqueue_jobs(work, "moov", 3, owner="acme")
    app.run_inline()
    return {"gateway": ids, "moov": files}
