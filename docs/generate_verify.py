"""The table of invariants in docs/operate/verify.md, from the one the checker has. Used by `generate.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mulligan.doctor.verify.case import ALL, CLIENTS, ELSEWHERE, WITNESS

OPTIONS = {CLIENTS: "`--clients`", WITNESS: "`--witness`"}


def page(_: str, table: Callable[..., str]) -> str:
    rows: list[list[Any]] = []
    for one in ALL.values():
        with_what = [OPTIONS[need] for need in one.needs if need in OPTIONS] + (
            ["`--settled`"] if one.settled else []
        )
        rows.append([one.id, one.sentence, ", ".join(with_what)])
    return table(("", "what must hold", "only with"), rows)


def elsewhere(table: Callable[..., str]) -> str:
    return table(("", "why not here"), [[name, why] for name, why in ELSEWHERE.items()])
