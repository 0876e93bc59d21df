"""`mulligan doctor`: every setting with its origin, and what is wrong, with what to type next."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, TypeVar

import click

from mulligan._version import __version__
from mulligan.checks import FAIL, Check, examine, in_force
from mulligan.cli import options as shared
from mulligan.cli.database import say, settings_with
from mulligan.cli.output import as_json, cell, chosen, show_rows
from mulligan.policy.phrase import duration

F = TypeVar("F", bound=Callable[..., Any])

SETTING = ("name", "value", "origin")
READABLE = 100_000


def _files(name: str, help_text: str) -> Callable[[F], F]:
    return click.option(
        name, metavar="FILE", multiple=True, type=click.Path(exists=True, dir_okay=False), help=help_text
    )


@click.command()
@click.option("--verify", is_flag=True, help="Hold what is stored against every promise. Exit code 7: one is broken.")
@_files("--clients", "With --verify: what callers were told, as `mulligan.verify.Clients` writes it.")
@_files("--witness", "With --verify: what handlers saw, as `mulligan.verify.witness` writes it.")
@click.option("--settled", is_flag=True, help="With --verify: all is calm, so what should have ended must have.")
@click.option("--slack", type=float, metavar="SECONDS", help="With --settled: how long something may be on its way.")
@shared.database
@shared.output
def doctor(database: str | None, output: str | None, *, verify: bool, **said: Any) -> int:
    """Show every setting with its origin and check what can go wrong. Exit code 1: something fails."""
    if verify:
        from mulligan.cli.verifying import verified

        return verified(database, output, **said)
    if any(said.values()):
        message = "--clients, --witness, --settled and --slack go with --verify"
        raise click.UsageError(message)
    settings = settings_with(database)
    facts, checks = examine(settings)
    facts = {"mulligan": __version__, "python": platform.python_version(), "system": platform.platform()} | facts
    _print(in_force(settings), facts, checks, chosen(output))
    failing = [check for check in checks if check.status == FAIL]
    say(f"{len(failing)} of {len(checks)} checks fail" if failing else f"{len(checks)} checks, none fails")
    return 1 if failing else 0


def _print(settings: list[dict[str, Any]], facts: dict[str, str], checks: list[Check], form: str) -> None:
    found = [check._asdict() for check in checks]
    if form in {"json", "jsonl"}:
        told = {"facts": facts, "settings": settings, "checks": found}
        click.echo(as_json(told, 2 if form == "json" else None))
    elif form == "tsv":
        _tsv("setting", settings)
        _tsv("fact", [{"name": name, "value": value} for name, value in facts.items()])
        _tsv("check", found)
    else:
        show_rows([{**one, "value": _for_people(one["name"], one["value"])} for one in settings], SETTING, form)
        click.echo()
        show_rows([{"fact": name, "value": value} for name, value in facts.items()], ("fact", "value"), form)
        click.echo()
        show_rows([row for check in checks for row in _with_advice(check)], ("status", "check", "found"), form)


def _for_people(name: str, value: Any) -> str:
    plain = f"{value:g}" if isinstance(value, float) and value < READABLE else cell(value)
    return f"{value:.0f} ({duration(value)})" if name.startswith("retention.") else plain


def _with_advice(check: Check) -> list[dict[str, str]]:
    """What to type has a line of its own: beside the sentence it would leave both too little room."""
    advice = [{"status": "", "check": "", "found": f"→ {check.next}"}] if check.next else []
    return [check._asdict(), *advice]


def _tsv(first: str, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        click.echo("\t".join((first, *(cell(value) for value in row.values()))))
