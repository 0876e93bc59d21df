"""Resolve filters to database searches, index job arguments, and page through results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Self

from mulligan.core.attempt import Verb
from mulligan.core.errors import NotFound, Refused
from mulligan.core.job import ArgRow, AttemptRow, Job, JobRow
from mulligan.core.json import index_entries
from mulligan.failures.queries import FailureQueries
from mulligan.failures.redact import is_secret_argument
from mulligan.jobs.filter import ARGUMENT_PREFIX, INDEXED_PREFIX, Filter, Where
from mulligan.jobs.queries import BoundedCount, BoundedPage, JobQueries, SearchQueries
from mulligan.manifest.declared import load_kinds
from mulligan.manifest.specs import SYSTEM_PREFIX, KindSpec
from mulligan.storage.base import Store, Transaction

INDEX_STEP = 500
NARROWING_FIELDS = ("kind", "group", "batch_id", "owner")


# --- Indexed arguments in filters ---
def mark_indexed(tx: Transaction, where: Filter, kinds: Mapping[str, KindSpec]) -> Where:
    """Mark the arguments that an index can find. If there are none, require a narrow filter."""
    paths = [
        name.removeprefix(ARGUMENT_PREFIX) for name in where if name.startswith(ARGUMENT_PREFIX)
    ]
    if not paths:
        return where
    known = {**load_kinds(tx), **kinds}
    indexed = {path for path in paths if _is_indexed(path, where, known)}
    if not indexed:
        _require_narrow_filter(paths[0], where, known)
    marked = {f"{ARGUMENT_PREFIX}{path}": f"{INDEXED_PREFIX}{path}" for path in indexed}
    return {marked.get(name, name): value for name, value in where.items()}


def _is_indexed(path: str, where: Filter, known: Mapping[str, KindSpec]) -> bool:
    """Return whether every kind that the filter names indexes this argument.

    Without a kind in the filter, one user kind that indexes it is enough: kinds that do not
    declare the argument cannot be meant.
    """
    kinds = {name for name, spec in known.items() if path in spec.index}
    named = where.get("kind")
    if named is None:
        return any(not name.startswith(SYSTEM_PREFIX) for name in kinds)
    if isinstance(named, str):
        return named in kinds
    return kinds.issuperset(named)


def _require_narrow_filter(path: str, where: Filter, known: Mapping[str, KindSpec]) -> None:
    if "since" in where and any(name in where for name in NARROWING_FIELDS):
        return
    kinds = []
    for name, spec in known.items():
        if path in spec.index and not name.startswith(SYSTEM_PREFIX):
            kinds.append(name)
    indexed_by = f"only by {', '.join(sorted(kinds))}" if kinds else "by no kind"
    raise Refused(
        f"filter arg.{path}: indexed {indexed_by}. "
        f'Declare @app.job(index=("{path}",)), or narrow the search: since: '
        "(like since:1d) and one of kind:, group:, batch:, owner:"
    )


# --- Indexing of arguments ---
def index_rows(spec: KindSpec, job_id: str, payload: str) -> list[ArgRow]:
    """Return the index rows of one job."""
    entries = index_entries(json.loads(payload), spec.index)
    return [ArgRow(job_id, spec.name, name, value) for name, value in entries]


def reindex_job(tx: Transaction, spec: KindSpec | None, job_id: str, payload: str) -> None:
    """Replace the index rows of a job, in the transaction that changes its payload."""
    SearchQueries(tx).delete_args([job_id])
    if spec is not None and spec.index:
        SearchQueries(tx).write_args(index_rows(spec, job_id, payload))


def index_kind(store: Store, kind: str, on_progress: Callable[[int], None] = lambda _: None) -> int:
    """Index the arguments of every job of a kind, newest first, and return how many jobs.

    Works in small steps; it is safe to interrupt and to repeat.
    """
    spec = _load_indexed_kind(store, kind)
    count = 0
    before = None
    while True:
        with store.read() as tx:
            rows = SearchQueries(tx).list_jobs({"kind": kind}, INDEX_STEP, before)
        _write_index(store, spec, rows)
        count += len(rows)
        on_progress(len(rows))
        if len(rows) < INDEX_STEP:
            return count
        before = rows[-1].id


def _load_indexed_kind(store: Store, kind: str) -> KindSpec:
    with store.read() as tx:
        spec = load_kinds(tx).get(kind)
    if spec is None:
        raise NotFound(
            f"unknown kind {kind!r}: no worker has stored it. Start a worker that has it."
        )
    if not spec.index:
        raise Refused(
            f"kind {kind!r} declares no index. "
            'Add @app.job(index=("…",)) and start a worker with it first.'
        )
    return spec


def _write_index(store: Store, spec: KindSpec, rows: list[JobRow]) -> None:
    """Write the index rows of jobs that still exist: retention may have removed some meanwhile."""
    with store.begin() as tx:
        entries: list[ArgRow] = []
        for row in rows:
            if JobQueries(tx).get_job(row.id) is not None:
                entries += index_rows(spec, row.id, row.payload)
        SearchQueries(tx).write_args(entries)


# --- Quoted search terms ---
# They search failure groups, ids and unique keys. Never payloads, and never a whole table.
MAX_GROUPS_SEARCHED = 500  # the newest groups
MAX_MATCHES = 200


def resolve_filter(
    tx: Transaction,
    where: Filter,
    owner: str | None = None,
    kinds: Mapping[str, KindSpec] = MappingProxyType({}),
    *,
    private: bool = True,
) -> Where:
    """Replace quoted terms by the groups and ids they match. For an owner, search only their jobs.

    `kinds` are kinds that may not be stored yet. With `private`, terms also match the private part
    of failures, and arguments may be compared that are masked otherwise.
    """
    if not private:
        _refuse_masked_arguments(where)
    resolved = dict(mark_indexed(tx, where, kinds))
    terms = resolved.pop("terms", None)
    if terms is None:
        return resolved
    return _resolve_terms(tx, resolved, terms, owner, private=private)


def _resolve_terms(
    tx: Transaction, where: Filter, terms: Sequence[str], owner: str | None, *, private: bool
) -> Where:
    groups = _find_groups(tx, terms, owner, private=private)
    ids = _find_ids(tx, terms[0], private=private) if len(terms) == 1 else []
    if groups and not ids and "group" not in where:
        where["group"] = tuple(groups)
        return where
    matches = [f"id:{job_id}" for job_id in ids]
    matches += [f"group:{group}" for group in groups]
    where["near"] = tuple(matches)
    return where


def _refuse_masked_arguments(where: Filter) -> None:
    """Refuse to compare what the caller sees masked: the answer would reveal it, guess by guess."""
    for name, value in where.items():
        path = name.removeprefix(ARGUMENT_PREFIX)
        if path != name and is_secret_argument(path, str(value)):
            raise Refused(
                f"filter {name}: this argument is masked for you. Use a key of role operator."
            )


def _find_ids(tx: Transaction, term: str, *, private: bool) -> list[str]:
    """Return jobs whose id or unique key begins with a term.

    Without `private`, keys that are made from payloads are left out: they may contain secrets.
    """
    found = JobQueries(tx).find_jobs(term, MAX_MATCHES)
    if private or not term.startswith("["):
        found += JobQueries(tx).find_jobs_by_key(term, MAX_MATCHES)
    return list(dict.fromkeys(found))


def _find_groups(
    tx: Transaction, terms: Sequence[str], owner: str | None, *, private: bool
) -> list[str]:
    """Return groups whose newest job contains all terms in its group name, code or message."""
    wanted = [term.casefold() for term in terms]
    names = [name for name, _ in FailureQueries(tx).list_groups(owner, MAX_GROUPS_SEARCHED)]
    where = {} if owner is None else {"owner": owner}
    samples = FailureQueries(tx).get_group_samples(names, where)
    attempts: Mapping[str, AttemptRow] = {}
    if owner is None and private:
        attempts = JobQueries(tx).get_latest_attempts([row.id for row in samples.values()])
    found = []
    for name, row in samples.items():
        text = _searchable_text(name, row, attempts.get(row.id))
        if all(term in text for term in wanted):
            found.append(name)
    return found[:MAX_MATCHES]


def _searchable_text(name: str, row: JobRow, attempt: AttemptRow | None) -> str:
    error = json.loads(row.error or "{}")
    parts = [name, str(error.get("code", "")), str(error.get("message", ""))]
    if attempt is not None and attempt.verb == Verb.DIE:
        private = json.loads(attempt.private or "{}")
        for field, value in private.items():
            if isinstance(value, str) and field in SEARCHED_FIELDS:
                parts.append(value)
    return "\n".join(parts).casefold()


SEARCHED_FIELDS = frozenset({"message", "stderr", "detail"})  # of the private part


# --- Results ---


class JobList(list[Job]):
    """Jobs, newest first.

    Pass `cursor` as `before` to get the next page; None means that this was the last page.
    `partial`: the search stopped after 50,000 jobs before the page was full; more may follow
    from `cursor`.
    """

    cursor: str | None = None
    partial: bool = False


class CappedCount(int):
    """A count. `capped`: stopped at the cap. `partial`: stopped after 50,000 searched jobs."""

    capped: bool
    partial: bool

    def __new__(cls, value: int, *, capped: bool = False, partial: bool = False) -> Self:
        count = super().__new__(cls, value)
        count.capped = capped
        count.partial = partial
        return count


def build_job_list(jobs: Iterable[Job], found: BoundedPage, limit: int) -> JobList:
    """Return one page of jobs with its cursor."""
    page = JobList(jobs)
    page.partial = found.stopped is not None
    page.cursor = found.stopped
    if page.cursor is None and len(page) >= limit:
        page.cursor = page[-1].id
    return page


def build_count(found: BoundedCount, cap: int) -> CappedCount:
    """Return a count that says whether it is complete."""
    return CappedCount(found.jobs, capped=found.jobs >= cap, partial=found.stopped is not None)
