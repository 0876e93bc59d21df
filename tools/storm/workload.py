"""Draw the jobs that clients of a storm enqueue: kinds, payloads and options. Pure."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

SHORT = 0.05
LONG = 1.5


class JobRequest(NamedTuple):
    """Arguments of one enqueue."""

    kind: str
    payload: dict[str, Any]
    options: dict[str, Any]


# Share of each kind in percent. Kinds that kill or block their runner are rare: they cost others time.
KINDS = {
    "plain": 30,
    "sleeps": 18,
    "sleeps_async": 8,
    "fails": 8,
    "dies": 3,
    "asks": 6,
    "parent": 6,
    "once": 8,
    "calls": 8,
    "saves": 1,
    "alone": 2,
    "large": 0.05,
    "poison": 0.5,
    "overstays": 0.6,
    "holds_the_gil": 0.2,
    "eats": 0.2,
}
MEMBER_OUTCOMES = {"well": 10, "fails": 2, "dies": 1, "kills": 0.3, "splits": 1}
OWNERS = ("", "acme", "globex")


def draw_weighted(rng: Random, weights: dict[str, float]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def draw_request(rng: Random, number: int) -> JobRequest:
    kind = draw_weighted(rng, dict(KINDS))
    options: dict[str, Any] = {"owner": rng.choice(OWNERS)}
    if rng.random() < 0.1:
        options["delay"] = rng.choice((0.5, 2, 5))
    if rng.random() < 0.1:
        options["priority"] = rng.randint(-9, 9)
    return JobRequest(kind, draw_payload(rng, kind, number), options)


def draw_payload(rng: Random, kind: str, number: int) -> dict[str, Any]:
    arguments: dict[str, dict[str, Any]] = {
        "sleeps": {"seconds": rng.choice((SHORT, SHORT, 0.3, LONG))},
        "sleeps_async": {"seconds": rng.choice((SHORT, 0.3, LONG))},
        "fails": {"times": rng.choice((1, 1, 2, 3, 5))},
        "asks": {"outcome": rng.choice(("retry", "snooze", "park"))},
        "parent": {"children": rng.randint(1, 3)},
        "saves": {"steps": rng.randint(1, 2)},
    }
    if kind == "once":
        return {"key": f"key-{rng.randrange(20)}"}
    return {"n": number, **arguments.get(kind, {})}
