"""Dashboard under a URL of a Django project, in a real browser: ASGI (uvicorn) and WSGI."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import expect

from support import browser as browsers
from support.postgres import free_port
from support.waiting import until

pytestmark = [
    pytest.mark.xdist_group("browser"),
    pytest.mark.timeout(180),
    pytest.mark.slow,
    pytest.mark.processes,
]
PROJECT = Path(__file__).parents[1] / "integrations" / "django_project"
SIGN_UP = (
    "from django.contrib.auth.models import User; "
    "User.objects.create_user('ada', password='secret', is_staff=True)"
)
ENQUEUE = "from orders.tasks import try_once; try_once.enqueue(); try_once.enqueue()"
SERVERS = {
    "asgi": ["-m", "uvicorn", "shop.asgi:application", "--log-level", "warning", "--port"],
    "wsgi": ["manage.py", "runserver", "--noreload"],
}


@contextmanager
def started(environ: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, *arguments], cwd=PROJECT, env=environ)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("server", SERVERS)
def test_staff_sign_in_at_django_and_repair_a_task(server, chromium, tmp_path):
    names = {"DATABASE_URL": "shop", "REPORTS_URL": "reports", "APART_URL": "apart"}
    urls = {name: f"sqlite:///{tmp_path}/{value}.db" for name, value in names.items()}
    environ = {**os.environ, **urls, "DJANGO_SETTINGS_MODULE": "shop.settings"}

    def manage(*arguments: str) -> None:
        subprocess.run(
            [sys.executable, "manage.py", *arguments], cwd=PROJECT, env=environ, check=True
        )

    manage("migrate", "-v", "0")
    manage("shell", "-c", f"{SIGN_UP}; {ENQUEUE}")
    port = str(free_port())
    home = f"http://127.0.0.1:{port}"
    with (
        started(environ, *SERVERS[server], port),
        started(environ, "manage.py", "mulligan", "worker"),
        browsers.open_session(chromium, home) as session,
    ):
        until(lambda: answers(f"{home}/mulligan/livez"), 120, "an answer", interval=0.2)
        # The project serves no files for Django's own page.
        session.expected_errors = ("favicon", "404", "MIME type", "Unexpected token", "stylesheet")
        page = session.go("/mulligan/failures")
        page.get_by_label("Username").fill("ada")
        page.get_by_label("Password").fill("secret")
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(f"{home}/mulligan/failures")
        session.expected_errors = ()
        row = page.locator(".groups tbody tr", has_text="try_once")
        expect(row.locator(".count")).to_have_text("2", timeout=60_000)  # the page follows
        expect(page.locator("#account .role")).to_have_text("operator")
        row.locator("th").get_by_role("link").click()
        page.locator(".jobs tbody tr").first.get_by_role("link").click()
        job = page.url.rpartition("/")[2]
        page.get_by_role("button", name="Retry", exact=True).click()
        expect(page.locator("main")).to_contain_text("ada")
        page.goto(f"{home}/mulligan/jobs/{job}")
        expect(page.locator("main")).to_contain_text("django:ada")
        expect(page.get_by_role("button", name="Sign out")).to_have_count(0)
        if "PICTURES" in os.environ:
            page.screenshot(path=f"{os.environ['PICTURES']}/{server}.png")


def answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=30).status_code == 200
    except httpx2.HTTPError:
        return False
