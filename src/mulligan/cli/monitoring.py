"""What `mulligan insight` prints: charts for people, lines for pipes, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from importlib.resources import files
from typing import Any

import click

from mulligan.alerts.service import AlertRule, Alerts, AlertStatus
from mulligan.cli import Family
from mulligan.cli import gates as setting
from mulligan.cli import options as shared
from mulligan.cli.completion import kinds, queues
from mulligan.cli.database import actor, existing, settings_with, typed
from mulligan.cli.output import as_json, bar, cell, chosen, show_rows, spark
from mulligan.core.format import duration, ordinal
from mulligan.core.statistics import Share
from mulligan.insight.rules import Cell, Numbers, percent
from mulligan.insight.service import Insight, insight
from mulligan.jobs.sentences import MEANS

# `mulligan alerts …`: what is worth attention now, by which rules, and silence for a while.

COLUMNS = ("state", "rule", "key", "severity", "since", "action", "summary")
RULES = (
    "name",
    "measure",
    "above",
    "clear",
    "window",
    "least",
    "for",
    "severity",
    "action",
    "status",
)


@click.group(cls=Family)
def alerts() -> None:
    """What is worth attention now; by which rules; silence one for a while."""


@contextmanager
def _alerts(database: str | None) -> Iterator[Alerts]:
    settings = settings_with(database)
    with existing(settings) as store:
        yield Alerts(lambda: store, lambda: settings.alerts, actor=actor())


@alerts.command("list")
@click.option("--all", "everything", is_flag=True, help="Also those that are over.")
@shared.database
@shared.output
def list_(everything: bool, database: str | None, output: str | None) -> None:  # noqa: FBT001 - click's way
    """What fires, and what is about to."""
    with _alerts(database) as api:
        found = api.list(all=everything)
    show_rows(
        [_record(one, output) for one in found],
        COLUMNS,
        output,
        empty="nothing fires",
        short="summary",
    )


@alerts.command()
@shared.database
@shared.output
def rules(database: str | None, output: str | None) -> None:
    """Every rule as it holds, with its thresholds."""
    with _alerts(database) as api:
        found = api.rules()
    show_rows([_rule(one, output) for one in found], RULES, output, empty="there are no rules")


@alerts.command()
@click.argument("name")
@click.option(
    "--until", type=shared.When(), help="A length (2h) or a moment; default: 1h.", default=3600.0
)
@click.option("--off", is_flag=True, help="End a silence.")
@setting.reason
@shared.database
@shared.output
def silence(
    name: str,
    until: Any,
    off: bool,  # noqa: FBT001 - click's way
    reason: str,
    database: str | None,
    output: str | None,
) -> None:
    """Neither tell of it nor act on it for a while."""
    with _alerts(database) as api:
        rule = (
            api.unsilence(name, reason=reason) if off else api.silence(name, until, reason=reason)
        )
    setting.print_record(_rule(rule, output), RULES, output)


def _record(one: AlertStatus, output: str | None) -> dict[str, Any]:
    if chosen(output) in {"json", "jsonl"}:
        return {name: setting.to_plain(value) for name, value in asdict(one).items()}
    quiet = one.silenced_until is not None
    done = f"{one.action} to {one.limit}" if one.limit is not None else one.action
    return {
        "state": f"{one.state} (silenced)" if quiet else one.state,
        "rule": one.rule,
        "key": one.key,
        "severity": one.severity,
        "since": f"{setting.time_since(one.since)} ago",
        "action": done,
        "summary": one.summary,
    }


def _rule(one: AlertRule, output: str | None) -> dict[str, Any]:
    if chosen(output) in {"json", "jsonl"}:
        return {name: setting.to_plain(value) for name, value in asdict(one).items()}
    windows = (
        f"{one.window:g}" if one.and_window is None else f"{one.window:g} and {one.and_window:g}"
    )
    status = "on" if one.enabled else "off"
    if one.silenced_until is not None:
        status = f"silent for {setting.time_left(one.silenced_until)}"
    return {
        "name": one.name,
        "measure": one.measure,
        "above": f"{one.above:g}",
        "clear": f"{one.clear:g}",
        "window": windows,
        "least": f"{one.least:g}",
        "for": f"{one.holds_for:g}",
        "severity": one.severity,
        "action": one.action,
        "status": status,
    }


# What `mulligan insight` prints: charts for people, lines for pipes, JSON for programs.

SHOWN = 12  # lines of a part; JSON has all

Named = tuple[str, Share, str]


def show_insight(
    since: float, kind: str | None, queue: str | None, database: str | None, output: str | None
) -> None:
    settings = settings_with(database)
    with existing(settings) as store:
        found = insight(store, settings, since, kind, queue)
    form = chosen(output)
    if form in {"json", "jsonl"}:
        click.echo(as_json(record(found), 2 if form == "json" else None))
        return
    lines = _rows(found) if form == "tsv" else _page(found, database)
    for line in lines:
        click.echo(line)


# -- for programs -----------------------------------------------------------------------------------
def record(found: Insight) -> dict[str, Any]:
    """Everything, with every share's value beside its counts."""
    return {
        "kind": found.kind,
        "queue": found.queue,
        "partial": found.partial,
        "notes": found.notes,
        "numbers": {name: _plain(value) for name, value in _fields(found.numbers)},
        "advice": [one._asdict() for one in found.advice],
        "lately": [_plain(one) for one in found.lately],
    }


