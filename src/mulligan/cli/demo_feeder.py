"""The demo's traffic: a program that enqueues a few jobs a second, for a while, until its stdin ends."""

from __future__ import annotations

import contextlib
import random
import select
import sys
import time
from collections.abc import Callable

from mulligan import Webhook
from mulligan.cli import demo_jobs as shop
from mulligan.cli.demo import Receiver
from mulligan.core.errors import IllegalMove, Refused, StoreUnavailable
from mulligan.core.job import Job

PAUSE = (0.15, 0.6)  # seconds between two jobs


def _number() -> int:
    return random.randrange(1000, 10_000)


def _owner() -> str:
    return random.choice(OWNERS)


OWNERS = ("acme", "globex", "initech")


# (weight, enqueue): the odd ones are rare, as in life.
TRAFFIC: tuple[tuple[float, Callable[[], Job]], ...] = (
    (50, lambda: shop.resize_photo.enqueue(photo=f"photo-{_number()}.jpg")),
    (24, lambda: shop.render_page.options(owner=_owner()).enqueue(page=_number())),
    (10, lambda: shop.translate.options(owner=_owner()).enqueue(text=f"paragraph {_number()}")),
    (
        16,
        lambda: shop.send_receipt.options(owner=_owner()).enqueue(
            order=_number(), fails=random.choice((0, 1, 1, 2, 3))
        ),
    ),
    (10, lambda: shop.encode_video.enqueue(clip=_number(), seconds=random.uniform(6, 25))),
    (8, lambda: shop.sync_contacts.enqueue(page=_number())),
    (
        4,
        lambda: shop.import_table.options(owner=_owner()).enqueue(
            file=f"customers-{_number()}.csv"
        ),
    ),
    (2, lambda: shop.parse_feed.enqueue(feed=f"feed-{_number()}")),
    (2, lambda: shop.build_report.enqueue(month=f"2026-{random.randrange(1, 13):02}")),
    (2, lambda: shop.charge_card.enqueue(order=_number())),
    (1, lambda: shop.publish_post.enqueue(post=f"post-{_number()}")),
    (0.7, lambda: shop.convert_raw.enqueue(photo=f"photo-{_number()}.raw")),
)


def feed(seconds: float) -> None:
    _subscriptions(Receiver())
    for _, enqueue in TRAFFIC:  # one of each at once, so that every kind of ending is seen early
        enqueue()
    shop.translate.options(owner="acme").enqueue(text="the first paragraph", busy=True)
    shop.render_page.options(owner="acme").enqueue_many(
        [{"page": page, "early": True} for page in range(12)]
    )
    _campaigns()
    weights = [weight for weight, _ in TRAFFIC]
    began = time.monotonic()
    ends, plans = began + seconds, list(PLANS)
    while time.monotonic() < ends and not _told_to_leave(random.uniform(*PAUSE)):
        try:
            random.choices(TRAFFIC, weights)[0][1]()
            if plans and time.monotonic() - began > plans[0][0] and plans[0][1]():
                plans.pop(0)
        except StoreUnavailable:
            continue


def _subscriptions(receiver: Receiver) -> None:
    """Who is told: a program that answers, most of the time, and one that has moved."""
    add = shop.app.subscriptions.add
    add(
        ["batch.*", "alert.*"],
        Webhook(receiver.url("/hook")),
        name="operations",
        form="each",
        reason="the demo's own",
    )
    add(
        "job.died",
        Webhook(receiver.url("/hook")),
        name="failures",
        form="incident",
        reason="the demo's own",
    )
    add(
        "batch.partial",
        Webhook(receiver.url("/moved")),
        name="an old address",
        form="each",
        reason="before the move",
    )


# name, how many of its files are broken, for how many generations, is it sealed
CAMPAIGNS = (
    ("spring campaign", 0, 0, True),
    ("summer campaign", 3, 1, True),  # somebody retries what failed, and it is mended
    ("autumn campaign", 1, 1, False),
    ("winter campaign", 2, 9, True),  # stays partial
)


def _campaigns() -> None:
    """Batches: one that is ready, one that is mended, one that is still being filled, one that stays partial."""
    for name, broken, generations, sealed in CAMPAIGNS:
        batch = shop.app.batch(name, owner=_owner(), on_complete=shop.tell_owner)
        members = shop.watermark.options(batch=batch, owner=batch.owner)
        payloads = [
            {"token": token, "broken": generations * (token < broken)} for token in range(12)
        ]
        members.enqueue_many(payloads)
        if sealed:
            batch.seal()


def _retry_summer() -> bool:
    summer = next(batch for batch in shop.app.batches.list() if batch.name == "summer campaign")
    return summer.finished_at is not None and _by_hand(
        f"state:dead batch:{summer.id}", "the videos were uploaded again"
    )


def _by_hand(filter: str, reason: str) -> bool:  # noqa: A002 - as everywhere
    """Somebody retries all that died so, once one has."""
    if _first(filter) is None:
        return False
    with contextlib.suppress(Refused):
        shop.app.operations.start("retry", filter, reason=reason)
    return True


def _first(filter: str) -> str | None:  # noqa: A002 - as everywhere
    found = shop.app.jobs.list(filter, limit=1)
    return found[0].id if found else None


def _mend() -> bool:
    """Somebody retries one job with another file."""
    job = _first("state:dead kind:import_table")
    if job is not None:
        other = {"payload": {"file": "customers.mended.csv"}}
        shop.app.jobs.retry(job, reason="the customer sent another file", overrides=other)
    return job is not None


def _cancel() -> bool:
    """Somebody does not want one any more; it may have ended meanwhile."""
    job = _first("state:queued kind:sync_contacts")
    if job is None:
        return False
    try:
        shop.app.jobs.cancel(job, reason="the contacts were deleted")
    except IllegalMove:
        return False
    return True


# (seconds after the beginning, what somebody does as soon as it can be done)
PLANS: tuple[tuple[float, Callable[[], object]], ...] = (
    (
        3,
        lambda: shop.app.dependencies.set(
            "model-api", concurrency=4, until=900, reason="they asked us to be gentle"
        ),
    ),
    (4, lambda: shop.app.kinds.hold("publish_post", until=30, reason="the editor is at lunch")),
    (
        5,
        lambda: shop.app.queues.pause(
            "partner", until=20, reason="the partner maintains their side"
        ),
    ),
    (6, _cancel),
    (
        8,
        lambda: _by_hand("state:dead kind:parse_feed", "is it mended?"),
    ),  # it is not: the operation stops by itself
    (9, _mend),
    (10, _retry_summer),
    (
        12,
        lambda: shop.app.alerts.silence(
            "retry_ratio", 1800, reason="the mail server is being moved"
        ),
    ),
    (14, lambda: _by_hand("state:dead kind:import_table", "the files were sent again")),
)


def _told_to_leave(within: float) -> bool:
    """stdin says nothing; it only ends."""
    return bool(select.select([sys.stdin], [], [], within)[0])


if __name__ == "__main__":
    feed(float(sys.argv[1]))
