"""A discard can be undone: the job is dead or parked again as it was, and does not run."""

from __future__ import annotations

import pytest

from mulligan import Fail, Mulligan, Park, Policy, State, Unique
from mulligan.cli import main
from mulligan.core.errors import ChoiceRefused, IllegalMove, UniqueTaken


@pytest.fixture
def shop(app: Mulligan) -> Mulligan:
    @app.job(name="dies", policy=Policy(max_retries=0), unique=Unique(while_=("queued", "dead")))
    def dies(order: int = 1) -> Fail:
        return Fail("BROKEN", "no")

    @app.job(name="parks")
    def parks() -> Park:
        return Park("pay or not?", choices=("pay", "skip"))

    return app


def test_a_dead_job_is_dead_again_as_it_was(shop: Mulligan) -> None:
    job = shop.enqueue("dies")
    shop.run_inline()
    dead = job.refresh()
    group = shop.failures.groups()[0]
    shop.jobs.discard(job.id, reason="not needed")
    assert shop.failures.groups() == []
    undone = shop.jobs.undiscard(job.id, reason="it is needed")
    assert undone.state is State.DEAD
    assert (undone.error, undone.finished_at, undone.attempts, undone.token) == (
        dead.error,
        dead.finished_at,
        dead.attempts,
        dead.token,
    )
    assert shop.failures.groups()[0].fingerprint == group.fingerprint
    assert shop.jobs.retry(job.id).state is State.QUEUED


def test_a_parked_job_offers_its_choices_again(shop: Mulligan) -> None:
    job = shop.enqueue("parks")
    shop.run_inline()
    shop.jobs.discard(job.id, reason="x")
    undone = shop.jobs.undiscard(job.id)
    assert undone.state is State.PARKED
    assert undone.finished_at is None
    with pytest.raises(ChoiceRefused, match="pay, skip"):
        shop.jobs.release(job.id, choice="wait")
    assert shop.jobs.release(job.id, choice="pay").state is State.QUEUED


def test_only_a_discard_can_be_undone(shop: Mulligan) -> None:
    cancelled = shop.enqueue("parks")
    shop.jobs.cancel(cancelled.id)
    dead = shop.enqueue("dies")
    shop.run_inline()
    for job in (cancelled, dead):
        with pytest.raises(IllegalMove, match="was not discarded"):
            shop.jobs.undiscard(job.id)


def test_the_event_names_the_actor_the_reason_and_both_states(shop: Mulligan) -> None:
    job = shop.enqueue("dies")
    shop.run_inline()
    shop.jobs.discard(job.id, reason="not needed")
    shop.jobs.undiscard(job.id, reason="it is needed")
    event = shop.jobs.history(job.id)[-1]
    assert (event.type, event.actor) == ("job.undiscarded", "python")
    assert event.data["reason"] == "it is needed"
    assert (event.data["before"]["state"], event.data["after"]["state"]) == ("cancelled", "dead")


def test_a_unique_key_that_another_job_holds_by_now_is_refused(shop: Mulligan) -> None:
    first = shop.enqueue("dies")
    shop.run_inline()
    shop.jobs.discard(first.id, reason="x")
    second = shop.enqueue("dies")
    assert second.id != first.id
    with pytest.raises(UniqueTaken):
        shop.jobs.undiscard(first.id)
    assert first.refresh().state is State.CANCELLED


def test_the_batch_of_a_parked_job_waits_for_it_again(shop: Mulligan) -> None:
    batch = shop.batch("b")
    job = shop.enqueue("parks", batch=batch)
    batch.seal()
    shop.run_inline()
    shop.jobs.discard(job.id, reason="x")
    shop.run_inline()
    assert batch.refresh().outcome is not None
    shop.jobs.undiscard(job.id)
    assert batch.refresh().outcome is None


def test_the_command_undoes_a_discard(
    shop: Mulligan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = shop.enqueue("dies")
    shop.run_inline()
    monkeypatch.setenv("MULLIGAN_DATABASE_URL", shop.settings.database_url)
    assert main(["jobs", "discard", job.id, "--reason", "x"]) == 0
    assert main(["jobs", "undiscard", job.id, "--reason", "y"]) == 0
    assert job.refresh().state is State.DEAD
    assert main(["jobs", "undiscard", job.id]) == 5
    assert "was not discarded" in capsys.readouterr().err