def _fields(numbers: Numbers) -> Iterator[tuple[str, Any]]:
    return ((name, getattr(numbers, name)) for name in numbers.__dataclass_fields__)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Share):
        return {**value._asdict(), "value": value.value}
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return [_plain(part) for part in value] if isinstance(value, tuple | list) else value


# -- for pipes --------------------------------------------------------------------------------------
def _rows(found: Insight) -> Iterator[str]:
    """section, name, value, low, high, part, whole."""
    numbers = found.numbers
    for name, share, _ in _shares(numbers):
        yield _tsv("rate", name, share)
    for late in found.lately:
        yield _tsv("lately", f"{late.minutes} min failed", late.failed)
        yield _tsv("lately", f"{late.minutes} min retries", late.retries)
    for one in numbers.cells:
        yield _tsv("attempt", f"{one.cls} {one.code} {one.dependency} {one.attempt}", one.success)
    for waste in numbers.wasted:
        yield "\t".join(
            (
                "wasted",
                cell(waste.cls),
                str(waste.failures),
                f"{waste.seconds:g}",
                f"{waste.cost:g}",
            )
        )
    for advice in found.advice:
        yield f"advice\t{cell(advice.text)}"
    for note in found.notes:
        yield f"note\t{cell(note)}"


def _tsv(section: str, name: str, share: Share) -> str:
    value = "" if share.value is None else f"{share.value:.4f}"
    bounds = (f"{share.low:.4f}", f"{share.high:.4f}")
    return "\t".join((section, cell(name), value, *bounds, str(share.part), str(share.whole)))


# -- for people -------------------------------------------------------------------------------------
def _page(found: Insight, database: str | None) -> Iterator[str]:
    numbers = found.numbers
    of = "".join(
        f", {what} {name}" for what, name in (("kind", found.kind), ("queue", found.queue)) if name
    )
    yield f"{numbers.jobs:,} jobs enqueued since {_minute(numbers.since)}{of}; {numbers.attempts:,} attempts ended"
    yield from _lately(found)
    if numbers.jobs == 0:
        yield from _empty(found, database)
        return
    yield from _days(numbers)
    yield from _rates(numbers)
    yield from _by_attempt(numbers)
    yield from _next(numbers)
    yield from _costs(numbers)
    yield from _advice(found)
    if found.notes:
        yield from ("", "Keep in mind", *(f"  {note}" for note in found.notes))


