"""`mulligan policy show, test, backtest`: how failures are classified and retried.

Works from the stored manifests, without loading the app.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from mulligan.cli import CommandGroup
from mulligan.cli import completion as complete
from mulligan.cli import options as shared
from mulligan.cli.database import load_settings, open_existing, open_services, print_notice
from mulligan.cli.output import (
    format_cell,
    is_json,
    output_format,
    print_json,
    print_rows,
    print_tsv,
    to_json,
)
from mulligan.core.attempt import RETRYABLE, Alarm, Failure
from mulligan.core.errors import ConfigError
from mulligan.core.format import format_duration, format_size
from mulligan.failures.capture import classify, explain_group
from mulligan.failures.rule_sources import load_configured_rules, pack
from mulligan.failures.rules import Rule
from mulligan.retries.backoff import Backoff
from mulligan.retries.policy import Then, to_steps
from mulligan.retries.preview import ClassPreview, PlannedAttempt, redact_settings
from mulligan.retries.service import (
    MAX_BACKTEST_ATTEMPTS,
    Backtest,
    PolicyExplanation,
    PolicyField,
    load_declared_rules,
    run_backtest,
)


@click.group(cls=CommandGroup)
def policy() -> None:
    """Show retry policies, test how errors are classified, and backtest rules."""


# --- mulligan policy show ---

KIND_COLUMNS = ("kind", "queue", "retries", "from", "backoff", "not_retried", "last_try")
FIELD_COLUMNS = ("name", "value", "scope", "origin")
CLASS_COLUMNS = (
    "class",
    "retried",
    "limit",
    "limit_origin",
    "backoff",
    "backoff_origin",
    "counts",
    "then",
)
RETRIED_CLASS_COLUMNS = ("class", "limit", "limit_origin", "backoff", "backoff_origin", "then")
RULE_COLUMNS = ("rule", "code", "class", "limit", "backoff", "then", "more")
TRY_COLUMNS = (
    "classes",
    "attempt",
    "wait",
    "earliest",
    "latest",
    "at_earliest",
    "at",
    "at_latest",
)
CALENDAR_COLUMNS = ("attempt", "wait", "starts_after", "when")
WINDOW_WIDTH = 32  # characters


@policy.command("show")
@click.argument("kind", required=False, shell_complete=complete.complete_kinds)
@shared.database_option
@shared.output_option
def show(kind: str | None, database: str | None, output: str | None) -> None:
    """Show the effective policy of KIND and when its attempts start. Without KIND: list all."""
    with open_services(database) as services:
        policies = services.policy
        if kind is None:
            kinds = [policies.explain(name) for name in policies.kinds()]
            _show_all([policies.system(), *kinds], output)
        else:
            _show_kind(policies.explain(kind), output)
    print_notice(
        "System defaults are those of the settings here. A worker with other settings differs."
    )


def _show_all(explanations: Sequence[PolicyExplanation], output: str | None) -> None:
    if is_json(output):
        print_rows([explanation.to_dict() for explanation in explanations], (), output)
        return
    rows = [_kind_row(explanation) for explanation in explanations]
    print_rows(rows, KIND_COLUMNS, output, truncate="backoff")


def _kind_row(explanation: PolicyExplanation) -> dict[str, Any]:
    retries = explanation.field("max_retries")
    backoff = explanation.field("backoff")
    last_start = 0.0
    not_retried = []
    for cls in explanation.classes:
        last_start = max(last_start, cls.calendar[-1].at_latest)
        if not cls.retried and cls.cls in RETRYABLE:
            not_retried.append(cls.cls)
    last_try = f"within {format_duration(last_start)}" if last_start else "at once"
    return {
        "kind": explanation.kind or "(system)",
        "queue": explanation.queue,
        "retries": retries.value,
        "from": retries.origin,
        "backoff": backoff.value.describe(),
        "not_retried": _join(not_retried),
        "last_try": last_try,
    }


def _join(names: Sequence[str]) -> str:
    return ", ".join(str(name) for name in names)


def _show_kind(explanation: PolicyExplanation, output: str | None) -> None:
    if is_json(output):
        print_json(explanation.to_dict(), output)
    elif output_format(output) == "tsv":
        _print_kind_tsv(explanation)
    else:
        _print_kind_tables(explanation)


def _print_kind_tsv(explanation: PolicyExplanation) -> None:
    for field in explanation.fields:
        _print_section_row("field", _field_row(field), FIELD_COLUMNS)
    for cls in explanation.classes:
        _print_section_row("class", _class_row(cls), CLASS_COLUMNS)
    for rule in explanation.rules:
        _print_section_row("rule", _rule_row(rule), RULE_COLUMNS)
    for calendar in _calendars(explanation):
        for attempt in calendar.attempts:
            row = {"classes": calendar.classes, **attempt._asdict()}
            _print_section_row("try", row, TRY_COLUMNS)


def _print_section_row(section: str, row: Mapping[str, Any], columns: Sequence[str]) -> None:
    print_tsv((section, *(row[column] for column in columns)))


def _print_kind_tables(explanation: PolicyExplanation) -> None:
    click.echo(f"{format_cell(explanation.kind)}, in queue {format_cell(explanation.queue)}")
    click.echo()
    print_rows([_field_row(field) for field in explanation.fields], FIELD_COLUMNS, "table")
    click.echo()
    _print_class_table(explanation.classes)
    if explanation.rules:
        click.echo()
        click.echo("Rules with their own retry settings:")
        print_rows([_rule_row(rule) for rule in explanation.rules], RULE_COLUMNS, "table")
    for calendar in _calendars(explanation):
        click.echo()
        click.echo(f"If every attempt fails with {calendar.classes}:")
        end = calendar.attempts[-1].at_latest
        rows = [_calendar_row(attempt, end) for attempt in calendar.attempts]
        print_rows(rows, CALENDAR_COLUMNS, "table")
        if calendar.is_cut:
            click.echo("… and so on")


def _print_class_table(classes: Sequence[ClassPreview]) -> None:
    retried = [_class_row(cls) for cls in classes if cls.retried]
    print_rows(retried, RETRIED_CLASS_COLUMNS, "table", empty="Nothing is retried.")
    by_reason: dict[str, list[str]] = {}
    for cls in classes:
        if not cls.retried:
            by_reason.setdefault(cls.why, []).append(cls.cls)
    for reason, names in by_reason.items():
        click.echo(f"not retried: {_join(names)} ({reason})")


# --- mulligan policy show: rows ---

UNSET_VALUES = {"only": "every retryable class", "retry_unknown": "unset"}


def _field_row(field: PolicyField) -> dict[str, Any]:
    return {
        "name": field.name,
        "value": _format_field(field),
        "scope": field.scope,
        "origin": field.origin,
    }


def _format_field(field: PolicyField) -> str:
    value = field.value
    if value is None:
        return UNSET_VALUES.get(field.name, "no limit")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Backoff):
        return value.describe()
    if field.name == "then":
        return _format_steps(value)
    if field.name == "max_age":
        return format_duration(value)
    return _join(value) if isinstance(value, tuple) else str(value)


def _class_row(cls: ClassPreview) -> dict[str, Any]:
    if not cls.retried:
        empty = dict.fromkeys(CLASS_COLUMNS, "")
        return {**empty, "class": cls.cls, "retried": f"no: {cls.why}"}
    return {
        "class": cls.cls,
        "retried": "yes",
        "limit": cls.limit,
        "limit_origin": cls.limit_origin,
        "backoff": cls.backoff.describe(),
        "backoff_origin": cls.backoff_origin,
        "counts": cls.counts,
        "then": _format_steps(cls.then),
    }


def _rule_row(rule: Rule) -> dict[str, Any]:
    limit = "" if rule.max_retries is None else rule.max_retries
    backoff = rule.backoff.describe() if rule.backoff else ""
    steps = _format_steps(to_steps(rule.then)) if rule.then else ""
    return {
        "rule": rule.id,
        "code": rule.code,
        "class": rule.cls,
        "limit": limit,
        "backoff": backoff,
        "then": steps,
        "more": _join(_rule_notes(rule)),
    }


def _rule_notes(rule: Rule) -> list[str]:
    notes = []
    if not rule.wait_for_hint:
        notes.append("ignores Retry-After")
    if rule.alarm != Alarm.NOTIFY:
        notes.append(f"alarm {rule.alarm}")
    if rule.runbook:
        notes.append(f"see {rule.runbook}")
    if rule.shadow:
        notes.append("in shadow")
    return notes


def _format_steps(steps: Sequence[Then]) -> str:
    return " → ".join(_format_step(step) for step in steps)


def _format_step(step: Then) -> str:
    parts = []
    if step.queue:
        parts.append(f"queue {step.queue}")
    if step.memory_limit:
        parts.append(format_size(step.memory_limit))
    if step.timeout:
        parts.append(format_duration(step.timeout))
    parts += [f"{name}={value}" for name, value in redact_settings(step.settings).items()]
    return _join(parts) or "unchanged"


# --- mulligan policy show: calendar of attempts ---


class AttemptCalendar(NamedTuple):
    """When attempts would start, for classes that share these times."""

    classes: str  # names
    attempts: tuple[PlannedAttempt, ...]
    is_cut: bool


def _calendars(explanation: PolicyExplanation) -> list[AttemptCalendar]:
    by_calendar: dict[tuple[PlannedAttempt, ...], list[ClassPreview]] = {}
    for cls in explanation.classes:
        if cls.retried:
            by_calendar.setdefault(cls.calendar, []).append(cls)
    return [
        AttemptCalendar(_join([cls.cls for cls in classes]), attempts, classes[0].more)
        for attempts, classes in by_calendar.items()
    ]


def _calendar_row(attempt: PlannedAttempt, end: float) -> dict[str, Any]:
    wait = ""
    starts_after = "at once"
    if attempt.attempt > 1:
        wait = _format_range(attempt.earliest, attempt.wait, attempt.latest)
        starts_after = _format_range(attempt.at_earliest, attempt.at, attempt.at_latest)
    return {
        "attempt": attempt.attempt,
        "wait": wait,
        "starts_after": starts_after,
        "when": draw_attempt_window(attempt, end),
    }


def _format_range(low: float, nominal: float, high: float) -> str:
    if low == high:
        return format_duration(nominal)
    return f"{format_duration(low)} … {format_duration(high)}"


def draw_attempt_window(attempt: PlannedAttempt, end: float) -> str:
    """Draw when an attempt may start, on a line from 0 to `end`. The dot is the nominal time."""
    if end <= 0:
        return "●"

    def position(seconds: float) -> int:
        return round(seconds / end * (WINDOW_WIDTH - 1))

    earliest = position(attempt.at_earliest)
    latest = position(attempt.at_latest)
    line = ["·"] * earliest + ["─"] * (latest - earliest + 1)
    line[position(attempt.at)] = "●"
    return "".join(line)


# --- mulligan policy test ---

TEXT_FACTS = ("exception_type", "provider_code", "program")
NUMBER_FACTS = ("http_status", "exit_code", "signal", "errno")


@policy.command("test")
@click.argument("text", required=False, default="")
@click.option(
    "--exception",
    "exception_type",
    metavar="TYPE",
    help="Exception type: openai.RateLimitError.",
)
@click.option("--http-status", type=int, help="HTTP status code.")
@click.option("--exit-code", type=int, help="Exit code of a program; -9 and 137 mean signal 9.")
@click.option("--signal", type=int, help="Signal that ended a program.")
@click.option("--errno", type=int, help="Error number of the operating system.")
@click.option("--provider-code", help="Error code of a provider: SlowDown, insufficient_quota.")
@click.option("--program", help="Program that failed: ffmpeg.")
@click.option(
    "--kind",
    help="Use the rules of this kind and its app.",
    shell_complete=complete.complete_kinds,
)
@click.option(
    "--jsonl",
    "file",
    type=click.Path(path_type=Path, allow_dash=True, exists=True, dir_okay=False),
    help="Classify a file: one error per line, as JSON. - reads stdin.",
)
@shared.database_option
@shared.output_option
def test_command(
    text: str,
    kind: str | None,
    file: Path | None,
    database: str | None,
    output: str | None,
    **facts: Any,
) -> None:
    """Show how an error is classified: code, class, deciding rule, and whether it is retried."""
    rules = _load_rules(kind, database)
    if file is not None:
        _classify_file(file, rules)
        return
    if not text and all(value is None for value in facts.values()):
        message = "give a TEXT, or facts about the error: --exception, --http-status, --exit-code …"
        raise click.UsageError(message)
    message = sys.stdin.read() if text == "-" else text
    failure = classify(message, **facts, rules=rules)
    _print_failure(failure, explain_group(message, facts, rules), output)


def _load_rules(kind: str | None, database: str | None) -> Sequence[Rule]:
    settings = load_settings(database)
    if kind is None:
        return load_configured_rules(settings)
    with open_existing(settings) as store, store.read() as tx:
        return load_declared_rules(tx, kind)


def _failure_record(failure: Failure) -> dict[str, Any]:
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


def _print_failure(failure: Failure, group_parts: Mapping[str, Any], output: str | None) -> None:
    if is_json(output):
        print_json({**_failure_record(failure), "group_of": dict(group_parts)}, output)
        return
    is_tsv = output_format(output) == "tsv"
    for name, value in _failure_facts(failure, group_parts):
        label = f"{name}\t" if is_tsv else f"{name:<15} "
        click.echo(f"{label}{value}")


def _failure_facts(failure: Failure, group_parts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    verdict = "would be retried" if failure.retryable else "would not be retried"
    yield "code", failure.code
    yield "class", f"{failure.cls}: {verdict}"
    yield "rule", failure.rule
    if failure.retry_after is not None:
        yield "asked to wait", format_duration(failure.retry_after)
    other_rules = failure.judged.get("also")
    if other_rules:
        yield "said otherwise", ", ".join(other_rules)
    yield "public", failure.public
    yield "group", failure.fingerprint
    yield "made of", _format_group_parts(group_parts)
    for name, value in failure.evidence.items():
        yield name, str(value)


def _format_group_parts(parts: Mapping[str, Any]) -> str:
    texts = []
    for name, value in parts.items():
        if name != "version":
            text = ", ".join(value) if isinstance(value, list) else value
            texts.append(f"{name} {text}")
    return "; ".join(texts)


def _classify_file(file: Path, rules: Sequence[Rule]) -> None:
    """Print one verdict per line. Count how many agree with the label `retryable` of their line."""
    labelled = 0
    correct = 0
    for number, row in _read_rows(file):
        facts = _read_facts(row, file, number)
        failure = classify(str(row.get("text", "")), **facts, rules=rules)
        identity = {"id": row["id"]} if "id" in row else {}
        click.echo(to_json({**identity, **_failure_record(failure)}))
        if isinstance(row.get("retryable"), bool):
            labelled += 1
            correct += failure.retryable == row["retryable"]
    if labelled:
        print_notice(f"{correct} of {labelled} labelled lines are classified as labelled")


def _read_rows(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with click.open_file(str(file), encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{file}, line {number}: not JSON: {error}") from error
            if not isinstance(row, dict):
                message = f"{file}, line {number}: not an object with text, exception_type …"
                raise ConfigError(message)
            yield number, row


def _read_facts(row: Mapping[str, Any], file: Path, number: int) -> dict[str, Any]:
    facts = {}
    for name in (*TEXT_FACTS, *NUMBER_FACTS):
        value = row.get(name)
        if value is None:
            continue
        expected = str if name in TEXT_FACTS else int
        if type(value) is not expected:  # a bool is no number
            problem = f"{name} must be {expected.__name__}, not {value!r:.80}"
            raise ConfigError(f"{file}, line {number}: {problem}")
        facts[name] = value
    return facts


# --- mulligan policy backtest ---

COUNT_FIELDS = (
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
CHANGE_COLUMNS = ("times", "effect", "before", "after", "sample")


@policy.command("backtest")
@click.option(
    "--rules",
    "names",
    multiple=True,
    metavar="PACK|FILE.toml",
    help="Rules to try. May be repeated.",
)
@click.option(
    "--since",
    type=shared.DurationParam(),
    default="7d",
    show_default=True,
    help="Jobs enqueued within this time: 2h, 7d.",
)
@click.option("--kind", help="Only this kind.", shell_complete=complete.complete_kinds)
@shared.database_option
@shared.output_option
def backtest(
    names: tuple[str, ...], since: float, kind: str | None, database: str | None, output: str | None
) -> None:
    """Classify stored failures again and show what other rules would have changed.

    Without --rules: with the rules of mulligan.toml and the built-in rules of this version.
    """
    settings = load_settings(database)
    if names:
        rules = [rule for name in names for rule in pack(name).rules]
    else:
        rules = list(load_configured_rules(settings))
    with open_existing(settings) as store, _backtest_progress(output) as on_progress:
        result = run_backtest(store, rules, since, kind, on_progress)
    _print_backtest(result, output)


@contextmanager
def _backtest_progress(output: str | None) -> Iterator[Callable[[int], None] | None]:
    """Show a progress bar if the output is a table."""
    if output_format(output) != "table":
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("attempts read", total=MAX_BACKTEST_ATTEMPTS)
        yield lambda read: progress.update(task, completed=read)


def _print_backtest(result: Backtest, output: str | None) -> None:
    report = result.report
    rows = [
        {**change._asdict(), "times": times, "sample": report.samples.get(change, "")}
        for change, times in report.changes.most_common()
    ]
    if is_json(output):
        counts = {name: getattr(report, name) for name in COUNT_FIELDS}
        record = {
            **counts,
            "partial": result.partial,
            "text": list(result.text),
            "changes": rows,
        }
        click.echo(to_json(record))
        return
    print_rows(rows, CHANGE_COLUMNS, output, truncate="sample")
    for sentence in result.text:
        print_notice(sentence)
