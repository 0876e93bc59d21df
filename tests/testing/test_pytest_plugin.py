"""The pytest plugin, in a small project of a user."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import psycopg
import pytest

# Import these here: otherwise each in-process run would load and unload them, and apsw and psycopg
# do not survive a second import in one process.
import mulligan.storage.postgres
import mulligan.storage.sqlite
import mulligan.testing  # noqa: F401 - see above

pytestmark = pytest.mark.processes

pytest_plugins = ["pytester"]

QUIET = (
    "-q",
    *(
        f"-pno:{other}"
        for other in ("hypothesispytest", "xdist", "timeout", "anyio", "cacheprovider")
    ),
)

JOBS = """
from mulligan import Context, Mulligan, Policy, Table

app = Mulligan()

@app.job(name="render", policy=Policy(max_retries=3, backoff=Table([60])))
def render(ctx: Context, clip: int) -> str:
    thumbnail.options(unique=ctx.key("thumbnail"), queue="small").enqueue(clip=clip)
    return f"clip {clip}"

@app.job(name="thumbnail")
def thumbnail(clip: int) -> int:
    return 1 // clip
"""
SHOP = """
from jobs import render

def order(clip):
    render.options(owner="acme", delay=3600).enqueue(clip=clip)
"""
INI = """
[pytest]
mulligan_app = jobs:app
pythonpath = .
"""
GOOD = """
import asyncio
import pytest
import jobs, shop
from mulligan import Fail

def test_code_that_enqueues(mulligan):
    shop.order(7)
    [job] = mulligan.assert_enqueued(jobs.render, payload={"clip": 7}, owner="acme", delay=3600)
    mulligan.refute_enqueued(jobs.thumbnail)
    mulligan.drain()
    assert mulligan.assert_state(job, "queued")
    mulligan.advance(3600)
    report = mulligan.drain()
    assert [job.kind for job in report.jobs] == ["render", "thumbnail"]
    mulligan.assert_enqueued(jobs.thumbnail, payload={"clip": 7}, queue="small", state="succeeded", count=1)

def test_a_gateway_that_is_down(mulligan):
    job = jobs.render.enqueue(clip=1)
    mulligan.force(jobs.render, Fail("GW_5XX"), times=2)
    mulligan.drain()
    at = mulligan.assert_will_retry(job, after=60, code="GW_5XX")
    assert at > mulligan.now()
    assert mulligan.drain(scheduled=True).attempts == 3

def test_nothing_is_left_of_the_tests_before(mulligan):
    mulligan.refute_enqueued(state="any")
    assert mulligan.app.registry.overrides == []

def test_the_app_alone(mulligan_app):
    assert mulligan_app is jobs.app
    job = jobs.render.enqueue(clip=3)
    mulligan_app.run_inline()
    assert job.refresh().result == "clip 3"

def test_async_code(mulligan):
    async def test():
        await jobs.render.enqueue_async(clip=1)
        assert (await mulligan.drain_async()).attempts == 2
    asyncio.run(test())

def test_a_real_worker(mulligan):
    with mulligan.worker(env={"MULLIGAN_WORKER__SHUTDOWN_GRACE": "2"}):
        job = jobs.render.options(delay=3600).enqueue(clip=5)
        mulligan.advance(3600)
        assert mulligan.app.jobs.wait(job.id, timeout=20).result == "clip 5"

@pytest.fixture(autouse=True)
def outside():
    yield
    assert jobs.app.settings.database_url == "sqlite:///mulligan.db", "the app uses its own database again"
"""
BAD = """
import jobs

def test_the_wrong_clip(mulligan):
    jobs.render.enqueue(clip=8)
    mulligan.assert_enqueued(jobs.render, payload={"clip": 7})

def test_one_too_many(mulligan):
    jobs.render.enqueue(clip=8)
    mulligan.refute_enqueued(jobs.render)

