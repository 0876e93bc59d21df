"""Generate docs/reference/cli.md from the commands. Used by `generate.py`."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator

import click

from mulligan.cli import EXIT_CODE_MEANINGS, cli

PAGE = """\
{notice}

# The command line

`mulligan COMMAND --help` prints the same text. `python -m mulligan` is the same program.

| convention | |
| --- | --- |
| streams | data on stdout, messages and hints on stderr |
| formats | a table on a terminal, TSV in a pipe; `-o table`, `-o tsv`, `-o json`, `-o jsonl`. JSON has every field |
| colours | on a terminal; `NO_COLOR=1` never, `FORCE_COLOR=1` always |
| which database | `--database`, else the [settings](settings.md), else that of `mulligan --app jobs:app COMMAND`, which imports the app, else `sqlite:///mulligan.db` |
| ids | a unique prefix is enough; if several match, they are listed |
| filters | `state:dead,parked kind:render since:2h code:GW_5XX arg.clip:7 "moov"`; all match ([fields]({fields})) |
| counts | stop at 10,000 and say so |
| lists | read at most 50,000 jobs; an incomplete list says how to continue |
| durations | `30`, `30s`, `5m`, `2h`, `1d` |
| wrong names | commands, options, fields, events and settings: the error names the nearest valid one |

## Exit codes

{codes}

## Shared options

Every command that uses a database takes `--database`, and every command `-o`, `--json` and `--header` unless it says
"No `-o`". Commands that take another of these list it after "Also".

{shared}

{commands}
"""


FIELDS = "../operate/dead-letters.md#which-jobs-can-i-find"


SHARED_BY = 3  # an option that this many commands describe in the same words is described once


OUTPUT = {"`-o`", "`--json`", "`--header`"}


def page(notice: str) -> str:
    codes = table(
        ("exit code", "means"),
        ([str(code), meaning] for code, meaning in EXIT_CODE_MEANINGS.items()),
    )
    commands = list(list_commands(cli, ("mulligan",)))
    rows = Counter(tuple(_option(one)) for _, command in commands for one in _options(command))
    names = Counter(row[0].split()[0] for row in rows)
    shared = {
        row
        for row, count in rows.items()
        if count >= SHARED_BY or (count > 1 and names[row[0].split()[0]] == 1)
    }
    described: dict[str, str] = {}  # text: path of the command that it describes
    parts = []
    for path, command in commands:
        title, *body = _command(path, command, shared)
        name = " ".join(path)
        same = described.setdefault("\n\n".join(body), name)
        parts += [title, *body] if same == name else [title, f"The same as `{same}`."]
    return PAGE.format(
        notice=notice,
        fields=FIELDS,
        codes=codes,
        shared=table(("option", "meaning"), [list(row) for row in sorted(shared)]),
        commands="\n\n".join(parts),
    )


def list_commands(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command that is not a group, with its path."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    ctx = click.Context(command)
    for name in command.list_commands(ctx):
        found = command.get_command(ctx, name)
        if found is not None:
            yield from list_commands(found, (*path, name))


def _command(
    path: tuple[str, ...], command: click.Command, shared: set[tuple[str, ...]]
) -> Iterator[str]:
    with click.Context(command, info_name=" ".join(path)) as ctx:
        usage = " ".join(command.get_usage(ctx).removeprefix("Usage: ").split())
    yield f"## `{' '.join(path)}`"
    arguments = usage.removeprefix(" ".join(path)).replace("[OPTIONS]", "").strip()
    usage_line = f"`{arguments}` · " if arguments else ""
    yield usage_line + _sentences(inspect.cleandoc(command.help or ""))
    options = [_option(one) for one in _options(command)]
    special = [row for row in options if tuple(row) not in shared]
    if special:
        yield "\n".join(
            f"- {name}: {meaning}" if meaning else f"- {name}" for name, meaning in special
        )
    also = [row[0].partition(" ")[0].rstrip(",") for row in options if tuple(row) in shared]
    named = [name for name in also if name not in {*OUTPUT, "`--database`"}]
    ends = [f"Also {', '.join(named)}."] if named else []
    ends += [] if set(also) >= OUTPUT else ["No `-o`."]
    if ends:
        yield " ".join(ends)


def _options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option)]


def _sentences(text: str) -> str:
    """Join each paragraph into one line; format an example of a filter as code."""
    prose, _, example = text.partition("FILTER: ")
    joined = "\n\n".join(" ".join(part.split()) for part in prose.split("\n\n")).strip()
    return f"{joined} FILTER: `{example}`" if example else joined


def _option(option: click.Option) -> list[str]:
    names = ", ".join(f"`{name}`" for name in option.opts)
    value = "" if option.is_flag else f" {_metavar(option)}"
    default = f" Default: `{option.default}`." if option.show_default else ""
    return [f"{names}{value}".rstrip(), f"{option.help or ''}{default}".strip()]


def _metavar(option: click.Option) -> str:
    shown = option.make_metavar(click.Context(click.Command("")))
    return shown.replace(" RANGE", "")


def table(head: tuple[str, ...], rows: Iterator[list[str]] | list[list[str]]) -> str:
    cells = [
        list(head),
        ["---"] * len(head),
        *([value.replace("|", "\\|") for value in row] for row in rows),
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)
