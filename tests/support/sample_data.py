"""Sample data for every screen, with names and texts of the caller's choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from mulligan import Fail, Fixed, Mulligan, Park, Policy, Webhook
from mulligan.alerts.chore import AlertChecker
from mulligan.http.app import MENU
from mulligan.manifest.declared import publish_manifest
from mulligan.observability.event_counts import EventCounter
from support.store import open_worker

SECOND = 1_000_000
MENU_PATHS = tuple(screen.path for _, screens in MENU for screen in screens)


@dataclass(frozen=True)
class SampleTexts:
    """Texts that are used in every field."""

    text: str = "The clip could not be read."
    name: str = "render"  # of a kind, a queue, a dependency, a schedule: no spaces in it
    owner: str = "acme"


def create_sample_data(app: Mulligan, texts: SampleTexts) -> list[str]:
    """Create data for every screen. Return the paths of all screens."""
    _declare(app, texts)
    app.open()
    with app.store.begin() as tx:
        publish_manifest(tx, app.manifest("site:app"))
    _run_periodic_tasks(app, alerting=False)
    dead, parked = _create_jobs(app, texts)
    _run_periodic_tasks(app, alerting=True)
    operation = app.operations.start("retry", "state:dead code:BROKEN", reason=texts.text)
    app.run_inline()
    _close_gates(app, texts)
    open_worker(
        app.store, "w_somewhere", host=texts.text[:200], release=texts.text[:50], kinds='["x"]'
    )
    batch = app.batches.list()[0]
    group = app.failures.groups()[0].fingerprint
    done = app.jobs.list("state:succeeded")[0].id
    return [
        *MENU_PATHS,
        f"/jobs/{dead}",
        f"/jobs/{parked}",
        f"/jobs/{done}",
        f"/failures/{group}",
        f"/batches/{batch.id}",
        f"/operations/{operation.id}",
        f"/dependencies/{quote(texts.name, safe='')}",
        "/jobs?filter=state:dead",
        "/jobs?filter=kind:nobody",
        "/jobs?filter=state:ded",
        "/operations/new?action=retry&filter=state:dead",
        "/operations/new?action=retry&filter=kind:nobody",
        "/jobs/nope",
        "/nowhere",
        "/sign-in",
        app.status.link(app.jobs.get(dead)),
        app.status.link(batch),
    ]


def _declare(app: Mulligan, texts: SampleTexts) -> None:
    app.queue(texts.name, concurrency=50)
    app.dependency(texts.name, max_concurrency=2)

    @app.job(
        name=texts.name,
        queue=texts.name,
        uses=texts.name,
        editable="clip",
        cost=0.01,
        policy=Policy(max_retries=1, backoff=Fixed(1)),
    )
    def render(clip: str) -> str | Fail | Park:
        if clip == "ask":
            return Park(texts.text, choices=(texts.text[:100], "drop"))
        if clip == "works":
            return texts.text
        if clip == "raise":
            raise RuntimeError(texts.text)
        return Fail("BROKEN", texts.text, public=texts.text[:300], final=True)

    app.schedule(
        texts.name, "0 3 * * *", render, {"clip": texts.text[:500]}, timezone="Europe/Berlin"
    )
    app.notify(on="job.died", to=Webhook("https://127.0.0.1:1/hook"), name="ops", form="each")


def _run_periodic_tasks(app: Mulligan, *, alerting: bool) -> None:
    """Run the periodic tasks of a worker."""
    app.store.shift_clock(61 * SECOND)
    while EventCounter(every=0).run_once(app.store):
        pass
    if alerting:
        AlertChecker(app.settings.alerts).run_once(app.store)


def _create_jobs(app: Mulligan, texts: SampleTexts) -> tuple[str, str]:
    payload = {"clip": texts.text[:2000]}
    options: dict[str, Any] = {"owner": texts.owner[:100]}
    app.enqueue(texts.name, {"clip": "works"}, **options)
    dead = app.enqueue(texts.name, payload, unique=texts.text[:100], **options)
    parked = app.enqueue(texts.name, {"clip": "ask"}, **options)
    for clip in ["works"] * 3 + ["raise"] * 12:
        app.enqueue(texts.name, {"clip": clip}, **options)
    with app.batch(texts.text[:200], **options) as batch:
        for clip in ("works", "raise", texts.text[:500]):
            app.enqueue(texts.name, {"clip": clip}, batch=batch)
    for _ in range(3):
        app.run_inline()
        app.store.shift_clock(2 * SECOND)
    app.jobs.cancel(
        app.enqueue(texts.name, payload, delay=60, **options).id, reason=texts.text[:500]
    )
    app.enqueue(texts.name, payload, delay=3600, **options)
    return dead.id, parked.id


def _close_gates(app: Mulligan, texts: SampleTexts) -> None:
    app.queues.pause(texts.name, until=3600, reason=texts.text[:500])
    app.dependencies.open(texts.name, until=3600, reason=texts.text[:500])
    app.kinds.hold(texts.name, reason=texts.text[:500])