def test_a_handler_with_a_mistake(mulligan):
    job = jobs.thumbnail.enqueue(clip=0)
    mulligan.drain()
    mulligan.assert_state(job, "succeeded")

def test_a_job_without_end(mulligan):
    mulligan.force(jobs.thumbnail, "lost", times=50)
    jobs.thumbnail.options(policy=jobs.Policy(max_losses=1000)).enqueue(clip=1)
    mulligan.drain(most=10)
"""


@pytest.fixture
def project(pytester, monkeypatch):
    for name in ("MULLIGAN_DATABASE_URL", "MULLIGAN_TEST_URL", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    # The folder tests/jobs is a package of that name once one of its tests was collected.
    monkeypatch.delitem(sys.modules, "jobs", raising=False)
    pytester.makepyfile(jobs=JOBS, shop=SHOP)
    return pytester


@pytest.fixture
def tested_on(empty_url, monkeypatch, project):
    """Return the project, configured to run its tests on this store."""
    if not empty_url.startswith("sqlite"):
        monkeypatch.setenv("MULLIGAN_TEST_URL", empty_url)
    return project


def test_a_project_tests_its_jobs(tested_on, empty_url):
    tested_on.makefile(".ini", pytest=INI)
    tested_on.makepyfile(test_shop=GOOD)
    result = tested_on.runpytest_inprocess(*QUIET)
    result.assert_outcomes(passed=6)
    assert not list(tested_on.path.glob("mulligan.db*")), "the app's own database was never touched"
    if not empty_url.startswith("sqlite"):
        with psycopg.connect(empty_url) as connection:
            found = connection.execute(
                "SELECT 1 FROM pg_namespace WHERE nspname LIKE 'mulligan%'"
            ).fetchall()
        assert found == [], "no schema is left"


def test_a_failed_assertion_shows_the_jobs_that_were_found(project):
    project.makefile(".ini", pytest=INI)
    project.makepyfile(test_shop=BAD)
    result = project.runpytest_inprocess(*QUIET)
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(
        [
            "E*AssertionError: expected a queued job of kind 'render' with payload {'clip': 7}, but found none",
            "E*1 other job, most similar first:",
            "E*render queued * payload {'clip': 8}",
            "E*payload.clip is 8, not 7",
            "E*AssertionError: expected no queued job of kind 'render', but found 1:",
            "E*AssertionError: expected thumbnail * to be succeeded, but it is dead: *",
            "E*ZeroDivisionError*",
            "E*still busy after 10 attempts: ran thumbnail 11 times*",
        ]
    )
    result.stdout.no_fnmatch_line("*def assert_enqueued*")


def test_a_fixture_can_provide_the_app(project):
    project.makeconftest(
        """
        import pytest

        @pytest.fixture
        def mulligan_app():
            from jobs import app
            return app
        """
    )
    project.makepyfile(
        test_it="""
        import jobs

        def test_it(mulligan):
            assert mulligan.app is jobs.app
            jobs.render.enqueue(clip=1)
            assert mulligan.drain().attempts == 2
        """
    )
    project.syspathinsert()
    project.runpytest_inprocess(*QUIET).assert_outcomes(passed=1)
    assert not list(project.path.glob("mulligan.db*"))


def test_a_missing_app_setting_is_a_clear_error(project):
    project.makepyfile("def test_it(mulligan): ...")
    result = project.runpytest_inprocess(*QUIET)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*no app configured. Set the ini option mulligan_app = module:attribute, or define a *"]
    )


def test_the_plugin_imports_no_other_module_until_a_fixture_is_used():
    [entry] = entry_points(group="pytest11", name="mulligan")
    code = f"import sys, {entry.value}; print(*(name for name in sys.modules if name[:8] in ('mulligan', 'pydantic')))"
    listed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert sorted(listed.stdout.split()) == [
        "mulligan",
        "mulligan._version",
        "mulligan.testing",
        "mulligan.testing.pytest_plugin",
    ]
