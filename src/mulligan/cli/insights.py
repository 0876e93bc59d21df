"""What `mulligan insight` prints: charts for people, lines for pipes, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from mulligan.cli.charts import bar, spark
from mulligan.cli.database import existing, settings_with, typed
from mulligan.cli.output import as_json, cell, chosen
from mulligan.engine.insight import Insight, insight
from mulligan.policy.advice import percent
from mulligan.policy.estimate import Share
from mulligan.policy.insight import Cell, Numbers
from mulligan.policy.phrase import duration, ordinal
from mulligan.policy.sentences import MEANS

SHOWN = 12  # lines of a part; JSON has all

Named = tuple[str, Share, str]


def show_insight(since: float, kind: str | None, queue: str | None, database: str | None, output: str | None) -> None:
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
        yield "\t".join(("wasted", cell(waste.cls), str(waste.failures), f"{waste.seconds:g}", f"{waste.cost:g}"))
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
    of = "".join(f", {what} {name}" for what, name in (("kind", found.kind), ("queue", found.queue)) if name)
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
    yield "permanent failure", numbers.permanent_failure, "of jobs that ended; bad input not counted"
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
    yield from ("", "The next attempt's chance, with what was believed before and newer trials counting more")
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
        per_job, per_retried = numbers.retry_cost_per_job or 0.0, numbers.retry_cost_per_retried or 0.0
        yield f"  retries cost {numbers.retry_cost:g}: {per_job:.4g} for each job, {per_retried:.4g} for each retried"


def _advice(found: Insight) -> Iterator[str]:
    yield from ("", "Advice")
    if not found.advice:
        yield "  none: nothing failed often enough to be sure of anything (20 trials at least)"
    for number, one in enumerate(found.advice[:SHOWN], 1):
        yield f"  {number}. {cell(one.text)}"


def _minute(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
