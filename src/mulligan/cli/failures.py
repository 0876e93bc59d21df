"""`mulligan failures …`: dead jobs grouped by cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

import click

from mulligan.cli import CommandGroup
from mulligan.cli import completion as complete
from mulligan.cli import options as shared
from mulligan.cli.database import (
    command_line,
    open_services,
    print_hint,
    print_notice,
)
from mulligan.cli.job_views import join_filter
from mulligan.cli.ops import bulk_options, retry_overrides, start_operation
from mulligan.cli.output import (
    draw_sparkline,
    format_optional,
    format_text,
    is_json,
    json_value,
    output_format,
    print_facts,
    print_json,
    print_rows,
    time_left,
    time_since,
)
from mulligan.core.format import format_actor
from mulligan.failures.group_reader import FailureGroup
from mulligan.failures.groups import STATE_LABELS, GroupState

NO_FAILURES = "No dead jobs. A job that fails for good is listed here, with others of its cause."


@click.group(cls=CommandGroup)
def failures() -> None:
    """List dead jobs by cause; retry, mute or resolve a cause."""


_group_argument = click.argument("group", shell_complete=complete.complete_groups)
_filter_argument = click.argument(
    "terms", metavar="[FILTER]...", nargs=-1, shell_complete=complete.complete_filters
)


# --- mulligan failures list, show ---


@failures.command("list")
@_filter_argument
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 500))
@click.option("--all", "history", is_flag=True, help="Also causes without a dead job.")
@shared.database_option
@shared.output_option
def list_groups(
    terms: tuple[str, ...],
    limit: int,
    database: str | None,
    output: str | None,
    *,
    history: bool,
) -> None:
    """List groups of jobs that died of the same cause, the most urgent first.

    Causes for which a kind is held come first; their jobs wait instead of dying.
    FILTER as for `jobs list`: kind:render code:GW_5XX owner:acme since:2h "moov atom".
    """
    with open_services(database) as services:
        found = services.failures.groups(join_filter(terms), limit=limit, history=history)
    empty = NO_FAILURES
    if terms:
        empty = "No dead job matches. List all groups with: mulligan failures list"
    print_groups(found, output, empty=empty)
    if found.more:
        print_notice(
            f"Showing the {limit} most recent groups. Use --limit or a filter to see others."
        )
    if found:
        command = command_line("failures", "show", found[0].fingerprint, database=database)
        print_hint(command, "details of the first group")


@failures.command("show")
@_group_argument
@click.option(
    "--private",
    is_flag=True,
    help="Include message and trace of the sample, which owners must not see.",
)
@shared.database_option
@shared.output_option
def show(group: str, database: str | None, output: str | None, *, private: bool) -> None:
    """Show a group: number of jobs, kinds, since when, a sample, and how many retries worked."""
    with open_services(database) as services:
        found = services.failures.get(services.failures.complete_fingerprint(group), private=True)
    if found.sample is not None and not private:
        found = replace(found, sample=replace(found.sample, private=None))
    print_group(found, output)

    def command(*arguments: str) -> str:
        return command_line(*arguments, database=database)

    name = found.fingerprint
    print_hint(command("jobs", "list", "state:dead", f"group:{name}"), "list its jobs")
    if found.count:
        print_hint(command("failures", "retry", name, "--steps", "1"), "retry one of them")
        print_hint(command("failures", "retry", name, "--dry-run"), "preview a retry of all")
    for kind in found.held:
        print_hint(command("kinds", "release", kind), "let its jobs run again")
    if found.sample is not None:
        print_hint(command("jobs", "explain", found.sample.job), "explain the newest job")


# --- mulligan failures retry, mute, resolve, reopen ---


@failures.command("retry")
@_group_argument
@_filter_argument
@click.option("--max-retries", type=int, help="New retry limit for these jobs.")
@shared.reason_option
@bulk_options
def retry(
    group: str,
    terms: tuple[str, ...],
    database: str | None,
    output: str | None,
    max_retries: int | None,
    **options: Any,
) -> int:
    """Retry the jobs of a group step by step, as `ops start retry group:…` does."""
    with open_services(database) as services:
        filter_ = f"group:{services.failures.complete_fingerprint(group)}"
    if terms:
        filter_ = f"{filter_} {join_filter(terms)}"
    overrides = retry_overrides(max_retries)
    return start_operation("retry", filter_, options, database, output, overrides=overrides)


@failures.command("mute")
@_group_argument
@shared.duration_option
@shared.reason_option
@shared.database_option
@shared.output_option
def mute(
    group: str, until: float | None, reason: str, database: str | None, output: str | None
) -> None:
    """Mark a cause as known: it ranks last and opens no incidents. Its jobs stay dead."""
    with open_services(database) as services:
        muted = services.failures.mute(
            services.failures.complete_fingerprint(group), until=until, reason=reason
        )
    print_groups([muted], output)
    print_hint(command_line("failures", "reopen", muted.fingerprint, database=database), "unmute")


@failures.command("resolve")
@_group_argument
@click.option("--note", default="", help="What was done about it.")
@click.option(
    "--in-release",
    default="",
    metavar="RELEASE",
    help='The release that has the fix, or "next". Deaths under older ones are no regression.',
)
@shared.database_option
@shared.output_option
def resolve(
    group: str, note: str, in_release: str, database: str | None, output: str | None
) -> None:
    """Mark a cause as fixed. If a job dies of it again, the group is marked as regressed."""
    with open_services(database) as services:
        resolved = services.failures.resolve(
            services.failures.complete_fingerprint(group), in_release=in_release, note=note
        )
    print_groups([resolved], output)
    if resolved.count:
        command = command_line("failures", "retry", resolved.fingerprint, database=database)
        print_notice(f"Its jobs stay dead until they are retried: {command}")


@failures.command("reopen")
@_group_argument
@shared.reason_option
@shared.database_option
@shared.output_option
def reopen(group: str, reason: str, database: str | None, output: str | None) -> None:
    """Undo mute or resolve."""
    with open_services(database) as services:
        print_groups(
            [
                services.failures.reopen(
                    services.failures.complete_fingerprint(group), reason=reason
                )
            ],
            output,
        )


@failures.command("assign")
@_group_argument
@click.argument("person", default="")
@shared.reason_option
@shared.database_option
@shared.output_option
def assign(group: str, person: str, reason: str, database: str | None, output: str | None) -> None:
    """Name the PERSON who works on a cause; without one, nobody does."""
    with open_services(database) as services:
        name = services.failures.complete_fingerprint(group)
        assigned = services.failures.assign(name, person, reason=reason)
    print_groups([assigned], output)


# --- Output ---

COLUMNS = (
    "group",
    "state",
    "count",
    "code",
    "class",
    "kinds",
    "first_seen",
    "last_seen",
    "recovered",
    "message",
    "exception",
    "location",
)
TABLE_COLUMNS = ("group", "state", "count", "last", "24 h", "cause")
KINDS_IN_DETAILS = 20
RELEASES_IN_DETAILS = 5
SHORT_NAME = 11  # characters of a fingerprint, enough to tell groups apart
MAX_TRACE = 4000  # characters


def print_groups(groups: Sequence[FailureGroup], output: str | None, *, empty: str = "") -> None:
    """Print groups as rows."""
    if is_json(output):
        print_rows([group_record(group) for group in groups], (), output)
    elif output_format(output) == "table":
        rows = [_table_row(group) for group in groups]
        print_rows(rows, TABLE_COLUMNS, output, empty=empty, truncate="cause")
    else:
        print_rows([_tsv_row(group) for group in groups], COLUMNS, output)


def _table_row(group: FailureGroup) -> dict[str, Any]:
    name = group.fingerprint
    if name.startswith("v"):
        name = name[:SHORT_NAME]
    by_three_hours = [sum(group.hourly[hour : hour + 3]) for hour in range(0, 24, 3)]
    return {
        "group": name,
        "state": _format_state(group),
        "count": _format_count(group),
        "last": format_optional(time_since, group.last_seen),
        "24 h": draw_sparkline(by_three_hours),
        "cause": _describe_cause(group),
    }


def _describe_cause(group: FailureGroup) -> str:
    """Return the exception, the kinds and the line of code, and what waits because of it."""
    parts = (_format_held(group), group.title, group.subject)
    return " · ".join(part for part in parts if part)


def _format_held(group: FailureGroup) -> str:
    return ", ".join(f"{kind} is held, {waiting:,} wait" for kind, waiting in group.held.items())


def _tsv_row(group: FailureGroup) -> dict[str, Any]:
    return {
        "group": group.fingerprint,
        "state": group.state.value,
        "count": _format_count(group),
        "code": group.code,
        "class": group.cls,
        "kinds": ",".join(group.kinds),
        "first_seen": json_value(group.first_seen),
        "last_seen": json_value(group.last_seen),
        "recovered": _format_recovered(group),
        "message": group.message,
        "exception": group.exception,
        "location": group.location,
    }


def group_record(group: FailureGroup) -> dict[str, Any]:
    """Return every field of a group."""
    record = {name: json_value(value) for name, value in asdict(group).items()}
    if group.sample is not None:
        sample = asdict(group.sample)
        record["sample"] = {name: json_value(value) for name, value in sample.items()}
    return {**record, "message": group.message, "recovered_share": group.recovered_share}


def print_group(group: FailureGroup, output: str | None) -> None:
    """Print one group in full, with the private part of its sample if it was loaded."""
    if is_json(output):
        print_json(group_record(group), output)
        return
    print_facts(_group_facts(group, people=output_format(output) == "table"), output)
    private = {} if group.sample is None else group.sample.private or {}
    for name in ("runbook", "alarm", "message", "detail", "stderr", "trace"):
        if private.get(name):
            text = str(private[name])[-MAX_TRACE:]
            click.echo(f"\n{name} (private)\n{format_text(text)}")


def _group_facts(group: FailureGroup, *, people: bool) -> list[tuple[str, str]]:
    facts = [
        ("group", group.fingerprint),
        ("state", _describe_state(group)),
        ("count", _format_count(group)),
        ("deaths", f"{group.deaths:,}"),
        ("code", ", ".join(group.codes) or group.code),
        ("class", group.cls),
        ("kinds", _format_kinds(group.kinds, KINDS_IN_DETAILS)),
        ("first seen", _format_time(group.first_seen)),
        ("last seen", _format_time(group.last_seen)),
        ("24 h", _format_series(group.hourly, people=people)),
        ("14 d", _format_series(group.daily, people=people)),
        ("recovered", _format_recovered(group)),
        ("held", _format_held(group)),
        ("suspect", "" if group.suspect is None else group.suspect.sentence),
        ("releases", _format_releases(group)),
        ("cause", _describe_cause(group)),
        ("message", group.message),
    ]
    sample = group.sample
    if sample is not None:
        evidence = [f"{name} {value}" for name, value in sample.evidence.items()]
        facts += [("evidence", ", ".join(evidence)), ("sample", sample.job)]
    return facts


def _format_releases(group: FailureGroup) -> str:
    """Return the deaths by release, the newest first."""
    newest = reversed(group.releases[-RELEASES_IN_DETAILS:])
    return ", ".join(f"{row.release} {row.deaths:,} of {row.attempts:,}" for row in newest)


def _format_count(group: FailureGroup) -> str:
    return f"{group.count:,}+" if group.capped else str(group.count)


def _format_state(group: FailureGroup) -> str:
    if group.held:
        return "held"
    label = STATE_LABELS[group.state]
    if group.state is GroupState.RECOVERED:
        label += f" {group.recovered:,} of {group.retried:,}"
    if group.until is None:
        return label
    return f"{label} for {time_left(group.until)}"


def _describe_state(group: FailureGroup) -> str:
    """Return the state, who set it, when and why."""
    text = _format_state(group)
    if group.marked_at is not None:
        text += f", set by {format_actor(group.actor)} {time_since(group.marked_at)} ago"
    if group.in_release and group.state is GroupState.RESOLVED:
        text += f" in release {group.in_release}"
    if group.assignee:
        text += f", assigned to {group.assignee}"
    return f"{text}: {group.note}" if group.note else text


def _format_kinds(kinds: Mapping[str, int], limit: int) -> str:
    if len(kinds) == 1:
        return next(iter(kinds))
    shown = list(kinds.items())[:limit]
    parts = [f"{kind} {jobs}" for kind, jobs in shown]
    if len(kinds) > limit:
        parts.append(f"{len(kinds) - limit} more")
    return ", ".join(parts)


def _format_recovered(group: FailureGroup) -> str:
    share = group.recovered_share
    return "" if share is None else f"{share:.0%} of {group.retried} retried"


def _format_series(values: Sequence[int], *, people: bool) -> str:
    if people:
        return f"{draw_sparkline(values)}  at most {max(values)}"
    return ",".join(str(value) for value in values)


def _format_time(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC ({time_since(at)} ago)"
