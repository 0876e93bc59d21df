"""The demo's traffic: a program that enqueues a few jobs a second, for a while, until its stdin ends."""

from __future__ import annotations

import contextlib
import random
import select
import sys
import time
from collections.abc import Callable

from mulligan.cli import demo_jobs as shop
from mulligan.errors import Refused, StoreUnavailable
from mulligan.job import Job

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
    (4, lambda: shop.import_table.options(owner=_owner()).enqueue(file=f"customers-{_number()}.csv")),
    (2, lambda: shop.parse_feed.enqueue(feed=f"feed-{_number()}")),
    (2, lambda: shop.build_report.enqueue(month="2026-02")),
    (2, lambda: shop.charge_card.enqueue(order=_number())),
    (1, lambda: shop.publish_post.enqueue(post=f"post-{_number()}")),
    (0.7, lambda: shop.convert_raw.enqueue(photo=f"photo-{_number()}.raw")),
)


def feed(seconds: float) -> None:
    for _, enqueue in TRAFFIC:  # one of each at once, so that every kind of ending is seen early
        enqueue()
    _campaigns()
    weights = [weight for weight, _ in TRAFFIC]
    began = time.monotonic()
    ends, plans = began + seconds, list(PLANS)
    while time.monotonic() < ends and not _told_to_leave(random.uniform(*PAUSE)):
        try:
            random.choices(TRAFFIC, weights)[0][1]()
            if plans and time.monotonic() - began > plans[0][0]:
                plans.pop(0)[1]()
        except StoreUnavailable:
            continue


def _campaigns() -> None:
    """Batches: one that is ready, one that is partial, and one that is still being filled."""
    for name, broken, sealed in (
        ("spring campaign", 0, True),
        ("summer campaign", 3, True),
        ("autumn campaign", 1, False),
    ):
        batch = shop.app.batch(name, owner=_owner())
        members = shop.watermark.options(batch=batch, owner=batch.owner)
        members.enqueue_many([{"token": token, "broken": token < broken} for token in range(12)])
        if sealed:
            batch.seal()


def _by_hand(filter: str, reason: str) -> None:  # noqa: A002 - as everywhere
    """Somebody retries all that died so."""
    with contextlib.suppress(Refused):
        shop.app.operations.start("retry", filter, reason=reason)


# (seconds after the beginning, what somebody does)
PLANS: tuple[tuple[float, Callable[[], None]], ...] = (
    (15, lambda: _by_hand("state:dead kind:parse_feed", "is it mended?")),  # it is not: the operation stops by itself
    (18, lambda: _by_hand("state:dead kind:import_table", "the files were sent again")),
)


def _told_to_leave(within: float) -> bool:
    """stdin says nothing; it only ends."""
    return bool(select.select([sys.stdin], [], [], within)[0])


if __name__ == "__main__":
    feed(float(sys.argv[1]))
