"""Hostile requests are refused with a 4xx and never answered with a 5xx."""

from __future__ import annotations

import pytest

from support import hostile_requests as hostile

pytestmark = [pytest.mark.any_store, pytest.mark.slow]


def test_hostile_forms_and_addresses_never_cause_a_5xx(world, owner):
    asset = world.asset().id
    campaign = world.campaign("ada", asset=world.asset())
    token = world.token(campaign).id
    form_fields = {
        "name": "Spring",
        "asset": asset,
        "recipients": "Ada <a@x.org>",
        "max_downloads": "3",
    }
    form_fields |= {"expires_at": "2030-01-01T00:00", "visible_wm": "true", "invisible_wm": "false"}
    answers = [owner.post("/campaigns", data=form) for form in hostile.forms(form_fields)]
    answers += [owner.post("/campaigns", content=body) for body in hostile.BODIES]
    for hostile_id in hostile.IDS:
        answers += [
            owner.get(f"/{path}/{hostile_id}")
            for path in ("campaigns", "detections", "t", "static")
        ]
        answers += [
            owner.get(f"/campaigns/{hostile_id}/{path}")
            for path in ("tokens", "events", f"tokens/{token}/events")
        ]
        answers += [
            owner.post(f"/campaigns/{path}")
            for path in (f"{hostile_id}/publish", f"{campaign}/tokens/{hostile_id}/retry")
        ]
    for text in hostile.TEXTS:
        answers += [
            owner.get("/", params={"key": text}),
            owner.post("/sign-in", data={"key": text}),
        ]
        answers += [
            owner.post(path, files={"file": (text or "a", b"x")}) for path in ("/assets", "/detect")
        ]
        owner.cookies.set("key", world.account.key)
    answers += [owner.post(path, data={"file": "no file"}) for path in ("/assets", "/detect")]
    assert {answer.status_code for answer in answers} <= {
        200,
        303,
        400,
        401,
        404,
        405,
        409,
        410,
        413,
        422,
    }
    assert owner.get("/campaigns").status_code == 200


def test_campaigns_with_hostile_text_can_be_shown_and_published(world, owner):
    for text in hostile.TEXTS:
        form_fields = {
            "name": text,
            "asset": world.asset().id,
            "recipients": text,
            "expires_at": "9999-12-31T23:59",
        }
        answer = owner.post("/campaigns", data=form_fields)
        if answer.status_code != 303:
            continue
        location = answer.headers["location"]
        assert owner.get(location).status_code == 200
        assert owner.post(f"{location}/publish").status_code in (303, 400)
        assert owner.get(f"{location}/tokens").status_code == 200
    page = owner.get("/campaigns").text
    assert "<script>alert" not in page
