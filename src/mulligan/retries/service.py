"""`app.policy`: which policy holds for a kind, who says each part of it, and when its attempts would come."""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from mulligan.config import Settings
from mulligan.core.attempt import Cls, Failure
from mulligan.core.durations import span_of
from mulligan.core.errors import Moment, NotFound
from mulligan.core.ids import SKEW, first_id
from mulligan.core.job import Micros
from mulligan.failures.backtest import BacktestReport, Past, PastAttempt, backtest, sentences
from mulligan.failures.capture import classify
from mulligan.failures.classify import classify_facts, renamed
from mulligan.failures.facts import Facts, from_attempt
from mulligan.failures.matcher import Rulebook
from mulligan.failures.rule_sources import book_of, configured_rules
from mulligan.failures.rules import Rule
from mulligan.manifest.declared import stored_kinds, stored_queues, stored_rules
from mulligan.manifest.specs import OURS, KindSpec, QueueSpec, Registry, checked_name
from mulligan.retries.backoff import Exponential, Fixed, Table
from mulligan.retries.effective import EffectivePolicies
from mulligan.retries.policy import EffectivePolicy, Policy, Scope, Then, as_ladder, policy_text
from mulligan.retries.preview import (
    DELAYS,
    ClassOutlook,
    Origin,
    SimulatedLife,
    harmless,
    outlook,
    simulate_life,
)
from mulligan.retries.reasons import read_ground
from mulligan.storage.base import Store, Transaction
from mulligan.storage.history_queries import HitRow, JudgedRow, PastRow

WEEK = timedelta(days=7)
SYSTEM = ""  # the name under which the system layer alone is explained


class Setting(NamedTuple):
    """One field of an effective policy, the scope that says it, and where exactly."""

    name: str
    value: Any
    scope: Scope
    origin: (
        str  # "kind render", "queue media", "environment MULLIGAN_RETRY__MAX_RETRIES", "default" …
    )


class NamedKind(Protocol):
    """A registered kind, as `@app.job` returns it."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class PolicyExplanation:
    """The effective policy of a kind. `classes` holds every class, those that are retried first.

    `rules`: those of its failure rules that change more than a name, such as a limit or a backoff for their code.
    """

    kind: str
    queue: str
    fields: tuple[Setting, ...]
    classes: tuple[ClassOutlook, ...]
    rules: tuple[Rule, ...] = ()

    def field(self, name: str) -> Setting:
        return next(field for field in self.fields if field.name == name)

    def of_class(self, cls: Cls | str) -> ClassOutlook:
        return next(one for one in self.classes if one.cls == cls)

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "kind": self.kind,
            "queue": self.queue,
            "fields": [{**field._asdict(), "value": _plain(field.value)} for field in self.fields],
            "classes": [_plain_class(one) for one in self.classes],
            "rules": [_plain_rule(rule) for rule in self.rules],
        }


def _plain_class(one: ClassOutlook) -> dict[str, Any]:
    record = {field.name: _plain(getattr(one, field.name)) for field in fields(one)}
    record["calendar"] = [found._asdict() for found in one.calendar]
    return {"class": record.pop("cls"), **record}


def _plain_rule(rule: Rule) -> dict[str, Any]:
    steps = {"then": [_plain(step) for step in as_ladder(rule.then)]} if rule.then else {}
    return rule.to_plain() | steps


def _plain(value: Any) -> Any:
    if isinstance(value, Table | Exponential | Fixed):
        return Policy(backoff=value).to_plain()["backoff"]
    if isinstance(value, Then):
        said = value.to_plain()
        return said | {"settings": harmless(value.settings)} if value.settings else said
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


class Policies:
    """What holds, from the app's own declarations and the stored manifests of others."""

    def __init__(
        self,
        store: Callable[[], Store],
        settings: Callable[[], Settings],
        registry: Registry | None = None,
    ) -> None:
        self._open = store
        self._settings = settings
        self._registry = registry or Registry()

    def kinds(self) -> list[str]:
        """Every kind that can be explained."""
        return sorted(name for name in self._declared()[0] if not name.startswith(OURS))

    def explain(
        self,
        kind: str | NamedKind,
        *,
        queue: str | None = None,
        policy: Policy | None = None,
        max_retries: int | None = None,
    ) -> PolicyExplanation:
        """Of a kind; with what `options()` would say, of such a job."""
        kinds, queues = self._declared()
        name = kind if isinstance(kind, str) else kind.name
        if name not in kinds:
            raise NotFound(_unknown(name, kinds))
        layers = EffectivePolicies(self._settings().retry, kinds, queues)
        where = checked_name("queue", queue or kinds[name].queue)
        effective = layers.for_kind(
            name, queue=where, policy=policy_text(policy), max_retries=max_retries
        )
        found = explained(name, where, effective, self._settings())
        return replace(
            found, rules=tuple(rule for rule in self._rules(name, kinds[name]) if rule.terms())
        )

    def _rules(self, name: str, spec: KindSpec) -> Iterable[Rule]:
        """Its own, then its app's: in the order in which they are asked."""
        handler = self._registry.handlers.get(name)
        books = [book_of(spec.rules)] if handler is None else handler.books()
        return [rule for book in books for rule in book.rules]

    def system(self) -> PolicyExplanation:
        """What holds where nobody says anything."""
        effective = EffectivePolicies(self._settings().retry, {}).for_kind(SYSTEM)
        return explained(SYSTEM, "", effective, self._settings())

    def backtest(
        self, rules: Iterable[Rule] = (), *, since: Moment = WEEK, kind: str | None = None
    ) -> Backtest:
        """What these rules, asked before all others, would have done with the failures that are stored.

        Without rules: what today's tables would do. Reads at most the newest 50,000 attempts and writes nothing.
        """
        return backtested(self._open(), tuple(rules), since, kind)

    def _declared(self) -> tuple[Mapping[str, KindSpec], Mapping[str, QueueSpec]]:
        """What is declared here holds here; of other apps what their manifests say."""
        with self._open().read() as unit:
            kinds, queues = stored_kinds(unit), stored_queues(unit, unit.now())
        own = {name: handler.spec for name, handler in self._registry.handlers.items()}
        return {**kinds, **own}, {**queues, **self._registry.queues}


