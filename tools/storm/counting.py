"""The plain half of the verdict: what counting alone can say, without a word of the engine or of the checker."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from storm.looking import ask

TERMINAL = ("succeeded", "dead", "cancelled")
ENDS = {"job.succeeded", "job.died", "job.cancelled"}
ANEW = {"job.retried", "job.discarded", "job.released"}


class Facts(NamedTuple):
    """What was there when it was over."""

    jobs: dict[str, tuple[str, str, int]]  # id → kind, state, token
    ok: set[str]
    rolled_back: set[str]
    ended: set[tuple[str, int]]  # witnessed
    stories: dict[str, list[str]]


def gathered(url: str, folder: Path) -> Facts:
    jobs = {
        row[0]: (row[1], row[2], int(row[3]))
        for row in ask(url, "SELECT id, kind, state, token FROM {p}job")
    }
    stories: dict[str, list[str]] = defaultdict(list)
    for kind, job_id, data, bundle in ask(
        url, "SELECT type, job_id, data, bundle FROM {p}event ORDER BY id"
    ):
        for told in [job_id] if bundle is None else _jobs_of(data):
            if told is not None:
                stories[told].append(kind)
    ok, rolled_back = _told(folder / "clients.jsonl")
    lines = _lines(folder / "witness.jsonl")
    ended = {(line["job"], line["token"]) for line in lines if line["what"] == "end"}
    return Facts(jobs, ok, rolled_back, ended, stories)


def _jobs_of(bundle: str) -> list[str]:
    """One row may tell the same of many jobs: a line for each, beside lines of what is told."""
    return [json.loads(line)[0] for line in bundle.split("\n") if line.startswith("[")]


def _told(path: Path) -> tuple[set[str], set[str]]:
    asked: dict[str, str] = {}
    found: dict[str, set[str]] = {"ok": set(), "rolled_back": set()}
    for line in _lines(path):
        if line["line"] == "begin":
            asked[line["call"]] = line["what"]
        elif line["line"] == "end" and line["answer"] in found:
            found[line["answer"]].update(line["jobs"])
    return found["ok"], found["rolled_back"]


def _lines(path: Path) -> list[dict[str, Any]]:
    found = []
    if path.exists():
        for line in path.read_text(errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:  # cut by a kill
                continue
    return found


def violations(facts: Facts) -> list[str]:
    found = [f"accepted and not there: {job}" for job in sorted(facts.ok - facts.jobs.keys())]
    found += [
        f"rolled back and there: {job}" for job in sorted(facts.rolled_back & facts.jobs.keys())
    ]
    for job, (kind, state, token) in facts.jobs.items():
        if kind.startswith("mulligan."):
            continue
        if state == "succeeded" and (job, token) not in facts.ended:
            found.append(f"succeeded without having come to its end: {job} {kind} token {token}")
        found += _twice(job, facts.stories.get(job, []))
    return found


def _twice(job: str, story: list[str]) -> list[str]:
    """Two endings without a retry in between."""
    over = False
    for event in story:
        if event in ENDS and over:
            return [f"ended twice: {job} {' '.join(story)}"]
        over = (over or event in ENDS) and event not in ANEW
    return []


def summary(facts: Facts) -> dict[str, int]:
    states = Counter(state for _, state, _ in facts.jobs.values())
    return {
        "jobs": len(facts.jobs),
        **{state: states[state] for state in (*TERMINAL, "parked", "queued", "running")},
        "attempts": sum(token for _, _, token in facts.jobs.values()),
        "events": sum(len(story) for story in facts.stories.values()),
        "accepted": len(facts.ok),
        "rolled back": len(facts.rolled_back),
    }
