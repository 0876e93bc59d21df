"""Hard times that end: nobody is restarted, little is spent while they last, and all is well soon after."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from storm.external_tools import Pooler, faketime
from storm.proxy import BLACKHOLE, Proxies

from mulligan import Mulligan, State
from mulligan.config import read_settings
from mulligan.core.durations import SECOND
from mulligan.core.errors import StoreUnavailable
from support.postgres import PostgresServer, free_port, unprivileged_user
from support.waiting import until
from support.worker import FAST, Worker
from support.worker_cost import (
    RECOVERY,
    assert_cheap,
    can_mount,
    fill_disk,
    small_disk,
    wait_for,
    wait_until_idle,
    wait_until_ready,
)

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

MINUTE = 60.0
Start = Callable[..., Worker]
Starts = Callable[..., list[str]]

only_postgres = pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
only_sqlite = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)


@pytest.fixture
def hire(tmp_path: Path) -> Iterator[Start]:
    """Workers on a store of the test's own, ended whatever it did."""
    workers: list[Worker] = []

    def make(url: str, **more: dict[str, str]) -> Worker:
        workers.append(Worker(url, tmp_path, **more))
        return wait_until_ready(workers[-1])

    yield make
    for worker in workers:
        worker.kill()


def opened(url: str, folder: Path) -> Mulligan:
    return Mulligan(
        settings=read_settings(
            environ={**FAST, "MULLIGAN_DATABASE_URL": url}, file=folder / "no.toml"
        )
    )


def all_well(app: Mulligan, accepted: list[str]) -> None:
    """Assert that accepted jobs and one enqueued now finish in time."""
    healed = time.monotonic()
    fresh = until(lambda: tried(app), RECOVERY, "enqueue works again")
    for job_id in [*accepted, fresh]:
        done = app.jobs.wait(job_id, max(0.1, healed + RECOVERY - time.monotonic()))
        assert (done.state, done.failures, done.losses) == (State.SUCCEEDED, 0, 0)


def tried(app: Mulligan) -> str | None:
    try:
        return app.enqueue("nap_async", {"seconds": 0}).id
    except StoreUnavailable:
        return None


def at_work(app: Mulligan, starts: Starts) -> list[str]:
    """Some that are done, some that will end in the middle of it."""
    quick = [app.enqueue("nap", {"seconds": 0}).id for _ in range(5)]
    for job_id in quick:
        app.jobs.wait(job_id, 30)
    long = [app.enqueue("nap", {"seconds": 3}).id for _ in range(3)]
    until(lambda: all(starts(job_id) for job_id in long), 30)
    return long


@only_postgres
def test_a_database_outage_of_one_minute_loses_no_job(
    app: Mulligan, start: Start, starts: Starts, postgres_server: PostgresServer
) -> None:
    worker = wait_until_ready(start(wait=False))
    accepted = at_work(app, starts)
    with assert_cheap(worker):
        postgres_server.stop("immediate")
        wait_for(MINUTE)
    postgres_server.start()
    all_well(app, accepted)


@only_postgres
def test_a_black_hole_network_of_one_minute_loses_no_job(
    store_url: str, tmp_path: Path, starts: Starts, hire: Start
) -> None:
    proxies = Proxies()
    port = int(store_url.rpartition(":")[2].partition("/")[0])
    proxy = proxies.to(port)
    url = store_url.replace(f":{port}/", f":{proxy.port}/")
    app = opened(store_url, tmp_path)
    try:
        worker = hire(url)
        accepted = at_work(app, starts)
        with assert_cheap(worker), proxy.set_mode(BLACKHOLE):
            wait_for(MINUTE)
        all_well(app, accepted)
    finally:
        app.close()
        proxies.close()


@pytest.mark.skipif(not can_mount(), reason="needs root, to mount a small file system")
def test_a_full_disk_for_half_a_minute_loses_no_job(
    tmp_path: Path, starts: Starts, hire: Start
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        url = f"sqlite:///{disk}/mulligan.db"
        app = opened(url, tmp_path).open()
        try:
            worker = hire(url)
            accepted = at_work(app, starts)
            with assert_cheap(worker):
                ballast = fill_disk(disk)
                wait_for(MINUTE / 2)
                assert app.jobs.get(accepted[0])  # reading works
            ballast.unlink()
            all_well(app, accepted)
        finally:
            app.close()


@pytest.fixture
def pooler(postgres_url: str, tmp_path: Path) -> Iterator[Pooler]:
    (tmp_path / "logs").mkdir()
    folder = tmp_path
    for part in (folder, *folder.parents):
        if part.is_relative_to("/tmp") and part != Path("/tmp"):
            part.chmod(0o755)  # pgbouncer runs as somebody else
    made = Pooler(postgres_url, folder, free_port(), unprivileged_user())
    yield made
    made.close()


@pytest.mark.skipif(
    shutil.which("pgbouncer") is None, reason="install pgbouncer to prove the pooler promise"
)
def test_a_pooler_outage_of_half_a_minute_loses_no_job(
    pooler: Pooler, tmp_path: Path, starts: Starts, hire: Start
) -> None:
    app = opened(pooler.url, tmp_path).open()
    try:
        worker = hire(pooler.url)
        accepted = at_work(app, starts)
        with assert_cheap(worker):
            pooler.close()
            wait_for(MINUTE / 2)
        pooler.restart()
        all_well(app, accepted)
    finally:
        app.close()


@pytest.mark.parametrize("wrong", ["+15m", "-15m"])
@only_postgres
def test_a_worker_with_a_wrong_clock_starts_no_job_early_and_takes_no_lease_over(
    app: Mulligan, store_url: str, start: Start, starts: Starts, hire: Start, wrong: str
) -> None:
    library = faketime()
    if library is None:
        pytest.skip("needs libfaketime")
    wait_until_ready(start(wait=False))
    long = [app.enqueue("nap", {"seconds": 12}).id for _ in range(3)]
    until(lambda: all(starts(job_id) for job_id in long), 30)
    environ = {"LD_PRELOAD": str(library), "FAKETIME": wrong, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    odd = wait_until_idle(hire(store_url, environ=environ))
    begun = time.monotonic()
    later = [
        app.enqueue("nap_async", {"seconds": 0}, delay=6).id for _ in range(6)
    ]  # libfaketime refuses time.sleep
    with assert_cheap(odd):
        until(lambda: all(starts(job_id) for job_id in later), 40)
    assert min(float(starts(job_id)[0].split()[5]) for job_id in later) >= begun + 5.9
    all_well(app, [*long, *later])
    assert all(len(starts(job_id)) == 1 for job_id in long)


@only_sqlite
@pytest.mark.parametrize("step", [3600, -7200])
def test_a_step_of_the_host_clock_loses_no_job(
    app: Mulligan, start: Start, starts: Starts, step: int
) -> None:
    """By an hour ahead or two back: nobody is judged by it, and what comes now is done now."""
    workers = [wait_until_ready(start(wait=False)) for _ in range(2)]
    long = [app.enqueue("nap", {"seconds": 5}).id for _ in range(3)]
    until(lambda: all(starts(job_id) for job_id in long), 30)
    app.store.shift_clock(step * SECOND)
    with assert_cheap(workers[0]):
        wait_for(6)
    all_well(app, long)
    assert all(len(starts(job_id)) == 1 for job_id in long)
