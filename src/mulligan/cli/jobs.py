"""`mulligan jobs …`. An id may be given by as many of its first characters as make it unique."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import click

from mulligan.cli import Family, exit_code
from mulligan.cli import options as shared
from mulligan.cli.completion import filters, job_ids, kinds, queues
from mulligan.cli.database import CommandServices, open_services, say
from mulligan.cli.enqueue import pairs_of
from mulligan.cli.output import as_json, cell, chosen, job_record, show_rows
from mulligan.core.attempt import Verb
from mulligan.core.errors import (
    ChoiceRefused,
    DeadlineFirst,
    DependencyOpen,
    IllegalMove,
    MulliganError,
    NotFound,
    OverrideRefused,
    PayloadRefused,
    RetryLimited,
    RetryRefused,
    UniqueTaken,
)
from mulligan.core.job import Job
from mulligan.jobs.explain import so_far
from mulligan.jobs.repair import foretell

# `mulligan jobs retry, cancel, release, discard`: one verb for one or many jobs, each with its own answer.

VERBS = {
    "retry": Verb.RETRY_BY_HAND,
    "cancel": Verb.CANCEL,
    "release": Verb.RELEASE,
    "discard": Verb.DISCARD,
}
# Anything else would be wrong for the others too.
OF_ONE_JOB = (
    ChoiceRefused,
    DeadlineFirst,
    DependencyOpen,
    IllegalMove,
    NotFound,
    OverrideRefused,
    PayloadRefused,
    RetryLimited,
    RetryRefused,
    UniqueTaken,
)
OVERRIDES = ("max_retries", "queue", "priority", "timeout")


class RepairResult(NamedTuple):
    id: str
    record: dict[str, Any]
    error: MulliganError | None = None


def run_repair(
    name: str,
    ids: tuple[str, ...],
    said: dict[str, Any],
    database: str | None,
    output: str | None,
    *,
    dry_run: bool,
) -> int:
    with open_services(database) as at:
        if len(ids) == 1:
            results = [_one(at, name, ids[0], said, dry_run=dry_run)]
        else:
            results = [_each(at, name, one, said, dry_run=dry_run) for one in dict.fromkeys(ids)]
    _print(results, output, alone=len(ids) == 1)
    return _tell(name, results, chosen(output), dry_run=dry_run)


def run_repair_of_many(
    name: str,
    filter_: str,
    said: dict[str, Any],
    database: str | None,
    output: str | None,
    *,
    dry_run: bool,
    yes: bool,
) -> int:
    """All that a filter finds: an operation."""
    from mulligan.cli.ops import begin

    how = {"dry_run": dry_run, "yes": yes}
    if name != "retry":
        return begin(name, filter_, {**said, **how}, database, output)
    if said["at"] is not None:
        message = "--at is for jobs that are named; an operation begins now, at its --rate (mulligan ops start)"
        raise click.UsageError(message)
    return begin(
        name,
        filter_,
        {"reason": said["reason"], **how},
        database,
        output,
        overrides=_overrides(said),
    )


def _each(
    at: CommandServices, name: str, given: str, said: dict[str, Any], *, dry_run: bool
) -> RepairResult:
    """A job that cannot be moved does not keep the others."""
    try:
        return _one(at, name, given, said, dry_run=dry_run)
    except OF_ONE_JOB as error:
        return RepairResult(
            given, {"id": given, "error": {"code": error.code, "message": str(error)}}, error
        )


def _one(
    at: CommandServices, name: str, given: str, said: dict[str, Any], *, dry_run: bool
) -> RepairResult:
    job_id = at.jobs.resolve(given)
    if dry_run:
        return _foretold(at, name, job_id, said)
    job = _act(at, name, job_id, said)
    return RepairResult(
        job_id, job_record(job) | ({"so_far": so_far(job)} if name == "retry" else {})
    )


def _foretold(at: CommandServices, name: str, job_id: str, said: dict[str, Any]) -> RepairResult:
    job = at.jobs.get(job_id)
    record: dict[str, Any] = {"id": job_id, "state": job.state, "kind": job.kind}
    if name != "retry":
        return RepairResult(job_id, {**record, "would_be": foretell(VERBS[name], job.state)})
    seen = at.jobs.preview_retry(job_id, overrides=_overrides(said), at=said["at"])
    record |= {"so_far": so_far(job), "changes": dict(seen.changes)}
    if not seen.refused:
        return RepairResult(job_id, {**record, "would_be": foretell(VERBS[name], job.state)})
    told = [{"code": error.code, "message": str(error)} for error in seen.refused]
    return RepairResult(job_id, {**record, "error": told[0], "refused": told}, seen.refused[0])


def _overrides(said: dict[str, Any]) -> dict[str, Any]:
    plain = {name: said[name] for name in OVERRIDES if said[name] is not None}
    return plain | ({"payload": pairs_of(said["fields"], "--set")} if said["fields"] else {})


def _act(at: CommandServices, name: str, job_id: str, said: dict[str, Any]) -> Job:
    if name == "retry":
        return at.jobs.retry(
            job_id, reason=said["reason"], overrides=_overrides(said), at=said["at"]
        )
    act = {"cancel": at.jobs.cancel, "release": at.jobs.release, "discard": at.jobs.discard}[name]
    done: Job = act(job_id, **said)
    return done


def _print(results: list[RepairResult], output: str | None, *, alone: bool) -> None:
    form = chosen(output)
    if form in {"json", "jsonl"} and alone:
        click.echo(as_json(results[0].record, 2 if form == "json" else None))
    elif form in {"json", "jsonl"}:
        show_rows([result.record for result in results], (), output)
    else:
        done = [result.record for result in results if result.error is None]
        columns = (
            ("id", "state", "would_be")
            if done and "would_be" in done[0]
            else ("id", "state", "phase")
        )
        more = ("kind", "so_far", "changes") if done and "changes" in done[0] else ("kind", "why")
        show_rows(
            done,
            columns if form == "tsv" else (*columns, *more),
            output,
            short="why" if "why" in more else "",
        )


def _tell(name: str, results: list[RepairResult], form: str, *, dry_run: bool) -> int:
    failed = [result for result in results if result.error is not None]
    for result in failed:
        for told in result.record.get("refused") or [result.record["error"]]:
            say(f"{result.id}: {cell(told['message'])} [{told['code']}]")
    if len(results) > 1 or dry_run:
        verb = f"would {name}" if dry_run else name
        say(
            f"{verb}: {len(results) - len(failed)} of {len(results)}"
            + ("; nothing was changed" if dry_run else "")
        )
        for line in _changes(results) if dry_run else ():
            say(line)
    elif form != "table":
        say(cell(results[0].record["why"]))
    if name == "retry" and len(results) == 1 and not failed:
        say(f"so far: {results[0].record['so_far']}")
    return exit_code(failed[0].error) if failed and failed[0].error is not None else 0


def _changes(results: list[RepairResult]) -> Iterator[str]:
    for result in results:
        for name, change in result.record.get("changes", {}).items():
            yield f"{result.id}: {cell(name)}: {_value(change['before'])} → {_value(change['after'])}"


def _value(value: Any) -> str:
    return "unset" if value is None else cell(value)


# `mulligan jobs …`. An id may be given by as many of its first characters as make it unique.

FILTER = (
    "FILTER: state:dead,parked phase:held kind:render queue:pdf owner:acme batch:… since:2h code:GW_5XX class:timeout "
    "group:v2-… arg.customer:42"
)


@click.group(cls=Family)
def jobs() -> None:
    """List, show, explain, watch, export and repair jobs. An ID may be given by its first characters."""


filter_words = click.argument("words", metavar="[FILTER]...", nargs=-1, shell_complete=filters)
one_id = click.argument("job_id", metavar="ID", shell_complete=job_ids)
many_ids = click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=job_ids)


# -- look -------------------------------------------------------------------------------------------
@jobs.command("list", help=f"Newest first. {FILTER}")
@filter_words
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="How many on this page.",
)
@click.option(
    "--cursor", metavar="ID", help="The next page: what the page before named at its end."
)
@click.option(
    "--page", is_flag=True, help="With -o json: an object with jobs, cursor, partial and count."
)
@shared.database
@shared.output
def list_(
    words: tuple[str, ...],
    limit: int,
    cursor: str | None,
    database: str | None,
    output: str | None,
    *,
    page: bool,
) -> None:
    from mulligan.cli.job_views import show_list

    show_list(words, limit, cursor, database, output, page=page)


@jobs.command()
@one_id
@shared.database
@shared.output
def show(job_id: str, database: str | None, output: str | None) -> None:
    """Everything about one job: facts, why, attempts (newest first, with their private half), events."""
    from mulligan.cli.database import open_services
    from mulligan.cli.job_views import show_story

    with open_services(database) as at:
        show_story(at, at.jobs.resolve(job_id), output)


@jobs.command()
@one_id
@click.option("--private", is_flag=True, help="With messages and traces, which are not for owners.")
@shared.database
@shared.output
def explain(job_id: str, database: str | None, output: str | None, *, private: bool) -> None:
    """A job's story in sentences, why it is where it is, what holds for it, and what to type next."""
    from mulligan.cli.job_views import show_explanation

    show_explanation(job_id, database, output, private=private)