class AsyncPolicies:
    """The same, awaitable: each call on a thread."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    async def kinds(self) -> list[str]:
        return await asyncio.to_thread(self._policies.kinds)

    async def backtest(self, rules: Iterable[Rule] = (), **said: Any) -> Backtest:
        return await asyncio.to_thread(self._policies.backtest, rules, **said)

    async def explain(self, kind: str | NamedKind, **said: Any) -> PolicyExplanation:
        return await asyncio.to_thread(self._policies.explain, kind, **said)

    async def system(self) -> PolicyExplanation:
        return await asyncio.to_thread(self._policies.system)


def _unknown(kind: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(kind, known, n=1, cutoff=0.5)
    hint = (
        f"did you mean {near[0]!r}?"
        if near
        else f"known kinds: {', '.join(sorted(known)) or 'none yet'}"
    )
    return f"no kind {kind!r} in this app or a stored manifest; {hint}"


def explained(
    kind: str, queue: str, policy: EffectivePolicy, settings: Settings
) -> PolicyExplanation:
    origin = _origins(kind, queue, settings)
    outlooks = [outlook(policy, cls, origin) for cls in Cls]
    return PolicyExplanation(
        kind=kind,
        queue=queue,
        fields=tuple(_fields(policy, origin)),
        classes=tuple(sorted(outlooks, key=lambda one: not one.retried)),
    )


def _origins(kind: str, queue: str, settings: Settings) -> Origin:
    names = {"kind": f"kind {kind}", "queue": f"queue {queue}", "job": "job"}

    def origin(scope: Scope, asked: Sequence[str]) -> str:
        """Of the system all that somebody has set; else that it is the default."""
        found = [settings.origin_of(name) for name in asked]
        set_by = ", ".join(dict.fromkeys(one for one in found if one != "default"))
        return names.get(scope) or set_by or "default"

    return origin


def _fields(policy: EffectivePolicy, origin: Origin) -> Iterator[Setting]:
    yield Setting("enabled", policy.enabled, "system", origin("system", ["retry.enabled"]))
    only = None if policy.only is None else tuple(sorted(policy.only))
    yield Setting("only", only, "system", origin("system", ["retry.only"]))
    for name in (
        "max_retries",
        "max_losses",
        "max_snoozes",
        "max_age",
        "retry_unknown",
        "backoff",
        "then",
    ):
        scope: Scope = getattr(policy, f"{name}_from")
        asked = [f"retry.{part}" for part in (DELAYS if name == "backoff" else (name,))]
        yield Setting(name, getattr(policy, name), scope, origin(scope, asked))


# What if a job failed so? The verdict, the rule that gives it, and what the policy of a kind makes of it.

MOST_TEXT = 20_000  # characters
LOOKED = 1000


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Nothing was stored."""

    kind: str  # empty: of one that says nothing itself
    failure: Failure
    life: SimulatedLife  # if every attempt failed so
    would: Mapping[str, Any]  # what a rule in shadow would have said; empty: nothing else
    known: bool  # jobs are dead of this very cause


