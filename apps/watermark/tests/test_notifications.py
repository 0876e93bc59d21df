"""Mails and the webhook, and a system without a mail server (acceptance 4, mail part)."""

from __future__ import annotations

import pytest

from mulligan import testing
from mulligan.apps.watermark import data, jobs
from mulligan.testing import Returns
from support.waiting import until

GARBAGE = b"no video at all " * 100
DONE = Returns("made")


def texts(mails) -> list[str]:
    return [mail.get_body(("plain",)).get_content() for mail in mails]


def token_mails(mails) -> list[tuple[str, str]]:
    """Return subject and text of the mails about failed copies."""
    found = [mail for mail in mails if ": the copy for" in mail["subject"]]
    found += [mail for mail in mails if "copies failed: " in mail["subject"]]
    return list(zip([mail["subject"] for mail in found], texts(found), strict=True))


@pytest.mark.seed("000-08", "000-75", "000-104")
def test_owner_gets_a_mail_about_a_failed_copy(world):
    world.publish(world.campaign("ada", asset=world.asset(GARBAGE)))
    world.mulligan.drain()
    (mail,) = [item for item in world.sent_mails() if "copy for" in item["subject"]]
    assert mail["to"] == "olga@example.com"  # 000-08, 000-104
    (text,) = texts([mail])
    for word in ("Olga", "Spring", "ada", "The video file is damaged"):
        assert word in text  # 000-75


@pytest.mark.seed("000-75", "000-80", "000-104")
def test_every_campaign_has_its_own_mail_with_its_recipients_and_numbers(world):
    """Two damaged campaigns of one owner at the same time, and one of another owner."""
    olga = world.account
    expected = {}
    for name, people in {
        "One": ("ada", "bo"),
        "Two": ("cy", "dee", "eve"),
        "Three": ("flo",),
    }.items():
        asset = world.asset(GARBAGE)
        expected[name] = people
        world.publish(world.campaign(*people, asset=asset, name=name))
    world.account = world.add(data.Account(name="Pia", email="pia@example.com"))
    world.publish(world.campaign("gus", "hal", asset=world.asset(GARBAGE), name="Pia's"))
    world.mulligan.drain()
    mails = world.sent_mails()
    for address, account, found in (
        ("olga@example.com", olga, expected),
        ("pia@example.com", world.account, {"Pia's": ("gus", "hal")}),
    ):
        mine = token_mails([mail for mail in mails if mail["to"] == address])
        assert len(mine) == len(found)  # 000-80: one per campaign, not one per cause
        for name, people in found.items():
            ((subject, text),) = [mail for mail in mine if mail[0].startswith(f"{name}: ")]
            assert account.name in text  # 000-75
            assert f"in the campaign {name} " in text  # 000-75
            assert "The video file is damaged" in text  # 000-75
            listed = text.partition("retry button for:")[2].split()
            assert tuple(listed) == people  # 000-75, 000-104
            count = f"{len(people)} of {len(people)} copies failed"
            assert (count in subject) == (len(people) > 1)  # 000-80


@pytest.mark.any_store
@pytest.mark.seed("000-80")
def test_mail_about_more_failures_of_a_campaign_names_them_all(world, damaged):
    campaign = world.publish(world.campaign("ada", "bo", "cy", "dee", "eve"))
    with world.mulligan.force(jobs.watermark, damaged, *[RuntimeError("x")] * 4):
        world.mulligan.drain()
    first = token_mails(world.sent_mails())
    assert len(first) == 1
    with world.mulligan.force(jobs.watermark, *[damaged] * 3, DONE):
        world.mulligan.drain(scheduled=True)
    last = token_mails(world.sent_mails())[-1]
    failed = sorted(token.recipient for token in world.views(campaign)[1] if token.failed)
    assert f"Spring: 4 of 5 copies failed: {failed[0]}, {failed[1]} and 2 more" == last[0]
    assert last[1].partition("retry button for:")[2].split() == failed
    assert not [mail for mail in world.mailbox.mails if "died of one cause" in mail.as_string()]


@pytest.mark.seed("000-40")
def test_retried_failures_send_no_mail(world):
    world.publish(world.campaign("ada"))
    with world.mulligan.force(jobs.watermark, RuntimeError("x"), RuntimeError("x"), DONE):
        world.mulligan.drain(scheduled=True)
    assert world.sent_mails() == []


@pytest.mark.any_store
@pytest.mark.seed("000-56", "000-76")
def test_mail_of_a_partial_campaign_has_both_numbers(world, damaged):
    world.run_campaign(DONE, DONE, damaged, names=("ada", "bo", "cy"))
    (text,) = texts(item for item in world.sent_mails() if "copies are ready" in item["subject"])
    assert "Olga" in text  # 000-76
    assert "Spring has ended: 2 copies are ready, 1 failed." in text  # 000-56, 000-76


@pytest.mark.any_store
@pytest.mark.seed("000-55", "000-77")
def test_mail_of_a_failed_campaign_has_the_number_of_failures(world, damaged):
    campaign = world.run_campaign(damaged, damaged, names=("ada", "bo"))
    assert world.state(campaign) == "FAILED"  # 000-55
    (text,) = texts(item for item in world.sent_mails() if "all 2 copies" in item["subject"])
    assert "Olga" in text  # 000-77
    assert "Spring has ended: all 2 copies failed." in text  # 000-55, 000-77


