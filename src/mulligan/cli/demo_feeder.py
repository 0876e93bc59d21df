"""Traffic of the demo: enqueue a few jobs per second for a while, or until stdin closes."""

from __future__ import annotations

import contextlib
import logging
import math
import random
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from mulligan import Fail, Webhook, testing
from mulligan.cli import demo_jobs as shop
from mulligan.cli.demo import Receiver
from mulligan.config import Settings
from mulligan.core.attempt import Lease
from mulligan.core.durations import SECOND
from mulligan.core.errors import IllegalMove, Refused, StoreUnavailable
from mulligan.core.job import Job
from mulligan.manifest.specs import Handler

PAUSE = (0.15, 0.6)  # seconds between two jobs
OWNERS = ("acme", "globex", "initech")


def feed(seconds: float) -> None:
    """Enqueue jobs and act as an operator now and then."""
    _add_subscriptions(Receiver())
    _enqueue_first_jobs()
    _start_campaigns()
    weights = [source.weight for source in TRAFFIC]
    plans = list(PLANS)
    started = time.monotonic()
    while time.monotonic() < started + seconds and not _stdin_closed(random.uniform(*PAUSE)):
        try:
            source = random.choices(TRAFFIC, weights)[0]
            source.enqueue()
            is_due = plans and time.monotonic() - started > plans[0].after
            if is_due and plans[0].act():
                plans.pop(0)
        except StoreUnavailable:
            continue


def _stdin_closed(timeout: float) -> bool:
    """Wait for the end of stdin. Nothing is ever written to it."""
    readable, _, _ = select.select([sys.stdin], [], [], timeout)
    return bool(readable)


# --- Jobs ---


class TrafficSource(NamedTuple):
    """One kind of job, and how often it is enqueued relative to the others."""

    weight: float
    enqueue: Callable[[], Job]


def _random_number() -> int:
    return random.randrange(1000, 10_000)


def _random_owner() -> str:
    return random.choice(OWNERS)


def _resize_photo() -> Job:
    return shop.resize_photo.enqueue(photo=f"photo-{_random_number()}.jpg")


def _render_page() -> Job:
    return shop.render_page.options(owner=_random_owner()).enqueue(page=_random_number())


def _translate() -> Job:
    text = f"paragraph {_random_number()}"
    return shop.translate.options(owner=_random_owner()).enqueue(text=text)


def _send_receipt() -> Job:
    fails = random.choice((0, 1, 1, 2, 3))
    kind = shop.send_receipt.options(owner=_random_owner())
    return kind.enqueue(order=_random_number(), fails=fails)


def _encode_video() -> Job:
    return shop.encode_video.enqueue(clip=_random_number(), seconds=random.uniform(6, 25))


def _sync_contacts() -> Job:
    return shop.sync_contacts.enqueue(page=_random_number())


def _import_table() -> Job:
    file = f"customers-{_random_number()}.csv"
    return shop.import_table.options(owner=_random_owner()).enqueue(file=file)


def _parse_feed() -> Job:
    country = random.choice(shop.COUNTRIES)
    return shop.parse_feed.enqueue(feed=f"feed-{_random_number()}", country=country)


def _build_report() -> Job:
    return shop.build_report.enqueue(month=f"2026-{random.randrange(1, 13):02}")


def _charge_card() -> Job:
    return shop.charge_card.enqueue(order=_random_number())


def _publish_post() -> Job:
    return shop.publish_post.enqueue(post=f"post-{_random_number()}")


def _convert_raw() -> Job:
    return shop.convert_raw.enqueue(photo=f"photo-{_random_number()}.raw")


TRAFFIC = (
    TrafficSource(50, _resize_photo),
    TrafficSource(24, _render_page),
    TrafficSource(10, _translate),
    TrafficSource(16, _send_receipt),
    TrafficSource(10, _encode_video),
    TrafficSource(8, _sync_contacts),
    TrafficSource(4, _import_table),
    TrafficSource(2, _parse_feed),
    TrafficSource(2, _build_report),
    TrafficSource(2, _charge_card),
    TrafficSource(1, _publish_post),
    TrafficSource(0.7, _convert_raw),
)


def _enqueue_first_jobs() -> None:
    """Enqueue one job of each kind at once, so that every kind of outcome appears early."""
    for source in TRAFFIC:
        source.enqueue()
    shop.translate.options(owner="acme").enqueue(text="the first paragraph", busy=True)
    pages = [{"page": page, "early": True} for page in range(12)]
    shop.render_page.options(owner="acme").enqueue_many(pages)


# --- Subscriptions ---


