"""`mulligan policy test`: what would be said of an error. One by hand, or a file of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from mulligan.cli import complete
from mulligan.cli import options as shared
from mulligan.cli.database import existing, say, settings_with
from mulligan.cli.output import as_json, chosen, show_record
from mulligan.core.attempt import Failure
from mulligan.engine.declared import stored_rules
from mulligan.engine.judging import classify, made_of
from mulligan.engine.rules import configured_rules
from mulligan.errors import ConfigError
from mulligan.policy.phrase import duration
from mulligan.policy.rule import Rule

GIVEN = ("exception_type", "http_status", "exit_code", "signal", "errno", "provider_code", "program")


@click.command("test")
@click.argument("text", required=False, default="")
@click.option("--exception", "exception_type", metavar="TYPE", help="The exception's type: openai.RateLimitError.")
@click.option("--http-status", type=int, help="The status of an HTTP answer.")
@click.option("--exit-code", type=int, help="Of a program; -9 and 137 are signal 9.")
@click.option("--signal", type=int, help="That ended a program.")
@click.option("--errno", type=int, help="Of the operating system.")
@click.option("--provider-code", help="The provider's own code: SlowDown, insufficient_quota.")
@click.option("--program", help="The program that failed: ffmpeg.")
@click.option("--kind", help="With the rules of this kind and its app.", shell_complete=complete.kinds)
@click.option(
    "--jsonl",
    "file",
    type=click.Path(path_type=Path, allow_dash=True, exists=True, dir_okay=False),
    help="One error a line, as JSON; - reads stdin.",
)
@shared.database
@shared.output
def test(
    text: str, kind: str | None, file: Path | None, database: str | None, output: str | None, **given: Any
) -> None:
    """Say what would be made of an error: code, class, whether it would be retried, and the rule that decides."""
    rules = _rules(kind, database)
    if file is not None:
        _many(file, rules)
        return
    if not text and all(value is None for value in given.values()):
        message = "give a TEXT, or what is known of the error: --exception, --http-status, --exit-code …"
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
    lines += [("public", failure.public), ("group", failure.fingerprint), ("made of", _listed(parts))]
    lines += [(name, str(value)) for name, value in failure.evidence.items()]
    for name, value in lines:
        click.echo(f"{name}\t{value}" if chosen(output) == "tsv" else f"{name:<15} {value}")


def _listed(parts: Mapping[str, Any]) -> str:
    said = {name: ", ".join(value) if isinstance(value, list) else value for name, value in parts.items()}
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
        say(f"{right} of {labelled} labelled rows have the same answer to: would another try have a chance?")


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
                raise ConfigError(f"{file}, line {number}: not an object with text, exception_type, http_status …")
            yield number, row


def _given(row: Mapping[str, Any], file: Path, number: int) -> dict[str, Any]:
    given = {name: row[name] for name in GIVEN if row.get(name) is not None}
    for name, value in given.items():
        wanted = str if name in {"exception_type", "provider_code", "program"} else int
        if type(value) is not wanted:
            raise ConfigError(f"{file}, line {number}: {name} must be {wanted.__name__}, not {value!r:.80}")
    return given
