"""The examples of every page run as shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from doc_pages import ROOT, blocks, name_of, pages, stores

pytestmark = pytest.mark.processes

RUN = Path(__file__).parent / "run_page.py"
TIMEOUT = 400  # seconds; a page may start three servers on a busy machine
EXECUTED = {"python", "console", "sh", "toml"}
DISPLAYED = {"text", "mermaid", "ini", "dockerfile", "yaml"}
LONG = {  # slow pages, run by `make all`, like pages that start workers or servers
    "docs/howto/flask.md",
    "docs/howto/scripts.md",
    "docs/howto/sqlalchemy.md",
    "docs/howto/test-your-jobs.md",
    "docs/operate/backup.md",
    "docs/operate/bulk.md",
    "docs/operate/dead-letters.md",
    "docs/operate/held-kinds.md",
    "docs/operate/insight.md",
    "docs/operate/outages.md",
    "docs/operate/repair.md",
    "docs/operate/audit.md",
    "docs/howto/rules.md",
    "docs/howto/programs.md",
    "docs/howto/queues.md",
    "docs/howto/rollout.md",
}
SERVES = ("mulligan worker", "mulligan web", "mulligan up")
ALWAYS = {"README.md", "docs/howto/notifications.md"}


def is_long(page: Path) -> bool:
    if name_of(page) in ALWAYS:
        return False
    return name_of(page) in LONG or any(
        command in block.text for block in blocks(page) for command in SERVES
    )


def with_examples() -> list[Path]:
    return [page for page in pages() if any(block.language in EXECUTED for block in blocks(page))]


def by_store() -> list[Any]:
    return [
        pytest.param(
            page,
            store,
            id="-".join(filter(None, (name_of(page), store))),
            # Every page runs on SQLite in the fast tests.
            marks=[pytest.mark.slow] if store == "postgresql" or is_long(page) else [],
        )
        for page in with_examples()
        for store in stores(page)
    ]


def database_url(request: pytest.FixtureRequest, store: str) -> dict[str, str]:
    """Return DATABASE_URL of a new database, as SQLAlchemy writes it, for a page that names it."""
    if store == "postgresql":
        url: str = request.getfixturevalue("postgres_url")
        return {"DATABASE_URL": url.replace("postgresql:", "postgresql+psycopg:", 1)}
    return {"DATABASE_URL": "sqlite+mulligan:///shop.db"} if store else {}


@pytest.mark.timeout(TIMEOUT + 10)
@pytest.mark.parametrize(("page", "store"), by_store())
def test_the_examples_of_a_page_work(
    page: Path, store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MULLIGAN_", "PYTEST_"))
    }
    done = subprocess.run(
        [sys.executable, RUN, page],
        cwd=tmp_path,
        env=environ | {"XDG_STATE_HOME": str(tmp_path / "state")} | database_url(request, store),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_block_has_a_known_language(page: Path) -> None:
    unknown = [block for block in blocks(page) if block.language not in EXECUTED | DISPLAYED]
    assert not unknown, f"languages: {EXECUTED} are run, {DISPLAYED} are shown"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_yaml_block_can_be_read(page: Path) -> None:
    for block in blocks(page):
        if block.language == "yaml":
            assert yaml.safe_load(block.text)


def test_the_readme_has_an_example_that_runs() -> None:
    assert ROOT / "README.md" in with_examples()
