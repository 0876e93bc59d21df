"""What clients were told against what the store says: S1, S2, S16, S17, U2, U3."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mulligan.core.event import EventType
from mulligan.core.job import State
from mulligan.doctor.verify.case import (
    Findings,
    JobCase,
    World,
    attempt_line,
    call_line,
    event_line,
    witness_line,
)
from mulligan.doctor.verify.records import (
    END,
    FAIL,
    OK,
    ROLLED_BACK,
    START,
    SUBMITS,
    UNKNOWN,
    Side,
    digest,
)
from mulligan.storage.base import Store

# What handlers saw against what the store says: S6, S8, S9.

APART = frozenset(
    {"lost", "released"}
)  # the store went on without knowing what became of the handler


class Run(NamedTuple):
    """One call of a handler, as it told of it itself."""

    token: int
    start: Mapping[str, Any]
    end: Mapping[str, Any] | None


def check_runs(case: JobCase, world: World, findings: Findings, *, watched: bool) -> None:
    """`watched`: handlers of this kind bear witness, so that none at all says something too."""
    runs = _runs(case)
    _given_out(case, runs, findings)
    _side_by_side(case, runs, findings)
    if watched and case.row.state == State.SUCCEEDED:
        _came_to_its_end(case, world, findings)


def _runs(case: JobCase) -> list[Run]:
    ends = {line["token"]: line for line in case.lines if line["what"] in (END, FAIL)}
    return [
        Run(line["token"], line, ends.get(line["token"]))
        for line in case.lines
        if line["what"] == START
    ]


def _given_out(case: JobCase, runs: list[Run], findings: Findings) -> None:
    """Each run is of a claim, and each claim is run once."""
    claims = {event.token for event in case.events if event.type == EventType.JOB_STARTED}
    seen: dict[int, Run] = {}
    for run in runs:
        before = seen.setdefault(run.token, run)
        if before is not run:
            lines = [witness_line(before.start), witness_line(run.start)]
            findings.add("S6", f"token {run.token} was run twice", case.id, witness=lines)
        if case.complete and run.token not in claims:
            told = [event_line(event) for event in case.events[-6:]]
            what = f"a handler ran with token {run.token}, which was never given out"
            findings.add("S6", what, case.id, witness=[witness_line(run.start)], store=told)


def _side_by_side(case: JobCase, runs: list[Run], findings: Findings) -> None:
    rows = {row.token: row for row in case.attempts}
    for earlier in runs:
        for later in runs:
            if (
                later.token <= earlier.token
                or earlier.end is None
                or later.start["ns"] >= earlier.end["ns"]
            ):
                continue
            row = rows.get(earlier.token)
            if row is None or row.ended not in APART:
                lines = [witness_line(line) for line in (earlier.start, later.start, earlier.end)]
                what = f"token {later.token} began before token {earlier.token} had come to its end"
                findings.add(
                    "S8", what, case.id, witness=lines, store=[attempt_line(row)] if row else []
                )


def _came_to_its_end(case: JobCase, world: World, findings: Findings) -> None:
    row = next((row for row in case.attempts if row.token == case.row.token), None)
    skipped = row is not None and "skipped" in json.loads(row.judged or "{}")
    if (
        skipped or not (row and row.verb == "succeed") or row.ended_at >= world.now
    ):  # the files were read before
        return
    mine = [line for line in case.lines if line["token"] == row.token]
    end = next((line for line in mine if line["what"] == END), None)
    told = {"store": [attempt_line(row)], "witness": [witness_line(line) for line in case.lines]}
    if end is None:
        findings.add(
            "S9",
            f"it succeeded with token {row.token}, whose handler never came to its end",
            case.id,
            **told,
        )
    elif "result" in end and digest(json.loads(case.row.result or "null")) != end["result"]:
        what = f"the result that is stored is not the one that token {row.token} returned"
        findings.add("S9", what, case.id, **told)


# What clients were told against what the store says: S1, S2, S16, S17, U2, U3.

# What must be in the story of a job for which this was told ok, as often as it was told.
LEAVES = {
    "retry": (EventType.JOB_RETRIED,),
    "release": (EventType.JOB_RELEASED, EventType.JOB_RETRIED),
    "cancel": (EventType.JOB_CANCELLED, EventType.JOB_CANCEL_REQUESTED),
    "discard": (EventType.JOB_DISCARDED,),
}
ONCE_IS_ENOUGH = frozenset({"cancel"})  # to ask again what was asked already is no move


def check_calls(case: JobCase, findings: Findings) -> None:
    told = Counter(call["what"] for call in case.calls if call["told"] == OK)
    there = Counter(event.type for event in case.events)
    for what, leaves in LEAVES.items():
        wanted = min(told[what], 1) if what in ONCE_IS_ENOUGH else told[what]
        found = sum(there[leaf] for leaf in leaves)
        if case.complete and found < wanted:
            _say(
                findings,
                case,
                "S1",
                f"{wanted} × {what} was told ok, and its story has it {found} times",
                what,
            )
    for call in case.calls:
        if call["told"] == ROLLED_BACK:
            _say(
                findings,
                case,
                "S17",
                "its transaction was rolled back, and it is there",
                call["what"],
            )
        if call["told"] == OK and call["what"] in SUBMITS and "key" in call["asked"]:
            _check_key(case, call, findings)


def _check_key(case: JobCase, call: dict[str, Any] | Any, findings: Findings) -> None:
    asked = call["asked"]
    if case.row.unique_key != asked["key"]:
        what = f"key {asked['key']!r} was answered with a job that has key {case.row.unique_key!r}"
        _say(findings, case, "U3", what, call["what"])
    elif (
        "payloads" in asked and case.row.generation == 1 and _payload(case) not in asked["payloads"]
    ):
        what = f"key {asked['key']!r} was answered with a job that has another payload"
        _say(findings, case, "U3", what, call["what"])


def _payload(case: JobCase) -> str:
    return digest(json.loads(case.row.payload))


def _say(findings: Findings, case: JobCase, invariant: str, what: str, call: str) -> None:
    calls = [call_line(one) for one in case.calls if one["what"] == call]
    findings.add(
        invariant,
        what,
        case.id,
        clients=calls,
        store=[event_line(event) for event in case.events[-6:]],
    )


def ghost_of(case: JobCase, side: Side) -> tuple[str, str, str] | None:
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
                if unit.get_job(call["job"]) is None and not unit.find_prune_records(call["job"]):
                    keyed = "key" in json.loads(call["asked"])
                    what = f"{call['client']} was told that it was accepted, and it does not exist"
                    findings.add(
                        "U2" if keyed else "S1", what, call["job"], clients=[call_line(call)]
                    )


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
            findings.add(
                "S1",
                f"nobody asked for this {kind}: no client was told of it, or left in doubt",
                job,
            )


def _take(may: Counter[tuple[str, str]], kind: str, payload: str) -> bool:
    for key in ((kind, payload), (kind, "")):
        if may[key] > 0:
            may[key] -= 1
            return True
    return False


__all__ = ["UNKNOWN", "check_calls", "check_ghosts", "check_missing", "ghost_of"]
