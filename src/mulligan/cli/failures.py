"""How `mulligan failures` prints groups: a line of bars for people, plain columns for pipes, all of it for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from mulligan.cli import Family
from mulligan.cli import completion as complete
from mulligan.cli import ops as bulk
from mulligan.cli import options as shared
from mulligan.cli.database import actor, existing, say, settings_with, typed
from mulligan.cli.job_views import one_filter
from mulligan.cli.ops import begin
from mulligan.cli.output import as_json, cell, chosen, lines, show_rows, spark
from mulligan.core.format import duration, who
from mulligan.failures.service import FailureGroup, Failures

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
)
FOR_PEOPLE = ("group", "state", "count", "code", "kinds", "last", "24 h", "message")
MOST_KINDS = 3
SHORT = 11  # characters of a name, which say enough
TRACE = 4000  # characters


def print_groups(groups: Sequence[FailureGroup], output: str | None, *, empty: str = "") -> None:
    form = chosen(output)
    if form in {"json", "jsonl"}:
        show_rows([group_record(group) for group in groups], (), output)
        return
    rows = [_row(group, people=form == "table") for group in groups]
    show_rows(
        rows, FOR_PEOPLE if form == "table" else COLUMNS, output, empty=empty, short="message"
    )


def _row(group: FailureGroup, *, people: bool) -> dict[str, Any]:
    return {
        "group": group.fingerprint[:SHORT]
        if people and group.fingerprint.startswith("v")
        else group.fingerprint,
        "state": _state(group) if people else group.state.value,
        "count": counted(group),
        "code": group.code,
        "class": group.cls,
        "kinds": _kinds(group.kinds) if people else ",".join(group.kinds),
        "first_seen": _plain(group.first_seen),
        "last_seen": _plain(group.last_seen),
        "last": _ago(group.last_seen).removesuffix(" ago"),
        "24 h": spark([sum(group.hourly[hour : hour + 3]) for hour in range(0, 24, 3)]),
        "recovered": _recovered(group),
        "message": group.message,
    }


def print_group(group: FailureGroup, output: str | None) -> None:
    form = chosen(output)
    if form in {"json", "jsonl"}:
        click.echo(as_json(group_record(group), 2 if form == "json" else None))
        return
    facts = [(name, value) for name, value in _facts(group, people=form == "table") if value]
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        click.echo(
            f"{name:<{width}}  {cell(value)}" if form == "table" else f"{name}\t{cell(value)}"
        )
    private = {} if group.sample is None else group.sample.private or {}
    for name in ("message", "detail", "stderr", "trace"):
        if private.get(name):
            click.echo(f"\n{name} (private)\n{lines(str(private[name])[-TRACE:])}")


def _facts(group: FailureGroup, *, people: bool) -> list[tuple[str, str]]:
    sample = group.sample
    facts = [
        ("group", group.fingerprint),
        ("state", _said(group)),
        ("count", counted(group)),
        ("code", ", ".join(group.codes)),
        ("class", group.cls),
        ("kinds", _kinds(group.kinds, most=20)),
        ("first seen", _when(group.first_seen)),
        ("last seen", _when(group.last_seen)),
        ("24 h", _chart(group.hourly, people=people)),
        ("14 d", _chart(group.daily, people=people)),
        ("recovered", _recovered(group)),
        ("message", group.message),
    ]
    if sample is not None:
        evidence = ", ".join(f"{name} {value}" for name, value in sample.evidence.items())
        facts += [("evidence", evidence), ("sample", sample.job)]
    return facts


def group_record(group: FailureGroup) -> dict[str, Any]:
    record = {name: _plain(value) for name, value in asdict(group).items()}
    if group.sample is not None:
        record["sample"] = {name: _plain(value) for name, value in asdict(group.sample).items()}
    return {**record, "message": group.message, "recovered_share": group.recovered_share}


# -- words ------------------------------------------------------------------------------------------
def counted(group: FailureGroup) -> str:
    return f"{group.count:,}+" if group.capped else str(group.count)


def _state(group: FailureGroup) -> str:
    return group.state if group.until is None else f"{group.state} {_left(group.until)}"


def _said(group: FailureGroup) -> str:
    """The state with who said so, when and why."""
    words = _state(group)
    if group.marked_at is not None:
        words += f", said {who(group.actor)} {_ago(group.marked_at)}"
    return f"{words}: {group.note}" if group.note else words


def _kinds(kinds: Mapping[str, int], most: int = MOST_KINDS) -> str:
    named = [
        f"{kind} {jobs}" if len(kinds) > 1 else kind for kind, jobs in list(kinds.items())[:most]
    ]
    return ", ".join([*named, f"{len(kinds) - most} more"] if len(kinds) > most else named)


def _recovered(group: FailureGroup) -> str:
    share = group.recovered_share
    return "" if share is None else f"{share:.0%} of {group.retried} retried"


def _chart(values: Sequence[int], *, people: bool) -> str:
    return f"{spark(values)}  at most {max(values)}" if people else ",".join(map(str, values))


def _when(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC ({_ago(at)})"


def _ago(at: datetime | None) -> str:
    return "" if at is None else f"{_span((datetime.now(UTC) - at).total_seconds())} ago"


def _left(at: datetime) -> str:
    return f"for {_span((at - datetime.now(UTC)).total_seconds())}"


def _span(seconds: float) -> str:
    return duration(max(0, round(seconds)))


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


# `mulligan failures …`: dead jobs by cause; what people say about each.


@click.group(cls=Family)
def failures() -> None:
    """Dead jobs by cause: list, show, retry, mute, resolve."""


@contextmanager
def _failures(database: str | None) -> Iterator[Failures]:
    with existing(settings_with(database)) as store:
        yield Failures(lambda: store, actor=actor())


@failures.command("list")
@click.argument("words", metavar="[FILTER]...", nargs=-1, shell_complete=complete.filters)
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 500))
@shared.database
@shared.output
def list_(words: tuple[str, ...], limit: int, database: str | None, output: str | None) -> None:
    """Groups of dead jobs that died of one cause, those that need somebody first.

    FILTER is as for `jobs list`: kind:render code:GW_5XX owner:acme since:2h "moov atom".
    """
    with _failures(database) as api:
        found = api.groups(one_filter(words) if words else "", limit=limit)
    empty = "no dead job matches; mulligan failures list shows all" if words else NOTHING
    print_groups(found, output, empty=empty)
    if found.more:
        say(f"these are the {limit} that died last; more with --limit, fewer with a filter")
    if found:
        first = found[0].fingerprint
        say(f"{typed('failures', 'show', first, database=database)}  says more of the first")


NOTHING = "no dead jobs: nothing has failed for good. A job that does is listed here with others of its cause"

_group = click.argument("group", shell_complete=complete.groups)
_note = click.option("--note", default="", help="What was done about it.")
_reason = click.option("--reason", default="", help="For everybody who wonders why.")


@failures.command()
@_group
@click.option(
    "--private",
    is_flag=True,
    help="With message and trace of the sample, which are not for owners.",
)
@shared.database
@shared.output
def show(group: str, database: str | None, output: str | None, *, private: bool) -> None:
    """One group: how many, which kinds, since when, a sample, and whether retries helped."""
    with _failures(database) as api:
        found = api.get(api.resolve_name(group), private=private)
    print_group(found, output)
    say(f"{_jobs(found, database)}  lists its jobs")
    if found.count:
        dry = typed("failures", "retry", found.fingerprint, "--dry-run", database=database)
        say(f"{dry}  says what a retry of all would be")
    if found.sample is not None:
        say(
            f"{typed('jobs', 'explain', found.sample.job, database=database)}  tells of the last one"
        )


@failures.command()
@_group
@click.argument("words", metavar="[FILTER]...", nargs=-1, shell_complete=complete.filters)
@click.option("--max-retries", type=int, help="Instead of what holds for these jobs.")
@_reason
@bulk.bulk_options
def retry(
    group: str,
    words: tuple[str, ...],
    database: str | None,
    output: str | None,
    max_retries: int | None,
    **said: Any,
) -> int:
    """Retry the jobs of a group, carefully: an operation, as `ops start retry group:…`."""
    with _failures(database) as api:
        name = api.resolve_name(group)
    filter_ = " ".join([f"group:{name}", *([one_filter(words)] if words else [])])
    overrides = {} if max_retries is None else {"max_retries": max_retries}
    return begin("retry", filter_, said, database, output, overrides=overrides)


@failures.command()
@_group
@click.option("--for", "until", type=shared.Length(), help="Ends by itself after: 30, 5m, 2h, 1d.")
@_reason
@shared.database
@shared.output
def mute(
    group: str, until: float | None, reason: str, database: str | None, output: str | None
) -> None:
    """Known, and not worth a look for a while; its jobs stay dead."""
    with _failures(database) as api:
        found = api.mute(api.resolve_name(group), until=until, reason=reason)
    print_groups([found], output)
    say(f"{typed('failures', 'reopen', found.fingerprint, database=database)}  takes it back")


@failures.command()
@_group
@_note
@shared.database
@shared.output
def resolve(group: str, note: str, database: str | None, output: str | None) -> None:
    """The cause is gone; if a job dies of it again, the group has regressed."""
    with _failures(database) as api:
        found = api.resolve(api.resolve_name(group), note=note)
    print_groups([found], output)
    if found.count:
        again = typed("failures", "retry", found.fingerprint, database=database)
        say(f"its jobs stay dead until somebody retries them: {again}")


@failures.command()
@_group
@_reason
@shared.database
@shared.output
def reopen(group: str, reason: str, database: str | None, output: str | None) -> None:
    """Neither muted nor resolved any more."""
    with _failures(database) as api:
        print_groups([api.reopen(api.resolve_name(group), reason=reason)], output)


def _jobs(group: FailureGroup, database: str | None) -> str:
    return typed("jobs", "list", "state:dead", f"group:{group.fingerprint}", database=database)
