"""`mulligan notify …`."""

from __future__ import annotations

import json

import pytest

from mulligan.notifications.queries import NotificationQueries

HOOK = "https://example.com/hook"


def rows(answer):
    assert answer.code == 0, answer.err
    return [line.split("\t") for line in answer.out.splitlines()]


@pytest.fixture(autouse=True)
def _a_database(app):
    app.open()


@pytest.fixture
def hook(call):
    return json.loads(call("notify", "add", "job.died", "--webhook", HOOK, "-o", "json").out)


def test_add_shows_the_secret_once(call):
    answer = call(
        "notify",
        "add",
        "job.died",
        "batch.*",
        "--webhook",
        HOOK,
        "--owner",
        "acme",
        "--filter",
        "kind:add",
    )
    (row,) = rows(answer)
    assert row[1:] == [
        "job.died, batch.*",
        "each",
        "webhook",
        "https://example.com:443",
        "acme kind:add",
        "on",
    ]
    assert "whsec_" in answer.err
    assert f"mulligan notify test {row[0]}" in answer.err
    assert "whsec_" not in call("notify", "list", "-o", "json").out


def test_list_shows_mail_and_apprise_targets_without_secrets(call):
    call("notify", "add", "job.died", "--email", "ann@example.com", "--email", "bo@example.com")
    call("notify", "add", "job.died", "--apprise", "ntfy://topic-that-is-secret")
    found = rows(call("notify", "list"))
    assert [(row[2], row[3], row[4]) for row in found] == [
        ("incident", "email", "ann@example.com, bo@example.com"),
        ("incident", "apprise", "ntfy://…"),
    ]


def test_disable_enable_rotate_and_remove_accept_an_id_prefix(call, hook):
    short = hook["id"][:10]
    answer = call("notify", "disable", short, "--reason", "too loud")
    assert rows(answer)[0][-1] == "off: too loud"
    assert "mulligan notify enable" in answer.err
    assert rows(call("notify", "enable", short))[0][-1] == "on"
    changed = json.loads(call("notify", "rotate", short, "-o", "json").out)
    assert changed["secret"] != hook["secret"]
    assert call("notify", "remove", short).code == 0
    assert rows(call("notify", "list")) == []


def test_a_test_message_is_listed_as_a_delivery(call, hook):
    (sent,) = rows(call("notify", "test", hook["id"]))
    assert sent[2:5] == ["queued", "0", "subscription.test"]
    (listed,) = rows(
        call("notify", "deliveries", "--subscription", hook["id"], "--state", "queued")
    )
    assert listed[0] == sent[0]
    assert rows(call("notify", "deliveries", "--owner", "acme")) == []
    record = json.loads(call("notify", "deliveries", "-o", "json", "--limit", "1").out)[0]
    assert record["body"]["type"] == "subscription.test"


def test_doctor_reports_failing_and_disabled_subscriptions(call, app, hook):
    assert "1 known, all on, none failing" in call("doctor").out
    with app.store.begin() as tx:
        NotificationQueries(tx).record_failed_delivery(hook["id"])
    assert "1 failures in a row for" in call("doctor").out
    call("notify", "disable", hook["id"], "--reason", "too loud")
    answer = call("doctor").out
    assert f"{hook['id']} is off: too loud" in answer
    assert f"mulligan notify enable {hook['id']}" in answer


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("add", "job.dead", "--webhook", HOOK), 2, "Did you mean job.died"),
        (("add", "job.died"), 2, "--webhook"),
        (("add", "job.died", "--webhook", HOOK, "--email", "a@example.com"), 2, "exactly one of"),
        (("add", "job.died", "--webhook", "ftp://x"), 2, "https://"),
        (("add", "job.died", "--webhook", HOOK, "--batch", "none"), 3, "unknown batch"),
        (("test", "sub_none"), 3, "unknown subscription"),
        (("rotate", "sub_none"), 3, "unknown subscription"),
    ],
)
def test_invalid_arguments_are_refused(call, arguments, code, expected):
    answer = call("notify", *arguments)
    assert (answer.code, expected in answer.err) == (code, True), answer.err
