"""`mulligan jobs retry, cancel, release, discard`: one verb for one or many jobs, each with its own answer."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from mulligan.cli import exit_code
from mulligan.cli.database import Desk, desk, say
from mulligan.cli.output import as_json, cell, chosen, job_record, show_rows
from mulligan.engine.recover import foretell
from mulligan.errors import IllegalMove, MulliganError, NotFound, UniqueTaken
from mulligan.job import Job, Verb

VERBS = {
    "retry": Verb.RETRY_BY_HAND,
    "cancel": Verb.CANCEL,
    "release": Verb.RELEASE,
    "discard": Verb.DISCARD,
}
OF_ONE_JOB = (IllegalMove, NotFound, UniqueTaken)  # anything else would be wrong for the others too


class Result(NamedTuple):
    id: str
    record: dict[str, Any]
    error: MulliganError | None = None


def run_repair(
    name: str, ids: tuple[str, ...], said: dict[str, Any], database: str | None, output: str | None, *, dry_run: bool
) -> int:
    with desk(database) as at:
        if len(ids) == 1:
            results = [_one(at, name, ids[0], said, dry_run=dry_run)]
        else:
            results = [_each(at, name, one, said, dry_run=dry_run) for one in dict.fromkeys(ids)]
    _print(results, output, alone=len(ids) == 1)
    return _tell(name, results, chosen(output), dry_run=dry_run)


def _each(at: Desk, name: str, given: str, said: dict[str, Any], *, dry_run: bool) -> Result:
    """A job that cannot be moved does not keep the others."""
    try:
        return _one(at, name, given, said, dry_run=dry_run)
    except OF_ONE_JOB as error:
        return Result(given, {"id": given, "error": {"code": error.code, "message": str(error)}}, error)


def _one(at: Desk, name: str, given: str, said: dict[str, Any], *, dry_run: bool) -> Result:
    job_id = at.jobs.resolve(given)
    if dry_run:
        job = at.jobs.get(job_id)
        state = foretell(VERBS[name], job.state)
        return Result(job_id, {"id": job_id, "state": job.state, "would_be": state, "kind": job.kind})
    return Result(job_id, job_record(_act(at, name, job_id, said)))


def _act(at: Desk, name: str, job_id: str, said: dict[str, Any]) -> Job:
    if name == "retry":
        most = said["max_retries"]
        return at.jobs.retry(job_id, reason=said["reason"], overrides=None if most is None else {"max_retries": most})
    act = {"cancel": at.jobs.cancel, "release": at.jobs.release, "discard": at.jobs.discard}[name]
    done: Job = act(job_id, **said)
    return done


def _print(results: list[Result], output: str | None, *, alone: bool) -> None:
    form = chosen(output)
    if form in {"json", "jsonl"} and alone:
        click.echo(as_json(results[0].record, 2 if form == "json" else None))
    elif form in {"json", "jsonl"}:
        show_rows([result.record for result in results], (), output)
    else:
        done = [result.record for result in results if result.error is None]
        columns = ("id", "state", "would_be") if done and "would_be" in done[0] else ("id", "state", "phase")
        show_rows(done, columns if form == "tsv" else (*columns, "kind", "why"), output, short="why")


def _tell(name: str, results: list[Result], form: str, *, dry_run: bool) -> int:
    failed = [result for result in results if result.error is not None]
    for result in failed:
        say(f"{result.id}: {cell(str(result.error))} [{result.record['error']['code']}]")
    if len(results) > 1 or dry_run:
        verb = f"would {name}" if dry_run else name
        say(f"{verb}: {len(results) - len(failed)} of {len(results)}" + ("; nothing was changed" if dry_run else ""))
    elif form != "table":
        say(cell(results[0].record["why"]))
    return exit_code(failed[0].error) if failed and failed[0].error is not None else 0
