"""Arguments by which filters find jobs: what an index finds, and what to do about jobs that came before."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Self

from mulligan.core.errors import NotFound, Refused
from mulligan.core.job import AttemptRow, Job, JobRow
from mulligan.core.json import indexed
from mulligan.jobs.filter import Filter
from mulligan.manifest.declared import stored_kinds
from mulligan.manifest.specs import OURS, KindSpec
from mulligan.storage.base import Store, Transaction
from mulligan.storage.search_queries import INDEXED, READ, ArgRow, Counted, Skimmed, Where

STEP = 500
NARROW = ("kind", "group", "batch_id", "owner")


# -- filters ----------------------------------------------------------------------------------------
def by_index(unit: Transaction, where: Filter, kinds: Mapping[str, KindSpec]) -> Where:
    """The filter with those arguments marked that an index finds; others need company that bounds the search."""
    paths = [name.removeprefix(READ) for name in where if name.startswith(READ)]
    if not paths:
        return where
    known = {**stored_kinds(unit), **kinds}
    fast = {path for path in paths if _is_indexed(path, where, known)}
    if not fast:
        _must_be_narrow(paths[0], where, known)
    marked = {f"{READ}{path}": f"{INDEXED}{path}" for path in fast}
    return {marked.get(name, name): value for name, value in where.items()}


def _is_indexed(path: str, where: Filter, known: Mapping[str, KindSpec]) -> bool:
    """By every kind that is asked for; if none is named, by any of the users': those that do not declare it are not
    meant then.
    """
    having = {name for name, spec in known.items() if path in spec.index}
    named = where.get("kind")
    if named is None:
        return any(not name.startswith(OURS) for name in having)
    return {*((named,) if isinstance(named, str) else named)} <= having


def _must_be_narrow(path: str, where: Filter, known: Mapping[str, KindSpec]) -> None:
    if "since" in where and any(name in where for name in NARROW):
        return
    having = sorted(
        name for name, spec in known.items() if path in spec.index and not name.startswith(OURS)
    )
    who = f"indexed by {', '.join(having)} alone" if having else "indexed by no kind"
    message = (
        f'filter arg.{path}: {who}; declare @app.job(index=("{path}",)), or say where to look: since: '
        "(like since:1d) and one of kind:, group:, batch:, owner:"
    )
    raise Refused(message)


# -- jobs that came before --------------------------------------------------------------------------
def rows_of(spec: KindSpec, job_id: str, payload: str) -> list[ArgRow]:
    return [
        ArgRow(job_id, spec.name, name, value)
        for name, value in indexed(json.loads(payload), spec.index)
    ]


def index_again(unit: Transaction, spec: KindSpec | None, job_id: str, payload: str) -> None:
    """For who changes a payload: in the same transaction."""
    unit.forget_args([job_id])
    if spec is not None and spec.index:
        unit.write_args(rows_of(spec, job_id, payload))


def index_all(store: Store, kind: str, passed: Callable[[int], None] = lambda _: None) -> int:
    """Every job of a kind, newest first, in small steps; safe to repeat and to break off. Returns how many."""
    with store.read() as unit:
        spec = stored_kinds(unit).get(kind)
    if spec is None:
        message = f"no worker has named kind {kind!r} yet, so nobody knows what it indexes"
        raise NotFound(message)
    if not spec.index:
        message = f'kind {kind!r} declares no index; write @app.job(index=("…",)) and start a worker with it first'
        raise Refused(message)
    count, before = 0, None
    while True:
        with store.read() as unit:
            rows = unit.page({"kind": kind}, STEP, before)
        _write(store, spec, rows)
        count += len(rows)
        passed(len(rows))
        if len(rows) < STEP:
            return count
        before = rows[-1].id


def _write(store: Store, spec: KindSpec, rows: list[JobRow]) -> None:
    """Of those that are still there: what retention has removed meanwhile must not come back."""
    with store.begin() as unit:
        there = {row.id for row in rows if unit.get(row.id) is not None}
        unit.write_args(
            [arg for row in rows if row.id in there for arg in rows_of(spec, row.id, row.payload)]
        )


# Words in quotes: which failure groups, ids and unique keys they name. Never payloads, and never a whole table.

GROUPS_READ = 500  # the newest
MOST_FOUND = 200


def resolved(
    unit: Transaction,
    where: Filter,
    owner: str | None = None,
    kinds: Mapping[str, KindSpec] = MappingProxyType({}),
    *,
    private: bool = True,
) -> Where:
    """The filter with what its words name in their place. For an owner only their own jobs speak, in public.

    `kinds`: what is known of kinds beyond the stored manifests. `private`: are both halves searched?
    """
    meant = dict(by_index(unit, where, kinds))
    words = meant.pop("words", None)
    return meant if words is None else _named(unit, meant, words, owner, private=private)


def _named(
    unit: Transaction, rest: Filter, words: Sequence[str], owner: str | None, *, private: bool
) -> Where:
    groups = _groups(unit, words, owner, private=private)
    ids = _ids(unit, words[0]) if len(words) == 1 else []
    if groups and not ids and "group" not in rest:
        rest["group"] = tuple(groups)
    else:
        rest["near"] = (*(f"id:{one}" for one in ids), *(f"group:{one}" for one in groups))
    return rest


def _ids(unit: Transaction, word: str) -> list[str]:
    """Jobs whose id or unique key begins so."""
    return list(dict.fromkeys([*unit.find(word, MOST_FOUND), *unit.find_keys(word, MOST_FOUND)]))


def _groups(
    unit: Transaction, words: Sequence[str], owner: str | None, *, private: bool
) -> list[str]:
    """Groups whose newest member says all of them: in its name, code or message, of either half."""
    wanted = [word.casefold() for word in words]
    of: dict[str, str] = {} if owner is None else {"owner": owner}
    samples = unit.group_samples([name for name, _ in unit.group_names(owner, GROUPS_READ)], of)
    ids = [row.id for row in samples.values()]
    attempts = unit.latest_attempts(ids) if owner is None and private else {}
    said = {name: _text(name, row, attempts.get(row.id)) for name, row in samples.items()}
    return [name for name, text in said.items() if all(word in text for word in wanted)][
        :MOST_FOUND
    ]


def _text(name: str, row: JobRow, attempt: AttemptRow | None) -> str:
    error = json.loads(row.error or "{}")
    parts = [name, str(error.get("code", "")), str(error.get("message", ""))]
    if attempt is not None and attempt.verb == "die":
        private = json.loads(attempt.private or "{}")
        parts += [
            value for key, value in private.items() if isinstance(value, str) and key in SEARCHED
        ]
    return "\n".join(parts).casefold()


SEARCHED = frozenset(
    {"message", "stderr", "detail"}
)  # of the private half: what was said, not where


# A page of jobs and a count, which say themselves when they are not the whole answer.


class JobList(list[Job]):
    """Jobs, newest first.

    `cursor`: say it as `before` for what comes after; None: this was the end. `partial`: looking stopped after 50,000
    jobs, before the page was full; from `cursor` on there may be more that match.
    """

    cursor: str | None = None
    partial: bool = False


class CappedCount(int):
    """How many. `capped`: counting stopped there. `partial`: looking stopped after 50,000 jobs; there may be more."""

    capped: bool
    partial: bool

    def __new__(cls, value: int, *, capped: bool = False, partial: bool = False) -> Self:
        made = super().__new__(cls, value)
        made.capped, made.partial = capped, partial
        return made


def job_list(jobs: Iterable[Job], found: Skimmed, limit: int) -> JobList:
    made = JobList(jobs)
    made.partial = found.stopped is not None
    made.cursor = found.stopped or (made[-1].id if len(made) >= limit else None)
    return made


def counted(found: Counted, cap: int) -> CappedCount:
    return CappedCount(found.jobs, capped=found.jobs >= cap, partial=found.stopped is not None)
