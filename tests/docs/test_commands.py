"""Every command and option that a page mentions exists."""

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
    """Return the arguments of each `mulligan` call in blocks and inline code."""
    texts = [
        block.text for block in blocks(page) if block.language in {"console", "sh", "ini", "text"}
    ]
    lines = [line for text in texts for line in text.replace("\\\n", " ").splitlines()]
    typed = [line for line in lines if re.match(r"\s*(\$ |mulligan |ExecStart)", line)]
    found = [call for text in [*typed, *CODE.findall(prose(page))] for call in CALL.findall(text)]
    return [re.split(r", | ──", call)[0] for call in found]


def split_arguments(call: str) -> list[str]:
    try:
        return shlex.split(call)
    except ValueError:
        return call.split()


def check(call: str) -> str:
    """Return what is wrong with a call, or an empty string."""
    command: click.Command = cli
    arguments = split_arguments(call)
    while arguments and isinstance(command, click.Group):
        name = arguments.pop(0).rstrip(",.")
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
    options = [
        argument.partition("=")[0] for argument in arguments if re.match(r"--?[a-z]", argument)
    ]
    return ", ".join(f"there is no option {option}" for option in options if option not in known)


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_commands_and_options_of_a_page_exist(page: Path) -> None:
    wrong = {call: problem for call in calls(page) if (problem := check(call))}
    assert wrong == {}


def test_the_check_finds_unknown_commands_and_options() -> None:
    assert check("jobs lst") == "there is no command 'lst'"
    assert check("jobs list --colour red") == "there is no option --colour"
    assert check("jobs list state:dead --limit 3 -o json") == ""
    assert check("COMMAND --help") == ""
    assert len(calls(ROOT / "docs" / "tutorial" / "five-minutes.md")) > 5


def test_the_reference_has_every_command_and_every_exit_code() -> None:
    text = PAGE.read_text()
    assert [name for name in COMMANDS if f"## `mulligan {name}" not in text] == []
    assert [code for code in EXIT_CODE_MEANINGS if f"| {code} |" not in text] == []
