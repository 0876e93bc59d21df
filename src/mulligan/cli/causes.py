"""How `mulligan failures` prints groups: a line of bars for people, plain columns for pipes, all of it for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from mulligan.cli.charts import spark
from mulligan.cli.output import as_json, cell, chosen, lines, show_rows
from mulligan.engine.failures import FailureGroup
from mulligan.policy.phrase import duration, who

COLUMNS = ("group", "state", "count", "code", "class", "kinds", "first_seen", "last_seen", "recovered", "message")
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
    show_rows(rows, FOR_PEOPLE if form == "table" else COLUMNS, output, empty=empty, short="message")


def _row(group: FailureGroup, *, people: bool) -> dict[str, Any]:
    return {
        "group": group.fingerprint[:SHORT] if people and group.fingerprint.startswith("v") else group.fingerprint,
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
        click.echo(f"{name:<{width}}  {cell(value)}" if form == "table" else f"{name}\t{cell(value)}")
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
    named = [f"{kind} {jobs}" if len(kinds) > 1 else kind for kind, jobs in list(kinds.items())[:most]]
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
