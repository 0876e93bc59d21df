"""`mulligan enqueue KIND k=v…`: enqueue a job by the name of its kind."""

from __future__ import annotations

import difflib
import json
from typing import Any

import click

from mulligan.app.mulligan import Mulligan
from mulligan.cli import options as shared
from mulligan.cli.completion import complete_batch_ids, complete_kinds, complete_queues
from mulligan.cli.database import (
    cli_actor,
    load_settings,
    open_or_create,
    print_notice,
    with_app_settings,
)
from mulligan.cli.output import is_json, job_record, print_json
from mulligan.config import Settings
from mulligan.core.format import format_duration
from mulligan.core.job import Job
from mulligan.storage import Store
from mulligan.worker.upkeep import known_kinds


@click.command()
@click.argument("kind", shell_complete=complete_kinds)
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--payload", metavar="JSON", help="The payload as a JSON object. KEY=VALUE pairs are added."
)
@click.option(
    "--queue", help="Queue to use instead of the kind's own.", shell_complete=complete_queues
)
@click.option("--delay", type=shared.DurationParam(), help="Run later: 30, 5m, 2h, 1d.")
@click.option("--priority", type=int, help="From -9 (first) to 9 (last).")
@click.option("--owner", default="", help="Owner of the job.")
@click.option(
    "--unique",
    metavar="KEY",
    help="Unique key. If a job already holds it, that job is returned instead.",
)
@click.option(
    "--batch",
    metavar="ID",
    help="Batch to add the job to. A unique prefix of its ID is enough.",
    shell_complete=complete_batch_ids,
)
@click.option("--max-retries", type=int, help="Retry limit for this job.")
@click.option("--force", is_flag=True, help="Enqueue a kind that no recent worker has.")
@shared.database_option
@shared.output_option
def enqueue(
    kind: str,
    pairs: tuple[str, ...],
    payload: str | None,
    database: str | None,
    output: str | None,
    *,
    force: bool,
    **options: Any,
) -> None:
    """Enqueue a job of KIND and print its id.

    A VALUE that is valid JSON is parsed (7, true, [1, 2], "7"). Anything else is text.
    """
    arguments = _parse_payload(payload) | parse_pairs(pairs)
    settings = load_settings(database)
    with open_or_create(settings, announce=False) as store:
        settings = with_app_settings(store, settings)
        if not force:
            _check_kind(store, kind)
        job = _insert(settings, kind, arguments, options)
        if is_json(output):
            print_json(job_record(job), output)
        else:
            click.echo(job.id)
        _print_messages(store, settings, job)


def _check_kind(store: Store, kind: str) -> None:
    """Refuse a kind that no recent worker has, unless there was no worker yet."""
    with store.read() as tx:
        known = known_kinds(tx, tx.now())
    if not known or kind in known:
        return
    near = difflib.get_close_matches(kind, known, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise click.UsageError(
        f"no recent worker has kind {kind}.{hint} Add --force to enqueue it anyway."
    )


def _insert(
    settings: Settings, kind: str, arguments: dict[str, Any], options: dict[str, Any]
) -> Job:
    app = Mulligan(settings=settings)
    try:
        if options["batch"] is not None:
            options["batch"] = app.batches.resolve(options["batch"])
        new = app.build_job(kind, arguments, **options)
        (job,) = app.insert([new], actor=cli_actor())
    finally:
        app.close()
    return job


# --- Payload ---


def _parse_payload(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except ValueError as error:
        raise click.BadParameter(f"not valid JSON: {error}", param_hint="--payload") from None
    if not isinstance(value, dict):
        message = f'must be a JSON object such as {{"clip": 7}}, not {text}'
        raise click.BadParameter(message, param_hint="--payload")
    return value


def parse_pairs(pairs: tuple[str, ...], hint: str = "KEY=VALUE") -> dict[str, Any]:
    """Parse KEY=VALUE pairs. `hint` names the parameter in errors."""
    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            message = f"{pair!r} is not KEY=VALUE, for example clip=7"
            raise click.BadParameter(message, param_hint=hint)
        if key in parsed:
            raise click.BadParameter(f"{key} is set twice", param_hint=hint)
        parsed[key] = parse_value(value)
    return parsed


def parse_value(text: str) -> Any:
    """Parse JSON; any other text stands for itself."""
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except ValueError:
        return text


def refuse_constant(name: str) -> Any:
    """Refuse NaN and Infinity, which are not JSON although Python's parser accepts them."""
    raise ValueError(f"{name} is not JSON")


# --- Messages ---


def _print_messages(store: Store, settings: Settings, job: Job) -> None:
    """Say what happens next, and warn about what would prevent it."""
    if job.deduplicated:
        print_notice(
            f"Not enqueued: job {job.id} ({job.kind}, {job.state}) already holds this unique key."
        )
        return
    with store.read() as tx:
        kinds_with_workers = known_kinds(tx, tx.now())
    if job.kind not in kinds_with_workers:
        limit = format_duration(settings.worker.unknown_kind_after)
        print_notice(
            f"warning: no recent worker has kind {job.kind}. The job waits {limit} for one."
        )
    print_notice(f"Queued. Follow it with: mulligan jobs watch {job.id}")