@jobs.command(
    help=f"Every job as one line of JSON, newest first: a stream, however many there are. {FILTER}"
)
@filter_words
@click.option(
    "--attempts", is_flag=True, help="With every finished attempt, both halves of its failure."
)
@shared.database
def export(words: tuple[str, ...], database: str | None, *, attempts: bool) -> None:
    from mulligan.cli.job_transfer import run_export

    run_export(words, database, attempts=attempts)


@jobs.command("import")
@click.argument("file", type=click.File("rb"))
@shared.dry_run
@shared.database
@shared.output
def import_(file: BinaryIO, database: str | None, output: str | None, *, dry_run: bool) -> int:
    """Enqueue what `jobs export` wrote: one job per line of FILE (-: standard input), run as new.

    A line is a JSON object with kind and payload, perhaps owner, queue, priority, max_retries, unique_key. Of jobs that
    say their state only dead, parked and cancelled ones are taken. One that has no unique key gets import:ID, so that a
    file read twice makes no job twice. Exit code 1: some lines were refused; they are told, the others are in.
    """
    from mulligan.cli.job_transfer import run_import

    return run_import(file, database, output, dry_run=dry_run)


@jobs.command()
@click.argument("kind", shell_complete=kinds)
@shared.database
def index(kind: str, database: str | None) -> None:
    """Let `arg.` filters find jobs of KIND that were enqueued before it declared its index."""
    from mulligan.cli.job_transfer import run_index

    run_index(kind, database)


