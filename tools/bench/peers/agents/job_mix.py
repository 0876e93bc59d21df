"""Jobs of many kinds for Mulligan: 20 kinds, 5 queues, 50 owners, payloads of 1 kB, results.

A fifth of the jobs is unique, a fifth is in batches. The same seed gives the same jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from random import Random
from typing import Any, NamedTuple

import bodies

from mulligan import Kind, Mulligan, Unique

KINDS = 20
QUEUES = 5
OWNERS = 50
PAYLOAD = 1000  # bytes, about
CALL = 10  # jobs of one kind and owner that are enqueued together
BATCH = 10  # calls whose jobs are one batch


class Membership(Enum):
    """How a job is enqueued: three fifths alone, a fifth unique, a fifth in a batch."""

    ALONE = "alone"
    UNIQUE = "unique"
    BATCH = "batch"


_MEMBERSHIPS = (Membership.ALONE,) * 3 + (Membership.UNIQUE, Membership.BATCH)
_WORDS = [
    "invoice",
    "render",
    "upload",
    "thumbnail",
    "campaign",
    "contract",
    "résumé",
    "配送",
    "station",
    "mail",
]
_UNIQUE = Unique(by=("payload.document",))


class MixedCall(NamedTuple):
    """Jobs with the same options."""

    kind: int
    owner: str
    membership: Membership
    payloads: list[dict[str, Any]]


def declare_kinds(app: Mulligan) -> list[Kind[Any, Any]]:
    """Declare the kinds, spread over the queues. Each returns a small result."""
    return [
        app.job(name=f"mixed_{number:02}", queue=f"queue_{number % QUEUES}")(_handler(number))
        for number in range(KINDS)
    ]


def _handler(number: int) -> Callable[..., Any]:
    async def handle(
        i: int, document: str, title: str, tags: list[str], totals: dict[str, float], text: str
    ) -> dict[str, Any]:
        bodies.noop(i)
        return {
            "document": document,
            "kind": number,
            "length": len(text),
            "total": totals["net"] + totals["tax"],
            "tags": len(tags),
            "title": title,
        }

    return handle


def draw_calls(n: int, seed: int) -> Iterator[MixedCall]:
    """Yield calls that enqueue n jobs."""
    rng = Random(seed)
    for first in range(0, n, CALL):
        yield MixedCall(
            kind=rng.randrange(KINDS),
            owner=f"owner-{rng.randrange(OWNERS):02}",
            membership=_MEMBERSHIPS[first // CALL % len(_MEMBERSHIPS)],
            payloads=[_draw_payload(i, seed, rng) for i in range(first, min(n, first + CALL))],
        )


def _draw_payload(i: int, seed: int, rng: Random) -> dict[str, Any]:
    words = rng.choices(_WORDS, k=4)
    text = f"{rng.getrandbits(64):016x} {' '.join(words)} "
    return {
        "i": i,
        "document": f"doc-{seed}-{i}-{rng.getrandbits(48):012x}",
        "title": " ".join(words),
        "tags": rng.sample(_WORDS, 3),
        "totals": {"net": rng.randrange(10**6) / 100, "tax": rng.randrange(10**5) / 100},
        "text": (text * PAYLOAD)[: PAYLOAD - 250],
    }


def enqueue(app: Mulligan, kinds: list[Kind[Any, Any]], n: int, seed: int) -> None:
    """Enqueue n jobs."""
    members: list[MixedCall] = []
    for call in draw_calls(n, seed):
        if call.membership is Membership.BATCH:
            members.append(call)
        else:
            unique = _UNIQUE if call.membership is Membership.UNIQUE else None
            kinds[call.kind].options(owner=call.owner, unique=unique).enqueue_many(call.payloads)
        if len(members) == BATCH:
            _enqueue_batch(app, kinds, members)
            members = []
    if members:
        _enqueue_batch(app, kinds, members)


def _enqueue_batch(app: Mulligan, kinds: list[Kind[Any, Any]], calls: list[MixedCall]) -> None:
    batch = app.batch(f"mixed {calls[0].payloads[0]['document']}")
    for call in calls:
        kinds[call.kind].options(owner=call.owner, batch=batch).enqueue_many(call.payloads)
    batch.seal()
