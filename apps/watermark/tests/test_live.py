"""Live updates: nothing is lost, and a tab costs little however large its campaign is."""

from __future__ import annotations

import threading
from contextlib import suppress

import httpx2
import psutil
import pytest

from mulligan import Fail, testing
from mulligan.apps.watermark import campaigns, data, jobs, views
from mulligan.testing import Returns
from support.waiting import until

from .conftest import collect_events, start_site

pytestmark = pytest.mark.processes

DONE = Returns("made")


def retry(campaign: str) -> None:
    with jobs.db() as session:
        found = session.get_one(data.Campaign, campaign)
        campaigns.retry(found, found.tokens[0])


@pytest.mark.seed("000-72")
def test_failure_that_is_retried_at_once_is_not_lost(world, owner, damaged):
    campaign = world.publish(world.campaign("ada"))
    with collect_events(owner, f"/campaigns/{campaign}/events") as events:
        for _ in range(3):
            with world.mulligan.force(jobs.watermark, damaged):
                world.mulligan.drain()
            retry(campaign)
        until(
            lambda: [name for name, _ in events].count("token_failed") == 3, 30, "three failures"
        )  # 000-72
    errors = {body["error"] for name, body in events if name == "token_failed"}
    assert errors == {"The video file is damaged."}


@pytest.mark.any_store
def test_browser_that_reconnects_gets_what_it_missed(world, owner, damaged):
    campaign = world.publish(world.campaign("ada", "bo"))
    path = f"/campaigns/{campaign}/events"
    with collect_events(owner, path) as first, world.mulligan.force(jobs.watermark, damaged):
        world.mulligan.drain()
        until(lambda: "token_failed" in dict(first), 30, "the first failure")
    position = first.last_id
    with jobs.db() as session:
        found = session.get_one(data.Campaign, campaign)
        failed = next(item for item in found.tokens if views.token_view(item, "").failed)
        campaigns.retry(found, failed)
    with world.mulligan.force(jobs.watermark, Fail("BAD_FILE", public="Again.", final=True)):
        world.mulligan.drain()
    headers = {"Last-Event-ID": position}
    with collect_events(owner, path, headers=headers) as second:
        until(lambda: "token_failed" in dict(second), 30, "the missed failure")
    assert dict(second)["token_failed"]["error"] == "Again."


@pytest.mark.any_store
def test_draft_has_no_stream(world, owner):
    campaign = world.campaign("ada")
    assert owner.get(f"/campaigns/{campaign}/events").status_code == 204
    assert "live.js" not in owner.get(f"/campaigns/{campaign}").text


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_tab_of_2000_recipients_costs_less_than_2_percent_of_a_core(world, tmp_path):
    """Ten tabs watch while a worker makes copies; CPU time of the web server is measured."""
    names = tuple(f"r{number}" for number in range(2_000))
    campaign = world.publish(world.campaign(*names))
    tabs, seconds = 10, 20
    with start_site(world) as (site, process):
        client = httpx2.Client(base_url=site, cookies={"key": world.account.key})
        received: list[int] = []
        stop = threading.Event()

        def watch() -> None:
            path = f"/campaigns/{campaign}/events"
            with (
                suppress(httpx2.TransportError),
                client.stream("GET", path, timeout=60) as answer,
            ):
                for line in answer.iter_lines():
                    received.append(len(line))
                    if stop.is_set():
                        return

        threads = [threading.Thread(target=watch, daemon=True) for _ in range(tabs)]
        for thread in threads:
            thread.start()
        until(lambda: len(received) > tabs * 2_000 * 3, 120, "the first state of all tabs")
        before = cpu_seconds(process)
        seen = len(received)
        with testing.worker(jobs.app, "mulligan.apps.watermark.jobs:app"):
            threading.Event().wait(seconds)
        used = cpu_seconds(process) - before
        assert len(received) > seen + tabs * 10, "the tabs saw copies being made"
        stop.set()
    assert used / seconds / tabs < 0.02, f"{used / seconds / tabs:.1%} of a core per tab"


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
