"""Generate the tables of invariants in docs/contributors/invariants.md. Used by `generate.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mulligan.doctor.verify.case import CHECKED_ELSEWHERE, CLIENTS, INVARIANTS, WITNESS

OPTIONS = {CLIENTS: "`--clients`", WITNESS: "`--witness`"}


def page(_: str, table: Callable[..., str]) -> str:
    rows: list[list[Any]] = []
    for invariant in INVARIANTS.values():
        options = [OPTIONS[need] for need in invariant.needs if need in OPTIONS]
        if invariant.settled:
            options.append("`--settled`")
        rows.append([invariant.id, invariant.sentence, ", ".join(options)])
    return table(("", "what must hold", "only with"), rows)


def elsewhere(table: Callable[..., str]) -> str:
    return table(("", "why not here"), [[name, why] for name, why in CHECKED_ELSEWHERE.items()])
