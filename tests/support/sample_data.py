"""Something true on every screen, with names and texts of the caller's choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mulligan import Fail, Fixed, Mulligan, Park, Policy, Webhook
from mulligan.alerts.chore import AlertChecker
from mulligan.http.dashboard.renderer import MENU
from mulligan.manifest.declared import publish_manifest
from mulligan.observability.event_counts import EventCounter
from support.store import open_worker

SECOND = 1_000_000
MENU_PATHS = tuple(screen.path for _, screens in MENU for screen in screens)


@dataclass(frozen=True)
class SampleTexts:
    """What is put everywhere."""

    text: str = "The clip could not be read."
    name: str = "render"  # of a kind, a queue, a dependency, a schedule: no spaces in it
    owner: str = "acme"


def create_sample_data(app: Mulligan, words: SampleTexts) -> list[str]:
    """The paths of all screens, each with something on it."""
    _declare(app, words)
    app.open()
    with app.store.begin() as unit:
        publish_manifest(unit, app.manifest("site:app"))
    _count(app, alerting=False)
    dead, parked = _lives(app, words)
    _count(app, alerting=True)
    operation = app.operations.start("retry", "state:dead code:BROKEN", reason=words.text)
    app.run_inline()
    _closed(app, words)
    open_worker(
        app.store, "w_somewhere", host=words.text[:200], release=words.text[:50], kinds='["x"]'
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


def _declare(app: Mulligan, words: SampleTexts) -> None:
    app.queue(words.name, concurrency=50)
    app.dependency(words.name, max_concurrency=2)

    @app.job(
        name=words.name,
        queue=words.name,
        uses=words.name,
        editable="clip",
        cost=0.01,
        policy=Policy(max_retries=1, backoff=Fixed(1)),
    )
    def render(clip: str) -> str | Fail | Park:
        if clip == "ask":
            return Park(words.text, choices=(words.text[:100], "drop"))
        if clip == "works":
            return words.text
        if clip == "raise":
            raise RuntimeError(words.text)
        return Fail("BROKEN", words.text, public=words.text[:300], final=True)

    app.schedule(
        words.name, "0 3 * * *", render, {"clip": words.text[:500]}, timezone="Europe/Berlin"
    )
    app.notify(on="job.died", to=Webhook("https://127.0.0.1:1/hook"), name="ops", form="each")


def _count(app: Mulligan, *, alerting: bool) -> None:
    """What a worker does beside its jobs."""
    app.store.shift_clock(61 * SECOND)
    while EventCounter(every=0).run_once(app.store):
        pass
    if alerting:
        AlertChecker(app.settings.alerts).run_once(app.store)


def _lives(app: Mulligan, words: SampleTexts) -> tuple[str, str]:
    payload = {"clip": words.text[:2000]}
    said: dict[str, Any] = {"owner": words.owner[:100]}
    app.enqueue(words.name, {"clip": "works"}, **said)
    dead = app.enqueue(words.name, payload, unique=words.text[:100], **said)
    parked = app.enqueue(words.name, {"clip": "ask"}, **said)
    for clip in ["works"] * 3 + ["raise"] * 12:
        app.enqueue(words.name, {"clip": clip}, **said)
    with app.batch(words.text[:200], **said) as batch:
        for clip in ("works", "raise", words.text[:500]):
            app.enqueue(words.name, {"clip": clip}, batch=batch)
    for _ in range(3):
        app.run_inline()
        app.store.shift_clock(2 * SECOND)
    app.jobs.cancel(app.enqueue(words.name, payload, delay=60, **said).id, reason=words.text[:500])
    app.enqueue(words.name, payload, delay=3600, **said)
    return dead.id, parked.id


def _closed(app: Mulligan, words: SampleTexts) -> None:
    app.queues.pause(words.name, until=3600, reason=words.text[:500])
    app.dependencies.open(words.name, until=3600, reason=words.text[:500])
    app.kinds.hold(words.name, reason=words.text[:500])
