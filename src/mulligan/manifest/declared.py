"""Declarations in stored manifests: which manifests are active and what they declare.

The newest manifest that declares a thing wins, for a day after its workers last published it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import combinations, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from mulligan.core.durations import SECOND, Micros
from mulligan.core.errors import ConfigError
from mulligan.core.job import Limit, LimitKey
from mulligan.events.queries import EventQueries
from mulligan.manifest.queries import ManifestQueries, StoredManifest
from mulligan.manifest.specs import KindSpec, Manifest, QueueSpec, SubscriptionSpec
from mulligan.storage.base import Transaction

if TYPE_CHECKING:
    from mulligan.config import Settings
    from mulligan.guards.state import BreakerConfig

MANIFEST_LIFETIME = 86_400 * SECOND  # after the last publication; workers may be down for a while
MANIFEST_RETENTION = 30 * MANIFEST_LIFETIME  # of a manifest that alone declares something
MAX_PARSED = 2048  # manifests in memory; equal parts are shared
NO_MANIFEST = Manifest("", "", {})  # in place of one that was deleted meanwhile
_parsed: dict[str, Manifest] = {}
MAX_SILENCE: Micros = 600 * SECOND  # workers publish their manifest every minute
COMING_RELEASE_WAIT = 3600 * SECOND  # for a release of which no worker runs yet

# --- Publishing ---


def publish_manifest(tx: Transaction, manifest: Manifest) -> None:
    """Store a manifest that a worker runs now, and its new subscriptions.

    A schedule that the app had removed and declares again starts anew.
    """
    queries = ManifestQueries(tx)
    if manifest.schedules:
        past = []
        for stored in queries.list_manifests():
            schedules = load_manifest(tx, stored.id).schedules
            past.append((stored.app, stored.published_at, schedules))
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
    declared_at: list[Micros] = []
    missing_at: list[Micros] = []
    for other_app, published_at, schedules in past:
        if name in schedules:
            declared_at.append(published_at)
        elif other_app == app:
            missing_at.append(published_at)
    if not declared_at or not missing_at:
        return False
    return max(missing_at) - max(declared_at) > MAX_SILENCE


# --- Stored manifests ---


def load_manifest(tx: Transaction, manifest_id: str) -> Manifest:
    """Return a stored manifest. Parsed once: its id is the hash of its content."""
    parsed = _parsed.get(manifest_id)
    if parsed is not None:
        return parsed
    body = ManifestQueries(tx).read_manifest(manifest_id)
    if body is None:
        return NO_MANIFEST
    if len(_parsed) >= MAX_PARSED:
        _parsed.clear()
    manifest = Manifest.from_json(body)
    _parsed[manifest_id] = manifest
    return manifest


def find_unneeded(
    stored: Sequence[StoredManifest],
    names: Callable[[StoredManifest], AbstractSet[str]],
    now: Micros,
) -> Iterator[StoredManifest]:
    """Return the manifests of past releases that no worker, job or schedule needs.

    Needed are those that workers publish, the last one of each app, and for 30 days the newest
    one that declares a thing which newer releases have removed: its jobs and slots may be left.
    """
    last = {row.app: row.id for row in sorted(stored, key=attrgetter("published_at"))}
    kept = set()
    declared: set[str] = set()
    for row in stored:
        if row.published_at > now - MAX_SILENCE or last[row.app] == row.id:
            kept.add(row)
            declared |= names(row)
    for row in stored:
        if row in kept:
            continue
        is_old = row.published_at <= now - MANIFEST_RETENTION
        if is_old or names(row) <= declared:
            yield row
        else:
            declared |= names(row)


def prune_manifests(tx: Transaction, now: Micros, limit: int) -> int:
    """Delete up to `limit` manifests that are not needed any more. Return how many."""
    queries = ManifestQueries(tx)
    stored = queries.list_manifests()

    def names(row: StoredManifest) -> AbstractSet[str]:
        return load_manifest(tx, row.id).declared_names

    unneeded = islice(find_unneeded(stored, names, now), limit)
    return sum(queries.delete_manifest(row) for row in unneeded)


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
        load_manifest(tx, stored.id)
        for stored in ManifestQueries(tx).list_manifests()
        if stored.published_at > now - MANIFEST_LIFETIME
    )


def load_active_manifests(tx: Transaction, now: Micros) -> list[Manifest]:
    """Return the manifests in force: first those with running workers, each newest first."""
    stored = ManifestQueries(tx).list_manifests()
    publications = [(row.app, row.published_at) for row in stored]
    publishing: list[Manifest] = []
    silent: list[Manifest] = []
    active = find_active(publications, now, MANIFEST_LIFETIME)
    for row, is_active in zip(stored, active, strict=True):
        if is_active:
            group = publishing if row.published_at > now - MAX_SILENCE else silent
            group.append(load_manifest(tx, row.id))
    return publishing + silent


class RefusedPayload(NamedTuple):
    """A payload that the handler of this release has refused."""

    value: Any
    version: int


def find_accepting_release(
    tx: Transaction, own: KindSpec, payload: RefusedPayload, now: Micros, waited: Micros
) -> str:
    """Return a release that accepts a payload which this one has refused; empty if none does.

    If the schema of this release, `own`, accepts it, the handler's own checks refused it. Those of
    another release are unknown, so the failure stands. The job has `waited` since its first
    attempt.
    """
    from mulligan.manifest.schema import accepts_payload  # noqa: PLC0415 - rarely needed

    kind = own.name
    is_current = payload.version == own.version
    if is_current and accepts_payload(kind, payload.value, own.schema):
        return ""
    for manifest in load_active_manifests(tx, now):
        spec = manifest.kinds.get(kind)
        if spec is None or spec.version != payload.version:
            continue
        if accepts_payload(kind, payload.value, spec.schema):
            return manifest.title
    if waited >= COMING_RELEASE_WAIT or not is_current:
        return ""
    return _describe_coming_release(kind, payload.value, own.schema)


def find_release_of_version(tx: Transaction, own: KindSpec, version: int, now: Micros) -> str:
    """Return a release that takes payloads of a version which this one does not take.

    A newer version was enqueued by a newer release, whose workers may not be running yet.
    """
    for manifest in load_active_manifests(tx, now):
        spec = manifest.kinds.get(own.name)
        if spec is not None and spec.takes_version(version):
            return f"{manifest.title} (payload version {version})"
    if version < own.version:
        return ""
    return f"a release with payload version {version} (this one has {own.version})"


def _describe_coming_release(kind: str, payload: Any, schema: Mapping[str, Any]) -> str:
    """Return the release to wait for if unknown arguments are all that is wrong with a payload.

    An enqueue checks its arguments, so the program that passed them has a newer release. Its
    workers may not be running yet.
    """
    from mulligan.manifest.schema import accepts_payload  # noqa: PLC0415 - rarely needed

    if not isinstance(payload, dict):
        return ""
    arguments = schema.get("properties", {})
    known = {name: value for name, value in payload.items() if name in arguments}
    if not accepts_payload(kind, known, schema):
        return ""
    unknown = sorted(payload.keys() - known.keys())
    return f"a release that knows argument {', '.join(unknown)}"


def load_running_manifests(tx: Transaction, now: Micros) -> list[Manifest]:
    """Return the manifests that workers have published within ten minutes, newest first."""
    return [
        load_manifest(tx, stored.id)
        for stored in ManifestQueries(tx).list_manifests()
        if stored.published_at > now - MAX_SILENCE
    ]


def find_conflicts(manifests: Sequence[Manifest]) -> list[str]:
    """Return sentences about kinds and schedules that two apps declare differently.

    Releases of one app may differ: that is a deploy.
    """
    newest = {manifest.app: manifest for manifest in reversed(manifests)}
    conflicts = []
    for (app, one), (other_app, other) in combinations(sorted(newest.items()), 2):
        apps = f"{app} and {other_app}"
        for name in sorted(one.kinds.keys() & other.kinds.keys()):
            if _arguments(one.kinds[name]) != _arguments(other.kinds[name]):
                conflicts.append(f"{apps} both have kind {name} with different arguments")
        for name in sorted(one.schedules.keys() & other.schedules.keys()):
            if one.schedules[name] != other.schedules[name]:
                conflicts.append(f"{apps} both have schedule {name}, declared differently")
    return conflicts


def find_setting_conflicts(manifests: Sequence[Manifest]) -> list[str]:
    """Return sentences about settings that two apps declare differently."""
    newest = {manifest.app: manifest.settings for manifest in reversed(manifests)}
    conflicts = []
    for (app, one), (other_app, other) in combinations(sorted(newest.items()), 2):
        for name in sorted(one.keys() & other.keys()):
            if one[name] != other[name]:
                conflicts.append(f"{app} and {other_app} declare different values of {name}")
    return conflicts


def _arguments(spec: KindSpec) -> dict[str, Any]:
    """Return the schema of a kind without its title, the name of the function."""
    return {name: value for name, value in spec.schema.items() if name != "title"}


# --- Declarations ---


def apply_declared_settings(tx: Transaction, settings: Settings) -> Settings:
    """Add the settings that the active apps declare in their code, the newest manifest first.

    For processes that do not import an app. What files, variables and flags set here wins.
    """
    for manifest in load_active_manifests(tx, tx.now()):
        settings = _add_settings_of(manifest, settings)
    return settings


def load_declared_queue_names(tx: Transaction, now: Micros) -> frozenset[str]:
    """Return the queues that active apps declare or that one of their kinds uses."""
    return frozenset().union(*(one.queue_names for one in load_active_manifests(tx, now)))


def _add_settings_of(manifest: Manifest, settings: Settings) -> Settings:
    """Add the settings of one app, unless they contradict what is set here.

    The check of settings in `mulligan doctor` reports the contradiction.
    """
    try:
        return settings.with_declared(manifest.settings, f"code of {manifest.app}")
    except ConfigError:
        return settings


def find_refused_settings(manifests: Iterable[Manifest], settings: Settings) -> list[str]:
    """Return sentences about declared settings that contradict what is set in this process."""
    refused = []
    for manifest in manifests:
        try:
            settings.with_declared(manifest.settings, f"code of {manifest.app}")
        except ConfigError as error:
            refused.append(f"{manifest.app}: {error}")
    return refused


def load_kinds(tx: Transaction) -> dict[str, KindSpec]:
    """Return all kinds of stored manifests, each as the newest manifest declares it."""
    kinds: dict[str, KindSpec] = {}
    for stored in ManifestQueries(tx).list_manifests():
        manifest = load_manifest(tx, stored.id)
        for name in manifest.kinds:
            if name not in kinds:
                kinds[name] = manifest.kind_with_rules(name)
    return kinds


def load_kind_versions(tx: Transaction) -> dict[str, list[KindSpec]]:
    """Return all kinds of stored manifests, as each manifest in force declares them, newest first.

    A kind that no manifest in force declares has its newest declaration.
    """
    versions: dict[str, list[KindSpec]] = {}
    for manifest in load_active_manifests(tx, tx.now()):
        for name, spec in manifest.kinds.items():
            versions.setdefault(name, []).append(spec)
    for name, spec in load_kinds(tx).items():
        versions.setdefault(name, [spec])
    return versions


def load_queue_names(tx: Transaction) -> set[str]:
    """Return the queues of all stored manifests, also of apps whose workers are down."""
    names: set[str] = set()
    for stored in ManifestQueries(tx).list_manifests():
        names |= load_manifest(tx, stored.id).queue_names
    return names


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
        self.read_at: Micros = 0

    def refresh(self, tx: Transaction, now: Micros) -> None:
        """Read the manifests again."""
        manifests = load_active_manifests(tx, now)
        self.limits = merge_declared_limits(manifests)
        self.breakers = merge_breaker_configs(manifests)
        self.read_at = now
