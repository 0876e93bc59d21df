"""`mulligan policy backtest`: what another table would have done with what has failed."""

from __future__ import annotations

from typing import Any

import click

from mulligan.cli import complete
from mulligan.cli import options as shared
from mulligan.cli.database import existing, say, settings_with
from mulligan.cli.output import as_json, chosen, show_rows
from mulligan.engine.backtest import ATTEMPTS, Backtest, backtested
from mulligan.engine.rules import configured_rules, pack

COUNTS = ("jobs", "failures", "changed", "unreadable", "attempts", "saved", "saved_cost", "rescued", "lost", "tried")
COLUMNS = ("times", "effect", "before", "after", "sample")


@click.command("backtest")
@click.option("--rules", "names", multiple=True, metavar="PACK|FILE.toml", help="Rules to try; may be given again.")
@click.option("--since", type=shared.Length(), default="7d", show_default=True, help="Jobs enqueued within: 2h, 7d.")
@click.option("--kind", help="Only this kind.", shell_complete=complete.kinds)
@shared.database
@shared.output
def backtest(names: tuple[str, ...], since: float, kind: str | None, database: str | None, output: str | None) -> None:
    """Judge stored failures again: changed decisions, attempts saved, successes lost, and what cannot be known.

    Without --rules by the rules of mulligan.toml and the tables of this version.
    """
    settings = settings_with(database)
    rules = [rule for name in names for rule in pack(name).rules] if names else configured_rules(settings)
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
        click.echo(as_json({**record, "partial": found.partial, "text": list(found.text), "changes": rows}))
        return
    show_rows(rows, COLUMNS, output, short="sample")
    for sentence in found.text:
        say(sentence)