def what_if(
    store: Store, settings: Settings, kind: str, text: str, given: Mapping[str, Any]
) -> WhatIf:
    """`given`: what is known beside the text, as `mulligan.classify` takes it."""
    with store.read() as unit:
        rules, layers = _rules(unit, settings, kind), _layers(unit, settings, kind)
        failure = classify(text[:MOST_TEXT], **given, rules=rules)
        known = (
            bool(unit.group_known(failure.fingerprint, None, LOOKED))
            if failure.fingerprint
            else False
        )
    found = simulate_life(layers.for_kind(kind), failure)
    return WhatIf(kind, failure, found, failure.judged.get("shadow") or {}, known)


def _rules(unit: Transaction, settings: Settings, kind: str) -> Sequence[Rule]:
    return stored_rules(unit, kind) if kind else configured_rules(settings)


def _layers(unit: Transaction, settings: Settings, kind: str) -> EffectivePolicies:
    kinds = stored_kinds(unit)
    if kind and kind not in kinds:
        message = f"no kind {kind!r:.80} in a stored manifest"
        raise NotFound(message)
    return EffectivePolicies(settings.retry, kinds, stored_queues(unit, unit.now()))


# `app.policy.backtest`: stored failures, judged again by another table. Reads in small steps, writes nothing.

ATTEMPTS = 50_000  # at most so many are read, the newest
STEP = 500


@dataclass(frozen=True, slots=True)
class Backtest:
    """The counts, and what they say in words."""

    report: BacktestReport
    text: tuple[str, ...]
    partial: bool  # only the newest attempts were read


def backtested(
    store: Store,
    rules: Iterable[Rule],
    since: Moment,
    kind: str | None,
    on_step: Callable[[int], None] | None = None,
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
        return renamed(known, asked) if isinstance(known, Failure) else classify_facts(known, asked)

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
    return PastAttempt(
        row.generation, row.ended, row.verb, *named, read_ground(row.judged), facts, row.cost
    )


# Which rules have judged what, lately: counted over the newest attempts, so that it never costs more than that.

HIT_ATTEMPTS = 20_000  # at most so many are looked at, the newest
ROWS = 2_000
NEWEST = 50


@dataclass(frozen=True, slots=True)
class Hits:
    """What rules have judged since then."""

    rows: tuple[HitRow, ...]
    partial: bool  # only the newest attempts were looked at
    now: Micros


class _Range(NamedTuple):
    after: str
    since: Micros
    partial: bool
    now: Micros


def rule_hits(store: Store, *, since: Moment = WEEK, kind: str | None = None) -> Hits:
    with store.read() as unit:
        where = _range(unit, since)
        found = unit.rule_hits(where.after, where.since, kind, ROWS)
    return Hits(tuple(found), where.partial, where.now)


def judged_by(
    store: Store, rule: str, *, since: Moment = WEEK, kind: str | None = None
) -> list[JudgedRow]:
    """The newest of them."""
    with store.read() as unit:
        where = _range(unit, since)
        return unit.judged_by(rule, where.after, where.since, kind, NEWEST)


def _range(unit: Transaction, since: Moment) -> _Range:
    now = unit.now()
    length = span_of(since, now)
    low = first_id((time.time_ns() // 1000 - length - SKEW) // 1000)
    begin = unit.past_begins(low, HIT_ATTEMPTS)
    return _Range(begin, now - length, begin > low, now)
