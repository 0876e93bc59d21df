"""`mulligan jobs explain`: a job's story, why it is where it is, and what to type next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from mulligan.cli.database import desk, typed
from mulligan.cli.output import as_json, attempt_record, cell, job_record, lines
from mulligan.core.attempt import Verb
from mulligan.engine.explain import Explanation, Fact
from mulligan.job import State

INDENT = "  "


def show_explanation(given: str, database: str | None, output: str | None, *, private: bool = False) -> None:
    with desk(database) as at:
        told = at.jobs.explain(at.jobs.resolve(given), private=private)
    commands = list(_next(told, database))
    if output in {"json", "jsonl"}:
        record = _record(told, commands, private=private)
        click.echo(as_json(record, 2 if output == "json" else None))
        return
    for line in (lines(told.text).rstrip(), *_facts(told), *_commands(commands)):
        click.echo(line)


def _record(told: Explanation, commands: list[tuple[str, str]], *, private: bool) -> dict[str, Any]:
    attempts = [attempt_record(attempt) for attempt in told.attempts]
    return {
        "job": job_record(told.job),
        "why": told.job.why,
        "now": told.now,
        "story": [{"at": one.at.isoformat(), "text": one.text} for one in told.story],
        "text": told.text,
        "facts": [fact._asdict() for fact in told.facts],
        "attempts": attempts if private else [_public(attempt) for attempt in attempts],
        "choices": told.choices,
        "next": [command for command, _ in commands],
    }


def _public(attempt: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attempt.items() if name != "private"}


def _facts(told: Explanation) -> Iterator[str]:
    yield from ("", "What holds for it")
    job = told.job
    facts = [Fact("queue", f"{job.queue}, priority {job.priority}"), *told.facts]
    if job.deadline_at is not None:
        facts.append(Fact("deadline", f"{job.deadline_at:%Y-%m-%d %H:%M:%S} UTC", "job"))
    if job.uses:
        facts.append(Fact("uses", ", ".join(job.uses), "kind"))
    wide = max(len(fact.name) for fact in facts) + 2
    for fact in facts:
        origin = f"  ({fact.origin})" if fact.origin else ""
        yield f"{INDENT}{fact.name:<{wide}}{cell(fact.value)}{origin}"


def _commands(commands: list[tuple[str, str]]) -> Iterator[str]:
    yield from ("", "What to type next")
    wide = max(len(command) for command, _ in commands) + 2
    for command, words in commands:
        yield f"{INDENT}{command:<{wide}}# {words}"


def _next(told: Explanation, database: str | None) -> Iterator[tuple[str, str]]:
    job = told.job
    if job.phase == "no_worker":
        yield typed("worker", "APP", database=database), "with an app that knows this kind"
    if job.phase == "held" and job.why.startswith(f"queue {job.queue} "):
        yield typed("queues", "resume", job.queue, database=database), "let the whole queue go on"
    if job.state in {State.QUEUED, State.RUNNING}:
        yield typed("jobs", "watch", job.id, database=database), "follow it to its end"
    for verb in told.moves:
        yield from _by_hand(told, verb, database)
    yield typed("jobs", "show", job.id, database=database), "everything about it, with traces"


def _by_hand(told: Explanation, verb: Verb, database: str | None) -> Iterator[tuple[str, str]]:
    job = told.job.id
    if verb is Verb.RELEASE:
        for choice in told.choices or ("",):
            said = ("--choice", choice) if choice else ()
            yield typed("jobs", "release", job, *said, database=database), "let it go on"
    elif verb is Verb.RETRY_BY_HAND:
        yield typed("jobs", "retry", job, database=database), "run it again, with fresh counters"
    elif verb is Verb.CANCEL:
        yield typed("jobs", "cancel", job, database=database), "nobody wants it any more"
    elif verb is Verb.DISCARD:
        yield typed("jobs", "discard", job, "--reason", "WHY", database=database), "give it up"
