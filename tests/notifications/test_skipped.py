"""Messages that cannot be sent are skipped, visibly, and never recorded as delivered."""

from __future__ import annotations

import logging
from itertools import accumulate

import pytest

from mulligan import Email, Fail, Policy, Webhook
from mulligan.cli import main
from mulligan.doctor.settings import subscription_checks
from mulligan.events.queries import EventQueries
from mulligan.failures.redact import remove_secrets
from mulligan.notifications import RETRY_POLICY

NO_SERVER = "mail.host is not set, so no mail is sent"


@pytest.fixture
def app(make_app):
    app = make_app()

    @app.job(name="fails", policy=Policy(max_retries=0))
    def fails() -> Fail:
        return Fail("BAD_INPUT", final=True)

    return app


def notify_and_die(app, to) -> None:
    app.notify(on="job.died", to=to, name="ops", form="each")
    app.run_inline()
    app.enqueue("fails")
    app.run_inline()


def test_a_mail_without_a_mail_server_is_skipped_and_not_delivered(app):
    notify_and_die(app, Email("ops@example.com"))
    [delivery] = app.deliveries.list()
    assert (delivery.state, delivery.skipped) == ("cancelled", NO_SERVER)
    with app.store.read() as tx:
        events = EventQueries(tx).list_events_after(0, 1000)
    [event] = [event for event in events if event.type == "delivery.skipped"]
    assert event.data["subscription"] == "ops"
    assert event.data["reason"] == NO_SERVER
    assert event.job_id == delivery.id


def test_the_command_line_shows_a_skipped_message_with_its_reason(app, capsys, monkeypatch):
    notify_and_die(app, Email("ops@example.com"))
    monkeypatch.setenv("MULLIGAN_DATABASE_URL", app.settings.database_url)
    assert main(["notify", "deliveries"]) == 0
    printed = capsys.readouterr().out
    assert "skipped" in printed
    assert NO_SERVER in printed
    assert "succeeded" not in printed


def test_a_subscription_to_skipped_messages_does_not_notify_about_its_own(app):
    app.notify(on="*", to=Email("ops@example.com"), name="all", form="each")
    app.run_inline()
    app.enqueue("fails")
    for _ in range(3):
        app.run_inline()
    types = {delivery.type for delivery in app.deliveries.list()}
    assert "job.died" in types
    assert "delivery.skipped" not in types


@pytest.mark.parametrize(
    ("to", "reason"),
    [
        (Webhook("https://example.com/hook", render=lambda _: None), "render returned None"),
        (Email(lambda _: []), NO_SERVER),
    ],
)
def test_every_message_that_is_not_sent_is_skipped(app, to, reason):
    notify_and_die(app, to)
    [delivery] = app.deliveries.list()
    assert delivery.skipped == reason


def test_a_message_to_a_disabled_subscription_is_skipped(app):
    subscription = app.subscriptions.add("job.died", Webhook("https://example.com/hook"))
    delivery = app.subscriptions.test(subscription.id)
    app.subscriptions.disable(subscription.id, reason="too loud")
    app.run_inline()
    assert app.deliveries.get(delivery.id).skipped == "its subscription is disabled"


def test_workers_warn_once_about_a_subscription_that_cannot_send(app, caplog):
    with caplog.at_level(logging.WARNING):
        notify_and_die(app, Email("ops@example.com"))
        app.run_inline()
    warnings = [
        record.getMessage()
        for record in caplog.records
        if "subscription ops" in record.getMessage()
    ]
    assert warnings == [f"messages of subscription ops are skipped: {NO_SERVER}"]


def test_the_warning_is_readable_if_the_name_of_the_subscription_sounds_like_a_secret(app, caplog):
    app.notify(on="job.died", to=Email("ops@example.com"), name="token-failed")
    with caplog.at_level(logging.WARNING):
        app.run_inline()
    (warning,) = [line for line in caplog.messages if "token-failed" in line]
    assert (
        remove_secrets(warning) == f"messages of subscription token-failed are skipped: {NO_SERVER}"
    )


def test_doctor_warns_about_a_subscription_that_cannot_send(app):
    notify_and_die(app, Email("ops@example.com"))
    with app.store.read() as tx:
        checks = list(subscription_checks(tx, app.settings))
    assert [(check.status, check.found) for check in checks if check.status != "ok"] == [
        ("warn", f"ops: {NO_SERVER}")
    ]


def test_a_delivery_has_four_retries_within_the_first_minute():
    assert RETRY_POLICY.backoff is not None
    waits = [RETRY_POLICY.backoff.delay(n, None) for n in range(RETRY_POLICY.max_retries)]
    assert sum(at <= 60 for at in accumulate(waits)) == 4
    assert 3 * 86_400 < sum(waits) < 4 * 86_400
