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
        from mulligan.core.durations import parse_seconds

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
        from mulligan.core.durations import parse_seconds

        duration = parse_seconds(str(value))
        if duration is None:
            message = f"invalid duration {value!r}. Use 30, 30s, 5m, 2h or 1d."
            self.fail(message, param, ctx)
        return duration


class StepsParam(click.ParamType[list[int | str]]):
    """Step sizes: 1,10,100,rest."""

    name = "steps"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int | str]:
        del param, ctx
        parts = [part.strip() for part in str(value).split(",")]
        return [_parse_step(part) for part in parts]


def _parse_step(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


class ShareParam(click.ParamType[float]):
    """A share: 0.1 or 10%."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip()
        try:
            if text.endswith("%"):
                return float(text.removesuffix("%")) / 100
            return float(text)
        except ValueError:
            self.fail(f"invalid share {value!r}. Use 10% or 0.1.", param, ctx)


# --- Options of most commands ---

database_option = click.option(
    "--database", metavar="URL", help="Database to use instead of the configured one."
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would change, and change nothing."
)
HEADER_KEY = "mulligan.header"
FIELDS_KEY = "mulligan.fields"


def _remember_fields(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        fields = [field.strip() for field in value.split(",") if field.strip()]
        if not fields:
            raise click.BadParameter("name at least one field, for example --json id,kind,state")
        ctx.meta[FIELDS_KEY] = fields


def _remember_header(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click API
    ctx.meta[HEADER_KEY] = value


def _choose_output(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
    """Return the output format. --json and --header choose one if -o does not."""
    if FIELDS_KEY in ctx.meta:
        if value not in {None, "json", "jsonl"}:
            raise click.UsageError(f"--json prints JSON; remove -o {value} or use -o jsonl")
        return value or "json"
    if ctx.meta.get(HEADER_KEY):
        if value not in {None, "tsv"}:
            raise click.UsageError(f"--header is for -o tsv, not for -o {value}")
        return "tsv"
    return value


def output_option(command: F) -> F:
    """Add -o, --json and --header."""
    return add_options(
        command,
        click.option(
            "--header",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_remember_header,
            help="Print TSV with the names of the columns in the first line.",
        ),
        click.option(
            "--json",
            metavar="FIELDS",
            is_eager=True,
            expose_value=False,
            callback=_remember_fields,
            help="Print only these fields as JSON: id,kind,state.",
        ),
        click.option(
            "-o",
            "--output",
            type=click.Choice(["table", "tsv", "json", "jsonl"]),
            callback=_choose_output,
            help="Output format. Default: a table on a terminal, TSV in a pipe.",
        ),
    )


reason_option = click.option("--reason", default="", help="Recorded in the history.")
duration_option = click.option(
    "--for", "until", type=DurationParam(), help="Ends by itself after this time: 30, 5m, 2h, 1d."
)
log_level_option = click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    help="Lowest level to log. Default: INFO.",
)
log_format_option = click.option(
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
        log_format_option,
        log_level_option,
        click.option(
            "--max-memory-per-runner",
            metavar="SIZE",
            help="Replace a process that uses more than this (500MB) by a new one.",
        ),
        click.option(
            "--max-jobs-per-runner",
            type=int,
            help="Replace a process by a new one after so many jobs.",
        ),
        click.option("--runners", type=int, help="Number of processes that load the app."),
        click.option("--concurrency", type=int, help="Number of jobs to run at the same time."),
        click.option(
            "--queues",
            metavar="A,B",
            callback=parse_queue_names,
            help="Only these queues. Default: all.",
            shell_complete=complete_queues,
        ),
        database_option,
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
