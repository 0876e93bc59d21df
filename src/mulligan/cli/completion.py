"""What a shell may complete: kinds, queues and ids, as the database knows them. Quick, or not at all.

A person presses a key and waits: nothing is made, nothing is said, and every trouble means no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

PATIENCE = 1.0  # seconds for a server to answer
RECENT = 50


def _ask(ctx: click.Context, question: Callable[[Any], Iterable[str]]) -> list[str]:
    try:
        from mulligan.cli.database import settings_with
        from mulligan.storage import open_store
        from mulligan.storage.url import sqlite_file

        settings = settings_with(ctx.params.get("database"))
        file = sqlite_file(settings.database_url)
        if file is not None and not file.exists():
            return []
        store = open_store(settings.database_url, schema=settings.schema_name)
        try:
            store.reach(PATIENCE)
            with store.read() as unit:
                return list(question(unit))
        finally:
            store.close()
    except Exception:  # noqa: BLE001 - a shell must not be disturbed
        return []


def _fitting(found: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in found if name.startswith(incomplete)]


def kinds(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    def question(unit: Any) -> Iterable[str]:
        from mulligan.manifest.declared import stored_kinds
        from mulligan.manifest.specs import OURS

        return sorted(name for name in stored_kinds(unit) if not name.startswith(OURS))

    return _fitting(_ask(ctx, question), incomplete)


def queues(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The last of several, too: mail,rend."""

    def question(unit: Any) -> Iterable[str]:
        from mulligan.manifest.declared import stored_kinds
        from mulligan.manifest.specs import OURS

        return sorted(
            {spec.queue for spec in stored_kinds(unit).values() if not spec.name.startswith(OURS)}
        )

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _fitting(_ask(ctx, question), last)]


def dependencies(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    def question(unit: Any) -> Iterable[str]:
        from mulligan.guards.dependencies import picture

        return [one.key for one in picture(unit)]

    return _fitting(_ask(ctx, question), incomplete)


def subscriptions(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return _fitting(_ask(ctx, lambda unit: [row.id for row in unit.subscriptions()]), incomplete)


def groups(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return _fitting(
        _ask(ctx, lambda unit: [name for name, _ in unit.group_names(None, RECENT)]), incomplete
    )


def operations(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return _fitting(
        _ask(ctx, lambda unit: [row.id for row in unit.operations(None, RECENT, None)]), incomplete
    )


def filters(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Fields, and the values of those that have few."""
    from mulligan.core.attempt import Cls
    from mulligan.core.job import State
    from mulligan.jobs.filter import FIELDS, PHASES

    name, colon, _value = incomplete.partition(":")
    if not colon:
        arguments = _ask(ctx, _indexed) if incomplete[:1] in {"", "a"} else []
        return _fitting([*(f"{field}:" for field in FIELDS), *arguments], incomplete)
    known: dict[str, Iterable[str]] = {"state": State, "phase": PHASES, "class": Cls}
    if name == "group":
        known["group"] = _ask(
            ctx, lambda unit: [group for group, _ in unit.group_names(None, RECENT)]
        )
    return _fitting([f"{name}:{value}" for value in known.get(name, ())], incomplete)


def _indexed(unit: Any) -> Iterable[str]:
    """Arguments that kinds have declared."""
    from mulligan.manifest.declared import stored_kinds
    from mulligan.manifest.specs import OURS

    known = [spec for spec in stored_kinds(unit).values() if not spec.name.startswith(OURS)]
    return sorted({f"arg.{path}:" for spec in known for path in spec.index})


def job_ids(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    def question(unit: Any) -> Iterable[str]:
        return (
            [row.id for row in unit.page({}, RECENT, None)]
            if not incomplete
            else unit.find(incomplete, RECENT)
        )

    return _fitting(_ask(ctx, question), incomplete)


def batch_ids(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return _fitting(
        _ask(ctx, lambda unit: [row.id for row in unit.batch_page(None, None, RECENT, None)]),
        incomplete,
    )


def worker_ids(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return _fitting(
        _ask(ctx, lambda unit: [row.id for row in unit.workers(closed=False)]), incomplete
    )


# `mulligan completion SHELL`.

INSTALL = {
    "bash": 'eval "$(mulligan completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(mulligan completion zsh)"    # in ~/.zshrc',
    "fish": "mulligan completion fish > ~/.config/fish/completions/mulligan.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(INSTALL)))
def completion(shell: str) -> None:
    """Print the script with which SHELL completes commands, options, kinds, queues and ids."""
    from click.shell_completion import get_completion_class

    from mulligan.cli import cli

    maker = get_completion_class(shell)
    if maker is not None:
        click.echo(maker(cli, {}, "mulligan", "_MULLIGAN_COMPLETE").source())
    click.echo(f"to have it always: {INSTALL[shell]}", err=True)
