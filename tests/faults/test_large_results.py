"""Results and payloads that are large together: no runner dies of them, no job runs twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan import Mulligan
from mulligan.core.attempt import Ended, Ending, Outcome
from mulligan.worker.protocol import split_by_size
from mulligan.worker.supervisor.loop import MAX_RESULTS, Mailbox
from support.builders import make_lease
from support.store import sql
from support.waiting import until
from support.worker import Worker

pytestmark = pytest.mark.processes

Start = Callable[..., Worker]
Starts = Callable[..., list[str]]

MIB = 1024 * 1024


@pytest.mark.any_store
@pytest.mark.parametrize(
    ("count", "size", "settings"),
    [
        pytest.param(300, 1_000_000, {"worker__concurrency": "300"}, id="300 of 1 MB"),
        pytest.param(
            6,
            60_000_000,
            {"worker__concurrency": "10", "limits__result": str(64 * MIB)},
            id="6 of 60 MB",
        ),
    ],
)
def test_large_results_that_end_together_are_all_recorded_by_their_first_attempt(
    app: Mulligan, start: Start, tmp_path: Path, count: int, size: int, settings: dict[str, str]
) -> None:
    go = tmp_path / "go"
    jobs = [app.enqueue("returns_when", {"path": str(go), "size": size}) for _ in range(count)]
    worker = start(**settings)
    until(lambda: _witness(tmp_path) == count, 30, "all started")
    go.touch()
    query = "SELECT count(*) FROM {p}job WHERE state = 'succeeded' AND length(result) >= "
    until(lambda: sql(app.store, f"{query} {size}") == [(count,)], 60, "all results stored")
    assert _witness(tmp_path) == len(jobs)
    assert "is killed" not in worker.text()


def _witness(folder: Path) -> int:
    """Return how many attempts have started."""
    witness = folder / "witness"
    return witness.read_text().count("start ") if witness.exists() else 0


@pytest.mark.any_store
def test_large_payloads_that_are_claimed_together_all_reach_their_runner(
    app: Mulligan, start: Start
) -> None:
    text = "x" * 1_000_000
    jobs = [app.enqueue("says", {"text": f"{n}{text}", "times": 0}) for n in range(300)]
    worker = start(worker__concurrency="300")
    query = "SELECT count(*), max(token) FROM {p}job WHERE state = 'succeeded'"
    until(lambda: sql(app.store, query) == [(len(jobs), 1)], 60, "all succeeded")
    assert "Traceback" not in worker.text()


def test_endings_with_large_results_are_settled_in_several_transactions() -> None:
    result = "x" * 600_000
    endings = [
        Ending(make_lease(id=f"job{n}"), Outcome(Ended.RETURNED, result=result)) for n in range(200)
    ]
    mailbox = Mailbox()
    with closing(mailbox):
        mailbox.add_endings(endings)
        written: list[Ending] = []
        while mailbox.unwritten():
            mail = mailbox.take()
            assert 0 < len(mail.endings) * len(result) <= MAX_RESULTS
            written += mail.endings
            mailbox.remove_durable(mail)
        assert written == endings


@given(st.lists(st.integers(0, 12)))
def test_a_set_is_split_into_runs_within_the_limit_and_larger_items_are_alone(
    sizes: list[int],
) -> None:
    runs = [list(run) for run in split_by_size(sizes, sizes, 10)]
    assert [size for run in runs for size in run] == sizes
    assert all(run for run in runs)
    assert all(sum(run) <= 10 or len([size for size in run if size]) == 1 for run in runs)
