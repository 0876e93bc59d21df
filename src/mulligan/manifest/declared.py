"""Declarations in stored manifests: which manifests are active and what they declare.

The newest manifest that declares a thing wins, for a day after its workers last published it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from mulligan.core.durations import SECOND, Micros
from mulligan.core.job import Limit, LimitKey
from mulligan.events.queries import EventQueries
from mulligan.failures.rule_sources import load_rulebook
from mulligan.failures.rules import Rule
from mulligan.guards.state import BreakerConfig
from mulligan.manifest.queries import ManifestQueries
from mulligan.manifest.specs import KindSpec, Manifest, QueueSpec, SubscriptionSpec
from mulligan.storage.base import Transaction

MANIFEST_LIFETIME = 86_400 * SECOND  # after the last publication; workers may be down for a while
MAX_SILENCE: Micros = 600 * SECOND  # workers publish their manifest every minute

# --- Publishing ---


def publish_manifest(tx: Transaction, manifest: Manifest) -> None:
    """Store a manifest that a worker runs now, and its new subscriptions.

    A schedule that the app had removed and declares again starts anew.
    """
    queries = ManifestQueries(tx)
    if manifest.schedules:
        past = [
            (app, published_at, Manifest.from_json(body).schedules)
            for _, app, _, body, published_at in queries.list_manifests()
        ]
        queries.delete_schedules(find_abandoned_schedules(past, manifest.app, manifest.schedules))
    queries.store_manifest(manifest.id, manifest.app, manifest.release, manifest.to_json())
    _insert_subscriptions(tx, manifest.subscriptions.values())


def _insert_subscriptions(tx: Transaction, specs: Iterable[SubscriptionSpec]) -> None:
    """Store new subscriptions. They receive events after their first publication."""
    queries = ManifestQueries(tx)
    new = [spec for spec in specs if not queries.subscription_exists(spec.name)]
    if not new:
        return
    after = EventQueries(tx).newest_event()
    for spec in new:
        queries.declare_subscription(spec.name, spec.owner, spec.form, spec.channel, after)


def find_abandoned_schedules(
    past: Sequence[tuple[str, Micros, Container[str]]], app: str, names: Iterable[str]
) -> set[str]:
    """Return which of these schedules the app did not declare for longer than a deploy takes.

    `past` lists stored manifests as (app, published at, schedules). A schedule whose app was only
    down, or that another app continued to declare, is not abandoned.
    """
    return {name for name in names if _is_abandoned(past, app, name)}


def _is_abandoned(past: Sequence[tuple[str, Micros, Container[str]]], app: str, name: str) -> bool:
    declared_at = max((at for _, at, schedules in past if name in schedules), default=None)
    missing_at = max(
        (at for other, at, schedules in past if other == app and name not in schedules),
        default=None,
    )
    if declared_at is None or missing_at is None:
        return False
    return missing_at - declared_at > MAX_SILENCE


# --- Active manifests ---


def find_active(
    manifests: Sequence[tuple[str, Micros]], now: Micros, lifetime: Micros
) -> list[bool]:
    """Return for each manifest (app, published at) whether its declarations are in force.

    They are for `lifetime` after the last publication. If workers of another manifest of the same
    app publish, a silent manifest was replaced, by a newer release or by an older one.
    """
    publishing = {app for app, published_at in manifests if published_at > now - MAX_SILENCE}
    active = []
    for app, published_at in manifests:
        max_age = MAX_SILENCE if app in publishing else lifetime
        active.append(published_at > now - max_age)
    return active


def load_recent_manifests(tx: Transaction, now: Micros) -> Iterator[Manifest]:
    """Return the manifests that were published within a day, newest first, parsed one by one."""
    return (
        Manifest.from_json(body)
        for _, _, _, body, published_at in ManifestQueries(tx).list_manifests()
        if published_at > now - MANIFEST_LIFETIME
    )


def load_active_manifests(tx: Transaction, now: Micros) -> list[Manifest]:
    """Return the manifests in force: first those with running workers, each newest first."""
    stored = ManifestQueries(tx).list_manifests()
    publications = [(app, published_at) for _, app, _, _, published_at in stored]
    publishing: list[Manifest] = []
    silent: list[Manifest] = []
    for row, is_active in zip(
        stored, find_active(publications, now, MANIFEST_LIFETIME), strict=True
    ):
        _, _, _, body, published_at = row
        if is_active:
            group = publishing if published_at > now - MAX_SILENCE else silent
            group.append(Manifest.from_json(body))
    return publishing + silent


# --- Declarations ---


def load_kinds(tx: Transaction) -> dict[str, KindSpec]:
    """Return all kinds of stored manifests, each as the newest manifest declares it."""
    kinds: dict[str, KindSpec] = {}
    for _, _, _, body, _ in ManifestQueries(tx).list_manifests():
        for name, spec in Manifest.from_json(body).kinds_with_rules.items():
            kinds.setdefault(name, spec)
    return kinds


def load_rules(tx: Transaction, kind: str) -> list[Rule]:
    """Return the rules of a kind, then those of its app, as the newest manifest declares them."""
    spec = load_kinds(tx).get(kind)
    return [] if spec is None else list(load_rulebook(spec.rules).rules)


def load_queues(tx: Transaction, now: Micros) -> dict[str, QueueSpec]:
    """Return the queues that active manifests declare."""
    queues: dict[str, QueueSpec] = {}
    for manifest in load_active_manifests(tx, now):
        for name, spec in manifest.queues.items():
            queues.setdefault(name, spec)
    return queues


def load_declared_subscriptions(tx: Transaction, now: Micros) -> dict[str, SubscriptionSpec]:
    """Return the subscriptions that active manifests declare."""
    subscriptions: dict[str, SubscriptionSpec] = {}
    for manifest in load_active_manifests(tx, now):
        subscriptions = {**manifest.subscriptions, **subscriptions}
    return subscriptions


def load_declared_limits(tx: Transaction, now: Micros) -> dict[LimitKey, Limit]:
    """Return the limits of queues and dependencies that active manifests declare."""
    return merge_declared_limits(load_active_manifests(tx, now))


def merge_declared_limits(manifests: Iterable[Manifest]) -> dict[LimitKey, Limit]:
    """Merge the limits of manifests; the first manifest that declares a key wins."""
    limits: dict[LimitKey, Limit] = {}
    for manifest in manifests:
        limits = {**manifest_limits(manifest), **limits}
    return limits


def manifest_limits(manifest: Manifest) -> dict[LimitKey, Limit]:
    limits = {}
    for name, queue in manifest.queues.items():
        limits["queue", name] = Limit(queue.concurrency, queue.rate)
    for key, dependency in manifest.dependencies.items():
        limits["dependency", key] = Limit(dependency.max_concurrency, dependency.rate)
    return limits


def merge_breaker_configs(manifests: Iterable[Manifest]) -> dict[str, BreakerConfig]:
    """Merge the breakers of manifests; the first manifest that declares a key wins."""
    configs: dict[str, BreakerConfig] = {}
    for manifest in manifests:
        configs = {**breaker_configs(manifest), **configs}
    return configs


def breaker_configs(manifest: Manifest) -> dict[str, BreakerConfig]:
    return {key: spec.breaker_config for key, spec in manifest.dependencies.items()}


class DeclarationCache:
    """Limits and breaker terms of all active manifests, as last read."""

    def __init__(self) -> None:
        self.limits: Mapping[LimitKey, Limit] = {}
        self.breakers: Mapping[str, BreakerConfig] = {}
        self._read_at: Micros = 0

    def refresh(self, tx: Transaction, now: Micros, *, max_age: Micros) -> None:
        """Read the manifests again if they were read longer than `max_age` ago."""
        if abs(now - self._read_at) <= max_age:
            return
        manifests = load_active_manifests(tx, now)
        self.limits = merge_declared_limits(manifests)
        self.breakers = merge_breaker_configs(manifests)
        self._read_at = now
