"""What code declares, as the stored manifests say: the newest that names a thing wins, for a day after it did."""

from __future__ import annotations

from collections.abc import Iterator

from mulligan.engine.kinds import KindSpec, Manifest, QueueSpec
from mulligan.job import SECOND, Guarded, Limit, Micros
from mulligan.store.base import Unit

KNOWN_FOR = 86_400 * SECOND  # named by a manifest within a day: not gone, only away


def recent_manifests(unit: Unit, now: Micros) -> Iterator[Manifest]:
    """Newest first."""
    return (Manifest.from_json(body) for _, _, _, body, named in unit.manifests() if named > now - KNOWN_FOR)


def stored_kinds(unit: Unit) -> dict[str, KindSpec]:
    """Every kind any stored manifest knows, as the newest one says."""
    kinds: dict[str, KindSpec] = {}
    for _, _, _, body, _ in unit.manifests():
        for name, spec in Manifest.from_json(body).kinds.items():
            kinds.setdefault(name, spec)
    return kinds


def stored_queues(unit: Unit, now: Micros) -> dict[str, QueueSpec]:
    queues: dict[str, QueueSpec] = {}
    for manifest in recent_manifests(unit, now):
        for name, spec in manifest.queues.items():
            queues.setdefault(name, spec)
    return queues


def declared_limits(unit: Unit, now: Micros) -> dict[Guarded, Limit]:
    limits: dict[Guarded, Limit] = {}
    for manifest in recent_manifests(unit, now):
        for name, queue in manifest.queues.items():
            limits.setdefault(("queue", name), Limit(queue.concurrency, queue.rate))
        for key, dependency in manifest.dependencies.items():
            limits.setdefault(("dependency", key), Limit(dependency.max_concurrency, dependency.rate))
    return limits
