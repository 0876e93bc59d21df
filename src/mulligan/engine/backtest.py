"""`app.policy.backtest`: stored failures, judged again by another table. Reads in small steps, writes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from mulligan.core.attempt import Failure
from mulligan.engine.declared import stored_kinds
from mulligan.engine.insight import SKEW, span_of
from mulligan.engine.rules import book_of
from mulligan.errors import Moment
from mulligan.ids import first_id
from mulligan.policy.backtest import Past, PastAttempt, Report, backtest, sentences
from mulligan.policy.classify import classify, renamed
from mulligan.policy.facts import Facts
from mulligan.policy.reasons import read_ground
from mulligan.policy.rule import Rule
from mulligan.policy.rulebook import Rulebook
from mulligan.policy.stored import from_attempt
from mulligan.store.base import Store
from mulligan.store.hindsight import PastRow

ATTEMPTS = 50_000  # at most so many are read, the newest
STEP = 500


@dataclass(frozen=True, slots=True)
class Backtest:
    """The counts, and what they say in words."""

    report: Report
    text: tuple[str, ...]
    partial: bool  # only the newest attempts were read


def backtested(
    store: Store, rules: Iterable[Rule], since: Moment, kind: str | None, on_step: Callable[[int], None] | None = None
) -> Backtest:
    """As if `rules` had been asked before all others. Without any: as today's tables judge."""
    own = [Rulebook(rules)] if rules else []
    with store.read() as unit:
        now, kinds = unit.now(), stored_kinds(unit)
        length = span_of(since, now)
        low = first_id((time.time_ns() // 1000 - length - SKEW) // 1000)
        begin = unit.past_begins(low, ATTEMPTS)
    books = {name: [*own, book_of(spec.rules)] for name, spec in kinds.items()}

    def judge(name: str, known: Facts | Failure) -> Failure:
        asked = books.get(name, own)
        return renamed(known, asked) if isinstance(known, Failure) else classify(known, asked)

    rows = _rows(store, begin, now - length, kind, on_step)
    report = backtest(_jobs(rows), judge)
    partial = begin > low
    words = [*sentences(report)]
    if partial:
        words.append(f"Only the newest {ATTEMPTS:,} attempts were read.")
    return Backtest(report, tuple(words), partial)


def _rows(
    store: Store, begin: str, since: int, kind: str | None, on_step: Callable[[int], None] | None
) -> Iterator[PastRow]:
    place, read = (begin, 2**62), 0
    while True:
        with store.read() as unit:
            rows = unit.past(place, since, kind, STEP)
        yield from rows
        read += len(rows)
        if on_step is not None:
            on_step(read)
        if len(rows) < STEP:
            return
        place = (rows[-1].job_id, rows[-1].token)


def _jobs(rows: Iterable[PastRow]) -> Iterator[Past]:
    for job_id, group in groupby(rows, key=lambda row: row.job_id):
        attempts = list(group)
        yield Past(job_id, attempts[0].kind, tuple(_attempt(row) for row in attempts))


def _attempt(row: PastRow) -> PastAttempt:
    facts = from_attempt(row.evidence, row.private, row.uses) if row.ended == "failed" else None
    named = (row.code or "", row.cls or "", row.rule or "")
    return PastAttempt(row.generation, row.ended, row.verb, *named, read_ground(row.judged), facts, row.cost)
