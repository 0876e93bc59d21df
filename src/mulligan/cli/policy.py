"""How `mulligan policy show` prints a policy: what holds, what follows for each class, and when attempts would come."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from mulligan.cli import Family
from mulligan.cli import completion as complete
from mulligan.cli import options as shared
from mulligan.cli.database import existing, say, settings_with
from mulligan.cli.output import as_json, cell, chosen, show_record, show_rows
from mulligan.core.attempt import RETRYABLE, Failure
from mulligan.core.errors import ConfigError
from mulligan.core.format import duration, size
from mulligan.failures.capture import classify, made_of
from mulligan.failures.rule_sources import configured_rules, pack
from mulligan.failures.rules import Rule
from mulligan.manifest.declared import stored_rules
from mulligan.retries.backoff import Exponential, Fixed, Table
from mulligan.retries.policy import Then, as_ladder
from mulligan.retries.preview import ClassOutlook, Try, described, harmless
from mulligan.retries.service import (
    ATTEMPTS,
    Backtest,
    Policies,
    PolicyExplanation,
    Setting,
    backtested,
)

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
        "not_retried": _join_names(
            [kept.cls for kept in one.classes if not kept.retried and kept.cls in RETRYABLE]
        ),
        "last_try": f"within {duration(last)}" if last else "at once",
    }


def _join_names(names: Sequence[str]) -> str:
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
        _tsv(
            "try",
            [record for names, tries, _ in _calendars(one) for record in _tries(names, tries)],
            TRY,
        )
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
        click.echo(
            f"not retried: {_join_names([kept.cls for kept in one.classes if kept.why == why])} ({why})"
        )
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
    return {
        "name": field.name,
        "value": _value(field),
        "scope": field.scope,
        "origin": field.origin,
    }


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
        return {"only": "every class that can be", "retry_unknown": "unset"}.get(
            field.name, "no limit"
        )
    return _join_names(field.value) if isinstance(field.value, tuple) else str(field.value)


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
        "more": _join_names([part for part in more if part]),
    }


def _ladder(steps: Sequence[Then]) -> str:
    return " → ".join(_step(step) for step in steps)


def _step(step: Then) -> str:
    parts = [
        f"queue {step.queue}" if step.queue else "",
        size(step.memory_limit) if step.memory_limit else "",
        duration(step.timeout) if step.timeout else "",
        _join_names([f"{name}={value}" for name, value in harmless(step.settings).items()]),
    ]
    return _join_names([part for part in parts if part]) or "the same again"


# -- when ---------------------------------------------------------------------------------------------
def _calendars(one: PolicyExplanation) -> list[tuple[str, tuple[Try, ...], bool]]:
    """Classes that share a calendar share a table."""
    found: dict[tuple[Try, ...], list[ClassOutlook]] = {}
    for kept in one.classes:
        if kept.retried:
            found.setdefault(kept.calendar, []).append(kept)
    return [
        (_join_names([kept.cls for kept in shared]), tries, shared[0].more)
        for tries, shared in found.items()
    ]


def _tries(names: str, tries: Sequence[Try]) -> list[dict[str, Any]]:
    return [{"classes": names, **found._asdict()} for found in tries]


def _for_people(found: Try, end: float) -> dict[str, Any]:
    return {
        "attempt": found.attempt,
        "wait": _between(found.earliest, found.wait, found.latest) if found.attempt > 1 else "",
        "starts_after": _between(found.at_earliest, found.at, found.at_latest)
        if found.attempt > 1
        else "at once",
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
    low, middle, high = (
        round(at / end * (BAR - 1)) for at in (found.at_earliest, found.at, found.at_latest)
    )
    drawn = ["·"] * low + ["─"] * (high - low + 1)
    drawn[middle] = "●"
    return "".join(drawn)


# `mulligan policy test`: what would be said of an error. One by hand, or a file of them.

GIVEN = (
    "exception_type",
    "http_status",
    "exit_code",
    "signal",
    "errno",
    "provider_code",
    "program",
)


@click.command("test")
@click.argument("text", required=False, default="")
@click.option(
    "--exception",
    "exception_type",
    metavar="TYPE",
    help="The exception's type: openai.RateLimitError.",
)
@click.option("--http-status", type=int, help="The status of an HTTP answer.")
@click.option("--exit-code", type=int, help="Of a program; -9 and 137 are signal 9.")
@click.option("--signal", type=int, help="That ended a program.")
@click.option("--errno", type=int, help="Of the operating system.")
@click.option("--provider-code", help="The provider's own code: SlowDown, insufficient_quota.")
@click.option("--program", help="The program that failed: ffmpeg.")
@click.option(
    "--kind", help="With the rules of this kind and its app.", shell_complete=complete.kinds
)
@click.option(
    "--jsonl",
    "file",
    type=click.Path(path_type=Path, allow_dash=True, exists=True, dir_okay=False),
    help="One error a line, as JSON; - reads stdin.",
)
@shared.database
@shared.output
def test_command(
    text: str,
    kind: str | None,
    file: Path | None,
    database: str | None,
    output: str | None,
    **given: Any,
) -> None:
    """Say what would be made of an error: code, class, whether it would be retried, and the rule that decides."""
    rules = _rules(kind, database)
    if file is not None:
        _many(file, rules)
        return
    if not text and all(value is None for value in given.values()):
        message = (
            "give a TEXT, or what is known of the error: --exception, --http-status, --exit-code …"
        )
        raise click.UsageError(message)
    said = _read(text)
    _show(classify(said, **given, rules=rules), made_of(said, given, rules), output)


def _rules(kind: str | None, database: str | None) -> Sequence[Rule]:
    settings = settings_with(database)
    if kind is None:
        return configured_rules(settings)
    with existing(settings) as store, store.read() as unit:
        return stored_rules(unit, kind)


def _read(text: str) -> str:
    return sys.stdin.read() if text == "-" else text


def record_of(failure: Failure) -> dict[str, Any]:
    return {
        "code": failure.code,
        "class": str(failure.cls),
        "retryable": failure.retryable,
        "rule": failure.rule,
        "retry_after": failure.retry_after,
        "public": failure.public,
        "evidence": dict(failure.evidence),
        "group": failure.fingerprint,
        "judged": dict(failure.judged),
    }


def _show(failure: Failure, parts: Mapping[str, Any], output: str | None) -> None:
    record = record_of(failure) | {"group_of": dict(parts)}
    if chosen(output) in {"json", "jsonl"}:
        show_record(record, output)
        return
    verdict = "would be tried again" if failure.retryable else "would not be tried again"
    lines = [("code", failure.code), ("class", f"{failure.cls}: {verdict}"), ("rule", failure.rule)]
    if failure.retry_after is not None:
        lines.append(("asked to wait", duration(failure.retry_after)))
    if also := failure.judged.get("also"):
        lines.append(("said otherwise", ", ".join(also)))
    lines += [
        ("public", failure.public),
        ("group", failure.fingerprint),
        ("made of", _join_parts(parts)),
    ]
    lines += [(name, str(value)) for name, value in failure.evidence.items()]
    for name, value in lines:
        click.echo(f"{name}\t{value}" if chosen(output) == "tsv" else f"{name:<15} {value}")


def _join_parts(parts: Mapping[str, Any]) -> str:
    said = {
        name: ", ".join(value) if isinstance(value, list) else value
        for name, value in parts.items()
    }
    return "; ".join(f"{name} {value}" for name, value in said.items() if name != "version")


def _many(file: Path, rules: Sequence[Rule]) -> None:
    """A verdict a line; rows that carry a label are counted too."""
    labelled = right = 0
    for number, row in _rows(file):
        failure = classify(str(row.get("text", "")), **_given(row, file, number), rules=rules)
        named = {"id": row["id"]} if "id" in row else {}
        click.echo(as_json({**named, **record_of(failure)}))
        if isinstance(row.get("retryable"), bool):
            labelled += 1
            right += failure.retryable == row["retryable"]
    if labelled:
        say(
            f"{right} of {labelled} labelled rows have the same answer to: would another try have a chance?"
        )


def _rows(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with click.open_file(str(file), encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{file}, line {number}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ConfigError(
                    f"{file}, line {number}: not an object with text, exception_type, http_status …"
                )
            yield number, row


def _given(row: Mapping[str, Any], file: Path, number: int) -> dict[str, Any]:
    given = {name: row[name] for name in GIVEN if row.get(name) is not None}
    for name, value in given.items():
        wanted = str if name in {"exception_type", "provider_code", "program"} else int
        if type(value) is not wanted:
            raise ConfigError(
                f"{file}, line {number}: {name} must be {wanted.__name__}, not {value!r:.80}"
            )
    return given


# `mulligan policy backtest`: what another table would have done with what has failed.

COUNTS = (
    "jobs",
    "failures",
    "changed",
    "unreadable",
    "attempts",
    "saved",
    "saved_cost",
    "rescued",
    "lost",
    "tried",
)
COLUMNS = ("times", "effect", "before", "after", "sample")


@click.command("backtest")
@click.option(
    "--rules",
    "names",
    multiple=True,
    metavar="PACK|FILE.toml",
    help="Rules to try; may be given again.",
)
@click.option(
    "--since",
    type=shared.Length(),
    default="7d",
    show_default=True,
    help="Jobs enqueued within: 2h, 7d.",
)
@click.option("--kind", help="Only this kind.", shell_complete=complete.kinds)
@shared.database
@shared.output
def backtest(
    names: tuple[str, ...], since: float, kind: str | None, database: str | None, output: str | None
) -> None:
    """Judge stored failures again: changed decisions, attempts saved, successes lost, and what cannot be known.

    Without --rules by the rules of mulligan.toml and the tables of this version.
    """
    settings = settings_with(database)
    rules = (
        [rule for name in names for rule in pack(name).rules]
        if names
        else configured_rules(settings)
    )
    with existing(settings) as store, _bar(output) as step:
        found = backtested(store, rules, since, kind, step)
    show_backtest(found, output)


def _bar(output: str | None) -> Any:
    """A progress bar for people; nobody else waits for it."""
    from contextlib import nullcontext

    if chosen(output) != "table":
        return nullcontext(None)
    return _progress()


class _progress:  # noqa: N801 - used like a function
    def __enter__(self) -> Any:
        from rich.console import Console
        from rich.progress import Progress

        self._progress = Progress(console=Console(stderr=True), transient=True)
        self._progress.start()
        task = self._progress.add_task("attempts read", total=ATTEMPTS)
        return lambda read: self._progress.update(task, completed=read)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def show_backtest(found: Backtest, output: str | None) -> None:
    report = found.report
    rows = [
        {**change._asdict(), "times": times, "sample": report.samples.get(change, "")}
        for change, times in report.changes.most_common()
    ]
    if chosen(output) in {"json", "jsonl"}:
        record = {name: getattr(report, name) for name in COUNTS}
        click.echo(
            as_json({**record, "partial": found.partial, "text": list(found.text), "changes": rows})
        )
        return
    show_rows(rows, COLUMNS, output, short="sample")
    for sentence in found.text:
        say(sentence)


# `mulligan policy …`: what holds when a job fails. From the stored manifests, without the app.


@click.group(cls=Family)
def policy() -> None:
    """What holds when a job fails, who says so, and when it is tried again."""


@policy.command()
@click.argument("kind", required=False, shell_complete=complete.kinds)
@shared.database
@shared.output
def show(kind: str | None, database: str | None, output: str | None) -> None:
    """The effective policy of a kind with its calendar of attempts; without KIND a line for each."""
    settings = settings_with(database)
    with existing(settings) as store:
        book = Policies(lambda: store, lambda: settings)
        if kind is None:
            show_all([book.system(), *(book.explain(name) for name in book.kinds())], output)
        else:
            show_one(book.explain(kind), output)
    say("the system layer is as the settings say here; a worker with other settings has another")


policy.add_command(test_command)
policy.add_command(backtest)
