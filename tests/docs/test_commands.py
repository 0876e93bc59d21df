"""Every command and every option a page writes is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from doc_pages import ROOT, blocks, name_of, pages, prose

from mulligan.cli import COMMANDS, EXIT_CODE_MEANINGS, cli

CALL = re.compile(r"(?<![\w./-])(?:\S*/bin/)?mulligan ([^\n`#|;&)]+)")
CODE = re.compile(r"`([^`\n]+)`")
PLACEHOLDER = re.compile(r"[A-Z]|\$|…")
PAGE = ROOT / "docs" / "reference" / "cli.md"


def calls(page: Path) -> list[str]:
    """What stands behind `mulligan ` in blocks and in code font."""
    texts = [
        block.text for block in blocks(page) if block.language in {"console", "sh", "ini", "text"}
    ]
    lines = [line for text in texts for line in text.replace("\\\n", " ").splitlines()]
    typed = [line for line in lines if re.match(r"\s*(\$ |mulligan |ExecStart)", line)]
    found = [call for text in [*typed, *CODE.findall(prose(page))] for call in CALL.findall(text)]
    return [re.split(r", | ──", call)[0] for call in found]


def words_of(call: str) -> list[str]:
    try:
        return shlex.split(call)
    except ValueError:
        return call.split()


def check(call: str) -> str:
    """What is wrong with it; nothing: "" """
    command: click.Command = cli
    words = words_of(call)
    while words and isinstance(command, click.Group):
        name = words.pop(0).rstrip(",.")
        if name.startswith("-") or PLACEHOLDER.match(name):
            return ""
        found = command.get_command(click.Context(command), name)
        if found is None:
            return f"there is no command {name!r}"
        command = found
    known = {name for parameter in command.params for name in parameter.opts} | {
        "--help",
        "-h",
        "--version",
    }
    options = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return ", ".join(f"there is no option {option}" for option in options if option not in known)


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_commands_and_options_of_a_page_exist(page: Path) -> None:
    wrong = {call: trouble for call in calls(page) if (trouble := check(call))}
    assert wrong == {}


def test_the_check_finds_what_is_wrong() -> None:
    assert check("jobs lst") == "there is no command 'lst'"
    assert check("jobs list --colour red") == "there is no option --colour"
    assert check("jobs list state:dead --limit 3 -o json") == ""
    assert check("COMMAND --help") == ""
    assert len(calls(ROOT / "docs" / "start.md")) > 5


def test_the_reference_has_every_command_and_every_exit_code() -> None:
    text = PAGE.read_text()
    assert [name for name in COMMANDS if f"## `mulligan {name}" not in text] == []
    assert [code for code in EXIT_CODE_MEANINGS if f"| {code} |" not in text] == []
