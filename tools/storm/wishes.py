"""What clients of a storm ask for: kinds and payloads, drawn from a seed. Nothing here talks to anybody."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

SHORT = 0.05
LONGER = 1.5


class Wish(NamedTuple):
    kind: str
    payload: dict[str, Any]
    options: dict[str, Any]


# How many of a hundred jobs are of which kind; what kills or overstays is rare, for it costs its neighbours time.
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
    "poison": 0.5,
    "overstays": 0.6,
    "holds_the_gil": 0.2,
    "eats": 0.2,
}
FATES = {"well": 10, "fails": 2, "dies": 1, "kills": 0.3, "splits": 1}
OWNERS = ("", "acme", "globex")


def drawn(rng: Random, weights: dict[str, float]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def a_wish(rng: Random, number: int) -> Wish:
    kind = drawn(rng, dict(KINDS))
    options: dict[str, Any] = {"owner": rng.choice(OWNERS)}
    if rng.random() < 0.1:
        options["delay"] = rng.choice((0.5, 2, 5))
    if rng.random() < 0.1:
        options["priority"] = rng.randint(-9, 9)
    return Wish(kind, payload_of(rng, kind, number), options)


def payload_of(rng: Random, kind: str, number: int) -> dict[str, Any]:
    more: dict[str, Any] = {
        "sleeps": {"seconds": rng.choice((SHORT, SHORT, 0.3, LONGER))},
        "sleeps_async": {"seconds": rng.choice((SHORT, 0.3, LONGER))},
        "fails": {"times": rng.choice((1, 1, 2, 3, 5))},
        "asks": {"outcome": rng.choice(("retry", "snooze", "park"))},
        "parent": {"children": rng.randint(1, 3)},
        "saves": {"steps": rng.randint(1, 2)},
    }.get(kind, {})
    if kind == "once":
        return {"key": f"key-{rng.randrange(20)}"}
    return {"n": number, **more}
