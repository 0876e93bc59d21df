"""Tables of results for docs/explain/storm.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
STORES = ("sqlite", "postgres")
FIGURES = (
    "jobs",
    "attempts",
    "events",
    "calls",
    "witness lines",
    "commits fallen at",
    "slowed down by",
    "recovered after s",
    "settled after s",
)


def lines(name: str) -> list[dict[str, Any]]:
    path = RESULTS / name
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if path.exists()
        else []
    )


def longest(results: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the longest run of each database; the newest of several."""
    best: dict[str, dict[str, Any]] = {}
    for one in results:
        if one["seconds"] >= best.get(one["store"], one)["seconds"]:
            best[one["store"]] = one
    return best


def storms() -> str:
    """Return a table with faults and figures in rows and one column per database."""
    best = longest(lines("storms.jsonl"))
    shown = [best[store] for store in STORES if store in best]
    rows = [
        ("date", *(one["at"][:10] for one in shown)),
        ("seed", *(str(one["seed"]) for one in shown)),
        ("minutes", *(f"{one['seconds'] / 60:g}" for one in shown)),
        *((name, *(_figure(one, name) for one in shown)) for name in FIGURES),
        ("violations", *(str(len(one["violations"])) for one in shown)),
        *(
            (f"`{name}`", *(str(one["faults"].get(name, "–")) for one in shown))
            for name in _faults(shown)
        ),
        ("faults in all", *(str(sum(one["faults"].values())) for one in shown)),
    ]
    return _table(("", *(one["store"] for one in shown)), rows)


def points() -> str:
    rows = [
        (
            one["at"][:10],
            one["store"],
            str(one["seed"]),
            str(one["reached"]),
            str(one["transactions"]),
            str(len(one["bad"])),
        )
        for one in lines("points.jsonl")
    ]
    return _table(
        ("date", "store", "seed", "points reached", "transactions", "with a violation"), rows
    )


def _faults(shown: list[dict[str, Any]]) -> list[str]:
    return sorted({name for one in shown for name in one["faults"]})


def _figure(one: dict[str, Any], name: str) -> str:
    value = one["figures"].get(name, "–")
    return f"{value:,}" if isinstance(value, int) else str(value)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(
        "| " + " | ".join(row) + " |" for row in (head, tuple("---" for _ in head), *rows)
    )
