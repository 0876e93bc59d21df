"""`mulligan init [DIR]`: a first app that runs at once, and fails once, so that a newcomer sees what happens then."""

from __future__ import annotations

from pathlib import Path

import click

JOBS = '''\
"""A first app. Run its jobs: mulligan worker jobs:app"""

from mulligan import Context, Fixed, Mulligan, Policy

app = Mulligan()  # on the database that mulligan.toml names


@app.job(policy=Policy(max_retries=3, backoff=Fixed(2)))
def greet(ctx: Context, name: str = "world") -> str:
    """Its first attempt fails, so that you see what happens then. Take the two lines out when you have seen it."""
    if ctx.attempt == 1:
        raise ConnectionError("the greeting service did not answer")
    return f"Hello, {name}!"
'''

TOML = """\
# Settings of this folder; the environment (MULLIGAN_WORKER__CONCURRENCY=8) and flags win over it.
# `mulligan doctor` shows every setting, its value and where it comes from.

database_url = "sqlite:///mulligan.db"  # or "postgresql://user@host/database"

[worker]
concurrency = 4

[retry]
max_retries = 3
base_delay = 5 # seconds before the first retry; each further one waits twice as long
"""

FILES = {"jobs.py": JOBS, "mulligan.toml": TOML}


@click.command()
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(file_okay=False, path_type=Path))
def init(directory: Path) -> None:
    """Write jobs.py and mulligan.toml into DIR (default: here). What is there already is never overwritten."""
    from mulligan.cli.database import say

    _refuse_overwriting(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            with (directory / name).open("x", encoding="utf-8") as file:
                file.write(text)
            click.echo(str(directory / name))
    except OSError as error:
        raise click.ClickException(f"cannot write into {directory}: {error.strerror}") from None
    for line in _next(directory):
        say(line)


class Occupied(click.ClickException):
    exit_code = 5


def _refuse_overwriting(directory: Path) -> None:
    there = [str(directory / name) for name in FILES if (directory / name).exists()]
    if there:
        raise Occupied(f"{' and '.join(there)} exists already; nothing was written. Another place: mulligan init DIR")


def _next(directory: Path) -> list[str]:
    there = [] if directory.resolve() == Path.cwd() else [f"  cd {directory}"]
    return [
        "",
        "Now type:",
        *there,
        "  mulligan worker jobs:app               # in one terminal",
        "  ID=$(mulligan enqueue greet name=Ada)  # in another",
        "  mulligan jobs watch $ID                # its first attempt fails, the second succeeds",
        "  mulligan jobs explain $ID              # why",
    ]
