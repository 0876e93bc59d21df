"""The demo's traffic: a program that enqueues a few jobs a second, for a while, until its stdin ends."""

from __future__ import annotations

import random
import select
import sys
import time
from collections.abc import Callable

from mulligan.cli import demo_jobs as shop
from mulligan.errors import StoreUnavailable
from mulligan.job import Job

PAUSE = (0.15, 0.6)  # seconds between two jobs


def _number() -> int:
    return random.randrange(1000, 10_000)


# (weight, enqueue): the odd ones are rare, as in life.
TRAFFIC: tuple[tuple[float, Callable[[], Job]], ...] = (
    (50, lambda: shop.resize_photo.enqueue(photo=f"photo-{_number()}.jpg")),
    (16, lambda: shop.send_receipt.enqueue(order=_number(), fails=random.choice((0, 1, 1, 2, 3)))),
    (10, lambda: shop.encode_video.enqueue(clip=_number(), seconds=random.uniform(6, 25))),
    (8, lambda: shop.sync_contacts.enqueue(page=_number())),
    (4, lambda: shop.import_table.enqueue(file=f"customers-{_number()}.csv")),
    (2, lambda: shop.parse_feed.enqueue(feed=f"feed-{_number()}")),
    (2, lambda: shop.build_report.enqueue(month="2026-02")),
    (2, lambda: shop.charge_card.enqueue(order=_number())),
    (1, lambda: shop.publish_post.enqueue(post=f"post-{_number()}")),
    (0.7, lambda: shop.convert_raw.enqueue(photo=f"photo-{_number()}.raw")),
)


def feed(seconds: float) -> None:
    for _, enqueue in TRAFFIC:  # one of each at once, so that every kind of ending is seen early
        enqueue()
    weights = [weight for weight, _ in TRAFFIC]
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and not _told_to_leave(random.uniform(*PAUSE)):
        try:
            random.choices(TRAFFIC, weights)[0][1]()
        except StoreUnavailable:
            continue


def _told_to_leave(within: float) -> bool:
    """stdin says nothing; it only ends."""
    return bool(select.select([sys.stdin], [], [], within)[0])


if __name__ == "__main__":
    feed(float(sys.argv[1]))
