"""`mulligan deps …`: what jobs use and how it is; hold it, let it go, look now, set limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from shlex import quote
from typing import Any

import click

from mulligan.cli import complete, setting
from mulligan.cli import options as shared
from mulligan.cli.database import actor, existing, say, settings_with
from mulligan.cli.family import Family
from mulligan.cli.output import chosen, show_rows
from mulligan.engine.dependencies import Dependencies, Dependency
from mulligan.policy.phrase import per

COLUMNS = ("name", "status", "held", "running", "failed", "concurrency", "rate", "retries", "mode", "reason")
EMPTY = 'no dependencies yet; a job names what it needs: @app.job(uses="gateway"), then start a worker'


@click.group(cls=Family)
def deps() -> None:
    """What jobs use: list it, hold it, let it go, look now, set limits.

    Open means that nothing flows: its jobs are held, or end at once where it was declared so. Closed means all is well.
    """


@contextmanager
def _deps(database: str | None) -> Iterator[Dependencies]:
    with existing(settings_with(database)) as store:
        yield Dependencies(lambda: store, actor=actor())


@deps.command("list")
@shared.database
@shared.output
def list_(database: str | None, output: str | None) -> None:
    """Every dependency that a job, a kind, a declaration or a person names."""
    with _deps(database) as api:
        found = api.list()
    show_rows([_record(one, output) for one in found], COLUMNS, output, empty=EMPTY)


_key = click.argument("key", shell_complete=complete.dependencies)
_new = click.option("--new", is_flag=True, help="Also one that nothing names yet.")


@deps.command("open")
@_key
@setting.until
@setting.reason
@_new
@shared.database
@shared.output
def open_(key: str, until: float | None, reason: str, new: bool, database: str | None, output: str | None) -> None:  # noqa: FBT001 - click's way
    """Hold the jobs that use it (mode fail_fast: end them at once); what runs goes on. No probe goes meanwhile."""
    with _deps(database) as api:
        _known(api, key, new=new)
        _report(api.open(key, until=until, reason=reason), output)
    say(f"mulligan deps close {quote(key)}  lets its jobs go{'' if until is None else ' sooner'}")


@deps.command()
@_key
@click.option("--for", "until", type=shared.Length(), help="And do not open it by itself before: 30, 5m, 2h, 1d.")
@setting.reason
@shared.database
@shared.output
def close(key: str, until: float | None, reason: str, database: str | None, output: str | None) -> None:
    """Let its jobs go: a few a second at first, more while all goes well."""
    with _deps(database) as api:
        _known(api, key, new=False)
        _report(api.close(key, until=until, reason=reason), output)


@deps.command()
@_key
@setting.reason
@shared.database
@shared.output
def probe(key: str, reason: str, database: str | None, output: str | None) -> None:
    """Look now whether it answers again: its function is called, or one of its jobs is let through."""
    with _deps(database) as api:
        _report(api.probe(key, reason=reason), output)
    say("a worker looks within a moment; three good answers close it")


@deps.command("set")
@_key
@_new
@setting.limit_options
def set_(key: str, reason: str, database: str | None, output: str | None, new: bool, clear: bool, **said: Any) -> None:  # noqa: FBT001 - click's way
    """Set limits that win over what the code declares, until they end or are cleared."""
    limits = setting.limits_said(**said, clear=clear)
    with _deps(database) as api:
        _known(api, key, new=new)
        if clear:
            _report(api.clear(key, reason=reason), output)
            return
        _report(api.set(key, **limits, reason=reason), output)
    say(f"mulligan deps set {quote(key)} --clear  goes back to what the code declares")


def _known(api: Dependencies, key: str, *, new: bool) -> None:
    """A slip of the finger must not hold nothing while everybody believes it holds."""
    if not new:
        api.get(key)


def _report(one: Dependency, output: str | None) -> None:
    setting.show_one(_record(one, output), COLUMNS, output)


def _record(one: Dependency, output: str | None) -> dict[str, Any]:
    if chosen(output) in {"json", "jsonl"}:
        return {name: setting.plain(value) for name, value in asdict(one).items()}
    return {
        "name": one.key,
        "status": status(one),
        "held": setting.count(one.held),
        "running": one.running,
        "failed": f"{one.failed} of {one.calls}" if one.calls else "",
        "concurrency": f"{one.concurrency} (reduced)" if one.reduced else one.concurrency,
        "rate": None if one.rate is None else per(one.rate),
        "retries": None if one.tokens is None else f"{max(0.0, one.tokens):.0f}",
        "mode": one.mode,
        "reason": f"{one.reason} ({one.actor})" if one.reason else one.actor,
    }


def status(one: Dependency) -> str:
    """A word, since when, and what comes next."""
    if one.state != "open":
        word = f"recovering at {per(one.rate or 0.0)}" if one.state == "ramping" else "closed"
        kept = "" if one.until is None else f", kept closed for {setting.left(one.until)}"
        return f"{word}{kept}{', limits set' if one.set_by_hand else ''}"
    since = "" if one.since is None else f" since {setting.since(one.since)}"
    return f"open{since}{_next(one)}"


def _next(one: Dependency) -> str:
    if one.probing:
        return ", a probe is under way"
    if one.probe_at is not None:
        return f", next probe in {setting.left(one.probe_at)}"
    return "" if one.until is None else f", closes in {setting.left(one.until)}"
