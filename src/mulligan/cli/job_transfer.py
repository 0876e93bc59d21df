"""`mulligan jobs export, import, index`: move jobs out and in as JSON lines, and index old jobs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

import click

from mulligan.app.services import StoreServices
from mulligan.cli.database import (
    load_settings,
    open_existing,
    open_or_create,
    open_services,
    print_notice,
    with_app_settings,
)
from mulligan.cli.enqueue import refuse_constant
from mulligan.cli.job_views import failure_code, join_filter
from mulligan.cli.output import attempt_record, is_json, job_record, print_rows, to_json
from mulligan.core.errors import MulliganError, PayloadRefused, UniqueMismatch, UniqueRace
from mulligan.core.job import DEFAULT_COVER, Job, NewJob, State, unique_hash
from mulligan.jobs.enqueue import new_job
from mulligan.jobs.options import EnqueueOptions, format_uses
from mulligan.jobs.queries import JobQueries
from mulligan.jobs.search import index_kind
from mulligan.jobs.service import DEFAULT_COUNT_CAP
from mulligan.manifest.declared import load_kinds, load_queues
from mulligan.manifest.schema import check_payload
from mulligan.manifest.specs import KindSpec, QueueSpec, check_name, check_user_name
from mulligan.manifest.versions import describe_versions
from mulligan.storage import Store
from mulligan.worker.upkeep import known_kinds

Advance = Callable[[int], None]  # moves a progress bar on

# --- mulligan jobs export ---

PAGE_SIZE = 500


def run_export(terms: tuple[str, ...], database: str | None, *, attempts: bool) -> None:
    """Print every matching job as one line of JSON."""
    count = 0
    with open_services(database) as services, _export_progress(services, terms) as advance:
        for job in iterate_jobs(services, join_filter(terms)):
            click.echo(to_json(_export_record(services, job, attempts=attempts)))
            advance(1)
            count += 1
    print_notice(f"{count:,} jobs")


def iterate_jobs(services: StoreServices, filter_: str) -> Iterator[Job]:
    """Yield matching jobs, newest first, one page at a time, so that memory stays bounded.

    Jobs enqueued meanwhile have later ids: they are not included, and no job is yielded twice.
    """
    before: str | None = None
    while True:
        page = services.jobs.list(filter_, limit=PAGE_SIZE, before=before)
        yield from page
        if page.cursor is None:
            return
        before = page.cursor


def _export_record(services: StoreServices, job: Job, *, attempts: bool) -> dict[str, Any]:
    record = {**job_record(job), "code": failure_code(job)}
    if attempts:
        rows = services.jobs.attempts(job.id)
        record["attempts_made"] = [attempt_record(row) for row in rows]
    return record


@contextmanager
def _export_progress(services: StoreServices, terms: tuple[str, ...]) -> Iterator[Advance]:
    """Show a progress bar if the data goes to a file and stderr is a terminal."""
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield _ignore_progress
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    count = services.jobs.count(join_filter(terms), cap=DEFAULT_COUNT_CAP)
    total = None if count.capped or count.partial else int(count)
    columns = (TextColumn("export"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("export", total=total)
        yield lambda jobs: bar.advance(task, jobs)


# --- mulligan jobs import ---

LINES_PER_TRANSACTION = 200
MAX_LINE_BYTES = 16 * 1024 * 1024
IMPORTED_STATES = (State.DEAD, State.PARKED, State.CANCELLED)
IMPORTED_OPTIONS = ("owner", "queue", "priority", "max_retries")
COLUMNS = ("line", "id", "kind", "outcome")

# Values of the field `outcome`
QUEUED = "queued"
EXISTS = "there already"
WOULD_BE_QUEUED = "would be queued"

NumberedLine = tuple[int, bytes]
NumberedJob = tuple[int, NewJob]


class ImportResult(NamedTuple):
    """The outcome of one line of the file."""

    line: int
    id: str = ""
    kind: str = ""
    outcome: str = ""
    error: dict[str, str] | None = None


class ImportContext(NamedTuple):
    """The stored declarations that every line is checked against."""

    kinds: Mapping[str, KindSpec]
    queues: Mapping[str, QueueSpec]
    max_payload: int  # bytes
    kinds_with_workers: Collection[str]


def run_import(file: BinaryIO, database: str | None, output: str | None, *, dry_run: bool) -> int:
    """Enqueue one job per line. Return 1 if a line was refused."""
    settings = load_settings(database)
    opened = open_existing(settings) if dry_run else open_or_create(settings, announce=False)
    with opened as store:
        context = _load_context(store, with_app_settings(store, settings).limits.payload)
        results: list[ImportResult] = []
        with _progress("import", _file_size(file)) as advance:
            lines = enumerate(read_lines(file), start=1)
            while chunk := list(islice(lines, LINES_PER_TRANSACTION)):
                results += _import_chunk(store, chunk, context, dry_run=dry_run)
                advance(sum(len(raw) for _, raw in chunk))
    _print_results(results, output)
    _print_summary(results, context.kinds_with_workers, dry_run=dry_run)
    return 1 if any(result.error for result in results) else 0


def _load_context(store: Store, max_payload: int) -> ImportContext:
    with store.read() as tx:
        now = tx.now()
        return ImportContext(
            load_kinds(tx), load_queues(tx, now), max_payload, known_kinds(tx, now)
        )


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file. An overlong line is cut just above the limit, and so refused."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        yield line
        while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES + 1)


def _import_chunk(
    store: Store, chunk: Sequence[NumberedLine], context: ImportContext, *, dry_run: bool
) -> list[ImportResult]:
    jobs: list[NumberedJob] = []
    results: list[ImportResult] = []
    for number, raw in chunk:
        if not raw.strip():
            continue
        try:
            jobs.append((number, _build_job(_parse_record(raw), context)))
        except MulliganError as error:
            results.append(_refused(number, error))
    if dry_run:
        results += [ImportResult(number, "", job.kind, WOULD_BE_QUEUED) for number, job in jobs]
    else:
        results += _insert_or_split(store, jobs)
    return sorted(results)


def _insert_or_split(store: Store, jobs: Sequence[NumberedJob]) -> list[ImportResult]:
    """Insert all jobs in one transaction. If unique keys clash, insert them one by one."""
    try:
        return _insert(store, jobs)
    except (UniqueMismatch, UniqueRace):
        return [_insert_one(store, number, job) for number, job in jobs]


def _insert(store: Store, jobs: Sequence[NumberedJob]) -> list[ImportResult]:
    if not jobs:
        return []
    with store.begin() as tx:
        rows = JobQueries(tx).insert_jobs([job for _, job in jobs], announce=True)
    results = []
    for (number, job), row in zip(jobs, rows, strict=True):
        outcome = QUEUED if row.fresh else EXISTS
        results.append(ImportResult(number, row.id, job.kind, outcome))
    return results


def _insert_one(store: Store, number: int, job: NewJob) -> ImportResult:
    try:
        return _insert(store, [(number, job)])[0]
    except (UniqueMismatch, UniqueRace) as error:
        return _refused(number, error)


def _refused(number: int, error: MulliganError) -> ImportResult:
    message = " ".join(str(error).split())
    return ImportResult(number, error={"code": error.code, "message": message})


# --- One imported line ---


def _parse_record(raw: bytes) -> dict[str, Any]:
    if len(raw) > MAX_LINE_BYTES:
        raise PayloadRefused(f"the line is longer than {MAX_LINE_BYTES // 1024**2} MB")
    try:
        record = json.loads(raw.decode(), parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise PayloadRefused(f"not a line of JSON: {error}") from None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        example = '{"kind": "render", "payload": {"clip": 7}}'
        raise PayloadRefused(f"not a job. A line is an object such as {example}")
    return record


def _build_job(record: dict[str, Any], context: ImportContext) -> NewJob:
    kind = check_user_name("kind", check_name("kind", record["kind"]))
    _check_state(record.get("state"))
    spec = context.kinds.get(kind) or KindSpec(kind)
    payload = record.get("payload", {})
    if not isinstance(payload, dict):
        raise PayloadRefused(f"the payload of {kind} is not an object")
    version = _parse_version(record.get("version"), spec)
    if version == spec.version:
        check_payload(kind, payload, spec.schema)
    set_options = {name for name in IMPORTED_OPTIONS if record.get(name) is not None}
    options = EnqueueOptions(**{name: record[name] for name in set_options})
    job = new_job(spec, None, payload, options, context.max_payload, context.queues)
    job = job._replace(version=version)
    if not spec.uses and record.get("uses"):
        # The kind may compute its dependencies from the payload, with code that is not loaded here.
        job = job._replace(uses=format_uses(record["uses"]))
    return _set_unique_key(job, spec, record)


def _parse_version(version: Any, spec: KindSpec) -> int:
    """Return the version of an imported payload; without one, the current version of its kind."""
    if version is None:
        return spec.version
    if type(version) is not int or not spec.takes_version(version):
        raise PayloadRefused(
            f"its payload has version {version!r:.40}; kind {spec.name} takes "
            f"{describe_versions(spec)}"
        )
    return version


def _check_state(state: Any) -> None:
    if state is not None and state not in list(IMPORTED_STATES):
        raise PayloadRefused(
            f"its state is {state!r:.40}; only dead, parked and cancelled jobs are imported. "
            "To import it anyway, remove state from the line."
        )


def _set_unique_key(job: NewJob, spec: KindSpec, record: Mapping[str, Any]) -> NewJob:
    """Set the unique key of the record, else its old id, so that a second import adds nothing."""
    key = record.get("unique_key")
    old_id = record.get("id")
    if key is None and not isinstance(old_id, str):
        return job
    if key is None:
        key = f"import:{old_id}"
    if not isinstance(key, str) or "\x00" in key:
        raise PayloadRefused(f"unique_key must be a text without NUL, not {key!r:.80}")
    return job._replace(
        unique_key=key,
        unique_hash=unique_hash(job.owner, job.kind, key),
        unique_cover=spec.unique_while or ",".join(DEFAULT_COVER),
        unique_for=spec.unique_for,
        unique_exact=not spec.unique_while,
    )


# --- Import report ---


def _print_results(results: Sequence[ImportResult], output: str | None) -> None:
    if not is_json(output):
        imported = [result._asdict() for result in results if result.error is None]
        print_rows(imported, COLUMNS, output)
        return
    records = [
        {name: value for name, value in result._asdict().items() if value} for result in results
    ]
    print_rows(records, (), output)


def _print_summary(
    results: Sequence[ImportResult], kinds_with_workers: Collection[str], *, dry_run: bool
) -> None:
    for result in results:
        if result.error is not None:
            message = f"{result.error['message']} [{result.error['code']}]"
            print_notice(f"line {result.line}: {message}")
    imported = [result for result in results if result.error is None]
    for kind in sorted({result.kind for result in imported}.difference(kinds_with_workers)):
        print_notice(f"warning: no recent worker has kind {kind}; its jobs wait for one that does")
    existing = sum(result.outcome == EXISTS for result in imported)
    refused = len(results) - len(imported)
    outcome = WOULD_BE_QUEUED if dry_run else QUEUED
    parts = [f"{len(imported) - existing:,} {outcome}"]
    if existing:
        parts.append(f"{existing:,} already imported")
    if refused:
        parts.append(f"{refused:,} refused")
    unchanged = "; nothing was changed" if dry_run else ""
    print_notice(f"{', '.join(parts)}{unchanged}")


# --- mulligan jobs index ---


def run_index(kind: str, database: str | None) -> None:
    """Index the jobs of a kind that were enqueued before it declared its index."""
    with (
        open_existing(load_settings(database)) as store,
        _progress("index", None) as advance,
    ):
        count = index_kind(store, kind, advance)
    print_notice(f"{count:,} jobs of {kind} indexed")


# --- Progress ---


def _ignore_progress(_: int) -> None:
    pass


def _file_size(file: BinaryIO) -> int | None:
    """Return the size of a file in bytes, or None for a pipe."""
    try:
        position = file.tell()
        size = file.seek(0, 2)
        file.seek(position)
    except (OSError, ValueError):
        return None
    return size


@contextmanager
def _progress(label: str, total: int | None) -> Iterator[Advance]:
    """Show a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield _ignore_progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    count = TextColumn("{task.completed:,}")
    columns = (TextColumn(label), BarColumn(), count, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.advance(task, done)
