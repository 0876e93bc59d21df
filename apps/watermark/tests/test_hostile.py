"""What owners, strangers and programs may send: refused with a 4xx, never answered with a 5xx."""

from __future__ import annotations

import pytest

from support import hostile_requests as hostile

pytestmark = [pytest.mark.any_store, pytest.mark.slow]


def test_no_form_and_no_address_breaks_a_page(world, owner):
    asset = world.asset().id
    campaign = world.campaign("ada", asset=world.asset())
    token = world.token(campaign).id
    said = {"name": "Spring", "asset": asset, "recipients": "Ada <a@x.org>", "max_downloads": "3"}
    said |= {"expires_at": "2030-01-01T00:00", "visible_wm": "true", "invisible_wm": "false"}
    answers = [owner.post("/campaigns", data=form) for form in hostile.forms(said)]
    answers += [owner.post("/campaigns", content=body) for body in hostile.BODIES]
    for one in hostile.IDS:
        answers += [
            owner.get(f"/{path}/{one}") for path in ("campaigns", "detections", "t", "static")
        ]
        answers += [
            owner.get(f"/campaigns/{one}/{path}")
            for path in ("tokens", "events", f"tokens/{token}/events")
        ]
        answers += [
            owner.post(f"/campaigns/{path}")
            for path in (f"{one}/publish", f"{campaign}/tokens/{one}/retry")
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


def test_what_was_made_of_hostile_words_can_be_looked_at_and_published(world, owner):
    for text in hostile.TEXTS:
        said = {
            "name": text,
            "asset": world.asset().id,
            "recipients": text,
            "expires_at": "9999-12-31T23:59",
        }
        made = owner.post("/campaigns", data=said)
        if made.status_code != 303:
            continue
        where = made.headers["location"]
        assert owner.get(where).status_code == 200
        assert owner.post(f"{where}/publish").status_code in (303, 400)
        assert owner.get(f"{where}/tokens").status_code == 200
    page = owner.get("/campaigns").text
    assert "<script>alert" not in page
