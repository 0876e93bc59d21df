"""Statements about manifests, and about what a manifest declares."""

from __future__ import annotations

from collections.abc import Iterable

from mulligan.core.durations import Micros
from mulligan.storage.base import Queries


class ManifestQueries(Queries):
    """Statements about manifests, in a transaction."""

    def store_manifest(self, manifest_id: str, app: str, release: str, body: str) -> None:
        """Store a manifest, or record that it is still in use."""
        self.tx.rows("store_manifest", id=manifest_id, app=app, release=release, body=body)

    def list_manifests(self) -> list[tuple[str, str, str, str, Micros]]:
        """List (id, app, release, body, last use), newest first."""
        return [(row[0], row[1], row[2], row[3], row[4]) for row in self.tx.rows("list_manifests")]

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
