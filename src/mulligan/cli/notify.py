"""`mulligan notify …`: subscriptions to events, and the deliveries of their messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import click

from mulligan.cli import CommandGroup
from mulligan.cli import completion as complete
from mulligan.cli import options as shared
from mulligan.cli.database import (
    command_line,
    open_services,
    print_hint,
    print_notice,
)
from mulligan.cli.output import is_json, json_value, print_record, print_rows, time_since
from mulligan.core.job import State
from mulligan.notifications.channels import CHANNELS, Channel, join_or
from mulligan.notifications.deliveries import Delivery
from mulligan.notifications.rules import FORMS
from mulligan.notifications.subscriptions import Subscription

F = TypeVar("F", bound=Callable[..., Any])

COLUMNS = ("id", "on", "form", "channel", "to", "for", "status")
DELIVERY_COLUMNS = ("id", "subscription", "state", "attempts", "type", "age", "summary")
NO_SUBSCRIPTIONS = (
    "No subscriptions yet. Add one with: mulligan notify add job.died --webhook https://…"
)


@click.group(cls=CommandGroup)
def notify() -> None:
    """Manage subscriptions and list deliveries."""


_owner_option = click.option("--owner", help="Only of this owner.")
_subscription_argument = click.argument(
    "subscription", shell_complete=complete.complete_subscriptions
)


# --- Subscriptions ---


@notify.command("list")
@_owner_option
@shared.database_option
@shared.output_option
def list_subscriptions(owner: str | None, database: str | None, output: str | None) -> None:
    """List all subscriptions, including those declared in code."""
    with open_services(database) as services:
        found = services.subscriptions.list(owner=owner)
    records = [_subscription_record(subscription, output) for subscription in found]
    print_rows(records, COLUMNS, output, empty=NO_SUBSCRIPTIONS, truncate="to")


def _channel_options(command: F) -> F:
    """Add one option for each channel."""
    return shared.add_options(
        command,
        *(
            click.option(
                f"--{channel.kind}",
                multiple=channel.several,
                metavar=channel.metavar,
                help=channel.help,
            )
            for channel in reversed(CHANNELS)
        ),
    )


@notify.command("add")
@click.argument("events", nargs=-1, required=True, metavar="EVENT…")
@_channel_options
@click.option("--owner", help="Only jobs and batches of this owner.")
@click.option("--batch", metavar="ID", help="Only this batch.")
@click.option(
    "--filter",
    "filter_",
    default="",
    metavar="FILTER",
    help="kind:render code:GW_5XX class:timeout queue:pdf",
)
@click.option(
    "--form",
    type=click.Choice(FORMS),
    help="One message per event, or one incident per cause of failure.",
)
@click.option("--name", default="", help="A name for people.")
@shared.reason_option
@shared.database_option
@shared.output_option
def add(
    events: tuple[str, ...],
    filter_: str,
    database: str | None,
    output: str | None,
    **options: Any,
) -> None:
    """Send a message on EVENT…: job.died, batch.*, dependency.opened …"""
    channel = _take_channel(options)
    with open_services(database) as services:
        added = services.subscriptions.add(events, channel, filter=filter_, **options)
    _print_subscription(added, output)
    if added.secret and not is_json(output):
        print_notice(f"Messages are signed with {added.secret}. It is not shown again.")
    print_hint(command_line("notify", "test", added.id), "send a test message")


def _take_channel(options: dict[str, Any]) -> Channel:
    """Remove the options of channels and build the one channel that is chosen."""
    values = [(channel, options.pop(channel.kind)) for channel in CHANNELS]
    chosen = [(channel, value) for channel, value in values if value]
    if len(chosen) != 1:
        names = join_or([f"--{channel.kind}" for channel in CHANNELS])
        message = f"choose exactly one of {names}"
        raise click.UsageError(message)
    [(channel, value)] = chosen
    return channel.load()(value)


@notify.command("remove")
@_subscription_argument
@shared.reason_option
@shared.database_option
def remove(subscription: str, reason: str, database: str | None) -> None:
    """Delete a stored subscription. Its waiting messages are not sent."""
    with open_services(database) as services:
        full_id = services.subscriptions.resolve(subscription)
        services.subscriptions.remove(full_id, reason=reason)
    print_notice(f"Removed subscription {full_id}.")


@notify.command("enable")
@_subscription_argument
@shared.reason_option
@shared.database_option
@shared.output_option
def enable(subscription: str, reason: str, database: str | None, output: str | None) -> None:
    """Enable a subscription. Events from now on are sent."""
    with open_services(database) as services:
        _print_subscription(
            services.subscriptions.enable(
                services.subscriptions.resolve(subscription), reason=reason
            ),
            output,
        )


@notify.command("disable")
@_subscription_argument
@shared.reason_option
@shared.database_option
@shared.output_option
def disable(subscription: str, reason: str, database: str | None, output: str | None) -> None:
    """Disable a subscription. Its waiting messages are not sent."""
    with open_services(database) as services:
        disabled = services.subscriptions.disable(
            services.subscriptions.resolve(subscription), reason=reason
        )
    _print_subscription(disabled, output)
    print_hint(command_line("notify", "enable", disabled.id), "enable it again")


@notify.command("rotate")
@_subscription_argument
@shared.reason_option
@shared.database_option
@shared.output_option
def rotate(subscription: str, reason: str, database: str | None, output: str | None) -> None:
    """Give a webhook a new secret. The previous one stays valid until the next rotation."""
    with open_services(database) as services:
        rotated = services.subscriptions.rotate(
            services.subscriptions.resolve(subscription), reason=reason
        )
    _print_subscription(rotated, output)
    if not is_json(output):
        print_notice(
            f"Messages are signed with {rotated.secret} and with the previous secret. "
            "It is not shown again."
        )


@notify.command("test")
@_subscription_argument
@shared.database_option
@shared.output_option
def test(subscription: str, database: str | None, output: str | None) -> None:
    """Send a test message. A worker delivers it."""
    with open_services(database) as services:
        delivery = services.subscriptions.test(services.subscriptions.resolve(subscription))
    print_record(_delivery_record(delivery, output), DELIVERY_COLUMNS, output)
    print_hint(command_line("jobs", "watch", delivery.id), "wait until it is delivered")


def _print_subscription(subscription: Subscription, output: str | None) -> None:
    print_record(_subscription_record(subscription, output), COLUMNS, output)


def _subscription_record(subscription: Subscription, output: str | None) -> dict[str, Any]:
    if is_json(output):
        return {name: json_value(value) for name, value in asdict(subscription).items()}
    batch = f"batch:{subscription.batch}" if subscription.batch else ""
    scope = [part for part in (subscription.owner, batch, subscription.filter) if part]
    return {
        "id": subscription.id,
        "on": ", ".join(subscription.on),
        "form": subscription.form,
        "channel": subscription.channel,
        "to": subscription.to or "declared in code",
        "for": " ".join(scope) or "all",
        "status": _subscription_status(subscription),
    }


def _subscription_status(subscription: Subscription) -> str:
    if not subscription.enabled:
        return f"off: {subscription.reason}"
    if subscription.failing_since is not None:
        return f"failing for {time_since(subscription.failing_since)}"
    return "on"


# --- Deliveries ---


@notify.command("deliveries")
@click.option("--subscription", help="Only of this subscription.")
@_owner_option
@click.option(
    "--state", type=click.Choice([state.value for state in State]), help="Only in this state."
)
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@click.option("--before", metavar="ID", help="Next page: the ID of the last delivery above.")
@shared.database_option
@shared.output_option
def list_deliveries(
    subscription: str | None,
    database: str | None,
    output: str | None,
    **options: Any,
) -> None:
    """List messages, newest first.

    A delivery is a job: `jobs explain ID` explains it, `jobs retry ID` sends it again.
    """
    with open_services(database) as services:
        subscription_id = None
        if subscription:
            subscription_id = services.subscriptions.resolve(subscription)
        found = services.deliveries.list(subscription=subscription_id, **options)
    records = [_delivery_record(delivery, output) for delivery in found]
    print_rows(records, DELIVERY_COLUMNS, output, empty="No messages yet.", truncate="summary")
    if found.cursor is not None:
        print_notice(f"Next page: --before {found.cursor}")


def _delivery_record(delivery: Delivery, output: str | None) -> dict[str, Any]:
    if is_json(output):
        return {name: json_value(value) for name, value in asdict(delivery).items()}
    summary = delivery.summary
    problem = delivery.skipped or delivery.error
    if problem and delivery.state != State.SUCCEEDED:
        summary = f"{summary} ({problem})"
    return {
        "id": delivery.id,
        "subscription": delivery.subscription,
        "state": "skipped" if delivery.skipped else delivery.state.value,
        "attempts": str(delivery.attempts),
        "type": delivery.type,
        "age": time_since(delivery.created_at),
        "summary": summary,
    }
