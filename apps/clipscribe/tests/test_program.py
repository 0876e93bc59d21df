"""`mulligan demo clipscribe` leaves no process behind, and objects can be in a bucket."""

from __future__ import annotations

import html
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from moto.server import ThreadedMotoServer

from support.waiting import until

pytestmark = pytest.mark.processes


def descendants(pid):
    """Return the ids of all processes below this one."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *descendants(int(child))]
    return found


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_demo_starts_all_processes_and_sigterm_ends_them(store_url, tmp_path):
    command = [
        sys.executable,
        "-m",
        "mulligan",
        "demo",
        "clipscribe",
        "--database",
        store_url,
        "--port",
        "0",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, text=True
    )
    try:
        address = re.fullmatch(r"(http://127.0.0.1:\d+)/", process.stdout.readline().strip())[1]
        with httpx2.Client(base_url=address, verify=False, timeout=60) as ann:
            videos = re.search(r"http://\S+/\?service=\S+", process.stderr.readline())[0]
            link = re.search(r'href="([^"]+talk.mp4)"', ann.get(videos).text)[1]
            page = ann.get(html.unescape(link)).text
            video = re.search(r'value="([^"]+talk.mp4)"', page)[1]
            page = ann.post("/jobs", json={"url": video, "user": "ann@example.com"}).json()[
                "status_url"
            ]
            until(lambda: "sees a test card" in ann.get(page).text, 90, "an analysis")
        started = descendants(process.pid)
        assert len(started) >= 3  # the external services, the worker, its runners
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0
        until(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), 30, "nothing is left"
        )
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def bucket(monkeypatch) -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "clipscribe")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    httpx2.put(f"http://{host}:{port}/clips").raise_for_status()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.mark.slow
@pytest.mark.any_store
@pytest.mark.seed("004-38")
def test_manifest_is_in_the_bucket_after_failure_and_recovery(make_world, bucket):
    world = make_world(STORAGE_URL="s3://clips", STORAGE_ENDPOINT=bucket)
    job = world.order()
    with world.force(TimeoutError("Connection timeout")):
        world.run()
    assert (world.manifest(job)["state"], world.manifest(job)["error"]["type"]) == (
        "RETRYING",
        "NetworkTimeout",
    )
    world.run(until_done=True)
    assert (world.manifest(job)["state"], world.manifest(job)["error"]) == ("COMPLETED", None)


@pytest.mark.slow
@pytest.mark.any_store
@pytest.mark.seed("004-52")
def test_team_is_notified_once_of_a_cause_with_objects_in_a_bucket(make_world, bucket):
    world = make_world(STORAGE_URL="s3://clips", STORAGE_ENDPOINT=bucket)
    for _ in range(3):
        world.order("odd.mp4")
    world.run(until_done=True)
    assert len(world.mails()) == 1, world.mails()  # 004-52
