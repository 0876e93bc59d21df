"""`mulligan import …`: print the schedules of another system as declarations for your app."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mulligan.cli.database import print_notice
from mulligan.core.errors import ConfigError
from mulligan.core.job import is_name
from mulligan.schedules.importers import READERS, FoundSchedule, FoundSchedules, read_schedules
from mulligan.schedules.rules import check_cron

MAX_SOURCE = 10_000_000  # bytes


@click.command("import")
@click.argument("system", type=click.Choice(sorted(READERS)))
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def import_schedules(system: str, file: Path) -> None:
    """Print the schedules in FILE as calls of app.schedule().

    FILE is source code, which is read and never run: the module with `beat_schedule`, the one that
    calls `add_job`, or the configuration of `rq cron`.
    """
    if file.stat().st_size > MAX_SOURCE:
        raise ConfigError(f"{file} is too large to be source code")
    try:
        source = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not a text file in UTF-8: {error}") from error
    found = read_schedules(system, source)
    problems = 0
    for schedule in found.schedules:
        problem = schedule.problem or _check(schedule)
        problems += bool(problem)
        click.echo(_declare(schedule, found, problem))
    print_notice(f"{len(found.schedules) - problems} schedules; {problems} to finish by hand")


def _check(schedule: FoundSchedule) -> str:
    """Return why a schedule cannot be declared as it is; empty if it can."""
    if not is_name(schedule.name) or not is_name(schedule.kind):
        return "its name or its task is missing, or has spaces"
    if schedule.args:
        return f"name its positional arguments {list(schedule.args)!r:.200}"
    try:
        check_cron(schedule.cron)
        json.dumps(schedule.kwargs)
    except (ConfigError, TypeError, ValueError) as error:
        return f"{error}"
    return ""


def _declare(schedule: FoundSchedule, found: FoundSchedules, problem: str) -> str:
    """Return the declaration; as a comment if a person must finish it."""
    parts = [repr(schedule.name), repr(schedule.cron), repr(schedule.kind)]
    if schedule.kwargs:
        parts.append(f"payload={dict(schedule.kwargs)!r}")
    if schedule.queue:
        parts.append(f"queue={schedule.queue!r}")
    if found.timezone:
        parts.append(f"timezone={found.timezone!r}")
    call = f"app.schedule({', '.join(parts)})"
    return f"# {problem}\n# {call}" if problem else call
