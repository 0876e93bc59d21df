"""Statements about manifests, and about what a manifest declares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mulligan.core.durations import Micros
from mulligan.storage.base import Queries


class StoredManifest(NamedTuple):
    """A stored manifest without its body."""

    id: str
    app: str
    release: str
    published_at: Micros  # when a worker last published it


class ManifestQueries(Queries):
    """Statements about manifests, in a transaction."""

    def store_manifest(self, manifest_id: str, app: str, release: str, body: str) -> None:
        """Store a manifest, or record that it is still in use."""
        self.tx.rows("store_manifest", id=manifest_id, app=app, release=release, body=body)

    def list_manifests(self) -> list[StoredManifest]:
        """List the stored manifests without their bodies, newest first."""
        return [StoredManifest(*row) for row in self.tx.rows("list_manifests")]

    def read_manifest(self, manifest_id: str) -> str | None:
        """Return the body of a manifest, or None if it was deleted."""
        rows = self.tx.rows("read_manifest", id=manifest_id)
        return rows[0][0] if rows else None

    def delete_manifest(self, stored: StoredManifest) -> bool:
        """Delete a manifest, unless a worker has published it meanwhile."""
        found = self.tx.rows("delete_manifest", id=stored.id, published_at=stored.published_at)
        return bool(found)

    def delete_schedules(self, names: Iterable[str]) -> None:
        """Delete schedules. If declared again, they start anew; slots keep their jobs."""
        for name in sorted(names):
            self.tx.rows("delete_schedule", name=name)

    def subscription_exists(self, name: str) -> bool:
        """True if there is a subscription of this name."""
        return bool(self.tx.rows("subscription_exists", id=name))

    def declare_subscription(
        self, name: str, owner: str | None, form: str, channel: str, after: int
    ) -> None:
        """Insert a declared subscription, unless there is one. It receives events after `after`."""
        self.tx.rows(
            "declare_subscription", id=name, owner=owner, form=form, channel=channel, after=after
        )
