"""`mulligan jobs import`: lines that `jobs export` wrote become jobs again. `mulligan jobs index`: for old ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

import click

from mulligan.cli.database import (
    CommandServices,
    existing,
    open_services,
    prepared,
    say,
    settings_with,
)
from mulligan.cli.enqueue import misfit
from mulligan.cli.job_views import code_of, one_filter
from mulligan.cli.output import as_json, attempt_record, chosen, job_record, show_rows
from mulligan.core.errors import MulliganError, PayloadRefused, UniqueMismatch, UniqueRace
from mulligan.core.job import Job, NewJob, State
from mulligan.core.unique import DEFAULT_COVER, unique_hash
from mulligan.jobs.enqueue import EnqueueOptions, new_job, uses_text
from mulligan.jobs.search import index_all
from mulligan.jobs.service import COUNT_MOST
from mulligan.manifest.declared import stored_kinds, stored_queues
from mulligan.manifest.specs import KindSpec, QueueSpec, checked_name, free_name
from mulligan.storage import Store
from mulligan.storage.base import Inserted
from mulligan.worker.upkeep import known_kinds

# `mulligan jobs export`: page after page, so that neither we nor the database hold more than one.

PAGE = 500


def run_export(words: tuple[str, ...], database: str | None, *, attempts: bool) -> None:
    count = 0
    with open_services(database) as at, _progress(at, words) as advance:
        for job in every(at, one_filter(words)):
            click.echo(as_json(_export_record(at, job, attempts=attempts)))
            advance()
            count += 1
    say(f"{count:,} jobs")


def every(at: CommandServices, words: str) -> Iterator[Job]:
    """New jobs that come meanwhile have later ids: they are not met, and nobody is met twice."""
    before: str | None = None
    while True:
        page = at.jobs.list(words, limit=PAGE, before=before)
        yield from page
        if page.cursor is None:
            return
        before = page.cursor


def _export_record(at: CommandServices, job: Job, *, attempts: bool) -> dict[str, Any]:
    record = {**job_record(job), "code": code_of(job)}
    if attempts:
        record["attempts_made"] = [attempt_record(row) for row in at.jobs.attempts(job.id)]
    return record


@contextmanager
def _progress(at: CommandServices, words: tuple[str, ...]) -> Iterator[Callable[[], None]]:
    """A bar while a person looks on and the data goes elsewhere."""
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    total = at.jobs.count(one_filter(words), cap=COUNT_MOST)
    columns = (TextColumn("export"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("export", total=None if total.capped or total.partial else int(total))
        yield lambda: bar.advance(task)


# `mulligan jobs import`: lines that `jobs export` wrote become jobs again. `mulligan jobs index`: for old ones.

CHUNK = 200  # lines of a transaction
LONGEST = 16 * 1024 * 1024  # bytes of a line
TAKEN = (State.DEAD, State.PARKED, State.CANCELLED)
SAID = ("owner", "queue", "priority", "max_retries")
COLUMNS = ("line", "id", "kind", "outcome")


class ImportResult(NamedTuple):
    line: int
    id: str = ""
    kind: str = ""
    outcome: str = ""
    error: dict[str, str] | None = None


class Known(NamedTuple):
    """What a line is checked by."""

    kinds: Mapping[str, KindSpec]
    queues: Mapping[str, QueueSpec]
    limit: int  # bytes of a payload


def run_import(file: BinaryIO, database: str | None, output: str | None, *, dry_run: bool) -> int:
    settings = settings_with(database)
    with existing(settings) if dry_run else prepared(settings, aloud=False) as store:
        with store.read() as unit:
            now = unit.now()
            known = Known(stored_kinds(unit), stored_queues(unit, now), settings.limits.payload)
            at_home = known_kinds(unit, now)
        results: list[ImportResult] = []
        with _bar("import", _size(file)) as advance:
            lines = enumerate(_lines(file), start=1)
            while chunk := list(islice(lines, CHUNK)):
                results += _import(store, chunk, known, dry_run=dry_run)
                advance(sum(len(raw) for _, raw in chunk))
    _print(results, output)
    return _tell(results, at_home, dry_run=dry_run)


def _import(
    store: Store, chunk: list[tuple[int, bytes]], known: Known, *, dry_run: bool
) -> list[ImportResult]:
    """Those that are sound together, in one transaction; if their keys clash, each for itself."""
    read = [(number, _read(raw, known)) for number, raw in chunk if raw.strip()]
    jobs = [(number, job) for number, job in read if isinstance(job, NewJob)]
    results = [
        _refused(number, error) for number, error in read if isinstance(error, MulliganError)
    ]
    if dry_run:
        results += [ImportResult(number, "", job.kind, "would be queued") for number, job in jobs]
    else:
        results += _inserted(store, jobs)
    return sorted(results)


def _inserted(store: Store, jobs: list[tuple[int, NewJob]]) -> list[ImportResult]:
    try:
        return _insert(store, jobs)
    except (UniqueMismatch, UniqueRace):
        return [_alone(store, number, job) for number, job in jobs]


def _insert(store: Store, jobs: list[tuple[int, NewJob]]) -> list[ImportResult]:
    if not jobs:
        return []
    with store.begin() as unit:
        answers = unit.insert([job for _, job in jobs], announce=True)
    return [_done(number, job, answer) for (number, job), answer in zip(jobs, answers, strict=True)]


def _alone(store: Store, number: int, job: NewJob) -> ImportResult:
    try:
        return _insert(store, [(number, job)])[0]
    except (UniqueMismatch, UniqueRace) as error:
        return _refused(number, error)


def _done(number: int, job: NewJob, answer: Inserted) -> ImportResult:
    return ImportResult(number, answer.id, job.kind, "queued" if answer.fresh else "there already")


def _refused(number: int, error: MulliganError) -> ImportResult:
    return ImportResult(number, error={"code": error.code, "message": " ".join(str(error).split())})


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Of a line that is too long no more than shows that it is."""
    while line := file.readline(LONGEST + 1):
        yield line
        while len(line) > LONGEST and not line.endswith(b"\n"):
            line = file.readline(LONGEST + 1)


