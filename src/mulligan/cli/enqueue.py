"""`mulligan enqueue KIND k=v…`."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import click

from mulligan.app.mulligan import Mulligan
from mulligan.cli import options as shared
from mulligan.cli.completion import batch_ids, kinds, queues
from mulligan.cli.database import actor, prepared, say, settings_with
from mulligan.cli.output import as_json, job_record
from mulligan.config import Settings
from mulligan.core.format import duration
from mulligan.core.job import Job
from mulligan.manifest.declared import stored_kinds
from mulligan.storage import Store
from mulligan.worker.upkeep import known_kinds

# Does a payload fit what a worker has said of its kind? By names alone: values are the handler's to judge.


def misfit(schema: Mapping[str, Any], given: Iterable[str]) -> str:
    """What is missing and what is too many, in one sentence; nothing if it fits or nobody knows."""
    if not schema:
        return ""
    names, takes = set(given), list(schema.get("properties", {}))
    missing = [name for name in schema.get("required", []) if name not in names]
    surplus = [] if schema.get("additionalProperties") else sorted(names.difference(takes))
    faults = [
        f"{word} {', '.join(found)}"
        for word, found in (("lacks", missing), ("does not take", surplus))
        if found
    ]
    return f"{' and '.join(faults)}; it takes {', '.join(takes) or 'nothing'}" if faults else ""


# `mulligan enqueue KIND k=v…`.


@click.command()
@click.argument("kind", shell_complete=kinds)
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--payload", metavar="JSON", help="The payload as one JSON object; pairs come on top."
)
@click.option("--queue", help="Instead of the kind's own.", shell_complete=queues)
@click.option("--delay", type=shared.Length(), help="Not before: 30, 5m, 2h, 1d.")
@click.option("--priority", type=int, help="From -9 (first) to 9 (last).")
@click.option("--owner", default="", help="Whom the job belongs to.")
@click.option("--unique", metavar="KEY", help="A second job with this key is the first one.")
@click.option(
    "--batch",
    metavar="ID",
    help="Of the batch it joins, or its first characters.",
    shell_complete=batch_ids,
)
@click.option("--max-retries", type=int, help="Instead of what holds for the kind.")
@shared.database
@shared.output
def enqueue(
    kind: str,
    pairs: tuple[str, ...],
    payload: str | None,
    database: str | None,
    output: str | None,
    **said: Any,
) -> None:
    """Enqueue a job of KIND and print its id.

    A VALUE that is valid JSON is taken as that (7, true, [1, 2], "7"), anything else as text.
    """
    given = _payload(payload) | pairs_of(pairs)
    settings = settings_with(database)
    with prepared(settings, aloud=False) as store:
        app = Mulligan(settings=settings)
        try:
            if said["batch"] is not None:
                said["batch"] = app.batches.resolve(said["batch"])
            new, _ = app._named(kind, given, said)  # noqa: SLF001 - as app.enqueue does, by somebody
            (job,) = app.insert([new], actor=actor())
        finally:
            app.close()
        _print(job, output)
        _tell(store, settings, job)


def _print(job: Job, output: str | None) -> None:
    click.echo(
        as_json(job_record(job), 2 if output == "json" else None)
        if output in {"json", "jsonl"}
        else job.id
    )


def _payload(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise click.BadParameter(f"not valid JSON: {error}", param_hint="--payload") from None
    if not isinstance(value, dict):
        raise click.BadParameter(
            f'must be a JSON object, like {{"clip": 7}}, not {text}', param_hint="--payload"
        )
    return value


def pairs_of(pairs: tuple[str, ...], hint: str = "KEY=VALUE") -> dict[str, Any]:
    given: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.BadParameter(
                f"{pair!r} is not KEY=VALUE, for example clip=7", param_hint=hint
            )
        if key in given:
            raise click.BadParameter(f"{key} is given twice", param_hint=hint)
        given[key] = _value(value)
    return given


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError:
        return text


def _no_constant(name: str) -> Any:
    """NaN and Infinity are not JSON, whatever Python's reader says."""
    raise ValueError(f"{name} is not JSON")


def _tell(store: Store, settings: Settings, job: Job) -> None:
    """What happens next, and what would prevent it."""
    if job.deduplicated:
        say(f"there already: {job.kind} {job.id} holds this unique key and is {job.state}")
        return
    with store.read() as unit:
        known = known_kinds(unit, unit.now())
        spec = stored_kinds(unit).get(job.kind)
    fault = misfit(spec.schema, job.payload) if spec is not None else ""
    if fault:
        say(f"warning: the worker will refuse this payload: {job.kind} {fault}")
    if job.kind not in known:
        near = difflib.get_close_matches(job.kind, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        limit = duration(settings.worker.unknown_kind_after)
        say(
            f"warning: no worker has ever named kind {job.kind}; the job waits {limit} for one that does.{hint}"
        )
    say(f"queued. Follow it: mulligan jobs watch {job.id}")
