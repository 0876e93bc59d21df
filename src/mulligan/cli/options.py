"""Options and parameter types that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from mulligan.cli.completion import complete_queues

F = TypeVar("F", bound=Callable[..., Any])


class TimeParam(click.ParamType[Any]):
    """A duration (5m), which counts from now, or a time with its zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from mulligan.jobs.filter import parse_seconds

        duration = parse_seconds(str(value))
        if duration is not None:
            return duration
        try:
            at = datetime.fromisoformat(str(value))
        except ValueError:
            message = (
                f"invalid time {value!r}. "
                "Use a duration (30, 5m, 2h, 1d) or a time (2026-03-01T06:00+01:00)."
            )
            self.fail(message, param, ctx)
        if at.tzinfo is None:
            message = f"{value!r} has no time zone. Add one: {value}Z or {value}+01:00."
            self.fail(message, param, ctx)
        return at


class DurationParam(click.ParamType[float]):
    """A duration in seconds: 30, 30s, 5m, 2h, 1d."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from mulligan.jobs.filter import parse_seconds

        duration = parse_seconds(str(value))
        if duration is None:
            message = f"invalid duration {value!r}. Use 30, 30s, 5m, 2h or 1d."
            self.fail(message, param, ctx)
        return duration


# --- Options of most commands ---

database = click.option(
    "--database", metavar="URL", help="Database to use instead of the configured one."
)
dry_run = click.option(
    "--dry-run", is_flag=True, help="Show what would change, and change nothing."
)
output = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "tsv", "json", "jsonl"]),
    help="Output format. Default: a table on a terminal, TSV in a pipe.",
)
reason_option = click.option("--reason", default="", help="Recorded in the history.")
duration_option = click.option(
    "--for", "until", type=DurationParam(), help="Ends by itself after this time: 30, 5m, 2h, 1d."
)
log_level = click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    help="Lowest level to log. Default: INFO.",
)
log_format = click.option(
    "--log-format", type=click.Choice(["text", "json"]), help="json logs one object per line."
)


# --- Options of worker, up and web ---


def parse_queue_names(
    _: click.Context, __: click.Parameter, value: str | None
) -> frozenset[str] | None:
    """Parse --queues a,b. None means all queues."""
    if value is None:
        return None
    names = frozenset(name.strip() for name in value.split(",") if name.strip())
    if not names:
        message = "name at least one queue, for example --queues render,mail"
        raise click.BadParameter(message)
    return names


def add_options(command: F, *decorators: Callable[[Any], Any]) -> F:
    """Apply option decorators. Help shows the last one first."""
    for decorate in decorators:
        command = decorate(command)
    return command


def worker_options(command: F) -> F:
    """Add the options of `worker` and `up` that describe the worker."""
    return add_options(
        command,
        click.option(
            "--leave-with-stdin",
            is_flag=True,
            help="Stop when stdin closes, that is, when the starting process ends.",
        ),
        log_format,
        log_level,
        click.option("--runners", type=int, help="Number of processes that load the app."),
        click.option("--concurrency", type=int, help="Number of jobs to run at the same time."),
        click.option(
            "--queues",
            metavar="A,B",
            callback=parse_queue_names,
            help="Only these queues. Default: all.",
            shell_complete=complete_queues,
        ),
        database,
    )


def web_options(command: F) -> F:
    """Add the options that say where the dashboard listens."""
    return add_options(
        command,
        click.option(
            "--port", type=int, help="Port to listen on. Default: 8321, or the next free one."
        ),
        click.option(
            "--host", help="Address to listen on. Any address except loopback requires an API key."
        ),
    )
