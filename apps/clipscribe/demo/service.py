"""The service of the demo: a link signs the admin in."""

from __future__ import annotations

from functools import cache

from fastapi.responses import RedirectResponse

from mulligan.apps.clipscribe.web import app, web


@cache
def admin_key() -> str:
    return app.keys.create("*", "admin", name="demo").text


@web.get("/demo/admin")
def enter_as_admin() -> RedirectResponse:
    answer = RedirectResponse("/admin", 303)
    answer.set_cookie("key", admin_key(), httponly=True, samesite="strict")
    return answer
