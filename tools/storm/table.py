"""Tables of results for docs/contributors/storm.md."""

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
    """Return the results in a file, oldest first."""
    path = RESULTS / name
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


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
    faults = _faults(shown)
    columns = [_storm_column(result, faults) for result in shown]
    labels = [
        "date",
        "seed",
        "minutes",
        *FIGURES,
        "violations",
        *(f"`{name}`" for name in faults),
        "faults in all",
    ]
    rows = list(zip(labels, *columns, strict=True))
    return _table(("", *(result["store"] for result in shown)), rows)


def _storm_column(result: dict[str, Any], faults: list[str]) -> list[str]:
    """Return the cells of one storm, in the order of the rows."""
    counts = result["faults"]
    return [
        result["at"][:10],
        str(result["seed"]),
        f"{result['seconds'] / 60:g}",
        *(_figure(result, name) for name in FIGURES),
        str(len(result["violations"])),
        *(str(counts.get(name, "–")) for name in faults),
        str(sum(counts.values())),
    ]


def points() -> str:
    """Return a table of the runs that crashed around every commit."""
    rows = []
    for result in lines("points.jsonl"):
        row = (
            result["at"][:10],
            result["store"],
            str(result["seed"]),
            str(result["reached"]),
            str(result["transactions"]),
            str(len(result["bad"])),
        )
        rows.append(row)
    columns = ("date", "store", "seed", "points reached", "transactions", "with a violation")
    return _table(columns, rows)


def _faults(shown: list[dict[str, Any]]) -> list[str]:
    return sorted({name for one in shown for name in one["faults"]})


def _figure(one: dict[str, Any], name: str) -> str:
    value = one["figures"].get(name, "–")
    return f"{value:,}" if isinstance(value, int) else str(value)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(
        "| " + " | ".join(row) + " |" for row in (head, tuple("---" for _ in head), *rows)
    )