def _empty(found: Insight, database: str | None) -> Iterator[str]:
    yield "Nothing to look back on. What to do:"
    if found.kind or found.queue:
        yield f"  {typed('insight', database=database)}  # all kinds and queues"
    yield f"  {typed('insight', '--since', '30d', database=database)}  # a longer time, as far as jobs are kept"
    yield f"  {typed('jobs', 'list', database=database)}  # is anything there at all?"
    yield "  mulligan demo  # jobs that succeed, fail and recover, to look at"


def _lately(found: Insight) -> Iterator[str]:
    """Nothing, where no worker has counted anything."""
    told = [one for one in found.lately if one.failed.whole]
    if told:
        yield from ("", "Lately")
    for one in told:
        failed, again = percent(one.failed.value), percent(one.retries.value)
        span = "5 minutes" if one.minutes == 5 else "hour"
        yield f"  last {span:<10} {_sure(one.failed)} of attempts failed ({failed}); {again} were retries"


def _days(numbers: Numbers) -> Iterator[str]:
    days = numbers.days[-60:]
    if len(days) < 2:
        return
    died = [day.dead / max(1, day.succeeded + day.dead) if day.settled else None for day in days]
    yield from ("", f"By day, {days[0].day:%d %b} to {days[-1].day:%d %b} (· has not ended yet)")
    yield f"  jobs  {spark([float(day.jobs) for day in days])}  at most {max(day.jobs for day in days):,} a day"
    worst = max((value for value in died if value is not None), default=0.0)
    yield f"  dead  {spark(died)}  at most {percent(worst)} of those that ended"


def _shares(numbers: Numbers) -> Iterator[Named]:
    yield "retry success", numbers.retry_success, "of jobs that were tried again"
    yield "rescue", numbers.rescue, "of all jobs whose first attempt failed"
    yield (
        "permanent failure",
        numbers.permanent_failure,
        "of jobs that ended; bad input not counted",
    )
    yield "bad input", numbers.user_failure, "of jobs that ended, dead of their input"
    yield "unknown cause", numbers.unknown, "of failures: no rule knows them"
    yield "hopeless, at least", numbers.false_retriable.low, "of jobs tried again: later judged so"
    yield "hopeless, at most", numbers.false_retriable.high, "of jobs tried again: never succeeded"
    yield "by hand", numbers.false_permanent, "of jobs refused a retry (biased: repaired first)"


def _rates(numbers: Numbers) -> Iterator[str]:
    yield from ("", "Rates (and where the true one lies, 95 %)")
    for name, share, words in _shares(numbers):
        if not share.whole:
            yield f"  {name:<20}{'no data':<24}{words}"
            continue
        yield f"  {name:<20}{bar(share.value, 10)} {percent(share.value):>6}  {_sure(share):<24} {words}"
    waited = numbers.time_to_success
    if numbers.failed_first:
        yield f"  success after a first failure: half {_time(waited.p50)}, 95 % {_time(waited.p95)}"
        if waited.rescued_p50 is not None:
            yield f"  of those that did succeed:     half {_time(waited.rescued_p50)}, 95 % {_time(waited.rescued_p95)}"
            yield f"  on average they took:          {duration(waited.rescued_mean or 0)}"
    if numbers.amplification is not None:
        yield f"  attempts for each job that started: {numbers.amplification:.2f}"


def _sure(share: Share) -> str:
    return f"{share.part} of {share.whole}, {share.low * 100:.0f}–{share.high * 100:.0f} %"


def _time(seconds: float | None) -> str:
    return "never did, so far" if seconds is None else f"within {duration(seconds)}"


def _by_attempt(numbers: Numbers) -> Iterator[str]:
    if not numbers.cells:
        return
    yield from ("", "Do retries succeed? By the failure before, and the number of the attempt")
    commonest = sorted(numbers.cells, key=lambda one: -one.success.whole)[:SHOWN]
    for one in sorted(commonest, key=lambda one: one[:4]):
        yield f"  {_called(one):<44.44} {ordinal(one.attempt):>5} {bar(one.success.value)} {_counts(one.success)}"
    if len(numbers.cells) > SHOWN:
        yield f"  and {len(numbers.cells) - SHOWN} more with fewer trials: mulligan insight -o json"