# -- a line -----------------------------------------------------------------------------------------
def _read(raw: bytes, known: Known) -> NewJob | MulliganError:
    """The job, or what is wrong with the line."""
    try:
        return _job(_parse_record(raw), known)
    except MulliganError as error:
        return error


def _parse_record(raw: bytes) -> dict[str, Any]:
    if len(raw) > LONGEST:
        raise PayloadRefused(f"the line is longer than {LONGEST // 1024**2} MB")
    try:
        record = json.loads(raw.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise PayloadRefused(f"not a line of JSON: {error}") from None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        raise PayloadRefused(
            'not a job: a line is an object like {"kind": "render", "payload": {"clip": 7}}'
        )
    return record


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _job(record: dict[str, Any], known: Known) -> NewJob:
    kind = free_name("kind", checked_name("kind", record["kind"]))
    state = record.get("state")
    if state is not None and state not in list(TAKEN):
        words = "only dead, parked and cancelled jobs are taken; to run it again take state out of the line"
        raise PayloadRefused(f"it was {state!r:.40}: {words}")
    payload = record.get("payload", {})
    spec = known.kinds.get(kind) or KindSpec(kind)
    fault = misfit(spec.schema, payload) if isinstance(payload, dict) else "is not an object"
    if fault:
        raise PayloadRefused(f"the payload of {kind} {fault}")
    options = EnqueueOptions(
        **{name: record[name] for name in SAID if record.get(name) is not None}
    )
    job = new_job(spec, None, payload, options, known.limit, known.queues)
    if not spec.uses and record.get(
        "uses"
    ):  # they may follow from the payload, by a function that is not here
        job = job._replace(uses=uses_text(record["uses"]))
    return _keyed(job, spec, record)


def _keyed(job: NewJob, spec: KindSpec, record: Mapping[str, Any]) -> NewJob:
    """Under the key it had. One without gets its old id for a key, so that a file read twice makes no job twice."""
    key, old = record.get("unique_key"), record.get("id")
    if key is None and not isinstance(old, str):
        return job
    said = f"import:{old}" if key is None else key
    if not isinstance(said, str) or "\x00" in said:
        raise PayloadRefused(f"unique_key must be a text without NUL, not {said!r:.80}")
    return job._replace(
        unique_key=said,
        unique_hash=unique_hash(job.owner, job.kind, said),
        unique_cover=spec.unique_while or ",".join(DEFAULT_COVER),
        unique_for=spec.unique_for,
        unique_exact=not spec.unique_while,
    )


# -- what is said -----------------------------------------------------------------------------------
def _print(results: list[ImportResult], output: str | None) -> None:
    if chosen(output) in {"json", "jsonl"}:
        records = [
            {name: value for name, value in one._asdict().items() if value} for one in results
        ]
        show_rows(records, (), output)
    else:
        show_rows([one._asdict() for one in results if one.error is None], COLUMNS, output)


def _tell(results: list[ImportResult], at_home: Iterable[str], *, dry_run: bool) -> int:
    for one in results:
        if one.error is not None:
            say(f"line {one.line}: {one.error['message']} [{one.error['code']}]")
    good = [one for one in results if one.error is None]
    for kind in sorted({one.kind for one in good}.difference(at_home)):
        say(f"warning: no worker has named kind {kind} lately; its jobs wait for one that does")
    there = sum(one.outcome == "there already" for one in good)
    words = "would be queued; nothing was changed" if dry_run else "queued"
    refused = len(results) - len(good)
    say(
        f"{len(good) - there:,} {words}"
        + (f", {there:,} there already" if there else "")
        + (f", {refused:,} refused" if refused else "")
    )
    return 1 if refused else 0


# -- old jobs ---------------------------------------------------------------------------------------
def run_index(kind: str, database: str | None) -> None:
    with existing(settings_with(database)) as store, _bar("index", None) as advance:
        count = index_all(store, kind, advance)
    say(f"{count:,} jobs of {kind} are indexed")


def _size(file: BinaryIO) -> int | None:
    """None: nobody knows, of a pipe."""
    try:
        at = file.tell()
        size = file.seek(0, 2)
        file.seek(at)
    except (OSError, ValueError):
        return None
    return size


@contextmanager
def _bar(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """For a person who looks on."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(what), BarColumn(), TextColumn("{task.completed:,}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)
