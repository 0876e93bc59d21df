"""A succeeded job is run again as a copy; the job and its result stay."""

from __future__ import annotations

import pytest

from mulligan import Context, Mulligan, State, Unique
from mulligan.cli import main
from mulligan.core.errors import IllegalMove, NotFound


@pytest.fixture
def shop(app: Mulligan) -> Mulligan:
    @app.job(name="bill", queue="money", unique=Unique(by=("owner",)), index=("order",))
    def bill(order: int) -> int:
        return order

    @app.job(name="fails")
    def fails(ctx: Context) -> None:
        raise KeyError(ctx.job.id)

    app.open()
    return app


@pytest.fixture
def done(shop: Mulligan):
    job = shop.enqueue("bill", {"order": 7}, owner="acme", priority=-3)
    shop.run_inline()
    return job.refresh()


def test_a_copy_runs_with_the_payload_queue_owner_and_priority(shop, done):
    copy = shop.jobs.rerun(done.id, reason="the receipt was lost")
    assert copy.id != done.id
    shop.run_inline()
    again = copy.refresh()
    assert (again.state, again.result) == (State.SUCCEEDED, 7)
    fields = ("kind", "queue", "owner", "priority", "payload")
    assert [getattr(again, name) for name in fields] == [getattr(done, name) for name in fields]
    assert done.refresh() == done
    assert len(shop.jobs.list("arg.order:7")) == 2


def test_the_unique_key_of_the_kind_does_not_return_the_old_job(shop, done):
    assert shop.enqueue("bill", {"order": 7}, owner="acme").deduplicated
    copy = shop.jobs.rerun(done.id)
    assert not copy.deduplicated
    assert copy.unique_key is None


def test_the_copy_names_its_job_and_the_person(shop, done):
    copy = shop.jobs.rerun(done.id, reason="the receipt was lost")
    (event,) = shop.events.list(job=copy.id)
    assert event.type == "job.queued"
    assert event.actor == "python"
    assert event.data["copy_of"] == done.id
    assert event.data["reason"] == "the receipt was lost"


def test_only_a_succeeded_job_of_the_owner_is_copied(shop, done):
    dead = shop.enqueue("fails", owner="acme")
    shop.run_inline()
    with pytest.raises(IllegalMove, match="is dead; only a succeeded job"):
        shop.jobs.rerun(dead.id)
    with pytest.raises(NotFound):
        shop.jobs.rerun(done.id, owner="globex")
    with pytest.raises(NotFound):
        shop.jobs.rerun("nosuch")


def test_the_command_prints_the_id_of_the_copy(shop, done, capsys):
    url = shop.settings.database_url
    assert main(["jobs", "rerun", done.id, "--database", url]) == 0
    copy = capsys.readouterr().out.strip()
    assert shop.jobs.get(copy).payload == {"order": 7}
    dead = shop.enqueue("fails")
    shop.run_inline()
    assert main(["jobs", "rerun", dead.id, "--database", url]) == 5