def _add_subscriptions(receiver: Receiver) -> None:
    """Subscribe a receiver that answers most of the time, and one that has moved away."""
    add = shop.app.subscriptions.add
    add(
        ["batch.*", "alert.*"],
        Webhook(receiver.url("/hook")),
        name="operations",
        form="each",
        reason="part of the demo",
    )
    add(
        "job.died",
        Webhook(receiver.url("/hook")),
        name="failures",
        form="incident",
        reason="part of the demo",
    )
    add(
        "batch.partial",
        Webhook(receiver.url("/moved")),
        name="an old address",
        form="each",
        reason="from before the move",
    )


# --- Batches ---


class Campaign(NamedTuple):
    """A batch of twelve videos, some of which cannot be read for some generations."""

    name: str
    broken_files: int
    broken_generations: int
    sealed: bool


CAMPAIGNS = (
    Campaign("spring campaign", 0, 0, sealed=True),  # becomes ready
    Campaign("summer campaign", 3, 1, sealed=True),  # partial, then retried successfully
    Campaign("autumn campaign", 1, 1, sealed=False),  # stays open
    Campaign("winter campaign", 2, 9, sealed=True),  # stays partial
)


def _start_campaigns() -> None:
    for campaign in CAMPAIGNS:
        batch = shop.app.batch(campaign.name, owner=_random_owner(), on_complete=shop.notify_owner)
        payloads = [
            {"video": video, "broken": _broken_generations(campaign, video)} for video in range(12)
        ]
        shop.watermark.options(batch=batch, owner=batch.owner).enqueue_many(payloads)
        if campaign.sealed:
            batch.seal()


def _broken_generations(campaign: Campaign, video: int) -> int:
    return campaign.broken_generations if video < campaign.broken_files else 0


# --- What the demo's operator does ---


class Plan(NamedTuple):
    """An action of the operator. It is tried again until it returns something true."""

    after: float  # seconds since the start
    act: Callable[[], object]


def _first_job(filter_: str) -> str | None:
    found = shop.app.jobs.list(filter_, limit=1)
    return found[0].id if found else None


def _retry_all(filter_: str, reason: str) -> bool:
    """Retry all matching jobs as soon as there is one."""
    if _first_job(filter_) is None:
        return False
    with contextlib.suppress(Refused):
        shop.app.operations.start("retry", filter_, reason=reason)
    return True


def _limit_model_api() -> object:
    reason = "the provider asked us to slow down"
    return shop.app.dependencies.set("model-api", concurrency=4, until=900, reason=reason)


def _hold_posts() -> object:
    return shop.app.kinds.hold("publish_post", until=30, reason="the editor is at lunch")


def _pause_partner() -> object:
    return shop.app.queues.pause("partner", until=20, reason="maintenance at the partner")


def _cancel_sync() -> bool:
    """Cancel one waiting job. It may have ended meanwhile."""
    job_id = _first_job("state:queued kind:sync_contacts")
    if job_id is None:
        return False
    try:
        shop.app.jobs.cancel(job_id, reason="the contacts were deleted")
    except IllegalMove:
        return False
    return True


def _retry_feeds() -> bool:
    """Retry a defect that is not fixed: the operation stops by itself."""
    return _retry_all("state:dead kind:parse_feed", "is it fixed?")


def _retry_import_with_new_file() -> bool:
    job_id = _first_job("state:dead kind:import_table")
    if job_id is None:
        return False
    overrides = {"payload": {"file": "customers.fixed.csv"}}
    shop.app.jobs.retry(job_id, reason="the customer sent a new file", overrides=overrides)
    return True


def _retry_summer_campaign() -> bool:
    summer = next(batch for batch in shop.app.batches.list() if batch.name == "summer campaign")
    if summer.finished_at is None:
        return False
    return _retry_all(f"state:dead batch:{summer.id}", "the videos were uploaded again")


def _silence_alert() -> object:
    return shop.app.alerts.silence("retry_ratio", 1800, reason="the mail server is being moved")


def _retry_imports() -> bool:
    return _retry_all("state:dead kind:import_table", "the files were sent again")


PLANS = (
    Plan(3, _limit_model_api),
    Plan(4, _hold_posts),
    Plan(5, _pause_partner),
    Plan(6, _cancel_sync),
    Plan(8, _retry_feeds),
    Plan(9, _retry_import_with_new_file),
    Plan(10, _retry_summer_campaign),
    Plan(12, _silence_alert),
    Plan(14, _retry_imports),
)


# --- A day of history ---

HISTORY = "history"  # argument of this module
DAY = 86_400.0  # seconds
STEP = 1200.0  # seconds between two groups of jobs
JOBS_PER_STEP = 28  # on average
FEEDS_PER_STEP = 5  # so many that the release that broke them can be judged
OUTAGE = range(11 * 3600, 11 * 3600 + 2700)  # seconds of the day in which the mail server is down
BUG_SINCE = 19 * 3600  # second of the day of the release that broke parse_feed
HISTORY_SEED = 7


