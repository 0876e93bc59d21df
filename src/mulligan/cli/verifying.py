"""`mulligan doctor --verify`: the histories held against each other, and each broken promise with its evidence."""

from __future__ import annotations

import sys

import click

from mulligan.cli.database import existing, say, settings_with
from mulligan.cli.output import as_json, cell, chosen
from mulligan.verify import Report, verify
from mulligan.verify.finding import Violation

BROKEN = 7
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
    _print(report, chosen(output))
    say(_summary(report))
    return 0 if report.ok else BROKEN


def _progress(jobs: int) -> None:
    if jobs % EVERY == 0 and jobs and sys.stderr.isatty():
        say(f"{jobs:,} jobs so far")


def _summary(report: Report) -> str:
    looked = f"{report.jobs} jobs, {report.events} events, {report.calls} calls, {report.lines} witness lines"
    torn = f", {report.unreadable} lines that cannot be read" if report.unreadable else ""
    if report.ok:
        return f"{looked}{torn}: {len(report.checked)} invariants hold"
    broken = ", ".join(f"{name} × {n}" for name, n in sorted(report.counts.items()))
    return f"{looked}{torn}: broken: {broken}"


def _print(report: Report, form: str) -> None:
    if form == "json":
        click.echo(as_json(report.to_plain(), 2))
    elif form == "jsonl":
        for found in report.violations:
            click.echo(as_json(found.to_plain()))
    elif form == "tsv":
        for found in report.violations:
            click.echo("\t".join(map(cell, (found.invariant, found.subject, found.what, found.sentence))))
    else:
        for found in report.violations:
            _tell(found)


def _tell(found: Violation) -> None:
    click.echo(f"{found.invariant}  {found.sentence}")
    click.echo(f"    {cell(found.subject)}: {cell(found.what)}" if found.subject else f"    {cell(found.what)}")
    for history, lines in found.evidence.items():
        for line in lines:
            click.echo(f"    {history:<8} {cell(line)}")
    if found.story:
        click.echo("    its story:")
        for line in found.story.splitlines():
            click.echo(f"      {cell(line)}")
    click.echo()
