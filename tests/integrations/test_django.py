"""Tasks of Django: the contract in `django_project/` on the installed Django, and on others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.postgres import PostgresServer

PROJECT = Path(__file__).parent / "django_project"
BUILD = Path(__file__).parents[2] / "build"
TIMEOUT = 400  # seconds; the tests start workers
OTHERS = ("django6.0", "django6.1")  # environments that `make djangos` creates


@pytest.fixture(params=["sqlite", "postgres"])
def environ(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Return the environment of the project, with two databases of one store."""
    urls = {name: f"sqlite:///{tmp_path}/{name}.db" for name in ("shop", "reports", "apart")}
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        for name in ("shop", "reports"):
            urls[name] = server.create_database()
    return {
        **os.environ,
        "DATABASE_URL": urls["shop"],
        "REPORTS_URL": urls["reports"],
        "APART_URL": urls["apart"],
        "DJANGO_SETTINGS_MODULE": "shop.settings",
    }


def run_contract(python: Path | str, environ: dict[str, str], *names: str) -> None:
    command = [python, "-W", "error::DeprecationWarning:mulligan", "manage.py", "test", "--noinput"]
    chosen = [part for name in names for part in ("-k", name)]
    ran = subprocess.run(
        [*command, "contract", "-p", "contract_*.py", *chosen],
        cwd=PROJECT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "\nOK\n" in ran.stderr, ran.stderr


@pytest.mark.processes
@pytest.mark.timeout(TIMEOUT + 10)
def test_the_backend_keeps_what_django_promises(environ: dict[str, str]) -> None:
    run_contract(sys.executable, environ, "Enqueued", "Run.", "Dashboard", "Settings")


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT + 10)
def test_workers_run_the_tasks_of_a_project(environ: dict[str, str]) -> None:
    run_contract(sys.executable, environ, "Workers")


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT + 10)
@pytest.mark.parametrize("name", OTHERS)
def test_the_contract_holds_on_other_versions_of_django(name: str, environ: dict[str, str]) -> None:
    python = BUILD / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{python} does not exist: make djangos")
    run_contract(python, environ)