def seed_history() -> None:
    """Fill an empty database with a day of sample jobs, so that charts and causes show something.

    The clock of the database starts a day ago and moves on in steps; all jobs go through enqueue,
    claim, classification and settlement as usual, only the handlers do not take time.
    """
    app = shop.app
    logging.getLogger("mulligan").setLevel(logging.CRITICAL)  # the sample jobs fail on purpose
    random.seed(HISTORY_SEED)
    app.open()
    app.store.shift_clock(round(-DAY * SECOND))
    begin = testing.now(app)
    is_repaired = False

    def second_of_day() -> float:
        return (testing.now(app) - begin).total_seconds()

    def release_of(second: float) -> Settings:
        release = shop.OLD_RELEASE if second < BUG_SINCE else shop.RELEASE
        return app.settings.model_copy(update={"release": release})

    with _quick_handlers(second_of_day):
        for step in range(round(DAY / STEP)):
            app.settings = release_of(step * STEP)
            _wait_until(begin + timedelta(seconds=step * STEP))
            _enqueue_step(step * STEP)
            testing.drain(app, scheduled=True, most=5000, seed=step, anywhere=True)
            if step * STEP >= OUTAGE.stop and not is_repaired:
                _repair_outage()
                is_repaired = True
    behind = datetime.now(UTC) - testing.now(app)
    app.store.shift_clock(round(behind.total_seconds() * SECOND))
    app.close()


def _wait_until(at: datetime) -> None:
    if testing.now(shop.app) < at:
        testing.advance(shop.app, at, anywhere=True)


def _enqueue_step(second: float) -> None:
    """Enqueue the jobs of one step: more by day than by night."""
    share = 1 - 0.7 * math.cos(2 * math.pi * second / DAY)
    sources = [source for source in TRAFFIC if source.enqueue not in NOT_IN_HISTORY]
    weights = [max(MIN_WEIGHT, source.weight) for source in sources]
    for source in random.choices(sources, weights, k=round(JOBS_PER_STEP * share)):
        source.enqueue()
    for _ in range(FEEDS_PER_STEP):
        _parse_feed()


MIN_WEIGHT = 5.0  # rare kinds are those that fail; a day has enough of them to compare
NOT_IN_HISTORY = (_publish_post, _charge_card, _sync_contacts)  # they wait for people or for time


@contextlib.contextmanager
def _quick_handlers(second_of_day: Callable[[], float]) -> Iterator[None]:
    """Replace all handlers by functions that end at once."""

    def replace_handler(handler: Handler, lease: Lease) -> Handler:
        def call(**arguments: Any) -> Fail | None:
            ending = _history_ending(lease, second_of_day(), arguments)
            if isinstance(ending, Exception):
                raise ending
            return ending

        return replace(handler, call=call, is_async=False, done=None, can_retry=None)

    overrides = shop.app.registry.overrides
    overrides.append(replace_handler)
    try:
        yield
    finally:
        overrides.remove(replace_handler)


def _history_ending(
    lease: Lease, second: float, arguments: Mapping[str, Any]
) -> Exception | Fail | None:
    """Return how an attempt of the history fails, or None if it succeeds. May raise, too."""
    is_first = lease.attempt == 1
    match lease.kind:
        case "send_receipt" if int(second) in OUTAGE:
            return ConnectionRefusedError("mail.example.com:25 refused the connection")
        case "send_receipt" if is_first and random.random() < 0.1:
            return ConnectionResetError("mail.example.com:25 reset the connection")
        case "translate" if is_first and random.random() < 0.25:
            return shop.TooManyRequests("429 Too Many Requests")
        case "render_page" if is_first and random.random() < 0.05:
            return shop.GatewayError("503 Service Unavailable: no upstream")
        case "parse_feed" if second > BUG_SINCE:
            shop.parse_feed(**arguments)
        case "import_table" if lease.generation == 1 and random.random() < 0.3:
            return Fail("BAD_FILE", "row 17 has 5 columns, not 6", final=True)
    return None


def _repair_outage() -> None:
    """Release the kind that held itself in the outage and retry its dead, as an operator would."""
    if any(kind.held for kind in shop.app.kinds.list()):
        shop.app.kinds.release("send_receipt", reason="the mail server answers again")
    for job in shop.app.jobs.list("state:dead kind:send_receipt", limit=1000):
        shop.app.jobs.retry(job.id, reason="the mail server answers again")


if __name__ == "__main__":
    if sys.argv[1] == HISTORY:
        seed_history()
    else:
        feed(float(sys.argv[1]))
