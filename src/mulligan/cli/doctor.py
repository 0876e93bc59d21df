"""`mulligan doctor`: show every setting with its origin, and check for problems.

With --verify: check the stored histories against every invariant. With --sql: print a statement as
each database runs it.
"""

from __future__ import annotations

import difflib
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from mulligan._version import __version__
from mulligan.cli import EXIT_INVARIANT_BROKEN
from mulligan.cli import options as shared
from mulligan.cli.app_facts import load_app_settings
from mulligan.cli.database import (
    load_settings,
    load_settings_of_apps,
    open_existing,
    print_notice,
    with_app_settings,
)
from mulligan.cli.output import (
    format_cell,
    is_json,
    output_format,
    print_json,
    print_rows,
    print_tsv,
    to_json,
)
from mulligan.config import Settings
from mulligan.core.errors import NotFound
from mulligan.doctor import FAIL, Check, effective_settings, format_setting, run_checks
from mulligan.doctor.verify import VerifyReport, verify
from mulligan.doctor.verify.case import Violation
from mulligan.storage.statements import (
    SQLITE_PREFIX,
    SqlDialect,
    load_statement,
    statement_names,
    statement_path,
)

F = TypeVar("F", bound=Callable[..., Any])


def _files_option(name: str, help_text: str) -> Callable[[F], F]:
    file = click.Path(exists=True, dir_okay=False)
    return click.option(name, metavar="FILE", multiple=True, type=file, help=help_text)


@click.command("doctor")
@click.option(
    "--verify",
    "run_verify",
    is_flag=True,
    help="Check stored data against every invariant. Exit code 7: one is broken.",
)
@_files_option(
    "--clients",
    "With --verify: what callers were told, as `mulligan.doctor.verify.Clients` writes it.",
)
@_files_option(
    "--witness",
    "With --verify: what handlers did, as `mulligan.doctor.verify.witness` writes it.",
)
@click.option(
    "--settled",
    is_flag=True,
    help="With --verify: nothing is in progress, so every due job must have ended.",
)
@click.option(
    "--slack",
    type=float,
    metavar="SECONDS",
    help="With --settled: how long a job may still be in progress.",
)
@click.option(
    "--sql",
    "statement",
    is_flag=False,
    flag_value="",
    metavar="[NAME]",
    help="Print an SQL statement as each database runs it. Without NAME: list all statements.",
)
@click.argument("app", required=False)
@shared.database_option
@shared.output_option
def doctor(
    app: str | None,
    database: str | None,
    output: str | None,
    *,
    run_verify: bool,
    statement: str | None,
    **options: Any,
) -> int:
    """Show every setting with its origin and check for problems. Exit code 1: a check fails.

    Settings that apps declare in their code come from the database, where workers store them. With
    APP (module:attribute): as a worker of that app would use them.
    """
    if statement is not None:
        return _print_statements(statement, load_settings(database).schema_name, output)
    if run_verify:
        return _verify(database, output, **options)
    if any(options.values()):
        raise click.UsageError("--clients, --witness, --settled and --slack need --verify")
    settings = load_settings_of_apps(database)
    if app is not None:
        settings = load_app_settings(app, {"database_url": database})
    return _examine(settings, output)


# --- mulligan doctor: settings, facts, checks ---

SETTING_COLUMNS = ("name", "value", "origin")
FACT_COLUMNS = ("fact", "value")
CHECK_COLUMNS = ("status", "check", "found")


def _examine(settings: Settings, output: str | None) -> int:
    database_facts, checks = run_checks(settings)
    facts = {
        "mulligan": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        **database_facts,
    }
    _print_examination(effective_settings(settings), facts, checks, output)
    failing = sum(check.status == FAIL for check in checks)
    if failing:
        print_notice(f"{failing} of {len(checks)} checks fail")
        return 1
    print_notice(f"{len(checks)} checks, none fails")
    return 0


def _print_examination(
    settings: Sequence[Mapping[str, Any]],
    facts: Mapping[str, str],
    checks: Sequence[Check],
    output: str | None,
) -> None:
    check_records = [check._asdict() for check in checks]
    if is_json(output):
        print_json({"facts": facts, "settings": settings, "checks": check_records}, output)
    elif output_format(output) == "tsv":
        for setting in settings:
            print_tsv(("setting", *setting.values()))
        for fact in facts.items():
            print_tsv(("fact", *fact))
        for record in check_records:
            print_tsv(("check", *record.values()))
    else:
        _print_tables(settings, facts, checks)


