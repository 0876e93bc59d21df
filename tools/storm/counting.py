"""Verify a storm by counting, independently of the engine and of the checker."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from storm.queries import query

TERMINAL = ("succeeded", "dead", "cancelled")
ENDS = {"job.succeeded", "job.died", "job.cancelled"}
RESTARTS = {"job.retried", "job.discarded", "job.released"}


class Facts(NamedTuple):
    """Jobs, events and records at the end of a storm."""

    jobs: dict[str, tuple[str, str, int]]  # id → kind, state, token
    ok: set[str]
    rolled_back: set[str]
    ended: set[tuple[str, int]]  # witnessed
    stories: dict[str, list[str]]


def collect_facts(url: str, folder: Path) -> Facts:
    jobs = {
        row[0]: (row[1], row[2], int(row[3]))
        for row in query(url, "SELECT id, kind, state, token FROM {p}job")
    }
    stories: dict[str, list[str]] = defaultdict(list)
    for kind, job_id, data, bundle in query(
        url, "SELECT type, job_id, data, bundle FROM {p}event ORDER BY id"
    ):
        for event_job in [job_id] if bundle is None else _bundle_job_ids(data):
            if event_job is not None:
                stories[event_job].append(kind)
    ok, rolled_back = _client_answers(folder / "clients.jsonl")
    lines = _connections(folder / "witness.jsonl")
    ended = {(line["job"], line["token"]) for line in lines if line["what"] == "end"}
    return Facts(jobs, ok, rolled_back, ended, stories)


def _bundle_job_ids(bundle: str) -> list[str]:
    """Return the jobs of an event row that describes many: one JSON array per job."""
    return [json.loads(line)[0] for line in bundle.split("\n") if line.startswith("[")]


def _client_answers(path: Path) -> tuple[set[str], set[str]]:
    found: dict[str, set[str]] = {"ok": set(), "rolled_back": set()}
    for line in _connections(path):
        if line["line"] == "end" and line["answer"] in found:
            found[line["answer"]].update(line["jobs"])
    return found["ok"], found["rolled_back"]


def _connections(path: Path) -> list[dict[str, Any]]:
    found = []
    if path.exists():
        for line in path.read_text(errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:  # cut by a kill
                continue
    return found


def violations(facts: Facts) -> list[str]:
    found = [f"accepted but missing: {job}" for job in sorted(facts.ok - facts.jobs.keys())]
    found += [
        f"rolled back but present: {job}" for job in sorted(facts.rolled_back & facts.jobs.keys())
    ]
    for job, (kind, state, token) in facts.jobs.items():
        if kind.startswith("mulligan."):
            continue
        if state == "succeeded" and (job, token) not in facts.ended:
            found.append(
                f"succeeded although its handler did not finish: {job} {kind} token {token}"
            )
        found += _find_double_ending(job, facts.stories.get(job, []))
    return found


def _find_double_ending(job: str, story: list[str]) -> list[str]:
    """Report a job that ended twice without a retry in between."""
    over = False
    for event in story:
        if event in ENDS and over:
            return [f"ended twice: {job} {' '.join(story)}"]
        over = (over or event in ENDS) and event not in RESTARTS
    return []


def summary(facts: Facts) -> dict[str, int]:
    count_states = Counter(state for _, state, _ in facts.jobs.values())
    return {
        "jobs": len(facts.jobs),
        **{state: count_states[state] for state in (*TERMINAL, "parked", "queued", "running")},
        "attempts": sum(token for _, _, token in facts.jobs.values()),
        "events": sum(len(story) for story in facts.stories.values()),
        "accepted": len(facts.ok),
        "rolled back": len(facts.rolled_back),
    }
