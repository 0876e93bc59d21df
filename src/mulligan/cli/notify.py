"""`mulligan notify …`: who is told of what, to where, and what became of each message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click

from mulligan.cli import Family
from mulligan.cli import completion as complete
from mulligan.cli import gates as setting
from mulligan.cli import options as shared
from mulligan.cli.database import actor, existing, say, settings_with
from mulligan.cli.output import chosen, show_rows
from mulligan.core.job import State
from mulligan.notifications.apprise import Apprise
from mulligan.notifications.channels import Channel
from mulligan.notifications.deliveries import Deliveries, Delivery
from mulligan.notifications.email import Email
from mulligan.notifications.rules import FORMS
from mulligan.notifications.subscriptions import Subscription, Subscriptions
from mulligan.notifications.webhook import Webhook

COLUMNS = ("id", "on", "form", "channel", "to", "for", "status")
DELIVERED = ("id", "subscription", "state", "attempts", "type", "age", "summary")

owner = click.option("--owner", help="Only of this owner.")
name = click.argument("subscription", shell_complete=complete.subscriptions)


@click.group(cls=Family)
def notify() -> None:
    """Who is told of what: list, add, switch off and on, test; and what became of each message."""


@contextmanager
def _subscriptions(database: str | None) -> Iterator[Subscriptions]:
    settings = settings_with(database)
    with existing(settings) as store:
        yield Subscriptions(lambda: store, lambda: settings, actor=actor())


@notify.command("list")
@owner
@shared.database
@shared.output
def list_(owner: str | None, database: str | None, output: str | None) -> None:
    """Every subscription, also those that the code of an app declares."""
    with _subscriptions(database) as api:
        found = api.list(owner=owner)
    empty = "nobody is told of anything; mulligan notify add job.died --webhook https://…"
    show_rows([_record(one, output) for one in found], COLUMNS, output, empty=empty, short="to")


@notify.command()
@click.argument("events", nargs=-1, required=True, metavar="EVENT…")
@click.option("--webhook", metavar="URL", help="POST to this address, signed.")
@click.option(
    "--email", multiple=True, metavar="ADDRESS", help="Mail to this address. May be repeated."
)
@click.option(
    "--apprise",
    multiple=True,
    metavar="URL",
    help="Slack, Teams, ntfy …: an address as apprise writes it.",
)
@click.option("--owner", help="Only of this owner's jobs and batches.")
@click.option("--batch", metavar="ID", help="Only of this batch.")
@click.option(
    "--filter", "words", default="", metavar="FILTER", help="kind:render code:GW_5XX class: queue:"
)
@click.option(
    "--form",
    type=click.Choice(FORMS),
    help="Each event a message, or failures of one cause as an incident.",
)
@click.option("--name", default="", help="For people.")
@setting.reason
@shared.database
@shared.output
def add(
    events: tuple[str, ...], database: str | None, output: str | None, words: str, **said: Any
) -> None:
    """Tell somebody of EVENT…: job.died, batch.*, dependency.opened …"""
    channel = _channel(said.pop("webhook"), said.pop("email"), said.pop("apprise"))
    with _subscriptions(database) as api:
        made = api.add(events, channel, filter=words, **said)
    _report(made, output)
    if made.secret and chosen(output) not in {"json", "jsonl"}:
        say(f"messages are signed with {made.secret}; it is not shown again")
    say(f"mulligan notify test {made.id}  sends a first message")


def _channel(webhook: str | None, email: tuple[str, ...], apprise: tuple[str, ...]) -> Channel:
    given = [one for one in (webhook, email, apprise) if one]
    if len(given) != 1:
        message = "say to where: one of --webhook, --email and --apprise"
        raise click.UsageError(message)
    if webhook:
        return Webhook(webhook)
    return Email(email) if email else Apprise(apprise)


@notify.command()
@name
@setting.reason
@shared.database
def remove(subscription: str, reason: str, database: str | None) -> None:
    """Forget a stored subscription; messages that wait are not sent."""
    with _subscriptions(database) as api:
        named = api.resolve(subscription)
        api.remove(named, reason=reason)
    say(f"subscription {named} is removed")


@notify.command()
@name
@setting.reason
@shared.database
@shared.output
def enable(subscription: str, reason: str, database: str | None, output: str | None) -> None:
    """Send again, from now on."""
    with _subscriptions(database) as api:
        _report(api.enable(api.resolve(subscription), reason=reason), output)


@notify.command()
@name
@setting.reason
@shared.database
@shared.output
def disable(subscription: str, reason: str, database: str | None, output: str | None) -> None:
    """Send nothing any more, also nothing of what waits."""
    with _subscriptions(database) as api:
        made = api.disable(api.resolve(subscription), reason=reason)
    _report(made, output)
    say(f"mulligan notify enable {made.id}  sends again")


@notify.command()
@name
@setting.reason
@shared.database
@shared.output
def rotate(subscription: str, reason: str, database: str | None, output: str | None) -> None:
    """Give a webhook a new secret; the last one holds beside it until the next time."""
    with _subscriptions(database) as api:
        made = api.rotate(api.resolve(subscription), reason=reason)
    _report(made, output)
    if chosen(output) not in {"json", "jsonl"}:
        say(
            f"messages are signed with {made.secret} and with the last secret; it is not shown again"
        )


@notify.command()
@name
@shared.database
@shared.output
def test(subscription: str, database: str | None, output: str | None) -> None:
    """Send a message that says that it is a test. A worker delivers it."""
    with _subscriptions(database) as api:
        made = api.test(api.resolve(subscription))
    setting.print_record(_delivery(made, output), DELIVERED, output)
    say(f"mulligan jobs watch {made.id}  waits until it has arrived")


@notify.command()
@click.option("--subscription", help="Only to this one.")
@owner
@click.option(
    "--state", type=click.Choice([state.value for state in State]), help="Only those that are so."
)
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@click.option("--before", metavar="ID", help="Those that are older than this one.")
@shared.database
@shared.output
def deliveries(
    subscription: str | None,
    database: str | None,
    output: str | None,
    limit: int,
    before: str | None,
    **said: Any,
) -> None:
    """Messages, newest first. A delivery is a job: mulligan jobs explain ID tells its story, jobs retry ID sends it."""
    settings = settings_with(database)
    with existing(settings) as store:
        named = (
            Subscriptions(lambda: store, lambda: settings).resolve(subscription)
            if subscription
            else None
        )
        api = Deliveries(lambda: store, lambda: settings)
        found = api.list(subscription=named, limit=limit, before=before, **said)
    show_rows(
        [_delivery(one, output) for one in found],
        DELIVERED,
        output,
        empty="no messages yet",
        short="summary",
    )
    if found.cursor is not None:
        say(f"older ones: --before {found.cursor}")


# -- how it is shown ----------------------------------------------------------------------------------
def _report(subscription: Subscription, output: str | None) -> None:
    setting.print_record(_record(subscription, output), COLUMNS, output)


def _record(one: Subscription, output: str | None) -> dict[str, Any]:
    if chosen(output) in {"json", "jsonl"}:
        return {name: setting.to_plain(value) for name, value in asdict(one).items()}
    whose = [one.owner or "", f"batch:{one.batch}" if one.batch else "", one.filter]
    return {
        "id": one.id,
        "on": ", ".join(one.on),
        "form": one.form,
        "channel": one.channel,
        "to": one.to or "in the app's code",
        "for": " ".join(word for word in whose if word) or "all",
        "status": _status(one),
    }


def _status(one: Subscription) -> str:
    if not one.enabled:
        return f"off: {one.reason}"
    if one.failing_since is not None:
        return f"failing for {setting.time_since(one.failing_since)}"
    return "on"


def _delivery(one: Delivery, output: str | None) -> dict[str, Any]:
    if chosen(output) in {"json", "jsonl"}:
        return {name: setting.to_plain(value) for name, value in asdict(one).items()}
    told = (
        f"{one.summary} ({one.error})"
        if one.error and one.state != State.SUCCEEDED
        else one.summary
    )
    return {
        "id": one.id,
        "subscription": one.subscription,
        "state": one.state.value,
        "attempts": str(one.attempts),
        "type": one.type,
        "age": setting.time_since(one.created_at),
        "summary": told,
    }
