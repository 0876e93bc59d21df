"""Shell completion: names and ids from the database, and the `completion` command.

A person waits while the shell completes: nothing is created or printed, and any error means no
suggestions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

SERVER_TIMEOUT = 1.0  # seconds
MAX_SUGGESTIONS = 50

# --- Reading suggestions ---


def _suggest(
    ctx: click.Context, incomplete: str, read: Callable[[Any], Iterable[str]]
) -> list[str]:
    """Return the values that `read` finds in the database and that start with `incomplete`."""
    return _matching(_read_database(ctx, read), incomplete)


def _matching(values: Iterable[str], incomplete: str) -> list[str]:
    return [value for value in values if value.startswith(incomplete)]


def _read_database(ctx: click.Context, read: Callable[[Any], Iterable[str]]) -> list[str]:
    try:
        from mulligan.cli.database import load_settings
        from mulligan.storage import open_store, sqlite_path

        settings = load_settings(ctx.params.get("database"))
        file = sqlite_path(settings.database_url)
        if file is not None and not file.exists():
            return []
        store = open_store(settings.database_url, schema=settings.schema_name)
        try:
            store.check_connection(SERVER_TIMEOUT)
            with store.read() as tx:
                return list(read(tx))
        finally:
            store.close()
    except Exception:  # noqa: BLE001 - an error message would garble the prompt
        return []


def _user_kinds(tx: Any) -> list[Any]:
    """Return the stored kinds, without those that Mulligan uses itself."""
    from mulligan.manifest.declared import load_kinds
    from mulligan.manifest.specs import SYSTEM_PREFIX

    specs = load_kinds(tx).values()
    return [spec for spec in specs if not spec.name.startswith(SYSTEM_PREFIX)]


# --- Names ---


def complete_kinds(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a kind."""
    return _suggest(ctx, incomplete, _kind_names)


def _kind_names(tx: Any) -> list[str]:
    return sorted(spec.name for spec in _user_kinds(tx))


def complete_queues(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a queue, or the last name of a list: mail,rend."""
    before, comma, last = incomplete.rpartition(",")
    names = _suggest(ctx, last, _queue_names)
    return [f"{before}{comma}{name}" for name in names]


def _queue_names(tx: Any) -> list[str]:
    return sorted({spec.queue for spec in _user_kinds(tx)})


def complete_dependencies(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the key of a dependency."""

    def read(tx: Any) -> Iterable[str]:
        from mulligan.guards.gate_status import read_dependencies

        return [dependency.key for dependency in read_dependencies(tx)]

    return _suggest(ctx, incomplete, read)


def complete_subscriptions(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the id of a subscription."""

    def read(tx: Any) -> Iterable[str]:
        from mulligan.notifications.queries import NotificationQueries

        return [row.id for row in NotificationQueries(tx).list_subscriptions()]

    return _suggest(ctx, incomplete, read)


def complete_groups(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the fingerprint of a failure group."""
    return _suggest(ctx, incomplete, _recent_groups)


def _recent_groups(tx: Any) -> list[str]:
    from mulligan.failures.queries import FailureQueries

    return [name for name, _ in FailureQueries(tx).list_groups(None, MAX_SUGGESTIONS)]


# --- Ids ---


def complete_job_ids(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete a job id: the newest jobs, or those that start with what was typed."""

    def read(tx: Any) -> Iterable[str]:
        from mulligan.jobs.queries import JobQueries, SearchQueries

        if incomplete:
            return JobQueries(tx).find_jobs(incomplete, MAX_SUGGESTIONS)
        return [row.id for row in SearchQueries(tx).list_jobs({}, MAX_SUGGESTIONS, None)]

    return _suggest(ctx, incomplete, read)


def complete_batch_ids(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete a batch id."""

    def read(tx: Any) -> Iterable[str]:
        from mulligan.batches.queries import BatchQueries

        rows = BatchQueries(tx).list_batches(None, None, MAX_SUGGESTIONS, None)
        return [row.id for row in rows]

    return _suggest(ctx, incomplete, read)


def complete_operations(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete an operation id."""

    def read(tx: Any) -> Iterable[str]:
        from mulligan.operations.queries import OperationQueries

        rows = OperationQueries(tx).list_operations(None, MAX_SUGGESTIONS, None)
        return [row.id for row in rows]

    return _suggest(ctx, incomplete, read)


def complete_worker_ids(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the id of a worker that has not stopped."""

    def read(tx: Any) -> Iterable[str]:
        from mulligan.worker.queries import WorkerQueries

        return [row.id for row in WorkerQueries(tx).list_workers(closed=False)]

    return _suggest(ctx, incomplete, read)


# --- Filters ---


def complete_filters(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete a filter field, or the value of a field that has few values."""
    from mulligan.core.attempt import Cls
    from mulligan.core.job import State
    from mulligan.jobs.filter import FIELDS, PHASES

    field, colon, _value = incomplete.partition(":")
    if not colon:
        suggestions = [f"{name}:" for name in FIELDS]
        if incomplete[:1] in {"", "a"}:
            suggestions += _read_database(ctx, _indexed_arguments)
        return _matching(suggestions, incomplete)
    values: dict[str, Iterable[str]] = {"state": State, "phase": PHASES, "class": Cls}
    if field == "group":
        values["group"] = _read_database(ctx, _recent_groups)
    return _matching([f"{field}:{value}" for value in values.get(field, ())], incomplete)


def _indexed_arguments(tx: Any) -> Iterable[str]:
    """Return the arguments that kinds declare as indexed, as filter fields."""
    fields: set[str] = set()
    for spec in _user_kinds(tx):
        fields.update(f"arg.{path}:" for path in spec.index)
    return sorted(fields)


# --- mulligan completion ---

INSTALL = {
    "bash": 'eval "$(mulligan completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(mulligan completion zsh)"    # in ~/.zshrc',
    "fish": "mulligan completion fish > ~/.config/fish/completions/mulligan.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(INSTALL)))
def completion(shell: str) -> None:
    """Print the script with which SHELL completes commands, options, names and ids."""
    from click.shell_completion import get_completion_class

    from mulligan.cli import cli

    completer = get_completion_class(shell)
    if completer is not None:
        click.echo(completer(cli, {}, "mulligan", "_MULLIGAN_COMPLETE").source())
    click.echo(f"To install it permanently: {INSTALL[shell]}", err=True)
