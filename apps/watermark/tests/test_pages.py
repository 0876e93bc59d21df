"""Pages, forms, links and streams over HTTP."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import httpx2
import pytest

from mulligan import Fail
from mulligan.apps.watermark import data, jobs, marks
from mulligan.testing import Returns
from support.waiting import until

from .conftest import collect_events

pytestmark = pytest.mark.processes

DONE = Returns("made")


def row_of(page: str, token: str) -> str:
    return re.search(rf'<tr data-token-id="{token}">.*?</tr>', page, re.DOTALL)[0]


@pytest.mark.seed(
    "000-65", "000-68", "000-69", "000-93", "000-94", "000-95", "000-97", "000-100", "000-103"
)
def test_failed_token_is_retried_from_the_campaign_page(world, owner, damaged):
    campaign = world.run_campaign(DONE, damaged, names=("ada", "bo"))
    good, bad = sorted(world.views(campaign)[1], key=lambda item: item.failed)
    page = owner.get(f"/campaigns/{campaign}").text
    assert "1</span> watermarking job(s) failed permanently." in page  # 000-100
    row = row_of(page, bad.id)
    assert '<span class="status-badge status-failed">FAILED</span>' in row
    assert '<details class="error"><summary>Error</summary>' in row  # 000-94
    assert "The video file is damaged." in row
    assert f'method="POST" action="/campaigns/{campaign}/tokens/{bad.id}/retry">' in row  # 000-95
    assert 'class="retry-count" hidden></span>' in row  # 000-93
    other_stream = row_of(page, good.id)
    assert "ACTIVE" in other_stream
    assert '<details class="error" hidden>' in other_stream
    assert 'class="retry-form"' in other_stream  # 000-97: there, and hidden

    refused = owner.post(f"/campaigns/{campaign}/tokens/{good.id}/retry")
    refusal = "Token is not in a failed state." in refused.text
    assert (refused.status_code, refusal) == (400, True)  # 000-68
    answer = owner.post(f"/campaigns/{campaign}/tokens/{bad.id}/retry")
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        f"/campaigns/{campaign}",
    )  # 000-65, 000-69
    page = owner.get(f"/campaigns/{campaign}").text
    assert f"Retry queued for {bad.recipient}." in page  # 000-69
    assert 'campaign-state state-processing">PROCESSING' in page  # 000-103
    assert 'role="alert" hidden' in page
    assert f"Retry queued for {bad.recipient}." not in owner.get(f"/campaigns/{campaign}").text
    waiting = owner.post(f"/campaigns/{campaign}/tokens/{bad.id}/retry")
    assert waiting.status_code == 400


@pytest.mark.seed("000-66", "000-70")
def test_objects_of_other_accounts_answer_404_like_missing_ones(world, owner, site, damaged):
    campaign = world.run_campaign(damaged, names=("ada",))
    other_stream = world.run_campaign(damaged, names=("bo",))
    mine, foreign = world.token(campaign).id, world.token(other_stream, "bo").id
    stranger = world.add(data.Account(name="Mallory", email="m@example.com"))
    with httpx2.Client(base_url=site, cookies={"key": stranger.key}) as client:
        answers = [
            client.post(f"/campaigns/{campaign}/tokens/{mine}/retry"),
            client.post(f"/campaigns/nobody/tokens/{mine}/retry"),
        ]
        assert [item.status_code for item in answers] == [404, 404]
        assert answers[0].text == answers[1].text  # 000-66
        for path in (
            f"/campaigns/{campaign}",
            f"/campaigns/{campaign}/tokens",
            f"/campaigns/{campaign}/events",
        ):
            assert client.get(path).status_code == 404
    assert owner.post(f"/campaigns/{campaign}/tokens/{foreign}/retry").status_code == 404  # 000-70
    assert owner.post(f"/campaigns/{campaign}/tokens/nobody/retry").status_code == 404
    assert httpx2.post(f"{site}/campaigns/{campaign}/tokens/{mine}/retry").status_code == 401
    assert {world.job(campaign).generation, world.job(other_stream, "bo").generation} == {1}


@pytest.mark.any_store
@pytest.mark.seed("000-71")
def test_retry_in_an_expired_campaign_is_refused(world, owner, damaged):
    until_then = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    campaign = world.run_campaign(damaged, names=("ada",), expires_at=until_then)
    world.mulligan.advance(3601)
    world.mulligan.drain()
    answer = owner.post(f"/campaigns/{campaign}/tokens/{world.token(campaign).id}/retry")
    assert (answer.status_code, "The campaign has expired" in answer.text) == (400, True)
    assert owner.get(f"/t/{world.token(campaign).id}").status_code == 410
    assert world.job(campaign).generation == 1


@pytest.mark.any_store
@pytest.mark.seed("000-58", "000-61", "000-83", "000-98", "000-99")
def test_campaign_from_upload_to_list(world, owner):
    with world.clip.open("rb") as file:
        owner.post("/assets", files={"file": ("talk.mp4", file)})
    asset = re.search(r'<option value="(.+?)">talk.mp4', owner.get("/campaigns").text)[1]
    form = {
        "name": "Spring",
        "asset": asset,
        "recipients": "Ada <ada@x.org>\nBo",
        "invisible_wm": "true",
    }
    path = owner.post("/campaigns", data=form).headers["location"]
    empty = owner.post("/campaigns", data={"name": "Nobody", "asset": asset}).headers["location"]
    refused = owner.post(f"{empty}/publish")
    assert "A campaign needs at least one recipient." in refused.text  # 000-58
    assert owner.post(f"{path}/publish").status_code == 303  # 000-61
    with world.mulligan.force(jobs.watermark, DONE, Fail("BAD_FILE", final=True)):
        world.mulligan.drain()
    body = owner.get(f"{path}/tokens").json()
    assert (body["state"], body["counts"]["total"]) == ("PARTIAL", 2)
    page = owner.get("/campaigns").text
    tooltip = 'title="Some watermarking jobs failed. Click to review."'
    assert f'state-partial" {tooltip}>PARTIAL' in page  # 000-98, 000-99
    assert "state-draft" in page
    with jobs.db() as session:
        campaign_row = session.get_one(data.Campaign, path.rpartition("/")[2])
        assert (campaign_row.visible_wm, campaign_row.invisible_wm, campaign_row.max_downloads) == (
            0,
            1,
            None,
        )
        assert campaign_row.published_at is not None  # 000-83


def test_invalid_forms_are_refused_and_create_nothing(world, owner):
    asset = world.asset().id
    for wrong in (
        {"max_downloads": "many"},
        {"max_downloads": "0"},
        {"expires_at": "soon"},
        {"name": ""},
    ):
        assert (
            owner.post("/campaigns", data={"name": "x", "asset": asset, **wrong}).status_code == 422
        )
    form = {"name": "x", "asset": asset, "recipients": "Ada", "expires_at": "2020-01-01T00:00"}
    late = owner.post("/campaigns", data=form).headers["location"]
    assert "would have expired" in owner.post(f"{late}/publish").text
    assert owner.get("/t/%00").status_code in (400, 404)
    assert owner.post("/campaigns", data={"name": "a\x00b", "asset": asset}).status_code == 422
    assert jobs.app.jobs.count() == 0


@pytest.mark.seed("000-72", "000-73", "000-74", "000-96", "000-104")
def test_campaign_and_token_streams_receive_a_failure(world, owner):
    campaign = world.publish(world.campaign("ada", "bo"))
    hostile_error = 'a "quoted" \\ back\nslash <script>alert(1)</script>'
    ada, bo = world.token(campaign), world.token(campaign, "bo")
    streams = [f"/campaigns/{campaign}/events", f"/campaigns/{campaign}/tokens/{ada.id}/events"]
    streams += [f"/campaigns/{campaign}/tokens/{bo.id}/events"]
    with (
        collect_events(owner, streams[0]) as campaign_stream,
        collect_events(owner, streams[1]) as ada_stream,
        collect_events(owner, streams[2]) as bo_stream,
    ):
        with world.mulligan.force(
            jobs.watermark, Fail("BAD_FILE", public=hostile_error, final=True)
        ):
            world.mulligan.drain()
        failed = world.token(
            campaign, next(item.recipient for item in world.views(campaign)[1] if item.failed)
        )
        failed_stream, other_stream = (
            (ada_stream, bo_stream) if failed.id == ada.id else (bo_stream, ada_stream)
        )
        until(lambda: "token_failed" in dict(failed_stream), 10, "the token's stream")
        until(lambda: "token_failed" in dict(campaign_stream), 10, "the campaign's stream")
        body = dict(failed_stream)["token_failed"]
        assert body == dict(campaign_stream)["token_failed"]  # 000-73, 000-104
        assert body == {"token_id": failed.id, "error": hostile_error}  # 000-72, 000-74
        assert "token_failed" not in dict(other_stream)
    page = owner.get(f"/campaigns/{campaign}").text
    assert "<script>alert" not in page  # 000-96


@pytest.mark.any_store
@pytest.mark.seed("000-91", "000-92")
def test_link_delivers_the_copy_until_the_download_limit(world, owner, site):
    campaign = world.publish(world.campaign("ada", max_downloads=2))
    link = f"{site}/t/{world.token(campaign).id}"
    assert httpx2.get(link).status_code == 409
    world.mulligan.drain()
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: httpx2.get(link), range(6)))
    statuses = sorted(item.status_code for item in answers)
    assert statuses == [200, 200, 410, 410, 410, 410]  # 000-92
    assert world.token(campaign).status == "CONSUMED"  # 000-91
    assert httpx2.get(f"{site}/t/nobody").status_code == 404
    got = world.folder / "got.mp4"
    got.write_bytes(next(item for item in answers if item.status_code == 200).content)
    with got.open("rb") as file:
        path = owner.post("/detect", files={"file": ("found.mp4", file)}).headers["location"]
    assert "Looking" in owner.get(path).text
    world.mulligan.drain()
    assert (
        "This is the copy of <strong>ada</strong> from the campaign Spring." in owner.get(path).text
    )


@pytest.mark.any_store
@pytest.mark.seed("000-13")
def test_failed_detection_shows_its_failure_on_its_page(world, owner, site):
    path = owner.post("/detect", files={"file": ("x.mp4", b"nothing " * 50)}).headers["location"]
    world.mulligan.drain()
    assert "The detection failed: The video file is damaged" in owner.get(path).text
    stranger = world.add(data.Account(name="Mallory", email="m@example.com"))
    assert httpx2.get(site + path, cookies={"key": stranger.key}).status_code == 404


@pytest.mark.slow
@pytest.mark.any_store
@pytest.mark.seed("000-83")
def test_visible_and_invisible_mark_are_independent(world):
    campaign = world.publish(world.campaign("ada", visible_wm=0))
    bare = world.publish(world.campaign("bo", invisible_wm=0))
    world.mulligan.drain()
    marked = data.copy_of(world.token(campaign).id)
    unmarked = data.copy_of(world.token(bare, "bo").id)
    assert marks.detect(marked) is not None
    assert marks.detect(unmarked) is None
    corner = [
        next(marks.Video(item).frames())[0][16:48, 16:120].mean()
        for item in (world.clip, marked, unmarked)
    ]
    assert abs(corner[1] - corner[0]) < 5
    assert corner[2] < corner[0] - 10
