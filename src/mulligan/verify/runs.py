"""What handlers saw against what the store says: S6, S8, S9."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from mulligan.event import EventType
from mulligan.job import State
from mulligan.verify.case import Case, World
from mulligan.verify.finding import Findings, attempt_line, event_line, witness_line
from mulligan.verify.records import END, FAIL, START, digest

APART = frozenset({"lost", "released"})  # the store went on without knowing what became of the handler


class Run(NamedTuple):
    """One call of a handler, as it told of it itself."""

    token: int
    start: Mapping[str, Any]
    end: Mapping[str, Any] | None


def check_runs(case: Case, world: World, findings: Findings, *, watched: bool) -> None:
    """`watched`: handlers of this kind bear witness, so that none at all says something too."""
    runs = _runs(case)
    _given_out(case, runs, findings)
    _side_by_side(case, runs, findings)
    if watched and case.row.state == State.SUCCEEDED:
        _came_to_its_end(case, world, findings)


def _runs(case: Case) -> list[Run]:
    ends = {line["token"]: line for line in case.lines if line["what"] in (END, FAIL)}
    return [Run(line["token"], line, ends.get(line["token"])) for line in case.lines if line["what"] == START]


def _given_out(case: Case, runs: list[Run], findings: Findings) -> None:
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


def _side_by_side(case: Case, runs: list[Run], findings: Findings) -> None:
    rows = {row.token: row for row in case.attempts}
    for earlier in runs:
        for later in runs:
            if later.token <= earlier.token or earlier.end is None or later.start["ns"] >= earlier.end["ns"]:
                continue
            row = rows.get(earlier.token)
            if row is None or row.ended not in APART:
                lines = [witness_line(line) for line in (earlier.start, later.start, earlier.end)]
                what = f"token {later.token} began before token {earlier.token} had come to its end"
                findings.add("S8", what, case.id, witness=lines, store=[attempt_line(row)] if row else [])


def _came_to_its_end(case: Case, world: World, findings: Findings) -> None:
    row = next((row for row in case.attempts if row.token == case.row.token), None)
    skipped = row is not None and "skipped" in json.loads(row.judged or "{}")
    if skipped or not (row and row.verb == "succeed") or row.ended_at >= world.now:  # the files were read before
        return
    mine = [line for line in case.lines if line["token"] == row.token]
    end = next((line for line in mine if line["what"] == END), None)
    told = {"store": [attempt_line(row)], "witness": [witness_line(line) for line in case.lines]}
    if end is None:
        findings.add("S9", f"it succeeded with token {row.token}, whose handler never came to its end", case.id, **told)
    elif "result" in end and digest(json.loads(case.row.result or "null")) != end["result"]:
        what = f"the result that is stored is not the one that token {row.token} returned"
        findings.add("S9", what, case.id, **told)
