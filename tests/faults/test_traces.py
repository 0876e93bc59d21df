"""Spans of attempts whose process was killed: a living runner records them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mulligan import Mulligan
from support.waiting import until
from support.worker import Worker


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("dies", "PROCESS_DIED"),
        ("ignores_its_limit", "TIMEOUT"),
        ("grows", "MEMORY_LIMIT"),
    ],
)
def test_an_attempt_that_was_killed_has_a_span_with_its_code(
    app: Mulligan, store_url: str, tmp_path: Path, kind: str, code: str
) -> None:
    worker = Worker(store_url, tmp_path, app="support.traced_app:app")
    try:
        worker.ready()
        job = app.enqueue(kind)
        dead = app.jobs.wait(job.id, 30)
        assert (dead.error or {}).get("code") == code
        until(lambda: _spans(tmp_path), 15)
        [span] = _spans(tmp_path)
        attributes = span["attributes"]
        assert attributes["messaging.message.id"] == job.id
        assert attributes["error.type"] == code
        assert attributes["mulligan.job.attempt"] == 1
        assert span["start_time"] < span["end_time"]
    finally:
        worker.process.kill()
        worker.process.wait()


def _spans(folder: Path) -> list[dict]:
    witness = folder / "witness"
    lines = witness.read_text().splitlines() if witness.exists() else []
    spans = [json.loads(line) for line in lines]
    return [span for span in spans if span["name"] == "process default"]
