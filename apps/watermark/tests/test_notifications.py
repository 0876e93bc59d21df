"""Mails and the webhook, and a system without a mail server (acceptance 4, mail part)."""

from __future__ import annotations

import pytest

from mulligan.testing import Returns
from watermark import jobs

GARBAGE = b"no video at all " * 100
DONE = Returns("made")


def texts(mails) -> list[str]:
    return [mail.get_body(("plain",)).get_content() for mail in mails]


@pytest.mark.seed("000-08", "000-75", "000-104")
def test_owner_gets_a_mail_about_a_failed_copy(world):
    world.publish(world.campaign("ada", asset=world.asset(GARBAGE)))
    world.mulligan.drain()
    (mail,) = [item for item in world.sent_mails() if "copy for" in item["subject"]]
    assert mail["to"] == "olga@example.com"
    (text,) = texts([mail])
    for word in ("Olga", "Spring", "ada", "The video file is damaged"):
        assert word in text


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
    assert "Olga" in text
    assert "'Spring' has ended: 2 copies are ready, 1 failed." in text


@pytest.mark.any_store
@pytest.mark.seed("000-55", "000-77")
def test_mail_of_a_failed_campaign_has_the_number_of_failures(world, damaged):
    world.run_campaign(damaged, damaged, names=("ada", "bo"))
    (text,) = texts(item for item in world.sent_mails() if "copies failed" in item["subject"])
    assert "Olga" in text
    assert "'Spring' has ended: all 2 copies failed." in text


@pytest.mark.any_store
@pytest.mark.seed("000-80")
def test_many_failures_of_one_cause_send_few_mails(world, damaged):
    names = tuple(f"r{number}" for number in range(12))
    world.run_campaign(*[damaged] * 12, names=names)
    assert len(world.sent_mails()) == 2
    (subject,) = [item["subject"] for item in world.mailbox.mails if "copy for" in item["subject"]]
    assert "and 11 more failed" in subject


@pytest.mark.seed("000-54", "000-105")
def test_webhook_reports_every_outcome_with_its_state(world, damaged):
    for endings in ([DONE, DONE], [DONE, damaged], [damaged, damaged]):
        world.run_campaign(*endings, names=("ada", "bo"))
    received = [
        (item["event"], item["state"], item["completed"], item["failed"]) for item in world.hooks
    ]
    assert received == [
        ("campaign_ready", "READY", 2, 0),
        ("campaign_ready", "PARTIAL", 1, 1),
        ("campaign_ready", "FAILED", 0, 2),
    ]
    assert {"campaign_id", "campaign_name"} <= set(world.hooks[0])


@pytest.mark.any_store
@pytest.mark.seed("000-78")
def test_without_a_mail_server_no_mail_is_sent_and_nothing_fails(world, damaged, monkeypatch):
    monkeypatch.setitem(vars(jobs.app.settings.mail), "host", "")
    campaign = world.run_campaign(damaged, DONE, names=("ada", "bo"))
    assert world.sent_mails() == []
    assert world.state(campaign) == "PARTIAL"
    assert {item.state for item in jobs.app.deliveries.list()} == {"succeeded"}


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
    world.hooks.clear()
    job = jobs.detect.options(owner=world.account.id).enqueue(file=world.asset(GARBAGE).path)
    slow = jobs.detect.options(owner=world.account.id).enqueue(file="x.mp4")
    with world.mulligan.force(jobs.detect, "timeout") as first:
        world.mulligan.drain(scheduled=True)
        assert first.left == 0
    for item in (job, slow):
        assert world.mulligan.assert_state(item, "dead").attempts == 1
    assert (world.sent_mails(), world.hooks) == ([], [])
    assert world.state(campaign) == "READY"
