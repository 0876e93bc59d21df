"""A campaign from draft to copies."""

from __future__ import annotations

import subprocess

import pytest

from mulligan.apps.watermark import data, jobs, marks


@pytest.mark.seed("000-24", "000-54", "000-57", "000-61")
def test_published_campaign_makes_one_marked_copy_per_recipient(world):
    campaign = world.campaign("ada", "bo")
    assert world.state(campaign) == "DRAFT"
    world.publish(campaign)
    assert world.state(campaign) == "PROCESSING"  # 000-61
    assert [token.status for token in world.views(campaign)[1]] == ["PENDING"] * 2  # 000-24
    world.mulligan.drain()
    view, tokens = world.views(campaign)
    assert (view.state, view.counts["completed"], view.counts["total"]) == ("READY", 2, 2)  # 000-57
    assert [(hook["state"], hook["completed"]) for hook in world.hooks] == [("READY", 2)]  # 000-54
    assert [token.status for token in tokens] == ["ACTIVE", "ACTIVE"]  # 000-24
    history = [event.type for event in jobs.app.jobs.history(world.job(campaign).id)]
    assert history == ["job.queued", "job.started", "job.succeeded"]  # 000-24
    found = {marks.detect(data.copy_of(token.id)) for token in tokens}
    assert len(found) == 2
    assert None not in found


@pytest.mark.parametrize("mark", [pytest.param("00000000", marks=pytest.mark.slow), "deadbeef"])
def test_invisible_mark_survives_another_encode(clip, tmp_path, mark):
    marked = tmp_path / "marked.mp4"
    reencoded = tmp_path / "again.mp4"
    marks.embed(clip, marked, mark, None)
    low_quality = ["-c:v", "libx264", "-preset", "ultrafast", "-crf", "28", "-an"]
    subprocess.run(
        [
            marks.find_ffmpeg(),
            "-loglevel",
            "error",
            "-i",
            str(marked),
            *low_quality,
            str(reencoded),
        ],
        check=True,
    )
    assert (marks.detect(reencoded), marks.detect(clip)) == (mark, None)
