"""Who hears of what: mails, the webhook, and nobody without a mail server (acceptance 4, the half about mail)."""

from __future__ import annotations

import pytest

from mulligan.testing import Returns
from watermark import jobs

GARBAGE = b"no video at all " * 100
DONE = Returns("made")


def texts(mails) -> list[str]:
    return [mail.get_body(("plain",)).get_content() for mail in mails]


@pytest.mark.seed("000-08", "000-75", "000-104")
def test_the_owner_hears_of_a_failed_copy_before_anybody_looked_at_a_page(world):
    world.publish(world.campaign("ada", asset=world.asset(GARBAGE)))
    world.mulligan.drain()
    (mail,) = [one for one in world.told() if "copy for" in one["subject"]]
    assert mail["to"] == "olga@example.com"
    (text,) = texts([mail])
    for word in ("Olga", "Spring", "ada", "The video file is damaged"):
        assert word in text


@pytest.mark.seed("000-40")
def test_nobody_hears_of_failures_that_are_tried_again(world):
    world.publish(world.campaign("ada"))
    with world.mulligan.force(jobs.watermark, RuntimeError("x"), RuntimeError("x"), DONE):
        world.mulligan.drain(scheduled=True)
    assert world.told() == []


@pytest.mark.any_store
@pytest.mark.seed("000-56", "000-76")
def test_the_mail_of_a_partial_campaign_has_both_numbers(world, damaged):
    world.ended(DONE, DONE, damaged, names=("ada", "bo", "cy"))
    (text,) = texts(one for one in world.told() if "copies are ready" in one["subject"])
    assert "Olga" in text
    assert "'Spring' has ended: 2 copies are ready, 1 failed." in text


@pytest.mark.any_store
@pytest.mark.seed("000-55", "000-77")
def test_the_mail_of_a_failed_campaign_has_the_number(world, damaged):
    world.ended(damaged, damaged, names=("ada", "bo"))
    (text,) = texts(one for one in world.told() if "copies failed" in one["subject"])
    assert "Olga" in text
    assert "'Spring' has ended: all 2 copies failed." in text


@pytest.mark.any_store
@pytest.mark.seed("000-80")
def test_fifty_failures_of_one_cause_are_a_few_mails(world, damaged):
    names = tuple(f"r{number}" for number in range(12))
    world.ended(*[damaged] * 12, names=names)
    assert len(world.told()) == 2
    (subject,) = [one["subject"] for one in world.mailbox.mails if "copy for" in one["subject"]]
    assert "and 11 more failed" in subject


@pytest.mark.seed("000-54", "000-105")
def test_the_webhook_tells_every_outcome_with_its_state(world, damaged):
    for endings in ([DONE, DONE], [DONE, damaged], [damaged, damaged]):
        world.ended(*endings, names=("ada", "bo"))
    told = [(one["event"], one["state"], one["completed"], one["failed"]) for one in world.hooks]
    assert told == [
        ("campaign_ready", "READY", 2, 0),
        ("campaign_ready", "PARTIAL", 1, 1),
        ("campaign_ready", "FAILED", 0, 2),
    ]
    assert {"campaign_id", "campaign_name"} <= set(world.hooks[0])


@pytest.mark.any_store
@pytest.mark.seed("000-78")
def test_without_a_mail_server_nothing_is_sent_and_nothing_breaks(world, damaged, monkeypatch):
    monkeypatch.setitem(vars(jobs.app.settings.mail), "host", "")
    campaign = world.ended(damaged, DONE, names=("ada", "bo"))
    assert world.told() == []
    assert world.state(campaign) == "PARTIAL"
    assert {one.state for one in jobs.app.deliveries.list()} == {"succeeded"}


@pytest.mark.any_store
@pytest.mark.seed("000-44")
def test_a_kind_of_job_that_nobody_knows_ends_and_the_owner_hears_of_it(world):
    with jobs.app.batch("Spring", owner=world.account.id) as batch:
        jobs.watermark.options(batch=batch).enqueue(token="x")
        jobs.app.enqueue("frobnicate", {}, batch=batch)
    with world.mulligan.force(jobs.watermark, DONE):
        world.mulligan.drain()
    world.mulligan.advance(jobs.app.settings.worker.unknown_kind_after + 1)
    world.mulligan.drain()
    assert batch.refresh().state == "partial"
    assert len(world.told()) == 1


@pytest.mark.any_store
@pytest.mark.seed("000-12", "000-13", "000-39")
def test_a_detection_that_fails_is_not_tried_again_and_tells_nobody(world):
    campaign = world.ended(DONE, names=("ada",))
    world.hooks.clear()
    job = jobs.detect.options(owner=world.account.id).enqueue(file=world.asset(GARBAGE).path)
    slow = jobs.detect.options(owner=world.account.id).enqueue(file="x.mp4")
    with world.mulligan.force(jobs.detect, "timeout") as first:
        world.mulligan.drain(scheduled=True)
        assert first.left == 0
    for one in (job, slow):
        assert world.mulligan.assert_state(one, "dead").attempts == 1
    assert (world.told(), world.hooks) == ([], [])
    assert world.state(campaign) == "READY"
