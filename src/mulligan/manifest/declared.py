"""What code declares and how it is told: the newest manifest that names a thing wins, for a day after it did."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from mulligan.core.job import SECOND, Guarded, Limit, Micros
from mulligan.failures.rule_sources import book_of
from mulligan.failures.rules import Rule
from mulligan.guards.state import BreakerTerms
from mulligan.manifest.specs import KindSpec, Manifest, QueueSpec, SubscriptionSpec
from mulligan.storage.base import Transaction
from mulligan.storage.notification_queries import SubscriptionRow

KNOWN_FOR = 86_400 * SECOND  # named by a manifest within a day: not gone, only away


def speak(unit: Transaction, manifest: Manifest) -> None:
    """Name a manifest as one that is run now. Schedules that its app gave up and declares again begin anew."""
    if manifest.schedules:
        past = [
            (app, named, Manifest.from_json(body).schedules)
            for _, app, _, body, named in unit.manifests()
        ]
        unit.end_schedules(given_up(past, manifest.app, manifest.schedules))
    unit.store_manifest(manifest.id, manifest.app, manifest.release, manifest.to_json())
    _adopt(unit, manifest.subscriptions.values())


def _adopt(unit: Transaction, specs: Iterable[SubscriptionSpec]) -> None:
    """A subscription hears of what happens after it was first named."""
    fresh = [spec for spec in specs if unit.subscription(spec.name) is None]
    after = unit.newest_event() if fresh else 0
    for spec in fresh:
        unit.new_subscription(
            SubscriptionRow(
                id=spec.name,
                declared=True,
                name=spec.name,
                patterns="",
                owner=spec.owner,
                batch_id=None,
                filter="",
                form=spec.form,
                channel=spec.channel,
                body="{}",
                endpoint="",
                after=after,
                state="on",
                reason="",
                version=1,
                failures=0,
                failing_since=None,
                created_at=0,
                created_by="",
            )
        )


def recent_manifests(unit: Transaction, now: Micros) -> Iterator[Manifest]:
    """Newest first."""
    return (
        Manifest.from_json(body)
        for _, _, _, body, named in unit.manifests()
        if named > now - KNOWN_FOR
    )


def holding_manifests(unit: Transaction, now: Micros) -> list[Manifest]:
    """Those whose declarations hold: first of those who speak now, newest first, then of those who are only away."""
    stored = unit.manifests()
    holds = in_force([(app, named) for _, app, _, _, named in stored], now, KNOWN_FOR)
    held = [
        (named <= now - SILENT, body)
        for (_, _, _, body, named), is_held in zip(stored, holds, strict=True)
        if is_held
    ]
    return [Manifest.from_json(body) for _, body in sorted(held, key=lambda one: one[0])]


def stored_kinds(unit: Transaction) -> dict[str, KindSpec]:
    """Every kind any stored manifest knows, as the newest one says."""
    kinds: dict[str, KindSpec] = {}
    for _, _, _, body, _ in unit.manifests():
        for name, spec in Manifest.from_json(body).ruled.items():
            kinds.setdefault(name, spec)
    return kinds


def stored_rules(unit: Transaction, kind: str) -> list[Rule]:
    """The rules of a kind, then those of its app, as the newest manifest that knows the kind says."""
    spec = stored_kinds(unit).get(kind)
    return [] if spec is None else list(book_of(spec.rules).rules)


def stored_queues(unit: Transaction, now: Micros) -> dict[str, QueueSpec]:
    queues: dict[str, QueueSpec] = {}
    for manifest in holding_manifests(unit, now):
        for name, spec in manifest.queues.items():
            queues.setdefault(name, spec)
    return queues


def declared_subscriptions(unit: Transaction, now: Micros) -> dict[str, SubscriptionSpec]:
    found: dict[str, SubscriptionSpec] = {}
    for manifest in holding_manifests(unit, now):
        found = {**manifest.subscriptions, **found}
    return found


def declared_limits(unit: Transaction, now: Micros) -> dict[Guarded, Limit]:
    return limits_of_all(holding_manifests(unit, now))


def limits_of_all(manifests: Iterable[Manifest]) -> dict[Guarded, Limit]:
    limits: dict[Guarded, Limit] = {}
    for manifest in manifests:
        limits = {**limits_of(manifest), **limits}
    return limits


def terms_of_all(manifests: Iterable[Manifest]) -> dict[str, BreakerTerms]:
    terms: dict[str, BreakerTerms] = {}
    for manifest in manifests:
        terms = {**terms_of(manifest), **terms}
    return terms


def terms_of(manifest: Manifest) -> dict[str, BreakerTerms]:
    return {key: spec.terms for key, spec in manifest.dependencies.items()}


def limits_of(manifest: Manifest) -> dict[Guarded, Limit]:
    queues = {
        ("queue", name): Limit(spec.concurrency, spec.rate)
        for name, spec in manifest.queues.items()
    }
    used = {
        ("dependency", key): Limit(spec.max_concurrency, spec.rate)
        for key, spec in manifest.dependencies.items()
    }
    return {**queues, **used}


SILENT: Micros = 600 * SECOND  # workers name their manifest every minute


# -- declarations -------------------------------------------------------------------------------------
def in_force(manifests: Sequence[tuple[str, Micros]], now: Micros, known_for: Micros) -> list[bool]:
    """Of each (app, last named): does what it declares hold?

    For a while after it was last named; but no more once its workers are silent and others of the same app are not:
    then it was replaced, by a newer release or by an older one.
    """
    speaking = {app for app, named in manifests if named > now - SILENT}
    return [named > now - (SILENT if app in speaking else known_for) for app, named in manifests]


def given_up(
    past: Sequence[tuple[str, Micros, Container[str]]], app: str, names: Iterable[str]
) -> set[str]:
    """Of the schedules that an app is about to name: those it went without for longer than a deploy takes.

    `past`: what was named before, as (app, last named, its schedules). A schedule whose app was only away, or that
    another app has kept alive, is not given up.
    """
    return {name for name in names if _ended(past, app, name)}


def _ended(past: Sequence[tuple[str, Micros, Container[str]]], app: str, name: str) -> bool:
    named = max((at for _, at, schedules in past if name in schedules), default=None)
    without = max(
        (at for who, at, schedules in past if who == app and name not in schedules), default=None
    )
    return named is not None and without is not None and without - named > SILENT
