"""The reference has everything that exists, and pages stay short enough to read."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
import pytest
from doc_pages import ROOT, name_of, prose

from mulligan.cli import cli
from mulligan.config import Settings, read_settings
from mulligan.core.event import EventType
from mulligan.failures import codes
from mulligan.http.api import create_api

sys.path.insert(0, str(ROOT / "docs"))

import wrap

REFERENCE = ROOT / "docs" / "reference"
MOST_WORDS = 60_000  # in pages for users, outside code blocks
CONTRIBUTORS = {ROOT / "docs" / "contributors", ROOT / "docs" / "decisions"}


def text(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def commands(command: click.Command, path: str) -> list[str]:
    if not isinstance(command, click.Group):
        return [path]
    ctx = click.Context(command)
    found = [(name, command.get_command(ctx, name)) for name in command.list_commands(ctx)]
    return [one for name, inner in found if inner for one in commands(inner, f"{path} {name}")]


def routes() -> list[str]:
    paths = create_api(read_settings({}, environ={})).openapi()["paths"]
    return [f"`{method.upper()} {path}`" for path, methods in paths.items() for method in methods]


@pytest.mark.parametrize(
    ("page", "entries"),
    [
        (
            "settings.md",
            [f"`{name.replace('.transient.', '.CLASS.')}`" for name, _ in Settings().values()],
        ),
        ("cli.md", [f"## `{path}`" for path in commands(cli, "mulligan")]),
        ("http.md", routes()),
        ("events.md", [f"`{event}`" for event in EventType]),
        ("codes.md", [f"`{code}`" for code in codes.CODES]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_reference_has_everything_that_exists(page: str, entries: list[str]) -> None:
    missing = [entry for entry in entries if entry not in text(page)]
    # Settings of one class are printed once, for all classes.
    missing = [entry for entry in missing if not entry.startswith("`retry.classes.")]
    assert missing == []
    assert len(entries) > 20


def test_pages_for_users_have_at_most_60_000_words() -> None:
    users = [page for page in (ROOT / "docs").rglob("*.md") if page.parent not in CONTRIBUTORS]
    words = {
        name_of(page): sum(1 for word in prose(page).split() if re.search(r"\w", word))
        for page in users
    }
    assert sum(words.values()) <= MOST_WORDS, sorted(words.items(), key=lambda one: -one[1])[:10]


@pytest.mark.parametrize("page", wrap.pages(), ids=name_of)
def test_prose_is_wrapped(page: Path) -> None:
    written = page.read_text(encoding="utf-8")
    assert wrap.wrap(written) == written, "run: python docs/wrap.py"
