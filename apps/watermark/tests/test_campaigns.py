"""States of a campaign, publishing and manual retries (acceptance 3, without a browser)."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from mulligan import Fail
from mulligan.apps.watermark import campaigns, data, jobs
from mulligan.testing import Returns

DAMAGED = Fail("BAD_FILE", "moov atom not found", final=True)
DONE = Returns("made")


@pytest.mark.any_store
@pytest.mark.seed("000-02", "000-51")
def test_campaign_with_three_failed_copies_of_fifty_is_never_ready(world):
    names = tuple(f"r{number:02}" for number in range(50))
    campaign = world.run_campaign(*[DONE] * 47, *[DAMAGED] * 3, names=names)
    assert world.state(campaign) == "PARTIAL"  # 000-51
    with jobs.db() as session:
        batch = session.get_one(data.Campaign, campaign).batch_id
    assert "batch.ready" not in [event.type for event in jobs.app.batches.history(batch)]  # 000-02
    assert [hook["state"] for hook in world.hooks] == ["PARTIAL"]  # 000-02


@pytest.mark.seed("000-39", "000-51", "000-52", "000-53", "000-57")
@pytest.mark.parametrize(
    ("endings", "state"),
    [([DONE, DONE], "READY"), ([DONE, DAMAGED], "PARTIAL"), ([DAMAGED, DAMAGED], "FAILED")],
)
def test_campaign_state_follows_from_its_copies(world, endings, state):
    campaign = world.publish(world.campaign("ada", "bo"))
    assert world.views(campaign)[0].counts == {
        "total": 2,
        "completed": 0,
        "failed": 0,
        "pending": 2,
        "running": 0,
    }  # 000-57
    assert world.state(campaign) == "PROCESSING"  # 000-53
    with world.mulligan.force(jobs.watermark, *endings):
        jobs.app.run_inline(until_idle=False)
        half = world.views(campaign)[0]
        assert half.counts["completed"] + half.counts["failed"] == 1
        assert half.state == "PROCESSING"  # 000-39: looked at, and not over
        world.mulligan.drain()
    view = world.views(campaign)[0]
    failed = endings.count(DAMAGED)
    assert view.counts == {
        "total": 2,
        "completed": 2 - failed,
        "failed": failed,
        "pending": 0,
        "running": 0,
    }
    assert view.state == state  # 000-39, 000-51, 000-52


@pytest.mark.any_store
@pytest.mark.seed("000-53")
def test_campaign_stays_processing_while_a_copy_waits_for_its_retry(world):
    campaign = world.run_campaign(DONE, RuntimeError("x"), names=("ada", "bo"))
    assert world.state(campaign) == "PROCESSING"


@pytest.mark.seed("000-09", "000-61")
def test_publishing_again_creates_no_second_job(world):
    campaign = world.run_campaign(DONE, DAMAGED, names=("ada", "bo"))
    with jobs.db() as session:
        at = session.get_one(data.Campaign, campaign).published_at
    for _ in range(2):
        world.publish(campaign)
    world.mulligan.drain()
    assert world.state(campaign) == "PARTIAL"
    assert jobs.app.jobs.count("kind:watermark") == 2  # 000-09
    with jobs.db() as session:
        assert session.get_one(data.Campaign, campaign).published_at == at  # 000-61


@pytest.mark.any_store
@pytest.mark.seed("000-09")
def test_concurrent_publishing_creates_one_batch(world):
    campaign = world.campaign("ada", "bo", "cy")
    start = threading.Barrier(6)

    def press() -> None:
        start.wait()
        world.publish(campaign)

    threads = [threading.Thread(target=press) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert jobs.app.jobs.count("kind:watermark") == 3
    assert len(jobs.app.batches.list()) == 1


@pytest.mark.any_store
@pytest.mark.seed("000-58")
def test_publishing_a_campaign_without_recipients_is_refused(world):
    campaign = world.campaign()
    with pytest.raises(campaigns.Refused, match="at least one recipient"):
        world.publish(campaign)
    assert world.state(campaign) == "DRAFT"


def stored_state(campaign: str) -> str:
    """Return the state in the table, as a report reads it."""
    with jobs.db() as session:
        query = text("SELECT state FROM campaigns WHERE id = :id")
        return session.execute(query, {"id": campaign}).scalar_one()


@pytest.mark.seed("000-50")
def test_table_holds_the_real_state_of_every_campaign(world):
    """DRAFT, PROCESSING, READY, PARTIAL, FAILED and EXPIRED, each as soon as it is reached."""
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    draft = world.campaign("ada")
    assert stored_state(draft) == "DRAFT"  # 000-50
    ready = world.run_campaign(DONE, DONE, names=("ada", "bo"), expires_at=soon)
    partial = world.run_campaign(DONE, DAMAGED, names=("ada", "bo"))
    failed = world.run_campaign(DAMAGED, DAMAGED, names=("ada", "bo"))
    waiting = world.run_campaign(RuntimeError("x"), names=("ada",))
    states = [stored_state(campaign) for campaign in (ready, partial, failed, waiting)]
    assert states == ["READY", "PARTIAL", "FAILED", "PROCESSING"]  # 000-50

    (bad,) = [token.recipient for token in world.views(partial)[1] if token.failed]
    retry_token(world, partial, bad)
    assert stored_state(partial) == "PROCESSING"
    with world.mulligan.force(jobs.watermark, DONE):
        world.mulligan.drain()
    assert stored_state(partial) == "READY"
    world.mulligan.advance(3601)
    world.mulligan.drain()
    assert stored_state(ready) == "EXPIRED"  # 000-50


@pytest.mark.seed("000-50")
def test_database_refuses_an_unknown_campaign_state(world):
    campaign = world.campaign("ada")
    with pytest.raises(IntegrityError), jobs.db() as session:  # 000-50
        session.execute(
            text("UPDATE campaigns SET state = 'DONE' WHERE id = :id"), {"id": campaign}
        )


@pytest.mark.any_store
@pytest.mark.seed("000-62", "000-91")
@pytest.mark.parametrize("endings", [[DONE, DONE], [DONE, DAMAGED], [DAMAGED, DAMAGED]])
def test_finished_campaign_expires_at_its_expiry_time(world, endings):
    until = datetime.now(UTC) + timedelta(hours=1)
    campaign = world.run_campaign(*endings, names=("ada", "bo"), expires_at=until.isoformat())
    assert world.state(campaign) in ("READY", "PARTIAL", "FAILED")
    world.mulligan.advance(3601)
    world.mulligan.drain()
    view, tokens = world.views(campaign)
    assert view.state == "EXPIRED"  # 000-62
    assert {token.status for token in tokens} == {"EXPIRED"}  # 000-91


@pytest.mark.seed("000-60")
def test_late_copy_does_not_reopen_an_expired_campaign(world):
    until = datetime.now(UTC) + timedelta(hours=1)
    campaign = world.run_campaign(
        DONE, RuntimeError("x"), names=("ada", "bo"), expires_at=until.isoformat()
    )
    jobs.app.queues.pause("encode")
    world.mulligan.advance(3601)
    world.mulligan.drain()
    jobs.app.queues.resume("encode")
    with world.mulligan.force(jobs.watermark, DONE):
        world.mulligan.drain()
    world.mulligan.drain()
    assert world.state(campaign) == "EXPIRED"


def retry_token(world, campaign: str, recipient: str) -> None:
    with jobs.db() as session:
        found = session.get_one(data.Campaign, campaign)
        token = next(item for item in found.tokens if item.recipient.name == recipient)
        campaigns.retry(found, token)


@pytest.mark.seed("000-36", "000-37", "000-63", "000-67")
def test_manual_retry_reopens_the_campaign_and_ends_it_ready(world):
    campaign = world.publish(world.campaign("ada", "bo"))
    with world.mulligan.force(jobs.watermark, DONE, RuntimeError("first"), DAMAGED):
        world.mulligan.drain(scheduled=True)
    assert world.state(campaign) == "PARTIAL"
    (failed,) = [item for item in world.views(campaign)[1] if item.failed]
    assert failed.retry_count == 1
    retry_token(world, campaign, failed.recipient)
    again = world.token(campaign, failed.recipient)
    job = world.job(campaign, failed.recipient)
    assert (again.status, again.retry_count, again.percent, again.next_retry_at) == (
        "PENDING",
        0,
        0,
        None,
    )  # 000-36
    assert (again.started_at, again.completed_at) == (None, None)  # 000-36
    assert world.state(campaign) == "PROCESSING"  # 000-63
    with world.mulligan.force(jobs.watermark, DONE):
        world.mulligan.drain()
    assert world.state(campaign) == "READY"  # 000-63
    attempts = jobs.app.jobs.attempts(job.id)
    assert [item.generation for item in attempts] == [1, 1, 2]  # 000-67: the job of the token
    assert attempts[0].code  # 000-37: the old errors stay


@pytest.mark.any_store
def test_cancelled_copy_can_be_retried_by_its_owner(world):
    campaign = world.publish(world.campaign("ada"))
    jobs.app.jobs.cancel(world.job(campaign).id, reason="too many")
    assert world.token(campaign).status == "FAILED"
    retry_token(world, campaign, "ada")
    assert world.token(campaign).status == "PENDING"


@pytest.mark.any_store
@pytest.mark.seed("000-64")
def test_manual_retry_that_fails_notifies_again(world):
    campaign = world.run_campaign(DAMAGED, names=("ada",))
    first = len(world.sent_mails())
    retry_token(world, campaign, "ada")
    with world.mulligan.force(jobs.watermark, DAMAGED):
        world.mulligan.drain()
    assert world.state(campaign) == "FAILED"
    assert "its only copy failed" in world.sent_mails()[-1]["subject"]
    assert len(world.sent_mails()) > first
    assert [item["state"] for item in world.hooks] == ["FAILED", "FAILED"]


@pytest.mark.seed("000-35")
def test_twenty_concurrent_retry_requests_are_one_retry(world):
    campaign = world.run_campaign(DAMAGED, names=("ada",))
    start = threading.Barrier(20)
    refused = []

    def press() -> None:
        start.wait()
        try:
            retry_token(world, campaign, "ada")
        except campaigns.Refused as refusal:
            refused.append(str(refusal))

    threads = [threading.Thread(target=press) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == ["Token is not in a failed state."] * 19
    assert world.job(campaign).generation == 2
    event_types = [item.type for item in jobs.app.jobs.history(world.job(campaign).id)]
    assert event_types.count("job.retried") == 1


@pytest.mark.any_store
@pytest.mark.seed("000-83")
def test_deleting_an_account_deletes_its_campaigns(world):
    campaign = world.campaign("ada", "bo")
    with jobs.db() as session:
        session.execute(text("DELETE FROM tokens"))
        session.execute(text("DELETE FROM accounts"))
    with jobs.db() as session:
        assert session.get(data.Campaign, campaign) is None


@pytest.mark.any_store
@pytest.mark.seed("000-29")
def test_retried_old_job_does_not_start_before_fresh_jobs(world):
    first = world.run_campaign(RuntimeError("x"), names=("ada",))
    second = world.publish(world.campaign("bo"))
    world.mulligan.advance(60)
    with world.mulligan.force(jobs.watermark, DONE, DONE):
        world.mulligan.drain()
    started = [
        world.job(campaign, name).started_at for campaign, name in ((second, "bo"), (first, "ada"))
    ]
    assert started == sorted(started)