def _print_tables(
    settings: Sequence[Mapping[str, Any]], facts: Mapping[str, str], checks: Sequence[Check]
) -> None:
    setting_rows = [{**setting, "value": format_setting(setting)} for setting in settings]
    print_rows(setting_rows, SETTING_COLUMNS, "table")
    click.echo()
    fact_rows = [{"fact": name, "value": value} for name, value in facts.items()]
    print_rows(fact_rows, FACT_COLUMNS, "table")
    click.echo()
    check_rows = [row for check in checks for row in _check_rows(check)]
    print_rows(check_rows, CHECK_COLUMNS, "table")


def _check_rows(check: Check) -> list[dict[str, str]]:
    """Return the check and, on a second line, what to type: one line would be too narrow."""
    rows = [check._asdict()]
    if check.next:
        rows.append({"status": "", "check": "", "found": f"→ {check.next}"})
    return rows


# --- mulligan doctor --sql ---

STATEMENT_COLUMNS = ("name", "database", "file")
DATABASES = {SqlDialect.SQLITE: "SQLite", SqlDialect.POSTGRES: "PostgreSQL"}
FILTER = "1 = 1 /* the conditions of the filter */"


def _print_statements(name: str, schema: str, output: str | None) -> int:
    records = _statement_records(schema)
    if not name:
        print_rows(records, STATEMENT_COLUMNS, output)
        return 0
    found = [record for record in records if record["name"] == name]
    if not found:
        raise NotFound(_unknown_statement(name, {record["name"] for record in records}))
    if is_json(output):
        print_json(found, output)
        return 0
    for record in found:
        click.echo(f"-- {record['name']} on {record['database']} ({record['file']})")
        click.echo(f"{record['text']}\n")
    return 0


def _statement_records(schema: str) -> list[dict[str, str]]:
    """Return all statements as the databases run them, by name."""
    prefixes = {SqlDialect.SQLITE: SQLITE_PREFIX, SqlDialect.POSTGRES: f'"{schema}".'}
    records = [
        {
            "name": name,
            "database": DATABASES[dialect],
            "file": statement_path(name, dialect),
            "text": load_statement(name, dialect, prefix, matching=FILTER),
        }
        for dialect, prefix in prefixes.items()
        for name in statement_names(dialect)
    ]
    return sorted(records, key=lambda record: record["name"])


def _unknown_statement(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=5, cutoff=0.5)
    similar = f" Similar: {', '.join(near)}." if near else ""
    return f'unknown statement {name!r}.{similar} Run "mulligan doctor --sql" to list all.'


# --- mulligan doctor --verify ---

PROGRESS_INTERVAL = 20_000  # jobs


def _verify(
    database: str | None,
    output: str | None,
    *,
    clients: tuple[str, ...],
    witness: tuple[str, ...],
    settled: bool,
    slack: float | None,
) -> int:
    settings = load_settings(database)
    with open_existing(settings) as store:
        report = verify(
            store,
            clients=clients,
            witness=witness,
            settled=settled,
            slack=slack,
            settings=with_app_settings(store, settings),
            progress=_print_progress,
        )
    _print_report(report, output_format(output))
    print_notice(_summarize(report))
    return 0 if report.ok else EXIT_INVARIANT_BROKEN


def _print_progress(jobs: int) -> None:
    if jobs and jobs % PROGRESS_INTERVAL == 0 and sys.stderr.isatty():
        print_notice(f"{jobs:,} jobs checked")


def _summarize(report: VerifyReport) -> str:
    parts = [
        f"{report.jobs} jobs",
        f"{report.events} events",
        f"{report.calls} calls",
        f"{report.lines} witness lines",
    ]
    if report.unreadable:
        parts.append(f"{report.unreadable} unreadable lines")
    read = ", ".join(parts)
    if report.ok:
        return f"{read}: {len(report.checked)} invariants hold"
    broken = [f"{name} × {count}" for name, count in sorted(report.counts.items())]
    return f"{read}: broken: {', '.join(broken)}"


def _print_report(report: VerifyReport, form: str) -> None:
    if form == "json":
        print_json(report.to_dict(), form)
        return
    for violation in report.violations:
        if form == "jsonl":
            click.echo(to_json(violation.to_dict()))
        elif form == "tsv":
            print_tsv((violation.invariant, violation.subject, violation.what, violation.sentence))
        else:
            _print_violation(violation)


def _print_violation(violation: Violation) -> None:
    click.echo(f"{violation.invariant}  {violation.sentence}")
    subject = f"{format_cell(violation.subject)}: " if violation.subject else ""
    click.echo(f"    {subject}{format_cell(violation.what)}")
    for history, lines in violation.evidence.items():
        for line in lines:
            click.echo(f"    {history:<8} {format_cell(line)}")
    if violation.story:
        click.echo("    story:")
        for line in violation.story.splitlines():
            click.echo(f"      {format_cell(line)}")
    click.echo()
