"""Arguments by which filters find jobs: what an index finds, and what to do about jobs that came before."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from mulligan.argument import indexed
from mulligan.engine.declared import stored_kinds
from mulligan.engine.filters import Filter
from mulligan.engine.kinds import OURS, KindSpec
from mulligan.errors import NotFound, Refused
from mulligan.job import JobRow
from mulligan.store.base import Store, Unit
from mulligan.store.matching import INDEXED, READ, Where
from mulligan.store.skimming import ArgRow

STEP = 500
NARROW = ("kind", "group", "batch_id", "owner")


# -- filters ----------------------------------------------------------------------------------------
def by_index(unit: Unit, where: Filter, kinds: Mapping[str, KindSpec]) -> Where:
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
    having = sorted(name for name, spec in known.items() if path in spec.index and not name.startswith(OURS))
    who = f"indexed by {', '.join(having)} alone" if having else "indexed by no kind"
    message = (
        f'filter arg.{path}: {who}; declare @app.job(index=("{path}",)), or say where to look: since: '
        "(like since:1d) and one of kind:, group:, batch:, owner:"
    )
    raise Refused(message)


# -- jobs that came before --------------------------------------------------------------------------
def rows_of(spec: KindSpec, job_id: str, payload: str) -> list[ArgRow]:
    return [ArgRow(job_id, spec.name, name, value) for name, value in indexed(json.loads(payload), spec.index)]


def index_again(unit: Unit, spec: KindSpec | None, job_id: str, payload: str) -> None:
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
        unit.write_args([arg for row in rows if row.id in there for arg in rows_of(spec, row.id, row.payload)])
