"""`mulligan releases …`: what each release fails, and which one must wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import click

from mulligan.cli import CommandGroup
from mulligan.cli import completion as complete
from mulligan.cli import options as shared
from mulligan.cli.database import command_line, open_services, print_hint, print_notice
from mulligan.cli.output import (
    format_optional,
    is_json,
    json_value,
    output_format,
    print_json,
    print_rows,
    time_left,
    time_since,
)
from mulligan.core.format import format_actor
from mulligan.releases.rules import ReleaseState
from mulligan.releases.service import (
    CauseComparison,
    KindComparison,
    Release,
    ReleaseCounts,
    ReleaseHold,
)

COLUMNS = ("release", "state", "first_seen", "workers", "starts", "failed", "worse", "held")
KIND_COLUMNS = ("kind", "state", "before", "after")
CAUSE_COLUMNS = ("group", "deaths", "before", "cause")
SHORT_NAME = 11  # characters of a fingerprint
STATE_WORDS = {
    ReleaseState.WORSE: "worse",
    ReleaseState.OPEN: "not judged",
    ReleaseState.FINE: "fine",
}
NO_RELEASES = "No releases yet. Workers report one: set MULLIGAN_RELEASE, or deploy from Git."


@click.group(cls=CommandGroup)
def releases() -> None:
    """List and compare releases; hold one that fails more."""


_release_argument = click.argument("release")
_kind_option = click.option(
    "--kind", help="Only this kind. Default: all.", shell_complete=complete.complete_kinds
)


# --- mulligan releases list, compare ---


@releases.command("list")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 500))
@shared.database_option
@shared.output_option
def list_releases(limit: int, database: str | None, output: str | None) -> None:
    """List releases, the newest first: workers, failed first attempts, and kinds that fail more.

    A release is judged after 50 first attempts of a kind, against those of other releases.
    """
    with open_services(database) as services:
        found = services.releases.list(limit=limit)
    _print_releases(found, output)
    worse = next((release for release in found if release.worse_kinds), None)
    if worse is not None:
        kind = worse.worse_kinds[0].kind
        hold = command_line("releases", "hold", worse.name, "--kind", kind, database=database)
        print_hint(hold, "let other releases run it")
    if len(found) > 1:
        names = (found[1].name, found[0].name)
        print_hint(command_line("releases", "compare", *names, database=database), "what changed")


@releases.command("compare")
@click.argument("before")
@click.argument("after")
@_kind_option
@shared.database_option
@shared.output_option
def compare(
    before: str, after: str, kind: str | None, database: str | None, output: str | None
) -> None:
    """Compare the failed first attempts and the causes of two releases."""
    with open_services(database) as services:
        found = services.releases.compare(before, after, kind=kind)
    if is_json(output):
        print_json(json_value(asdict(found)), output)
        return
    print_rows([_kind_row(row) for row in found.kinds], KIND_COLUMNS, output)
    if found.causes and output_format(output) == "table":
        click.echo()
        rows = [_cause_row(row) for row in found.causes]
        print_rows(rows, CAUSE_COLUMNS, output, truncate="cause")
        group = found.causes[0].fingerprint
        print_hint(command_line("failures", "show", group, database=database), "the first cause")


# --- mulligan releases hold, unhold ---


@releases.command("hold")
@_release_argument
@_kind_option
@shared.duration_option
@shared.reason_option
@shared.database_option
@shared.output_option
def hold(
    release: str,
    kind: str | None,
    until: float | None,
    reason: str,
    database: str | None,
    output: str | None,
) -> None:
    """Let workers of a release claim no more jobs, or none of a kind. Running jobs continue."""
    with open_services(database) as services:
        held = services.releases.hold(release, kind=kind, until=until, reason=reason)
        others = _count_other_workers(services.releases.list(), release)
    _print_releases([held], output)
    if not others:
        print_notice("No worker of another release is live: the held jobs wait.")
    undo = ("releases", "unhold", release, *(("--kind", kind) if kind else ()))
    print_hint(command_line(*undo, database=database), "undo")


@releases.command("unhold")
@_release_argument
@_kind_option
@shared.reason_option
@shared.database_option
@shared.output_option
def unhold(
    release: str, kind: str | None, reason: str, database: str | None, output: str | None
) -> None:
    """End the hold of a release, or of one of its kinds."""
    with open_services(database) as services:
        _print_releases([services.releases.unhold(release, kind=kind, reason=reason)], output)


def _count_other_workers(found: Iterable[Release], release: str) -> int:
    return sum(other.workers for other in found if other.name != release)


# --- Output ---


def _print_releases(found: list[Release], output: str | None) -> None:
    if is_json(output):
        print_rows([json_value(asdict(release)) for release in found], (), output)
        return
    people = output_format(output) == "table"
    rows = [_row(release, people=people) for release in found]
    print_rows(rows, COLUMNS, output, empty=NO_RELEASES)


def _row(release: Release, *, people: bool) -> dict[str, Any]:
    first_seen = release.first_seen.isoformat()
    if people:
        first_seen = f"{time_since(release.first_seen)} ago"
    return {
        "release": release.name,
        "state": STATE_WORDS[release.state],
        "first_seen": first_seen,
        "workers": release.workers,
        "starts": f"{release.counts.starts:,}" if people else release.counts.starts,
        "failed": format_share(release.counts),
        "worse": ", ".join(
            f"{kind.kind} {format_share(kind.counts)} (was {format_share(kind.before)})"
            for kind in release.worse_kinds
        ),
        "held": ", ".join(_describe_hold(hold) for hold in release.holds),
    }


def _describe_hold(hold: ReleaseHold) -> str:
    until = format_optional(time_left, hold.until)
    end = f" for {until}" if until else ""
    return f"{hold.kind or 'all kinds'}{end} by {format_actor(hold.actor)}"


def format_share(counts: ReleaseCounts) -> str:
    """Format the share of first attempts that failed: 2.5 %."""
    share = counts.failed_share
    return "-" if share is None else f"{100 * share:.3g} %"


def _kind_row(row: KindComparison) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "state": STATE_WORDS[row.state],
        "before": _describe_counts(row.before),
        "after": _describe_counts(row.after),
    }


def _describe_counts(counts: ReleaseCounts) -> str:
    if not counts.starts:
        return "-"
    return f"{format_share(counts)} of {counts.starts:,} failed"


def _cause_row(row: CauseComparison) -> dict[str, Any]:
    return {
        "group": row.fingerprint[:SHORT_NAME],
        "deaths": f"{row.after:,}",
        "before": "new" if row.is_new else f"{row.before:,}",
        "cause": " · ".join(part for part in (row.title or row.code, ", ".join(row.kinds)) if part),
    }
