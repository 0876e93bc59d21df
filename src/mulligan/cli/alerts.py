"""`mulligan alerts …`: what is worth attention now, by which rules, and silence for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click

from mulligan.cli import options as shared
from mulligan.cli import setting
from mulligan.cli.database import actor, existing, settings_with
from mulligan.cli.family import Family
from mulligan.cli.output import chosen, show_rows
from mulligan.engine.alerts import AlertRule, Alerts, AlertStatus

COLUMNS = ("state", "rule", "key", "severity", "since", "action", "summary")
RULES = ("name", "measure", "above", "clear", "window", "least", "for", "severity", "action", "status")


@click.group(cls=Family)
def alerts() -> None:
    """What is worth attention now; by which rules; silence one for a while."""


@contextmanager
def _alerts(database: str | None) -> Iterator[Alerts]:
    settings = settings_with(database)
    with existing(settings) as store:
        yield Alerts(lambda: store, lambda: settings.alerts, actor=actor())


@alerts.command("list")
@click.option("--all", "everything", is_flag=True, help="Also those that are over.")
@shared.database
@shared.output
def list_(everything: bool, database: str | None, output: str | None) -> None:  # noqa: FBT001 - click's way
    """What fires, and what is about to."""
    with _alerts(database) as api:
        found = api.list(all=everything)
    show_rows([_record(one, output) for one in found], COLUMNS, output, empty="nothing fires", short="summary")


@alerts.command()
@shared.database
@shared.output
def rules(database: str | None, output: str | None) -> None:
    """Every rule as it holds, with its thresholds."""
    with _alerts(database) as api:
        found = api.rules()
    show_rows([_rule(one, output) for one in found], RULES, output, empty="there are no rules")


@alerts.command()
@click.argument("name")
@click.option("--until", type=shared.When(), help="A length (2h) or a moment; default: 1h.", default=3600.0)
@click.option("--off", is_flag=True, help="End a silence.")
@setting.reason
@shared.database
@shared.output
def silence(
    name: str,
    until: Any,
    off: bool,  # noqa: FBT001 - click's way
    reason: str,
    database: str | None,
    output: str | None,
) -> None:
    """Neither tell of it nor act on it for a while."""
    with _alerts(database) as api:
        rule = api.unsilence(name, reason=reason) if off else api.silence(name, until, reason=reason)
    setting.show_one(_rule(rule, output), RULES, output)


def _record(one: AlertStatus, output: str | None) -> dict[str, Any]:
    if chosen(output) in {"json", "jsonl"}:
        return {name: setting.plain(value) for name, value in asdict(one).items()}
    quiet = one.silenced_until is not None
    done = f"{one.action} to {one.limit}" if one.limit is not None else one.action
    return {
        "state": f"{one.state} (silenced)" if quiet else one.state,
        "rule": one.rule,
        "key": one.key,
        "severity": one.severity,
        "since": f"{setting.since(one.since)} ago",
        "action": done,
        "summary": one.summary,
    }


def _rule(one: AlertRule, output: str | None) -> dict[str, Any]:
    if chosen(output) in {"json", "jsonl"}:
        return {name: setting.plain(value) for name, value in asdict(one).items()}
    windows = f"{one.window:g}" if one.and_window is None else f"{one.window:g} and {one.and_window:g}"
    status = "on" if one.enabled else "off"
    if one.silenced_until is not None:
        status = f"silent for {setting.left(one.silenced_until)}"
    return {
        "name": one.name,
        "measure": one.measure,
        "above": f"{one.above:g}",
        "clear": f"{one.clear:g}",
        "window": windows,
        "least": f"{one.least:g}",
        "for": f"{one.holds_for:g}",
        "severity": one.severity,
        "action": one.action,
        "status": status,
    }