def _called(one: Cell) -> str:
    return cell(f"{one.code} ({one.cls}){f' {one.dependency}' if one.dependency else ''}")


def _counts(share: Share) -> str:
    return f"{percent(share.value):>6} ({share.part} of {share.whole})"


def _next(numbers: Numbers) -> Iterator[str]:
    by_class = [one for one in numbers.chances if not one.code]
    if not by_class:
        return
    yield from (
        "",
        "The next attempt's chance, with what was believed before and newer trials counting more",
    )
    for one in by_class[:SHOWN]:
        means = MEANS.get(one.cls, "")
        guess = one.chance
        trials = "trial" if guess.trials == 1 else "trials"
        yield (
            f"  {one.cls:<14} {ordinal(one.attempt):>5} {bar(guess.mean)} {percent(guess.mean):>6} "
            f"({guess.low * 100:.0f}–{guess.high * 100:.0f} %, {guess.trials} {trials})  {means}"
        )


def _costs(numbers: Numbers) -> Iterator[str]:
    if not numbers.wasted:
        return
    yield from ("", "What failed attempts took")
    most = max(waste.seconds for waste in numbers.wasted) or 1.0
    for waste in numbers.wasted[:SHOWN]:
        cost = f", cost {waste.cost:g}" if waste.cost else ""
        work = duration(round(waste.seconds, 3))
        yield f"  {waste.cls:<14} {bar(waste.seconds / most)} {work:>8} of work in {waste.failures} failures{cost}"
    if numbers.retry_cost:
        per_job, per_retried = (
            numbers.retry_cost_per_job or 0.0,
            numbers.retry_cost_per_retried or 0.0,
        )
        yield f"  retries cost {numbers.retry_cost:g}: {per_job:.4g} for each job, {per_retried:.4g} for each retried"


def _advice(found: Insight) -> Iterator[str]:
    yield from ("", "Advice")
    if not found.advice:
        yield "  none: nothing failed often enough to be sure of anything (20 trials at least)"
    for number, one in enumerate(found.advice[:SHOWN], 1):
        yield f"  {number}. {cell(one.text)}"


def _minute(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


# `mulligan insight`: what retries are worth, what failures cost, and what that advises.


@click.command()
@click.option(
    "--since",
    type=shared.Length(),
    default="7d",
    show_default=True,
    help="Jobs enqueued within: 2h, 7d.",
)
@click.option("--kind", help="Only this kind.", shell_complete=kinds)
@click.option("--queue", help="Only this queue.", shell_complete=queues)
@shared.database
@shared.output
def insight_command(
    since: float, kind: str | None, queue: str | None, database: str | None, output: str | None
) -> None:
    """What the jobs of the last days came to: what retries are worth, what failures cost, what that advises.

    At most 100,000 jobs are looked at, the newest; it says so when there are more.
    """
    pass

    show_insight(since, kind, queue, database, output)


# `mulligan metrics`: the numbers as Prometheus reads them, and the files that make use of them.

FILES = {"rules": "alerts.yml", "dashboard": "dashboard.json"}
RUNBOOK = "runbook_url: docs/"


@click.command()
@click.argument("what", type=click.Choice(["now", *FILES]), default="now")
@click.option(
    "--docs", help="Address of the documentation, put before the runbook links of the rules."
)
@shared.database
def metrics(what: str, docs: str | None, database: str | None) -> None:
    """Print the metrics of this database, the alert rules for Prometheus, or the dashboard for Grafana.

    WHAT is now (the default), rules or dashboard.
    """
    if what in FILES:
        click.echo(_file(FILES[what], docs), nl=False)
        return
    from mulligan.cli.database import existing, settings_with
    from mulligan.observability.exporter import fresh

    with existing(settings_with(database)) as store:
        click.echo(fresh(store), nl=False)


def _file(name: str, docs: str | None) -> str:
    text = files("mulligan.observability").joinpath("rules", name).read_text(encoding="utf-8")
    return text if docs is None else text.replace(RUNBOOK, f"runbook_url: {docs.rstrip('/')}/")
