"""Statements about releases and their counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mulligan.core.durations import Micros
from mulligan.releases.rules import ReleaseKindRow, ReleaseRow
from mulligan.storage.base import Queries

MAX_RELEASES = 500  # that are kept


class ReleaseDelta(NamedTuple):
    """Attempts to add to the counters of a release and kind."""

    release: str
    kind: str
    attempts: int
    deaths: int
    starts: int
    failures: int


class ReleaseQueries(Queries):
    """Statements about releases, in a transaction."""

    def note_release(self, name: str) -> None:
        """Record that a worker of a release has started."""
        self.tx.rows("note_release", name=name)

    def add_counts(self, deltas: Sequence[ReleaseDelta]) -> None:
        """Add to the counters of kinds."""
        if deltas:
            self.tx.run_set("add_release_counts", deltas)

    def list_releases(self, limit: int = MAX_RELEASES) -> list[ReleaseRow]:
        """List the releases, the newest first."""
        return [ReleaseRow._make(row) for row in self.tx.rows("list_releases", limit=limit)]

    def list_counts(self, kinds: Sequence[str] | None = None) -> list[ReleaseKindRow]:
        """List the counters of some kinds, or of all, by kind and age of the release."""
        if kinds is None:
            rows = self.tx.rows("list_release_counts")
        else:
            wanted = self.tx.array_param(kinds)
            rows = self.tx.rows("list_release_counts_of_kinds", kinds=wanted)
        return [ReleaseKindRow._make(row) for row in rows]

    def count_kinds(self, release: str) -> int:
        """Count the kinds of a release that have started jobs."""
        return int(self.tx.rows("count_kinds_of_release", release=release)[0][0])

    def add_claimed(self, release: str, kind: str, jobs: int) -> None:
        """Count jobs that canary workers have claimed."""
        self.tx.rows("add_canary_claims", release=release, kind=kind, jobs=jobs)

    def list_live_kinds(self) -> list[tuple[str, str]]:
        """List the releases and kinds (JSON) of the workers that claim jobs."""
        return [(release, kinds) for release, kinds in self.tx.rows("list_live_kinds")]

    def count_live_workers(self) -> list[tuple[str, int]]:
        """Count the live workers of each release."""
        rows = self.tx.rows("count_live_workers_by_release")
        return [(release, workers) for release, workers in rows]

    def releases_of_workers(self, workers: Sequence[str]) -> dict[str, str]:
        """Return the release of each worker."""
        return dict(self.tx.rows("releases_of_workers", ids=self.tx.array_param(workers)))

    def delete_old_releases(self, before: Micros) -> None:
        """Delete releases that ran nothing since a time, with their counters."""
        self.tx.rows("delete_old_releases", before=before, most=MAX_RELEASES)
        self.tx.rows("delete_old_release_counts")
        self.tx.rows("delete_expired_release_holds", before=before)
