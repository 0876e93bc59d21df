"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from mulligan.cli.completion import queues

F = TypeVar("F", bound=Callable[..., Any])

database = click.option("--database", metavar="URL", help="Instead of the one the settings name.")
dry_run = click.option("--dry-run", is_flag=True, help="Only say what would change.")
output = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "tsv", "json", "jsonl"]),
    help="Default: a table, TSV when piped.",
)
log_level = click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    help="Nothing below it is logged; default: INFO.",
)
log_format = click.option(
    "--log-format", type=click.Choice(["text", "json"]), help="json: one object a line."
)


def queue_list(_: click.Context, __: click.Parameter, value: str | None) -> frozenset[str] | None:
    if value is None:
        return None
    names = frozenset(name.strip() for name in value.split(",") if name.strip())
    if not names:
        message = "name at least one queue: --queues render,mail"
        raise click.BadParameter(message)
    return names


def worker_options(command: F) -> F:
    """What `worker` and `up` say about their worker."""
    for option in (
        click.option(
            "--leave-with-stdin", is_flag=True, help="End when stdin ends: with whoever started it."
        ),
        log_format,
        log_level,
        click.option("--runners", type=int, help="How many processes hold the app."),
        click.option("--concurrency", type=int, help="How many jobs at once."),
        click.option(
            "--queues",
            metavar="A,B",
            callback=queue_list,
            help="Only these queues; default: all.",
            shell_complete=queues,
        ),
        database,
    ):
        command = option(command)
    return command


def page_options(command: F) -> F:
    for option in (
        click.option("--port", type=int, help="Default 8321, or the next free one."),
        click.option("--host", help="Another than loopback needs a key."),
    ):
        command = option(command)
    return command


class When(click.ParamType[Any]):
    """A length from now (5m), or a moment with its zone."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from mulligan.jobs.filter import seconds

        found = seconds(str(value))
        if found is not None:
            return found
        try:
            at = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(
                f"{value!r} is neither a length (30, 5m, 2h, 1d) nor a moment (2026-03-01T06:00+01:00)",
                param,
                ctx,
            )
        if at.tzinfo is None:
            self.fail(f"{value!r} has no time zone; add one: {value}Z, {value}+01:00", param, ctx)
        return at


class Length(click.ParamType[float]):
    """30, 30s, 5m, 2h, 1d: seconds."""

    name = "length"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from mulligan.jobs.filter import seconds

        found = seconds(str(value))
        if found is None:
            self.fail(f"{value!r} is no length of time; write 30, 30s, 5m, 2h or 1d", param, ctx)
        return found
