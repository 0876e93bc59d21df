"""How `mulligan policy show` prints a policy: what holds, what follows for each class, and when attempts would come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from mulligan.cli.output import as_json, cell, chosen, show_rows
from mulligan.core.attempt import RETRYABLE
from mulligan.engine.policies import PolicyExplanation, Setting
from mulligan.policy.backoff import Exponential, Fixed, Table
from mulligan.policy.outlook import ClassOutlook, Try, described, harmless
from mulligan.policy.phrase import duration, size
from mulligan.policy.retry import Then, as_ladder
from mulligan.policy.rule import Rule

LINE = ("kind", "queue", "retries", "from", "backoff", "not_retried", "last_try")
FIELD = ("name", "value", "scope", "origin")
CLASS = ("class", "retried", "limit", "limit_origin", "backoff", "backoff_origin", "counts", "then")
RETRIED = ("class", "limit", "limit_origin", "backoff", "backoff_origin", "then")
RULE = ("rule", "code", "class", "limit", "backoff", "then", "more")
TRY = ("classes", "attempt", "wait", "earliest", "latest", "at_earliest", "at", "at_latest")
BAR = 32  # characters


# -- all kinds ----------------------------------------------------------------------------------------
def show_all(found: Sequence[PolicyExplanation], output: str | None) -> None:
    if chosen(output) in {"json", "jsonl"}:
        show_rows([one.to_plain() for one in found], (), output)
        return
    show_rows([_line(one) for one in found], LINE, output, short="backoff")


def _line(one: PolicyExplanation) -> dict[str, Any]:
    retries, backoff = one.field("max_retries"), one.field("backoff")
    last = max((kept.calendar[-1].at_latest for kept in one.classes), default=0.0)
    return {
        "kind": one.kind or "(system)",
        "queue": one.queue,
        "retries": retries.value,
        "from": retries.origin,
        "backoff": described(backoff.value),
        "not_retried": _listed([kept.cls for kept in one.classes if not kept.retried and kept.cls in RETRYABLE]),
        "last_try": f"within {duration(last)}" if last else "at once",
    }


def _listed(names: Sequence[str]) -> str:
    return ", ".join(str(name) for name in names)


# -- one kind -----------------------------------------------------------------------------------------
def show_one(one: PolicyExplanation, output: str | None) -> None:
    form = chosen(output)
    if form in {"json", "jsonl"}:
        click.echo(as_json(one.to_plain(), 2 if form == "json" else None))
    elif form == "tsv":
        _tsv("field", [_field(field) for field in one.fields], FIELD)
        _tsv("class", [_class(kept) for kept in one.classes], CLASS)
        _tsv("rule", [_rule(rule) for rule in one.rules], RULE)
        _tsv("try", [record for names, tries, _ in _calendars(one) for record in _tries(names, tries)], TRY)
    else:
        _tables(one)


def _tsv(first: str, records: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    for record in records:
        click.echo("\t".join((first, *(cell(record[column]) for column in columns))))


def _tables(one: PolicyExplanation) -> None:
    click.echo(f"{cell(one.kind)}, in queue {cell(one.queue)}")
    click.echo()
    show_rows([_field(field) for field in one.fields], FIELD, "table")
    click.echo()
    retried = [kept for kept in one.classes if kept.retried]
    show_rows([_class(kept) for kept in retried], RETRIED, "table", empty="nothing is retried")
    for why in dict.fromkeys(kept.why for kept in one.classes if not kept.retried):
        click.echo(f"not retried: {_listed([kept.cls for kept in one.classes if kept.why == why])} ({why})")
    if one.rules:
        click.echo()
        click.echo("Rules with terms of their own, for what they judge:")
        show_rows([_rule(rule) for rule in one.rules], RULE, "table")
    for names, tries, more in _calendars(one):
        click.echo()
        click.echo(f"If every attempt fails with {names}:")
        records = [_for_people(found, tries[-1].at_latest) for found in tries]
        show_rows(records, ("attempt", "wait", "starts_after", "when"), "table")
        if more:
            click.echo("… and so on")


def _field(field: Setting) -> dict[str, Any]:
    return {"name": field.name, "value": _value(field), "scope": field.scope, "origin": field.origin}


def _value(field: Setting) -> str:
    if isinstance(field.value, bool):
        return "yes" if field.value else "no"
    if isinstance(field.value, Exponential | Table | Fixed):
        return described(field.value)
    if field.name == "then":
        return _ladder(field.value)
    if field.name == "max_age" and field.value is not None:
        return duration(field.value)
    if field.value is None:
        return {"only": "every class that can be", "retry_unknown": "unset"}.get(field.name, "no limit")
    return _listed(field.value) if isinstance(field.value, tuple) else str(field.value)


def _class(kept: ClassOutlook) -> dict[str, Any]:
    if not kept.retried:
        return {**dict.fromkeys(CLASS, ""), "class": kept.cls, "retried": f"no: {kept.why}"}
    return {
        "class": kept.cls,
        "retried": "yes",
        "limit": kept.limit,
        "limit_origin": kept.limit_origin,
        "backoff": described(kept.backoff),
        "backoff_origin": kept.backoff_origin,
        "counts": kept.counts,
        "then": _ladder(kept.then),
    }


def _rule(rule: Rule) -> dict[str, Any]:
    more = [
        "" if rule.wait_for_hint else "does not wait for hints",
        rule.alarm and f"alarm {rule.alarm}",
        rule.runbook and f"see {rule.runbook}",
        "in shadow" if rule.shadow else "",
    ]
    return {
        "rule": rule.id,
        "code": rule.code,
        "class": rule.cls,
        "limit": "" if rule.max_retries is None else rule.max_retries,
        "backoff": described(rule.backoff) if rule.backoff else "",
        "then": _ladder(as_ladder(rule.then)) if rule.then else "",
        "more": _listed([part for part in more if part]),
    }


def _ladder(steps: Sequence[Then]) -> str:
    return " → ".join(_step(step) for step in steps)


def _step(step: Then) -> str:
    parts = [
        f"queue {step.queue}" if step.queue else "",
        size(step.memory_limit) if step.memory_limit else "",
        duration(step.timeout) if step.timeout else "",
        _listed([f"{name}={value}" for name, value in harmless(step.settings).items()]),
    ]
    return _listed([part for part in parts if part]) or "the same again"


# -- when ---------------------------------------------------------------------------------------------
def _calendars(one: PolicyExplanation) -> list[tuple[str, tuple[Try, ...], bool]]:
    """Classes that share a calendar share a table."""
    found: dict[tuple[Try, ...], list[ClassOutlook]] = {}
    for kept in one.classes:
        if kept.retried:
            found.setdefault(kept.calendar, []).append(kept)
    return [(_listed([kept.cls for kept in shared]), tries, shared[0].more) for tries, shared in found.items()]


def _tries(names: str, tries: Sequence[Try]) -> list[dict[str, Any]]:
    return [{"classes": names, **found._asdict()} for found in tries]


def _for_people(found: Try, end: float) -> dict[str, Any]:
    return {
        "attempt": found.attempt,
        "wait": _between(found.earliest, found.wait, found.latest) if found.attempt > 1 else "",
        "starts_after": _between(found.at_earliest, found.at, found.at_latest) if found.attempt > 1 else "at once",
        "when": bar(found, end),
    }


def _between(low: float, middle: float, high: float) -> str:
    if low == high:
        return duration(middle)
    return f"{duration(low)} … {duration(high)}"


def bar(found: Try, end: float) -> str:
    """From the earliest to the latest moment, on a line as long as all of it; the dot is the nominal one."""
    if end <= 0:
        return "●"
    low, middle, high = (round(at / end * (BAR - 1)) for at in (found.at_earliest, found.at, found.at_latest))
    drawn = ["·"] * low + ["─"] * (high - low + 1)
    drawn[middle] = "●"
    return "".join(drawn)
