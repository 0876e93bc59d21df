"""An app that is deployed in several releases, for tests."""

from __future__ import annotations

import json

from mulligan.manifest.specs import KindSpec, Manifest
from mulligan.releases.queries import ReleaseDelta, ReleaseQueries
from mulligan.worker.claim import create_claimer
from mulligan.worker.queries import WorkerQueries
from support.app_tools import advance, count_events
from support.store import a_worker


def deploy(app, release):
    """Let the next workers of the app run this release."""
    app.settings = app.settings.model_copy(update={"release": release})


def run_as(app, release):
    """Run all due jobs with a worker of this release, and count what happened."""
    deploy(app, release)
    app.run_inline()
    count_events(app)


def register_worker(app, worker, release, kinds=("render",), canary=None):
    """Register a live worker of a release. Returns its claimer. `canary`: its share of each kind."""
    row = a_worker(worker)._replace(release=release, kinds=json.dumps(sorted(kinds)))
    with app.store.begin() as tx:
        WorkerQueries(tx).insert_worker(row)
    manifest = Manifest(app="shop", release=release, kinds={kind: KindSpec(kind) for kind in kinds})
    return create_claimer(worker, manifest, None, canary)


def add_starts(app, release, kind, starts, failures):
    """Count first attempts of a kind under a release, as if they had ended now."""
    deltas = [ReleaseDelta(release, kind, starts, failures, starts, failures)]
    with app.store.begin() as tx:
        ReleaseQueries(tx).note_release(release)
        ReleaseQueries(tx).add_counts(deltas)
    advance(app, 1)
