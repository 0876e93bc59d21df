"""`mulligan doctor`: every setting with its origin, and what is wrong, with what to type next."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from mulligan._version import __version__
from mulligan.cli import BROKEN
from mulligan.cli import options as shared
from mulligan.cli.database import existing, say, settings_with
from mulligan.cli.output import as_json, cell, chosen, show_rows
from mulligan.core.format import duration
from mulligan.doctor import FAIL, Check, examine, in_force
from mulligan.doctor.verify import VerifyReport, verify
from mulligan.doctor.verify.case import Violation

# `mulligan doctor --verify`: the histories held against each other, and each broken promise with its evidence.

EVERY = 20_000  # jobs between two words about how far it is


def verified(
    database: str | None,
    output: str | None,
    *,
    clients: tuple[str, ...],
    witness: tuple[str, ...],
    settled: bool,
    slack: float | None,
) -> int:
    settings = settings_with(database)
    with existing(settings) as store:
        report = verify(
            store,
            clients=clients,
            witness=witness,
            settled=settled,
            slack=slack,
            settings=settings,
            progress=_progress,
        )
    _print_report(report, chosen(output))
    say(_summary(report))
    return 0 if report.ok else BROKEN


def _progress(jobs: int) -> None:
    if jobs % EVERY == 0 and jobs and sys.stderr.isatty():
        say(f"{jobs:,} jobs so far")


def _summary(report: VerifyReport) -> str:
    looked = f"{report.jobs} jobs, {report.events} events, {report.calls} calls, {report.lines} witness lines"
    torn = f", {report.unreadable} lines that cannot be read" if report.unreadable else ""
    if report.ok:
        return f"{looked}{torn}: {len(report.checked)} invariants hold"
    broken = ", ".join(f"{name} × {n}" for name, n in sorted(report.counts.items()))
    return f"{looked}{torn}: broken: {broken}"


def _print_report(report: VerifyReport, form: str) -> None:
    if form == "json":
        click.echo(as_json(report.to_plain(), 2))
    elif form == "jsonl":
        for found in report.violations:
            click.echo(as_json(found.to_plain()))
    elif form == "tsv":
        for found in report.violations:
            click.echo(
                "\t".join(map(cell, (found.invariant, found.subject, found.what, found.sentence)))
            )
    else:
        for found in report.violations:
            _tell(found)


def _tell(found: Violation) -> None:
    click.echo(f"{found.invariant}  {found.sentence}")
    click.echo(
        f"    {cell(found.subject)}: {cell(found.what)}"
        if found.subject
        else f"    {cell(found.what)}"
    )
    for history, lines in found.evidence.items():
        for line in lines:
            click.echo(f"    {history:<8} {cell(line)}")
    if found.story:
        click.echo("    its story:")
        for line in found.story.splitlines():
            click.echo(f"      {cell(line)}")
    click.echo()


# `mulligan doctor`: every setting with its origin, and what is wrong, with what to type next.

F = TypeVar("F", bound=Callable[..., Any])

SETTING = ("name", "value", "origin")
READABLE = 100_000


def _files(name: str, help_text: str) -> Callable[[F], F]:
    return click.option(
        name,
        metavar="FILE",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False),
        help=help_text,
    )


@click.command()
@click.option(
    "--verify",
    is_flag=True,
    help="Hold what is stored against every promise. Exit code 7: one is broken.",
)
@_files(
    "--clients",
    "With --verify: what callers were told, as `mulligan.doctor.verify.Clients` writes it.",
)
@_files(
    "--witness", "With --verify: what handlers saw, as `mulligan.doctor.verify.witness` writes it."
)
@click.option(
    "--settled",
    is_flag=True,
    help="With --verify: all is calm, so what should have ended must have.",
)
@click.option(
    "--slack",
    type=float,
    metavar="SECONDS",
    help="With --settled: how long something may be on its way.",
)
@shared.database
@shared.output
def doctor(database: str | None, output: str | None, *, verify: bool, **said: Any) -> int:
    """Show every setting with its origin and check what can go wrong. Exit code 1: something fails."""
    if verify:
        pass

        return verified(database, output, **said)
    if any(said.values()):
        message = "--clients, --witness, --settled and --slack go with --verify"
        raise click.UsageError(message)
    settings = settings_with(database)
    facts, checks = examine(settings)
    facts = {
        "mulligan": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    } | facts
    _print_checks(in_force(settings), facts, checks, chosen(output))
    failing = [check for check in checks if check.status == FAIL]
    say(
        f"{len(failing)} of {len(checks)} checks fail"
        if failing
        else f"{len(checks)} checks, none fails"
    )
    return 1 if failing else 0


def _print_checks(
    settings: list[dict[str, Any]], facts: dict[str, str], checks: list[Check], form: str
) -> None:
    found = [check._asdict() for check in checks]
    if form in {"json", "jsonl"}:
        told = {"facts": facts, "settings": settings, "checks": found}
        click.echo(as_json(told, 2 if form == "json" else None))
    elif form == "tsv":
        _tsv("setting", settings)
        _tsv("fact", [{"name": name, "value": value} for name, value in facts.items()])
        _tsv("check", found)
    else:
        show_rows(
            [{**one, "value": _for_people(one["name"], one["value"])} for one in settings],
            SETTING,
            form,
        )
        click.echo()
        show_rows(
            [{"fact": name, "value": value} for name, value in facts.items()],
            ("fact", "value"),
            form,
        )
        click.echo()
        show_rows(
            [row for check in checks for row in _with_advice(check)],
            ("status", "check", "found"),
            form,
        )


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
