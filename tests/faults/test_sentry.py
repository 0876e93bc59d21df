"""Deaths in real workers reach Sentry once each, whatever the job died of."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mulligan import Mulligan, State
from support.waiting import until
from support.worker import Worker

pytestmark = pytest.mark.processes

DEATHS = ("raises", "raises", "raises_twice", "hangs", "is_killed")


def test_each_death_is_one_event_and_an_expected_death_or_a_success_none(
    app: Mulligan, start: Callable[..., Worker], tmp_path: Path
) -> None:
    start(app="support.sentry_app:app")
    payloads = {"raises": {"order": 7}}
    kinds = (*DEATHS, "is_expected", "succeeds")
    # One after another: a killed process would take its neighbours with it.
    ended = [app.jobs.wait(app.enqueue(kind, payloads.get(kind, {})).id, 60) for kind in kinds]
    assert Counter(job.state for job in ended) == {State.DEAD: 6, State.SUCCEEDED: 1}
    # Each death is reported by a job. When all have ended, no more events can follow.
    until(lambda: app.jobs.count("kind:report_to_sentry state:succeeded") == 6, 60)
    events = [json.loads(line) for line in (tmp_path / "witness").read_text().splitlines()]
    assert sorted(_reported(events)) == sorted(
        (job.id, app.jobs.attempts(job.id)[-1].fingerprint) for job in ended if job.kind in DEATHS
    )
    assert len({event["event_id"] for event in events}) == len(DEATHS)
    assert {event["release"] for event in events} == {"r42"}
    assert Counter(event["tags"]["code"] for event in events) == {
        "UNKNOWN_ERROR": 2,
        "CONNECTION": 1,
        "TIMEOUT": 1,
        "PROCESS_DIED": 1,
    }


def _reported(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the job and the group of each event."""
    return [(event["contexts"]["job"]["id"], *event["fingerprint"]) for event in events]
