"""Service `app.policy`: explain policies, simulate failures, backtest rules, count rule hits."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from mulligan.config import Settings
from mulligan.core.attempt import Cls, Failure
from mulligan.core.durations import Micros, resolve_lookback
from mulligan.core.errors import DurationOrTime, NotFound
from mulligan.core.ids import MAX_CLOCK_SKEW, first_id
from mulligan.failures.backtest import (
    BacktestReport,
    PastAttempt,
    PastJob,
    backtest,
    describe_report,
)
from mulligan.failures.capture import classify
from mulligan.failures.classify import classify_facts
from mulligan.failures.facts import Facts, load_facts
from mulligan.failures.matcher import Rulebook, apply_verdict_rules
from mulligan.failures.queries import (
    ClassifiedAttemptRow,
    FailureQueries,
    PastAttemptRow,
    RuleHitRow,
)
from mulligan.failures.rule_sources import (
    load_configured_rules,
    load_rulebook,
)
from mulligan.failures.rules import Rule
from mulligan.manifest.declared import load_kinds, load_queues
from mulligan.manifest.specs import SYSTEM_PREFIX, KindSpec, QueueSpec, Registry, check_name
from mulligan.retries.backoff import Backoff
from mulligan.retries.effective import EffectivePolicies
from mulligan.retries.policy import EffectivePolicy, Policy, Scope, Then, encode_policy, to_steps
from mulligan.retries.preview import (
    DELAY_FIELDS,
    ClassPreview,
    Origin,
    RetrySimulation,
    preview_class,
    redact_settings,
    simulate_retries,
)
from mulligan.retries.reasons import read_ground
from mulligan.storage.base import Store, Transaction

WEEK = timedelta(days=7)
SYSTEM_KIND = ""  # kind name under which the system defaults are explained

# --- Explanations ---


class PolicyField(NamedTuple):
    """One field of an effective policy and where its value comes from."""

    name: str
    value: Any
    scope: Scope
    origin: str  # "kind render", "environment MULLIGAN_RETRY__MAX_RETRIES", "default" …


class NamedKind(Protocol):
    """A registered kind, as `@app.job` returns it."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class PolicyExplanation:
    """Effective policy of a kind. `classes` holds every class, retried ones first.

    `rules` are the failure rules that change retries, such as a limit or a backoff of their code.
    """

    kind: str
    queue: str
    fields: tuple[PolicyField, ...]
    classes: tuple[ClassPreview, ...]
    rules: tuple[Rule, ...] = ()

    def field(self, name: str) -> PolicyField:
        return next(field for field in self.fields if field.name == name)

    def of_class(self, cls: Cls | str) -> ClassPreview:
        return next(preview for preview in self.classes if preview.cls == cls)

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON values. Settings that look secret are redacted."""
        return {
            "kind": self.kind,
            "queue": self.queue,
            "fields": [
                {**field._asdict(), "value": _to_json_value(field.value)} for field in self.fields
            ],
            "classes": [_class_to_dict(preview) for preview in self.classes],
            "rules": [_rule_to_dict(rule) for rule in self.rules],
        }


def _class_to_dict(preview: ClassPreview) -> dict[str, Any]:
    record = {field.name: _to_json_value(getattr(preview, field.name)) for field in fields(preview)}
    record["calendar"] = [attempt._asdict() for attempt in preview.calendar]
    return {"class": record.pop("cls"), **record}


def _rule_to_dict(rule: Rule) -> dict[str, Any]:
    record = rule.to_dict()
    if not rule.then:
        return record
    return {**record, "then": [_to_json_value(step) for step in to_steps(rule.then)]}


def _to_json_value(value: Any) -> Any:
    if isinstance(value, Backoff):
        return value.to_json()
    if isinstance(value, Then):
        record = value.to_dict()
        if value.settings:
            record["settings"] = redact_settings(value.settings)
        return record
    if isinstance(value, tuple):
        return [_to_json_value(item) for item in value]
    return value


class Policies:
    """`app.policy`: policies of this app's kinds and of those in stored manifests."""

    def __init__(
        self,
        store: Callable[[], Store],
        settings: Callable[[], Settings],
        registry: Registry | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._registry = registry or Registry()

    def kinds(self) -> list[str]:
        """Return the names of all kinds that can be explained."""
        kinds = self._load_kinds_and_queues()[0]
        return sorted(name for name in kinds if not name.startswith(SYSTEM_PREFIX))

    def explain(
        self,
        kind: str | NamedKind,
        *,
        queue: str | None = None,
        policy: Policy | None = None,
        max_retries: int | None = None,
    ) -> PolicyExplanation:
        """Explain the policy of a kind, or of a job that is enqueued with these options."""
        kinds, queues = self._load_kinds_and_queues()
        name = kind if isinstance(kind, str) else kind.name
        if name not in kinds:
            raise NotFound(_unknown_kind(name, kinds))
        spec = kinds[name]
        queue_name = check_name("queue", queue or spec.queue)
        policies = EffectivePolicies(self._settings().retry, kinds, queues)
        effective = policies.for_kind(
            name, queue=queue_name, policy=encode_policy(policy), max_retries=max_retries
        )
        explanation = explain_policy(name, queue_name, effective, self._settings())
        rules = tuple(rule for rule in self._list_rules(name, spec) if rule.terms)
        return replace(explanation, rules=rules)

    def _list_rules(self, name: str, spec: KindSpec) -> list[Rule]:
        """Return the rules of a kind, then those of its app, in the order of matching."""
        handler = self._registry.handlers.get(name)
        if handler is None:
            return list(load_rulebook(spec.rules).rules)
        return [*handler.kind_rules.rules, *handler.app_rules.rulebook.rules]

    def system(self) -> PolicyExplanation:
        """Explain the system defaults, which apply where no other scope sets a value."""
        effective = EffectivePolicies(self._settings().retry, {}).for_kind(SYSTEM_KIND)
        return explain_policy(SYSTEM_KIND, "", effective, self._settings())

    def backtest(
        self, rules: Iterable[Rule] = (), *, since: DurationOrTime = WEEK, kind: str | None = None
    ) -> Backtest:
        """Classify stored failures again, with these rules before all others.

        Without rules, use the current tables. Reads at most the newest 50,000 attempts and writes
        nothing.
        """
        return run_backtest(self._store(), tuple(rules), since, kind)

    def _load_kinds_and_queues(self) -> tuple[Mapping[str, KindSpec], Mapping[str, QueueSpec]]:
        """Return all declarations. Those of this app win over stored manifests."""
        with self._store().read() as tx:
            kinds = load_kinds(tx)
            queues = load_queues(tx, tx.now())
        return {**kinds, **self._registry.kinds}, {**queues, **self._registry.queues}


def _unknown_kind(kind: str, known: Mapping[str, Any]) -> str:
    message = f"no kind {kind!r} in this app or a stored manifest"
    similar = difflib.get_close_matches(kind, known, n=1, cutoff=0.5)
    if similar:
        return f"{message}; did you mean {similar[0]!r}?"
    return f"{message}; known kinds: {', '.join(sorted(known)) or 'none yet'}"


def explain_policy(
    kind: str, queue: str, policy: EffectivePolicy, settings: Settings
) -> PolicyExplanation:
    """Describe an effective policy field by field and class by class."""
    origin = _make_origin(kind, queue, settings)
    previews = [preview_class(policy, cls, origin) for cls in Cls]
    return PolicyExplanation(
        kind=kind,
        queue=queue,
        fields=tuple(_list_fields(policy, origin)),
        classes=tuple(sorted(previews, key=lambda preview: not preview.retried)),
    )


def _make_origin(kind: str, queue: str, settings: Settings) -> Origin:
    scope_names = {"kind": f"kind {kind}", "queue": f"queue {queue}", "job": "job"}

    def origin(scope: Scope, setting_names: Sequence[str]) -> str:
        """Name the scope; for the system, name the origins of all settings that are set."""
        if scope in scope_names:
            return scope_names[scope]
        origins = [settings.origin_of(name) for name in setting_names]
        configured = dict.fromkeys(found for found in origins if found != "default")
        return ", ".join(configured) or "default"

    return origin


_SCOPED_FIELDS = (
    "max_retries",
    "max_losses",
    "max_snoozes",
    "max_age",
    "retry_unknown",
    "backoff",
    "then",
)


def _list_fields(policy: EffectivePolicy, origin: Origin) -> Iterator[PolicyField]:
    yield PolicyField("enabled", policy.enabled, "system", origin("system", ["retry.enabled"]))
    only = None if policy.only is None else tuple(sorted(policy.only))
    yield PolicyField("only", only, "system", origin("system", ["retry.only"]))
    for name in _SCOPED_FIELDS:
        scope: Scope = getattr(policy, f"{name}_from")
        parts = DELAY_FIELDS if name == "backoff" else (name,)
        setting_names = [f"retry.{part}" for part in parts]
        yield PolicyField(name, getattr(policy, name), scope, origin(scope, setting_names))


# --- Simulated failures ---

MAX_TEXT_CHARS = 20_000
MAX_GROUP_JOBS = 1000


@dataclass(frozen=True, slots=True)
class FailureSimulation:
    """Fate of a job that fails in a certain way. Nothing is stored."""

    kind: str  # empty: system defaults
    failure: Failure
    retries: RetrySimulation  # if every attempt failed in this way
    shadow: Mapping[str, Any]  # what rules in shadow mode would have decided; empty: the same
    known_cause: bool  # dead jobs with this fingerprint exist


def simulate_failure(
    store: Store, settings: Settings, kind: str, text: str, facts: Mapping[str, Any]
) -> FailureSimulation:
    """Classify an error text and simulate the retries of a job that fails with it.

    `facts` are keyword arguments of `mulligan.classify`, such as http_status.
    """
    with store.read() as tx:
        rules = load_declared_rules(tx, kind) if kind else load_configured_rules(settings)
        policies = _load_policies(tx, settings, kind)
        failure = classify(text[:MAX_TEXT_CHARS], **facts, rules=rules)
        known_cause = False
        if failure.fingerprint:
            known_cause = bool(
                FailureQueries(tx).is_known_group(failure.fingerprint, None, MAX_GROUP_JOBS)
            )
    retries = simulate_retries(policies.for_kind(kind), failure)
    shadow = failure.judged.get("shadow") or {}
    return FailureSimulation(kind, failure, retries, shadow, known_cause)


def _load_policies(tx: Transaction, settings: Settings, kind: str) -> EffectivePolicies:
    kinds = load_kinds(tx)
    if kind and kind not in kinds:
        message = f"no kind {kind!r:.80} in a stored manifest"
        raise NotFound(message)
    return EffectivePolicies(settings.retry, kinds, load_queues(tx, tx.now()))


# --- Attempts of a period ---


class _AttemptRange(NamedTuple):
    """Attempts of a period, limited to the newest ones."""

    after: str  # job id before the first one
    since: Micros
    partial: bool  # older attempts of the period are left out
    now: Micros


def _find_range(tx: Transaction, since: DurationOrTime, max_attempts: int) -> _AttemptRange:
    now = tx.now()
    length = resolve_lookback(since, now)
    first = first_id((time.time_ns() // 1000 - length - MAX_CLOCK_SKEW) // 1000)
    after = FailureQueries(tx).find_backtest_start(first, max_attempts)
    return _AttemptRange(after, now - length, after > first, now)


# --- Backtest ---

MAX_BACKTEST_ATTEMPTS = 50_000  # the newest
BACKTEST_PAGE_SIZE = 500


@dataclass(frozen=True, slots=True)
class Backtest:
    """Counts of a backtest and their description."""

    report: BacktestReport
    text: tuple[str, ...]
    partial: bool  # only the newest attempts were read


def run_backtest(
    store: Store,
    rules: Iterable[Rule],
    since: DurationOrTime,
    kind: str | None,
    on_step: Callable[[int], None] | None = None,
) -> Backtest:
    """Classify stored failures again, with `rules` before all others.

    Reads in small steps and calls `on_step` with the number of attempts read so far.
    """
    new_rules = [Rulebook(rules)] if rules else []
    with store.read() as tx:
        kinds = load_kinds(tx)
        attempts = _find_range(tx, since, MAX_BACKTEST_ATTEMPTS)
    rulebooks = {name: [*new_rules, load_rulebook(spec.rules)] for name, spec in kinds.items()}

    def judge(name: str, known: Facts | Failure) -> Failure:
        books = rulebooks.get(name, new_rules)
        if isinstance(known, Failure):
            return apply_verdict_rules(known, books)
        return classify_facts(known, books)

    rows = _read_attempts(store, attempts.after, attempts.since, kind, on_step)
    report = backtest(_group_by_job(rows), judge)
    text = list(describe_report(report))
    if attempts.partial:
        text.append(f"Only the newest {MAX_BACKTEST_ATTEMPTS:,} attempts were read.")
    return Backtest(report, tuple(text), attempts.partial)


def _read_attempts(
    store: Store,
    after: str,
    since: Micros,
    kind: str | None,
    on_step: Callable[[int], None] | None,
) -> Iterator[PastAttemptRow]:
    """Yield stored attempts, one page per read transaction."""
    position = (after, 2**62)
    count = 0
    while True:
        with store.read() as tx:
            rows = FailureQueries(tx).list_past_attempts(position, since, kind, BACKTEST_PAGE_SIZE)
        yield from rows
        count += len(rows)
        if on_step is not None:
            on_step(count)
        if len(rows) < BACKTEST_PAGE_SIZE:
            return
        position = (rows[-1].job_id, rows[-1].token)


def _group_by_job(rows: Iterable[PastAttemptRow]) -> Iterator[PastJob]:
    for job_id, group in groupby(rows, key=lambda row: row.job_id):
        attempts = list(group)
        yield PastJob(job_id, attempts[0].kind, tuple(_to_attempt(row) for row in attempts))


def _to_attempt(row: PastAttemptRow) -> PastAttempt:
    facts = None
    if row.ended == "failed":
        facts = load_facts(row.evidence, row.private, row.uses)
    return PastAttempt(
        row.generation,
        row.ended,
        row.verb,
        row.code or "",
        row.cls or "",
        row.rule or "",
        read_ground(row.judged),
        facts,
        row.cost,
    )


# --- Rule hits ---

MAX_HIT_ATTEMPTS = 20_000  # the newest, so that the cost is bounded
MAX_HIT_ROWS = 2_000
MAX_LISTED_ATTEMPTS = 50


@dataclass(frozen=True, slots=True)
class RuleHits:
    """How often each rule classified an attempt in a period."""

    rows: tuple[RuleHitRow, ...]
    partial: bool  # only the newest attempts were counted
    now: Micros


def count_rule_hits(
    store: Store, *, since: DurationOrTime = WEEK, kind: str | None = None
) -> RuleHits:
    """Count the attempts that each rule classified, over at most the newest 20,000."""
    with store.read() as tx:
        attempts = _find_range(tx, since, MAX_HIT_ATTEMPTS)
        rows = FailureQueries(tx).count_rule_hits(
            attempts.after, attempts.since, kind, MAX_HIT_ROWS
        )
    return RuleHits(tuple(rows), attempts.partial, attempts.now)


def list_attempts_by_rule(
    store: Store, rule: str, *, since: DurationOrTime = WEEK, kind: str | None = None
) -> list[ClassifiedAttemptRow]:
    """Return the newest attempts that a rule classified."""
    with store.read() as tx:
        attempts = _find_range(tx, since, MAX_HIT_ATTEMPTS)
        return FailureQueries(tx).list_attempts_by_rule(
            rule, attempts.after, attempts.since, kind, MAX_LISTED_ATTEMPTS
        )


def load_declared_rules(tx: Transaction, kind: str) -> list[Rule]:
    """Return the rules of a kind, then those of its app, as the newest manifest declares them."""
    spec = load_kinds(tx).get(kind)
    return [] if spec is None else list(load_rulebook(spec.rules).rules)
