"""`mulligan alerts …`, `mulligan insight`, `mulligan metrics`: find out what goes wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from importlib.resources import files
from typing import Any, NamedTuple

import click

from mulligan.alerts.rules import format_measure
from mulligan.alerts.service import AlertRule, AlertStatus
from mulligan.cli import CommandGroup
from mulligan.cli import options as shared
from mulligan.cli.completion import complete_kinds, complete_queues
from mulligan.cli.database import (
    command_line,
    load_settings,
    load_settings_of_apps,
    open_existing,
    open_services,
    with_app_settings,
)
from mulligan.cli.output import (
    draw_bar,
    draw_sparkline,
    format_cell,
    is_json,
    json_value,
    output_format,
    print_json,
    print_record,
    print_rows,
    print_tsv,
    time_left,
    time_since,
)
from mulligan.core.extras import check_extra
from mulligan.core.format import format_cost, format_duration, format_ordinal
from mulligan.core.statistics import Share
from mulligan.insight.rules import Numbers, RetryCell, format_percent
from mulligan.insight.service import Insight, load_insight
from mulligan.jobs.sentences import CLASS_MEANINGS

# --- mulligan alerts ---

ALERT_COLUMNS = ("state", "rule", "key", "severity", "since", "action", "summary")
RULE_COLUMNS = (
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


@click.group(cls=CommandGroup)
def alerts() -> None:
    """List active alerts and alert rules; silence a rule."""


@alerts.command("list")
@click.option("--all", "include_resolved", is_flag=True, help="Include resolved alerts.")
@shared.database_option
@shared.output_option
def list_alerts(database: str | None, output: str | None, *, include_resolved: bool) -> None:
    """List alerts that fire or are pending."""
    with open_services(database) as services:
        found = services.alerts.list(all=include_resolved)
    records = [_alert_record(alert, output) for alert in found]
    print_rows(records, ALERT_COLUMNS, output, empty="No active alerts.", truncate="summary")


@alerts.command("rules")
@shared.database_option
@shared.output_option
def list_rules(database: str | None, output: str | None) -> None:
    """List alert rules with their effective thresholds."""
    with open_services(database) as services:
        found = services.alerts.rules()
    records = [_rule_record(rule, output) for rule in found]
    print_rows(records, RULE_COLUMNS, output, empty="No alert rules.")


@alerts.command("silence")
@click.argument("name")
@click.option(
    "--until",
    type=shared.TimeParam(),
    help="A duration (2h) or a time. Default: 1h.",
    default=3600.0,
)
@click.option("--off", is_flag=True, help="End a silence.")
@shared.reason_option
@shared.database_option
@shared.output_option
def silence(
    name: str,
    until: Any,
    reason: str,
    database: str | None,
    output: str | None,
    *,
    off: bool,
) -> None:
    """Silence a rule: no notifications and no actions for a while."""
    with open_services(database) as services:
        if off:
            rule = services.alerts.unsilence(name, reason=reason)
        else:
            rule = services.alerts.silence(name, until, reason=reason)
    print_record(_rule_record(rule, output), RULE_COLUMNS, output)


def _alert_record(alert: AlertStatus, output: str | None) -> dict[str, Any]:
    if is_json(output):
        return {name: json_value(value) for name, value in asdict(alert).items()}
    silenced = " (silenced)" if alert.silenced_until is not None else ""
    limit = "" if alert.limit is None else f" to {alert.limit}"
    return {
        "state": f"{alert.state}{silenced}",
        "rule": alert.rule,
        "key": alert.key,
        "severity": alert.severity,
        "since": f"{time_since(alert.since)} ago",
        "action": f"{alert.action}{limit}",
        "summary": alert.summary,
    }


def _rule_record(rule: AlertRule, output: str | None) -> dict[str, Any]:
    if is_json(output):
        return {name: json_value(value) for name, value in asdict(rule).items()}
    windows = [rule.window] if rule.and_window is None else [rule.window, rule.and_window]
    return {
        "name": rule.name,
        "measure": rule.measure,
        "above": format_measure(rule.measure, rule.above),
        "clear": format_measure(rule.measure, rule.clear),
        "window": " and ".join(format_duration(window) for window in windows),
        "least": f"{rule.least:,.0f}" if rule.least else "",
        "for": format_duration(rule.holds_for) if rule.holds_for else "",
        "severity": rule.severity,
        "action": rule.action,
        "status": _rule_status(rule),
    }


def _rule_status(rule: AlertRule) -> str:
    if rule.silenced_until is not None:
        return f"silent for {time_left(rule.silenced_until)}"
    return "on" if rule.enabled else "off"


# --- mulligan insight ---

MAX_LINES = 12  # of a section; JSON has all
MAX_DAYS = 60


@click.command("insight")
@click.option(
    "--since",
    type=shared.DurationParam(),
    default="7d",
    show_default=True,
    help="Jobs enqueued within this time: 2h, 7d.",
)
@click.option("--kind", help="Only this kind.", shell_complete=complete_kinds)
@click.option("--queue", help="Only this queue.", shell_complete=complete_queues)
@shared.database_option
@shared.output_option
def insight(
    since: float, kind: str | None, queue: str | None, database: str | None, output: str | None
) -> None:
    """Report how well retries work, what failures cost, and what to change.

    Reads at most the 100,000 newest jobs, and says so if there are more.
    """
    settings = load_settings(database)
    with open_existing(settings) as store:
        found = load_insight(store, with_app_settings(store, settings), since, kind, queue)
    if is_json(output):
        print_json(insight_record(found), output)
    elif output_format(output) == "tsv":
        _print_tsv_rows(found)
    else:
        for line in _report_lines(found, database):
            click.echo(line)


# --- mulligan insight: JSON ---


def insight_record(found: Insight) -> dict[str, Any]:
    """Return everything. Every share has its value next to its counts."""
    numbers = found.numbers
    names = numbers.__dataclass_fields__
    return {
        "kind": found.kind,
        "queue": found.queue,
        "partial": found.partial,
        "notes": found.notes,
        "numbers": {name: _json_tree(getattr(numbers, name)) for name in names},
        "advice": [advice._asdict() for advice in found.advice],
        "recent": [_json_tree(rates) for rates in found.recent],
    }


def _json_tree(value: Any) -> Any:
    """Convert nested rows to JSON objects."""
    if isinstance(value, Share):
        return {**value._asdict(), "value": value.value}
    if hasattr(value, "_asdict"):
        return {name: _json_tree(part) for name, part in value._asdict().items()}
    if isinstance(value, tuple | list):
        return [_json_tree(part) for part in value]
    return json_value(value)


# --- mulligan insight: TSV ---


def _print_tsv_rows(found: Insight) -> None:
    """Print rows of: section, name, value, low, high, part, whole."""
    numbers = found.numbers
    for rate in _named_rates(numbers):
        _print_share("rate", rate.name, rate.share)
    for rates in found.recent:
        _print_share("recent", f"{rates.minutes} min failed", rates.failed)
        _print_share("recent", f"{rates.minutes} min retries", rates.retries)
    for cell in numbers.cells:
        name = f"{cell.cls} {cell.code} {cell.dependency} {cell.attempt}"
        _print_share("attempt", name, cell.success)
    for waste in numbers.wasted:
        amounts = (str(waste.failures), f"{waste.seconds:g}", f"{waste.cost:g}")
        print_tsv(("wasted", waste.cls, *amounts))
    for advice in found.advice:
        print_tsv(("advice", advice.text))
    for note in found.notes:
        print_tsv(("note", note))


def _print_share(section: str, name: str, share: Share) -> None:
    value = "" if share.value is None else f"{share.value:.4f}"
    bounds = (f"{share.low:.4f}", f"{share.high:.4f}")
    print_tsv((section, name, value, *bounds, str(share.part), str(share.whole)))


# --- mulligan insight: report for people ---


def _report_lines(found: Insight, database: str | None) -> Iterator[str]:
    numbers = found.numbers
    kind = f", kind {found.kind}" if found.kind else ""
    queue = f", queue {found.queue}" if found.queue else ""
    since = f"{numbers.since:%Y-%m-%d %H:%M} UTC"
    yield (
        f"{numbers.jobs:,} jobs enqueued since {since}{kind}{queue}; "
        f"{numbers.attempts:,} attempts ended"
    )
    yield from _recent_lines(found)
    if numbers.jobs == 0:
        yield from _no_jobs_lines(found, database)
        return
    yield from _day_lines(numbers)
    yield from _rate_lines(numbers)
    yield from _delay_lines(numbers)
    yield from _success_by_attempt_lines(numbers)
    yield from _next_chance_lines(numbers)
    yield from _cost_lines(numbers)
    yield from _advice_lines(found)
    if found.notes:
        yield from ("", "Notes", *(f"  {note}" for note in found.notes))


def _no_jobs_lines(found: Insight, database: str | None) -> Iterator[str]:
    yield "No jobs in this time. What to try:"
    if found.kind or found.queue:
        yield f"  {command_line('insight', database=database)}  # all kinds and queues"
    longer = command_line("insight", "--since", "30d", database=database)
    yield f"  {longer}  # a longer time, as far as jobs are retained"
    yield f"  {command_line('jobs', 'list', database=database)}  # are there any jobs?"
    yield "  mulligan demo  # sample jobs that succeed, fail and recover"


def _recent_lines(found: Insight) -> Iterator[str]:
    """Yield the last 5 minutes and the last hour, if workers have counted any attempts."""
    counted = [rates for rates in found.recent if rates.failed.whole]
    if counted:
        yield from ("", "Recently")
    for rates in counted:
        span = "5 minutes" if rates.minutes == 5 else "hour"
        failed = f"{_format_share(rates.failed)} of attempts failed"
        share = format_percent(rates.failed.value)
        retries = format_percent(rates.retries.value)
        yield f"  last {span:<10} {failed} ({share}); {retries} were retries"


def _day_lines(numbers: Numbers) -> Iterator[str]:
    days = numbers.days[-MAX_DAYS:]
    if len(days) < 2:
        return
    jobs = [float(day.jobs) for day in days]
    dead_shares: list[float | None] = []
    worst_share = 0.0
    for day in days:
        if not day.settled:
            dead_shares.append(None)
            continue
        share = day.dead / max(1, day.succeeded + day.dead)
        dead_shares.append(share)
        worst_share = max(worst_share, share)
    most_jobs = max(day.jobs for day in days)
    first_day = f"{days[0].day:%d %b}"
    last_day = f"{days[-1].day:%d %b}"
    yield ""
    yield f"By day, {first_day} to {last_day} (· not ended yet)"
    yield f"  jobs  {draw_sparkline(jobs)}  at most {most_jobs:,} a day"
    yield f"  dead  {draw_sparkline(dead_shares)}  at most {format_percent(worst_share)} of ended"


class NamedRate(NamedTuple):
    """A share of jobs, with its name and what it is a share of."""

    name: str
    share: Share
    meaning: str


def _named_rates(numbers: Numbers) -> list[NamedRate]:
    false_retriable = numbers.false_retriable
    return [
        NamedRate("retry success", numbers.retry_success, "of retried jobs"),
        NamedRate("rescue", numbers.rescue, "of jobs whose first attempt failed"),
        NamedRate(
            "permanent failure", numbers.permanent_failure, "of ended jobs, bad input not counted"
        ),
        NamedRate("bad input", numbers.user_failure, "of ended jobs, dead because of their input"),
        NamedRate("unknown cause", numbers.unknown, "of failures, not matched by any rule"),
        NamedRate(
            "hopeless, at least", false_retriable.low, "of retried jobs, later judged permanent"
        ),
        NamedRate("hopeless, at most", false_retriable.high, "of retried jobs, never succeeded"),
        NamedRate(
            "by hand", numbers.false_permanent, "of jobs not retried (biased: repaired first)"
        ),
    ]


def _rate_lines(numbers: Numbers) -> Iterator[str]:
    yield from ("", "Rates (with the 95 % interval of the true rate)")
    for name, share, meaning in _named_rates(numbers):
        if not share.whole:
            yield f"  {name:<20}{'no data':<24}{meaning}"
            continue
        bar = draw_bar(share.value, 10)
        value = format_percent(share.value)
        yield f"  {name:<20}{bar} {value:>6}  {_format_share(share):<24} {meaning}"


def _format_share(share: Share) -> str:
    low = share.low * 100
    high = share.high * 100
    return f"{share.part} of {share.whole}, {low:.0f}–{high:.0f} %"


def _delay_lines(numbers: Numbers) -> Iterator[str]:
    """Yield how long it took until jobs that failed first succeeded."""
    delay = numbers.time_to_success
    if numbers.failed_first:
        half = _format_delay(delay.p50)
        most = _format_delay(delay.p95)
        yield f"  success after a first failure: half {half}, 95 % {most}"
    if numbers.failed_first and delay.rescued_p50 is not None:
        half = _format_delay(delay.rescued_p50)
        most = _format_delay(delay.rescued_p95)
        yield f"  of those that succeeded:       half {half}, 95 % {most}"
        yield f"  on average they took:          {format_duration(delay.rescued_mean or 0)}"
    if numbers.amplification is not None:
        yield f"  attempts for each job that started: {numbers.amplification:.2f}"


def _format_delay(seconds: float | None) -> str:
    return "not yet" if seconds is None else f"within {format_duration(seconds)}"


def _success_by_attempt_lines(numbers: Numbers) -> Iterator[str]:
    if not numbers.cells:
        return
    yield from ("", "Do retries succeed? By the previous failure and the number of the attempt")
    most_trials_first = sorted(numbers.cells, key=lambda cell: -cell.success.whole)
    shown = most_trials_first[:MAX_LINES]
    for cell in sorted(shown, key=lambda cell: cell[:4]):
        failure = _format_failure(cell)
        attempt = format_ordinal(cell.attempt)
        bar = draw_bar(cell.success.value)
        counts = _format_counts(cell.success)
        yield f"  {failure:<44.44} {attempt:>5} {bar} {counts}"
    hidden = len(numbers.cells) - len(shown)
    if hidden:
        yield f"  and {hidden} more with fewer trials: mulligan insight -o json"


def _format_failure(cell: RetryCell) -> str:
    dependency = f" {cell.dependency}" if cell.dependency else ""
    return format_cell(f"{cell.code} ({cell.cls}){dependency}")


def _format_counts(share: Share) -> str:
    return f"{format_percent(share.value):>6} ({share.part} of {share.whole})"


def _next_chance_lines(numbers: Numbers) -> Iterator[str]:
    by_class = [chance for chance in numbers.chances if not chance.code]
    if not by_class:
        return
    yield from ("", "Estimated chance of the next attempt (newer trials count more)")
    for row in by_class[:MAX_LINES]:
        chance = row.chance
        attempt = format_ordinal(row.attempt)
        bar = draw_bar(chance.mean)
        trials = "trial" if chance.trials == 1 else "trials"
        interval = f"{chance.low * 100:.0f}–{chance.high * 100:.0f} %"
        yield (
            f"  {row.cls:<14} {attempt:>5} {bar} {format_percent(chance.mean):>6} "
            f"({interval}, {chance.trials} {trials})  {CLASS_MEANINGS.get(row.cls, '')}"
        )


def _cost_lines(numbers: Numbers) -> Iterator[str]:
    if not numbers.wasted:
        return
    yield from ("", "Cost of failed attempts")
    most = max(waste.seconds for waste in numbers.wasted) or 1.0
    for waste in numbers.wasted[:MAX_LINES]:
        bar = draw_bar(waste.seconds / most)
        work = format_duration(round(waste.seconds, 3))
        cost = f", cost {format_cost(waste.cost)}" if waste.cost else ""
        yield f"  {waste.cls:<14} {bar} {work:>8} of work in {waste.failures} failures{cost}"
    if numbers.retry_cost:
        per_job = numbers.retry_cost_per_job or 0.0
        per_retried = numbers.retry_cost_per_retried or 0.0
        yield (
            f"  retries cost {format_cost(numbers.retry_cost)}: "
            f"{format_cost(per_job)} for each job, {format_cost(per_retried)} for each retried job"
        )


def _advice_lines(found: Insight) -> Iterator[str]:
    yield from ("", "Advice")
    if not found.advice:
        yield "  none: no failure has the 20 trials that a reliable estimate needs"
    for number, advice in enumerate(found.advice[:MAX_LINES], 1):
        yield f"  {number}. {format_cell(advice.text)}"


# --- mulligan metrics ---

FILES = {"rules": "alerts.yml", "dashboard": "dashboard.json"}
RUNBOOK = "runbook_url: docs/"
METRIC_PREFIX = re.compile(r"\bmulligan_(?=[a-z])")


@click.command("metrics")
@click.argument("what", type=click.Choice(["now", *FILES]), default="now")
@click.option("--docs", help="Base URL of the documentation, for the runbook links of the rules.")
@shared.database_option
def metrics(what: str, docs: str | None, database: str | None) -> None:
    """Print Prometheus metrics (now), Prometheus alert rules, or a Grafana dashboard.

    WHAT is now (the default), rules or dashboard.
    """
    settings = load_settings_of_apps(database)
    if what in FILES:
        click.echo(_read_file(FILES[what], docs, settings.metrics_prefix), nl=False)
        return
    check_extra("web", "mulligan metrics")
    from mulligan.observability.exporter import render

    with open_existing(settings) as store:
        click.echo(render(store, settings.metrics_prefix), nl=False)


def _read_file(name: str, docs: str | None, prefix: str) -> str:
    text = files("mulligan.observability").joinpath("rules", name).read_text(encoding="utf-8")
    text = METRIC_PREFIX.sub(prefix, text)
    if docs is None:
        return text
    return text.replace(RUNBOOK, f"runbook_url: {docs.rstrip('/')}/")