# -- watch ------------------------------------------------------------------------------------------
@jobs.command(
    help=f"Follow one job, or all that a FILTER finds, to the end. Exit code 6: not all succeeded. {FILTER}"
)
@click.argument("words", metavar="ID | [FILTER]...", nargs=-1, shell_complete=job_ids)
@click.option("--timeout", type=shared.Length(), help="Give up after: 30, 5m, 2h; the jobs go on.")
@click.option(
    "-f", "--follow", is_flag=True, help="Go on when nothing waits or runs any more, until Ctrl-C."
)
@shared.database
@shared.output
def watch(
    words: tuple[str, ...],
    timeout: float | None,
    database: str | None,
    output: str | None,
    *,
    follow: bool,
) -> int:
    from mulligan.cli import job_views as watching

    if len(words) == 1 and ":" not in words[0]:
        return watching.watch_job(words[0], timeout, database, output)
    return watching.watch_filter(words, timeout, database, output, follow=follow)


# -- repair -----------------------------------------------------------------------------------------
def repair(name: str, words: str, *more: Callable[[Any], Any]) -> None:
    """One command per verb, all alike."""

    def run(
        ids: tuple[str, ...],
        database: str | None,
        output: str | None,
        *,
        dry_run: bool,
        filter_: str | None,
        yes: bool,
        **said: Any,
    ) -> int:
        pass

        if bool(ids) == (filter_ is not None):
            message = "name jobs by their ids, or all that a --filter finds; one of both"
            raise click.UsageError(message)
        if filter_ is not None:
            return run_repair_of_many(
                name, filter_, said, database, output, dry_run=dry_run, yes=yes
            )
        return run_repair(name, ids, said, database, output, dry_run=dry_run)

    decorated: Any = run
    for option in (shared.output, shared.database, _yes, shared.dry_run, _filter, *more, many_ids):
        decorated = option(decorated)
    jobs.command(name, help=words)(decorated)


_filter = click.option(
    "--filter", "filter_", metavar="FILTER", help="All that it finds: an operation, as `ops start`."
)
_yes = click.option(
    "--yes", is_flag=True, help="With --filter: do not ask, however many jobs there are."
)
_reason = click.option("--reason", default="", help="For the history.")
_must_reason = click.option(
    "--reason", required=True, help="The last thing anybody will read about this job."
)
_choice = click.option("--choice", help="What was decided; the handler reads it as ctx.choice.")
_retry = (
    _reason,
    click.option(
        "--at", type=shared.When(), help="Not at once: 5m, 2h, or 2026-03-01T06:00+01:00."
    ),
    click.option(
        "--set",
        "fields",
        metavar="FIELD=VALUE",
        multiple=True,
        help="Change a field of the payload that its kind calls editable. May be repeated.",
    ),
    click.option(
        "--timeout", type=shared.Length(), help="Limit of one attempt from now on: 30, 5m, 2h."
    ),
    click.option("--priority", type=int, help="From -9 (first) to 9 (last)."),
    click.option("--queue", help="Instead of the one it was enqueued for.", shell_complete=queues),
    click.option("--max-retries", type=int, help="Instead of what holds for this job."),
)

repair(
    "retry",
    "Run dead, parked or cancelled jobs again, with fresh counters; their history stays.",
    *_retry,
)
repair(
    "cancel",
    "Stop jobs: at once while they wait, once their code has stopped while they run.",
    _reason,
)
repair("release", "Let parked jobs go on, perhaps with a choice.", _choice, _reason)
repair("discard", "Nobody wants these dead or parked jobs any more.", _must_reason)
