"""Dashboard under a URL of Django: run by `manage.py test`, through WSGI and ASGI."""

from __future__ import annotations

import re
from typing import Any

from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.test import TransactionTestCase, override_settings
from django.urls import reverse
from orders import tasks

from contract.contract_tasks import cancel_all, run_due_tasks
from mulligan.integrations.django import get_app


class Dashboard(TransactionTestCase):
    """Pages, forms and the API below /mulligan/."""

    databases = {"default", "reports"}

    def setUp(self) -> None:
        cancel_all()

    def sign_in(self, **flags: bool) -> Any:
        user = get_user_model().objects.create_user("ada", password="secret", **flags)
        self.client.force_login(user)
        return user

    def test_strangers_are_sent_to_the_sign_in_of_the_site(self) -> None:
        for path in ("", "jobs", "live", "operations"):
            answer = self.client.get(f"/mulligan/{path}")
            self.assertRedirects(
                answer, f"/admin/login/?next=/mulligan/{path}", fetch_redirect_response=False
            )

    def test_users_who_are_not_staff_are_refused(self) -> None:
        self.sign_in()
        self.assertEqual(self.client.get("/mulligan/jobs").status_code, 403)

    def test_a_user_who_is_not_active_any_more_is_refused(self) -> None:
        user = self.sign_in(is_staff=True)
        user.is_active = False
        user.save()
        self.assertEqual(self.client.get("/mulligan/jobs").status_code, 302)

    def test_staff_see_jobs_and_files(self) -> None:
        self.sign_in(is_staff=True)
        self.assertEqual(reverse("mulligan:dashboard"), "/mulligan/")
        result = tasks.mail.enqueue("grace")
        page = self.client.get("/mulligan/jobs")
        self.assertContains(page, result.id)
        self.assertContains(page, "/mulligan/static/style.css")
        self.assertNotContains(page, "Sign out")
        self.assertContains(self.client.get(f"/mulligan/jobs/{result.id}"), "grace")
        style = self.client.get("/mulligan/static/style.css")
        self.assertTrue(style["Content-Type"].startswith("text/css"))
        self.assertEqual(self.client.get("/mulligan/nothing").status_code, 404)

    def test_staff_retry_a_failed_task_in_their_name(self) -> None:
        self.sign_in(is_staff=True)
        result = tasks.try_once.enqueue()
        run_due_tasks()
        page = self.client.get(f"/mulligan/jobs/{result.id}").content.decode()
        form = dict(re.findall(r'name="(csrf)" value="([^"]+)"', page))
        address = f"/mulligan/jobs/{result.id}/retry"
        refused = self.client.post(address, {"csrf": "wrong"}, **FORM)
        self.assertEqual(refused.status_code, 403)
        body = f"csrf={form['csrf']}&reason=again"
        answer = self.client.generic("POST", address, body, FORM["content_type"])
        self.assertEqual(answer.status_code, 303, answer.content)
        self.assertTrue(answer["Location"].startswith("/mulligan/jobs/"))
        self.assertContains(self.client.get(answer["Location"]), result.id)
        actors = {event.actor for event in get_app().jobs.history(result.id) if event.actor}
        self.assertIn("django:ada", actors)

    def test_a_form_of_another_site_is_refused(self) -> None:
        self.sign_in(is_staff=True)
        result = tasks.mail.enqueue("grace")
        answer = self.client.generic(
            "POST",
            f"/mulligan/jobs/{result.id}/cancel",
            "csrf=x",
            FORM["content_type"],
            HTTP_ORIGIN="https://evil.example",
        )
        self.assertEqual(answer.status_code, 403)

    def test_only_superusers_are_admins(self) -> None:
        self.sign_in(is_staff=True)
        self.assertContains(self.client.get("/mulligan/jobs"), "Signed in as operator")
        self.client.logout()
        root = get_user_model().objects.create_superuser("root", password="secret")
        self.client.force_login(root)
        self.assertContains(self.client.get("/mulligan/jobs"), "Signed in as admin")

    def test_the_api_takes_keys_and_no_users(self) -> None:
        self.sign_in(is_staff=True)
        self.assertEqual(self.client.get("/mulligan/api/v1/jobs").status_code, 401)
        key = get_app().keys.create("*", "viewer").text
        headers = {"authorization": f"Bearer {key}"}
        self.client.logout()
        answer = self.client.get("/mulligan/api/v1/jobs", headers=headers)
        self.assertEqual(answer.status_code, 200, answer.content)
        self.assertIn("Ratelimit", answer.headers)
        self.assertEqual(self.client.get("/mulligan/livez").status_code, 200)

    def test_under_wsgi_pages_poll(self) -> None:
        self.sign_in(is_staff=True)
        self.assertEqual(self.client.get("/mulligan/live").status_code, 204)

    def test_under_asgi_events_are_streamed(self) -> None:
        user = self.sign_in(is_staff=True)

        async def first_event() -> bytes:
            await self.async_client.aforce_login(user)
            answer = await self.async_client.get("/mulligan/live")
            self.assertEqual(answer.status_code, 200)
            self.assertTrue(answer["Content-Type"].startswith("text/event-stream"))
            parts = aiter(answer.streaming_content)
            try:
                return await anext(parts)
            finally:
                await parts.aclose()

        self.assertTrue(async_to_sync(first_event)())

    @override_settings(ALLOWED_HOSTS=["shop.example"])
    def test_the_hosts_of_the_site_apply(self) -> None:
        self.assertEqual(self.client.get("/mulligan/livez").status_code, 400)


FORM = {"content_type": "application/x-www-form-urlencoded"}
