"""What clients were told against what the store says: S1, S2, S16, S17, U2, U3."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mulligan.event import EventType
from mulligan.store.base import Store
from mulligan.verify.case import Case
from mulligan.verify.finding import Findings, call_line, event_line
from mulligan.verify.records import OK, ROLLED_BACK, SUBMITS, UNKNOWN, digest
from mulligan.verify.side import Side

# What must be in the story of a job for which this was told ok, as often as it was told.
LEAVES = {
    "retry": (EventType.JOB_RETRIED,),
    "release": (EventType.JOB_RELEASED, EventType.JOB_RETRIED),
    "cancel": (EventType.JOB_CANCELLED, EventType.JOB_CANCEL_REQUESTED),
    "discard": (EventType.JOB_DISCARDED,),
}
ONCE_IS_ENOUGH = frozenset({"cancel"})  # to ask again what was asked already is no move


def check_calls(case: Case, findings: Findings) -> None:
    told = Counter(call["what"] for call in case.calls if call["told"] == OK)
    there = Counter(event.type for event in case.events)
    for what, leaves in LEAVES.items():
        wanted = min(told[what], 1) if what in ONCE_IS_ENOUGH else told[what]
        found = sum(there[leaf] for leaf in leaves)
        if case.complete and found < wanted:
            _say(findings, case, "S1", f"{wanted} × {what} was told ok, and its story has it {found} times", what)
    for call in case.calls:
        if call["told"] == ROLLED_BACK:
            _say(findings, case, "S17", "its transaction was rolled back, and it is there", call["what"])
        if call["told"] == OK and call["what"] in SUBMITS and "key" in call["asked"]:
            _check_key(case, call, findings)


def _check_key(case: Case, call: dict[str, Any] | Any, findings: Findings) -> None:
    asked = call["asked"]
    if case.row.unique_key != asked["key"]:
        what = f"key {asked['key']!r} was answered with a job that has key {case.row.unique_key!r}"
        _say(findings, case, "U3", what, call["what"])
    elif "payloads" in asked and case.row.generation == 1 and _payload(case) not in asked["payloads"]:
        what = f"key {asked['key']!r} was answered with a job that has another payload"
        _say(findings, case, "U3", what, call["what"])


def _payload(case: Case) -> str:
    return digest(json.loads(case.row.payload))


def _say(findings: Findings, case: Case, invariant: str, what: str, call: str) -> None:
    calls = [call_line(one) for one in case.calls if one["what"] == call]
    findings.add(invariant, what, case.id, clients=calls, store=[event_line(event) for event in case.events[-6:]])


def ghost_of(case: Case, side: Side) -> tuple[str, str, str] | None:
    """A job of a kind that clients enqueue, which none of them was told of: someone must have asked for it."""
    row, told = case.row, any(call["told"] == OK and call["what"] in SUBMITS for call in case.calls)
    queued = next((event for event in case.events if event.type == EventType.JOB_QUEUED), None)
    by_us = queued is not None and queued.actor != ""
    if told or by_us or row.kind not in side.kinds_asked or not case.complete:
        return None
    return row.kind, _payload(case), row.id


def check_missing(store: Store, side: Side, findings: Findings, page: int = 500) -> None:
    """S1, U2: told ok, and not there; unless retention has removed it."""
    sql = (
        "SELECT named.job, call.what, call.client, asked, begin_ns, end_ns, told, error FROM named "
        f"JOIN call ON call.id = named.call WHERE call.told = ? AND call.what IN {SUBMITS} "
        "AND NOT EXISTS (SELECT 1 FROM seen WHERE seen.job = named.job) GROUP BY named.job"
    )
    names = ("job", "what", "client", "asked", "begin_ns", "end_ns", "told", "error")
    for rows in _paged(side.ask(sql, OK), page):
        with store.snapshot() as unit:
            for row in rows:
                call = dict(zip(names, row, strict=True))
                if unit.get(call["job"]) is None and not unit.pruned_over(call["job"]):
                    keyed = "key" in json.loads(call["asked"])
                    what = f"{call['client']} was told that it was accepted, and it does not exist"
                    findings.add("U2" if keyed else "S1", what, call["job"], clients=[call_line(call)])


def _paged(rows: Iterator[tuple[Any, ...]], size: int) -> Iterator[Sequence[tuple[Any, ...]]]:
    page: list[tuple[Any, ...]] = []
    for row in rows:
        page.append(row)
        if len(page) == size:
            yield page
            page = []
    if page:
        yield page


def check_ghosts(side: Side, findings: Findings) -> None:
    """Each unknown submit may stand for as many jobs as it asked for, of the payloads it named."""
    may: Counter[tuple[str, str]] = Counter()
    for _, asked in side.unknown_submits():
        kind = str(asked.get("kind", ""))
        for payload in asked.get("payloads", ()):
            may[kind, payload] += 1
        if "payloads" not in asked:
            may[kind, ""] += int(asked.get("count", 1))
    spare: Callable[[str, str], bool] = lambda kind, payload: _take(may, kind, payload)  # noqa: E731
    for kind, payload, job in side.ask("SELECT kind, payload, job FROM ghost ORDER BY job"):
        if not spare(kind, payload) and not any(side.ask("SELECT 1 FROM child WHERE job = ?", job)):
            findings.add("S1", f"nobody asked for this {kind}: no client was told of it, or left in doubt", job)


def _take(may: Counter[tuple[str, str]], kind: str, payload: str) -> bool:
    for key in ((kind, payload), (kind, "")):
        if may[key] > 0:
            may[key] -= 1
            return True
    return False


__all__ = ["UNKNOWN", "check_calls", "check_ghosts", "check_missing", "ghost_of"]