@pytest.mark.any_store
@pytest.mark.seed("000-80")
def test_many_failures_of_one_cause_send_few_mails(world, damaged):
    names = tuple(f"r{number:03}" for number in range(250))
    world.run_campaign(*[damaged] * 250, names=names)
    assert len(world.sent_mails()) == 2  # 000-80
    ((subject, text),) = token_mails(world.mailbox.mails)
    assert subject == "Spring: 250 of 250 copies failed: r000, r001 and 248 more"  # 000-80
    assert tuple(text.partition("retry button for:")[2].split()) == names  # 000-80


@pytest.mark.slow
@pytest.mark.any_store
@pytest.mark.seed("000-80")
@pytest.mark.processes
def test_with_the_setting_each_every_failed_copy_has_its_mail(world):
    """A real worker reads the setting, as a deployment does."""
    names = tuple(f"r{number}" for number in range(4))
    server = {**world.mailbox.settings, "WATERMARK_MAILS": "each"}
    with testing.worker(jobs.app, "mulligan.apps.watermark.jobs:app", env=server):
        world.publish(world.campaign(*names, asset=world.asset(GARBAGE)))
        until(lambda: len(world.mailbox.mails) >= 5, 60, "four mails and one")
    subjects = sorted(mail["subject"] for mail in world.mailbox.mails)
    assert subjects == [
        "Spring: all 4 copies failed",
        *[f"Spring: the copy for {name} failed" for name in names],
    ]  # 000-80: 51 mails for 50 failures


@pytest.mark.seed("000-54", "000-105")
def test_webhook_reports_every_outcome_with_its_state(world, damaged):
    for endings in ([DONE, DONE], [DONE, damaged], [damaged, damaged]):
        world.run_campaign(*endings, names=("ada", "bo"))
    received = [
        (item["event"], item["state"], item["completed"], item["failed"]) for item in world.hooks
    ]
    assert received == [
        ("campaign_ready", "READY", 2, 0),  # 000-54
        ("campaign_ready", "PARTIAL", 1, 1),  # 000-105
        ("campaign_ready", "FAILED", 0, 2),  # 000-105
    ]
    assert {"campaign_id", "campaign_name"} <= set(world.hooks[0])  # 000-105


@pytest.mark.any_store
@pytest.mark.seed("000-78")
def test_without_a_mail_server_no_mail_is_sent_and_nothing_fails(world, damaged, monkeypatch):
    monkeypatch.setitem(vars(jobs.app.settings.mail), "host", "")
    campaign = world.run_campaign(damaged, DONE, names=("ada", "bo"))
    assert world.sent_mails() == []
    assert world.state(campaign) == "PARTIAL"
    assert {item.skipped for item in jobs.app.deliveries.list()} >= {
        "mail.host is not set, so no mail is sent"
    }
    assert "dead" not in {item.state for item in jobs.app.deliveries.list()}


@pytest.mark.any_store
@pytest.mark.seed("000-44")
def test_job_of_an_unknown_kind_ends_and_its_owner_is_notified(world):
    with jobs.app.batch("Spring", owner=world.account.id) as batch:
        jobs.watermark.options(batch=batch).enqueue(token="x")
        jobs.app.enqueue("frobnicate", {}, batch=batch)
    with world.mulligan.force(jobs.watermark, DONE):
        world.mulligan.drain()
    world.mulligan.advance(jobs.app.settings.worker.unknown_kind_after + 1)
    world.mulligan.drain()
    assert batch.refresh().state == "partial"
    assert len(world.sent_mails()) == 1


@pytest.mark.any_store
@pytest.mark.seed("000-12", "000-13", "000-39")
def test_failed_detection_is_not_retried_and_sends_no_notification(world):
    campaign = world.run_campaign(DONE, names=("ada",))
    waiting = world.publish(world.campaign("bo"))
    with world.mulligan.force(jobs.watermark, "timeout"):
        world.mulligan.drain()
    assert world.state(waiting) == "PROCESSING"
    batch = world.job(waiting, "bo").batch_id
    events = jobs.app.batches.history(batch)
    world.hooks.clear()
    job = jobs.detect.options(owner=world.account.id).enqueue(file=world.asset(GARBAGE).path)
    slow = jobs.detect.options(owner=world.account.id).enqueue(file="x.mp4")
    with world.mulligan.force(jobs.detect, "timeout") as first:
        world.mulligan.drain()
        assert first.left == 0
    for item in (job, slow):
        assert world.mulligan.assert_state(item, "dead").attempts == 1  # 000-12
    assert (world.sent_mails(), world.hooks) == ([], [])  # 000-13
    assert world.state(campaign) == "READY"  # 000-13
    assert world.state(waiting) == "PROCESSING"  # 000-39
    assert jobs.app.batches.history(batch) == events  # 000-39


@pytest.mark.any_store
@pytest.mark.processes
def test_alerts_are_mailed_to_the_operators(world, tool, tmp_path):
    config = tmp_path / "mulligan.toml"
    rule = '{ name = "failure_share", least = 1, for = 0 }'
    config.write_text(f"[alerts]\nevery = 1\nrules = [{rule}]\n")
    tool("kill -9 $$")
    environment = {
        **world.mailbox.settings,
        "WATERMARK_ALERTS_TO": "operators@example.com",
        "MULLIGAN_CONFIG": str(config),
    }
    with testing.worker(jobs.app, "mulligan.apps.watermark.jobs:app", env=environment):
        world.publish(world.campaign("ada"))
        until(lambda: world.mailbox.mails, 60, "the alert")
    (mail,) = world.mailbox.mails
    assert mail["to"] == "operators@example.com"
    assert "failure_share" in mail.as_string()
