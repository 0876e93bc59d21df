"""`mulligan jobs retry, cancel, release, discard, undiscard`: repair jobs by id or by filter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click

from mulligan.app.services import StoreServices
from mulligan.cli import exit_code_for
from mulligan.cli.database import open_services, print_notice
from mulligan.cli.enqueue import parse_pairs, parse_value
from mulligan.cli.output import (
    format_cell,
    is_json,
    job_record,
    output_format,
    print_json,
    print_rows,
)
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
from mulligan.jobs.explain import describe_effort
from mulligan.jobs.repair import preview_move

VERBS = {
    "retry": Verb.RETRY_BY_HAND,
    "cancel": Verb.CANCEL,
    "release": Verb.RELEASE,
    "discard": Verb.DISCARD,
    "undo": Verb.UNDO,
    "undiscard": Verb.UNDISCARD,
}
OVERRIDE_OPTIONS = ("max_retries", "queue", "priority", "timeout", "from_step")

# Errors that concern one job only. Any other error would hit the remaining jobs too.
ERRORS_OF_ONE_JOB = (
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


class RepairRequest(NamedTuple):
    """A repair to apply to each job."""

    name: str  # retry, cancel, release, discard or undiscard
    options: Mapping[str, Any]  # of the command: reason, choice, overrides …
    dry_run: bool

    @property
    def verb(self) -> Verb:
        return VERBS[self.name]

    @property
    def is_retry(self) -> bool:
        return self.verb is Verb.RETRY_BY_HAND

    def overrides(self) -> dict[str, Any]:
        """Return the fields of the job that a retry changes."""
        overrides = {
            name: self.options[name] for name in OVERRIDE_OPTIONS if self.options[name] is not None
        }
        if self.options["fields"]:
            overrides["payload"] = parse_pairs(self.options["fields"], "--set")
        if self.options["step_results"]:
            overrides["steps"] = parse_pairs(self.options["step_results"], "--step")
        return overrides


class RepairResult(NamedTuple):
    """The outcome for one job."""

    id: str
    record: dict[str, Any]
    error: MulliganError | None = None


def repair_by_id(
    request: RepairRequest, ids: tuple[str, ...], database: str | None, output: str | None
) -> int:
    """Repair jobs one by one. Return the exit code of the first error, or 0."""
    with open_services(database) as services:
        if len(ids) == 1:
            results = [_repair(services, request, ids[0])]
        else:
            unique_ids = dict.fromkeys(ids)
            results = [_repair_or_record_error(services, request, id_) for id_ in unique_ids]
    _print_results(results, output, as_object=len(ids) == 1)
    _print_messages(request, results, output)
    errors = [result.error for result in results if result.error is not None]
    return exit_code_for(errors[0]) if errors else 0


def answer_job(
    id_or_key: str,
    name: str,
    value: str | None,
    options: Mapping[str, str],
    database: str | None,
    output: str | None,
    *,
    by_key: bool,
) -> None:
    """Answer what one job waits for, and print the job."""
    answer = None if value is None else parse_value(value)
    with open_services(database) as services:
        jobs = services.jobs
        job_id = jobs.find_by_key(id_or_key) if by_key else jobs.resolve(id_or_key)
        job = jobs.tell(job_id, name, answer, **options)
    _print_results([RepairResult(job_id, job_record(job))], output, as_object=True)


def repair_newest(
    request: RepairRequest, filter_: str, limit: int, database: str | None, output: str | None
) -> int:
    """Repair the newest jobs that match the filter, one by one."""
    with open_services(database) as services:
        ids = tuple(job.id for job in services.jobs.list(filter_, limit=limit))
    if not ids:
        print_notice("No job matches. Nothing was changed.")
        return 0
    return repair_by_id(request, ids, database, output)


def repair_by_filter(
    request: RepairRequest, filter_: str, database: str | None, output: str | None, *, yes: bool
) -> int:
    """Repair all jobs that match the filter, as an operation."""
    if request.verb in {Verb.UNDISCARD, Verb.UNDO}:
        raise click.UsageError(f"{request.name} takes IDs, or --filter with --limit")
    from mulligan.cli.ops import start_operation

    options = dict(request.options)
    overrides = {}
    if request.is_retry:
        if options["at"] is not None:
            raise click.UsageError(
                "--at works only with job IDs. An operation starts now; "
                "limit its speed with mulligan ops start … --rate."
            )
        overrides = request.overrides()
        options = {"reason": options["reason"]}
    elif options.pop("value", None) is not None:
        raise click.UsageError("--value is the result of one job's step: release it by its ID")
    options |= {"dry_run": request.dry_run, "yes": yes}
    return start_operation(request.name, filter_, options, database, output, overrides=overrides)


def rerun_job(job_id: str, reason: str, database: str | None, output: str | None) -> None:
    """Enqueue a copy of a succeeded job and print its id."""
    with open_services(database) as services:
        copy = services.jobs.rerun(services.jobs.resolve(job_id), reason=reason)
    if is_json(output):
        print_json(job_record(copy), output)
    else:
        click.echo(copy.id)


# --- One job ---


def _repair_or_record_error(
    services: StoreServices, request: RepairRequest, id_or_prefix: str
) -> RepairResult:
    """Repair a job. Record its error instead of raising it, so that the other jobs continue."""
    try:
        return _repair(services, request, id_or_prefix)
    except ERRORS_OF_ONE_JOB as error:
        record = {"id": id_or_prefix, "error": _error_record(error)}
        return RepairResult(id_or_prefix, record, error)


def _error_record(error: MulliganError) -> dict[str, str]:
    return {"code": error.code, "message": str(error)}


def _repair(services: StoreServices, request: RepairRequest, id_or_prefix: str) -> RepairResult:
    job_id = services.jobs.resolve(id_or_prefix)
    if request.dry_run:
        return _preview(services, request, job_id)
    job = _apply(services, request, job_id)
    record = job_record(job)
    if request.is_retry:
        record["so_far"] = describe_effort(job)
    return RepairResult(job_id, record)


def _apply(services: StoreServices, request: RepairRequest, job_id: str) -> Job:
    jobs = services.jobs
    options = request.options
    match request.verb:
        case Verb.CANCEL:
            return jobs.cancel(job_id, **options)
        case Verb.RELEASE:
            return jobs.release(job_id, **{**options, "value": _read_value(options)})
        case Verb.DISCARD:
            return jobs.discard(job_id, **options)
        case Verb.UNDO:
            return jobs.undo(job_id, **options)
        case Verb.UNDISCARD:
            return jobs.undiscard(job_id, **options)
        case _:
            return jobs.retry(
                job_id,
                reason=options["reason"],
                overrides=request.overrides(),
                at=options["at"],
            )


def _read_value(options: Mapping[str, Any]) -> Any:
    """Return the result of a step in doubt: JSON, or a text that is none."""
    return None if options["value"] is None else parse_value(options["value"])


def _preview(services: StoreServices, request: RepairRequest, job_id: str) -> RepairResult:
    """Describe what the repair would do, and write nothing."""
    job = services.jobs.get(job_id)
    record: dict[str, Any] = {"id": job_id, "state": job.state, "kind": job.kind}
    if request.is_retry:
        preview = services.jobs.preview_retry(
            job_id, overrides=request.overrides(), at=request.options["at"]
        )
        record |= {"so_far": describe_effort(job), "changes": dict(preview.changes)}
        if preview.warnings:
            record["warnings"] = list(preview.warnings)
            for warning in preview.warnings:
                print_notice(f"warning: {warning}")
        if preview.refused:
            refusals = [_error_record(error) for error in preview.refused]
            record |= {"error": refusals[0], "refused": refusals}
            return RepairResult(job_id, record, preview.refused[0])
    record["would_be"] = preview_move(request.verb, job.state)
    return RepairResult(job_id, record)


# --- Output ---


def _print_results(results: Sequence[RepairResult], output: str | None, *, as_object: bool) -> None:
    if is_json(output):
        if as_object:
            print_json(results[0].record, output)
        else:
            print_rows([result.record for result in results], (), output)
        return
    done = [result.record for result in results if result.error is None]
    columns = _columns(done, people=output_format(output) == "table")
    truncated_column = "why" if "why" in columns else ""
    print_rows(done, columns, output, truncate=truncated_column)


def _columns(done: Sequence[Mapping[str, Any]], *, people: bool) -> tuple[str, ...]:
    sample = done[0] if done else {}
    result = "would_be" if "would_be" in sample else "phase"
    columns = ("id", "state", result)
    if not people:
        return columns
    if "changes" in sample:
        return (*columns, "kind", "so_far", "changes")
    return (*columns, "kind", "why")


def _print_messages(
    request: RepairRequest, results: Sequence[RepairResult], output: str | None
) -> None:
    failed = [result for result in results if result.error is not None]
    for result in failed:
        for refusal in result.record.get("refused") or [result.record["error"]]:
            print_notice(f"{result.id}: {format_cell(refusal['message'])} [{refusal['code']}]")
    done = len(results) - len(failed)
    if request.dry_run:
        print_notice(f"would {request.name} {done} of {len(results)}; nothing was changed")
        for line in _describe_changes(results):
            print_notice(line)
    elif len(results) > 1:
        print_notice(f"{request.name}: {done} of {len(results)}")
    elif output_format(output) != "table":
        print_notice(format_cell(results[0].record["why"]))
    if request.is_retry and len(results) == 1 and not failed:
        print_notice(f"so far: {results[0].record['so_far']}")


def _describe_changes(results: Sequence[RepairResult]) -> Iterator[str]:
    for result in results:
        for name, change in result.record.get("changes", {}).items():
            before = _format_value(change["before"])
            after = _format_value(change["after"])
            yield f"{result.id}: {format_cell(name)}: {before} → {after}"


def _format_value(value: Any) -> str:
    return "unset" if value is None else format_cell(value)
