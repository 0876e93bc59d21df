"""What an operator says of a queue or a dependency: for how long, why, and which limits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from mulligan.cli import options as shared
from mulligan.cli.output import as_json, show_rows
from mulligan.engine.limiting import KEEP
from mulligan.engine.queues import COUNT_CAP
from mulligan.policy.phrase import duration

F = TypeVar("F", bound=Callable[..., Any])

reason = click.option("--reason", default="", help="For everybody who wonders why.")
until = click.option("--for", "until", type=shared.Length(), help="Ends by itself after: 30, 5m, 2h, 1d.")


def limit_options(command: F) -> F:
    for option in (
        shared.output,
        shared.database,
        reason,
        until,
        click.option("--clear", is_flag=True, help="Back to what the code declares."),
        click.option("--rate", metavar="N/s|N/m|N/h|none", help="Starts, in the whole fleet."),
        click.option("--concurrency", metavar="N|none", help="Running at once, in the whole fleet."),
    ):
        command = option(command)
    return command


def limits_said(concurrency: str | None, rate: str | None, until: float | None, *, clear: bool) -> dict[str, Any]:
    if clear and (concurrency or rate or until):
        message = "--clear goes alone: it takes back what was set"
        raise click.UsageError(message)
    return {"concurrency": _number(concurrency), "rate": _none(rate), "until": KEEP if until is None else until}


def _none(text: str | None) -> Any:
    return KEEP if text is None else None if text == "none" else text


def _number(text: str | None) -> Any:
    said = _none(text)
    if not isinstance(said, str):
        return said
    if not said.isdecimal():
        message = f"--concurrency is a whole number or none, not {text!r}"
        raise click.BadParameter(message)
    return int(said)


# -- how it is shown --------------------------------------------------------------------------------
def show_one(record: dict[str, Any], columns: tuple[str, ...], output: str | None) -> None:
    if output in {"json", "jsonl"}:
        click.echo(as_json(record, 2 if output == "json" else None))
    else:
        show_rows([record], columns, output)


def count(number: int) -> str:
    return f"{COUNT_CAP}+" if number >= COUNT_CAP else str(number)


def plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def since(at: datetime) -> str:
    return duration(max(0, round((datetime.now(UTC) - at).total_seconds())))


def left(at: datetime) -> str:
    return duration(max(0, round((at - datetime.now(UTC)).total_seconds())))
