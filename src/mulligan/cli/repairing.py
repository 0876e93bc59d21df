"""`mulligan jobs retry, cancel, release, discard`: one verb for one or many jobs, each with its own answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from mulligan.cli import exit_code
from mulligan.cli.database import Desk, desk, say
from mulligan.cli.enqueue import pairs_of
from mulligan.cli.output import as_json, cell, chosen, job_record, show_rows
from mulligan.core.attempt import Verb
from mulligan.engine.explain import so_far
from mulligan.engine.recover import foretell
from mulligan.errors import (
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
from mulligan.job import Job

VERBS = {
    "retry": Verb.RETRY_BY_HAND,
    "cancel": Verb.CANCEL,
    "release": Verb.RELEASE,
    "discard": Verb.DISCARD,
}
# Anything else would be wrong for the others too.
OF_ONE_JOB = (
    ChoiceRefused, DeadlineFirst, DependencyOpen, IllegalMove, NotFound, OverrideRefused, PayloadRefused, RetryLimited,
    RetryRefused, UniqueTaken,
)  # fmt: skip
OVERRIDES = ("max_retries", "queue", "priority", "timeout")


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


def run_repair_of_many(
    name: str, filter_: str, said: dict[str, Any], database: str | None, output: str | None, *, dry_run: bool, yes: bool
) -> int:
    """All that a filter finds: an operation."""
    from mulligan.cli.ops import begin

    how = {"dry_run": dry_run, "yes": yes}
    if name != "retry":
        return begin(name, filter_, {**said, **how}, database, output)
    if said["at"] is not None:
        message = "--at is for jobs that are named; an operation begins now, at its --rate (mulligan ops start)"
        raise click.UsageError(message)
    return begin(name, filter_, {"reason": said["reason"], **how}, database, output, overrides=_overrides(said))


def _each(at: Desk, name: str, given: str, said: dict[str, Any], *, dry_run: bool) -> Result:
    """A job that cannot be moved does not keep the others."""
    try:
        return _one(at, name, given, said, dry_run=dry_run)
    except OF_ONE_JOB as error:
        return Result(given, {"id": given, "error": {"code": error.code, "message": str(error)}}, error)


def _one(at: Desk, name: str, given: str, said: dict[str, Any], *, dry_run: bool) -> Result:
    job_id = at.jobs.resolve(given)
    if dry_run:
        return _foretold(at, name, job_id, said)
    job = _act(at, name, job_id, said)
    return Result(job_id, job_record(job) | ({"so_far": so_far(job)} if name == "retry" else {}))


def _foretold(at: Desk, name: str, job_id: str, said: dict[str, Any]) -> Result:
    job = at.jobs.get(job_id)
    record: dict[str, Any] = {"id": job_id, "state": job.state, "kind": job.kind}
    if name != "retry":
        return Result(job_id, {**record, "would_be": foretell(VERBS[name], job.state)})
    seen = at.jobs.preview_retry(job_id, overrides=_overrides(said), at=said["at"])
    record |= {"so_far": so_far(job), "changes": dict(seen.changes)}
    if not seen.refused:
        return Result(job_id, {**record, "would_be": foretell(VERBS[name], job.state)})
    told = [{"code": error.code, "message": str(error)} for error in seen.refused]
    return Result(job_id, {**record, "error": told[0], "refused": told}, seen.refused[0])


def _overrides(said: dict[str, Any]) -> dict[str, Any]:
    plain = {name: said[name] for name in OVERRIDES if said[name] is not None}
    return plain | ({"payload": pairs_of(said["fields"], "--set")} if said["fields"] else {})


def _act(at: Desk, name: str, job_id: str, said: dict[str, Any]) -> Job:
    if name == "retry":
        return at.jobs.retry(job_id, reason=said["reason"], overrides=_overrides(said), at=said["at"])
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
        more = ("kind", "so_far", "changes") if done and "changes" in done[0] else ("kind", "why")
        show_rows(done, columns if form == "tsv" else (*columns, *more), output, short="why" if "why" in more else "")


def _tell(name: str, results: list[Result], form: str, *, dry_run: bool) -> int:
    failed = [result for result in results if result.error is not None]
    for result in failed:
        for told in result.record.get("refused") or [result.record["error"]]:
            say(f"{result.id}: {cell(told['message'])} [{told['code']}]")
    if len(results) > 1 or dry_run:
        verb = f"would {name}" if dry_run else name
        say(f"{verb}: {len(results) - len(failed)} of {len(results)}" + ("; nothing was changed" if dry_run else ""))
        for line in _changes(results) if dry_run else ():
            say(line)
    elif form != "table":
        say(cell(results[0].record["why"]))
    if name == "retry" and len(results) == 1 and not failed:
        say(f"so far: {results[0].record['so_far']}")
    return exit_code(failed[0].error) if failed and failed[0].error is not None else 0


def _changes(results: list[Result]) -> Iterator[str]:
    for result in results:
        for name, change in result.record.get("changes", {}).items():
            yield f"{result.id}: {cell(name)}: {_value(change['before'])} → {_value(change['after'])}"


def _value(value: Any) -> str:
    return "unset" if value is None else cell(value)
