"""A rolling deploy of Mulligan: an older and a newer build on one database, under load."""

from __future__ import annotations

import pytest

from mulligan import Mulligan
from mulligan.config import read_settings
from support.builds import STEP, Build, end_load, make_newer_build
from support.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

APP = "support.rolling_app:app"


class Deploy:
    """Two builds, their workers and their load."""

    def __init__(self, url, folder, start, app, **newer):
        self.older = Build(url, folder)
        self.newer = Build(url, folder, make_newer_build(folder, **newer))
        self.app = app
        self._start = start
        self.loads = []

    def start_worker(self, build, **options):
        return self._start(app=APP, environ=build.environ, **options)

    def start_load(self, build):
        self.loads.append(build.start_load())

    def run_for(self, jobs):
        """Let so many more jobs succeed."""
        goal = self.succeeded() + jobs
        until(lambda: self.succeeded() >= goal, 60, f"{jobs} more jobs")

    def succeeded(self):
        return self.count("succeeded")

    def count(self, state):
        return self.app.jobs.count(f"state:{state}")

    def finish(self):
        """Stop the load and wait until every job has ended."""
        enqueued = sum(end_load(load) for load in self.loads)
        until(lambda: self.count("queued") == 0, 60, "nothing queued")
        until(lambda: self.count("running") == 0, 60, "nothing running")
        return enqueued

    def assert_no_job_was_harmed(self, enqueued):
        assert self.count("dead") == 0
        assert self.succeeded() >= enqueued
        with self.app.store.transaction() as connection:
            table = "mulligan_job" if self.app.store.lock_directory else "mulligan.job"
            harmed = connection.execute(
                f"SELECT kind, failures, losses FROM {table} WHERE failures > 0 OR losses > 0"  # noqa: S608
            ).fetchall()
        assert harmed == []
        for build in (self.older, self.newer):
            verified = build.run("doctor", "--verify")
            assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.fixture
def app(store_url, tmp_path):
    environ = {"MULLIGAN_DATABASE_URL": store_url}
    app = Mulligan(settings=read_settings(environ=environ, file=tmp_path / "none.toml"))
    yield app.open()
    app.close()


@pytest.fixture
def deploy(store_url, tmp_path, start, app):
    deploy = Deploy(store_url, tmp_path, start, app)
    yield deploy
    for load in deploy.loads:
        load.kill()
        load.communicate()


def roll_forward(deploy, jobs):
    """Migrate while the older build works, then replace it."""
    first = deploy.start_worker(deploy.older)
    deploy.start_load(deploy.older)
    deploy.run_for(jobs)
    migrated = deploy.newer.run("migrate")
    assert (migrated.returncode, STEP in migrated.stdout) == (0, True), migrated.stderr
    newer = deploy.start_worker(deploy.newer)
    deploy.start_load(deploy.newer)
    deploy.run_for(jobs)
    assert first.end() == 0
    restarted = deploy.start_worker(deploy.older)  # after the migration
    deploy.start_load(deploy.older)  # a web process that opens the database for the first time
    deploy.run_for(jobs)
    assert restarted.end() == 0
    deploy.run_for(jobs)
    return newer


def roll_back(deploy, newer, jobs):
    """Replace the newer build by the older one. The schema stays as it is."""
    deploy.start_worker(deploy.older)
    deploy.run_for(jobs)
    assert newer.end() == 0
    deploy.run_for(jobs)


@pytest.mark.slow
def test_jobs_survive_an_upgrade_and_the_way_back(deploy):
    newer = roll_forward(deploy, jobs=10)
    roll_back(deploy, newer, jobs=10)
    deploy.assert_no_job_was_harmed(deploy.finish())


@pytest.mark.slow
def test_a_newer_build_before_the_migration_says_what_to_run_and_harms_nothing(deploy):
    deploy.start_worker(deploy.older)
    deploy.start_load(deploy.older)
    early = deploy.start_worker(deploy.newer, wait=False)
    assert early.process.wait(30) == 1
    assert f"needs {STEP}. Run: mulligan migrate" in early.text()
    deploy.run_for(10)
    assert deploy.newer.run("migrate").returncode == 0
    deploy.start_worker(deploy.newer)
    deploy.run_for(10)
    deploy.assert_no_job_was_harmed(deploy.finish())


def test_doctor_of_an_older_build_accepts_a_schema_that_admits_it(deploy):
    assert deploy.newer.run("migrate").returncode == 0
    found = deploy.older.run("doctor")
    assert f"newer than this version, which may use it: it has {STEP}" in found.stdout


@pytest.mark.any_store
def test_jobs_on_a_build_that_the_schema_does_not_admit_go_back_uncharged(
    store_url, tmp_path, start, app
):
    deploy = Deploy(store_url, tmp_path, start, app, admits=2)
    older = deploy.start_worker(deploy.older)
    assert deploy.newer.run("migrate").returncode == 0
    job = app.enqueue("alone", {"n": 1})
    until(lambda: "an error of Mulligan" in job.refresh().why, 30, "given back")
    job = job.refresh()
    assert (job.state, job.failures, job.losses) == ("queued", 0, 0)
    assert older.end() == 0
    deploy.start_worker(deploy.newer)
    until(lambda: deploy.succeeded() == 2, 30, "the job and its child")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_rounds_of_upgrades_and_ways_back_harm_no_job(deploy):
    newer = roll_forward(deploy, jobs=200)
    for _ in range(3):
        roll_back(deploy, newer, jobs=200)
        newer = deploy.start_worker(deploy.newer)
    deploy.assert_no_job_was_harmed(deploy.finish())
