"""The flows of the specification, on worker and web as the README starts them.

Only HTTP, webhooks, a browser and signals are used. The providers are the emulated ones; they are
the outside world. An id after an assertion is the requirement that it proves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from playwright.sync_api import expect

from mulligan.apps.stage import ServiceProcess
from support import browser as browsers
from support.browser import open_session
from support.deployment import Deployment
from support.receivers import open_receiver
from support.waiting import until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
    pytest.mark.timeout(900),
]
TASKS = "/v1/videos/generations/tasks"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="
WORKER = "mulligan worker"


class Site:
    """The deployed application, its providers and the webhooks of the customer acme."""

    def __init__(self, deployment: Deployment, providers: ServiceProcess, receiver: Any) -> None:
        self.deployment = deployment
        self.providers = providers
        self.receiver = receiver
        self.http = httpx2.Client(base_url=deployment.url, timeout=60, verify=False)
        self.key = self.create_key("acme")
        self.operator_key = self.create_key("'*'")

    def create_key(self, scope: str) -> str:
        return self.deployment.run(f"mulligan keys create --scope {scope}").split()[-1]

    def ask(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self.key if key is None else key}"}
        return self.http.request(method, path, json=body, headers=headers)

    def order(self, prompt: str, model: str = "nimbus-1") -> str:
        body = {"model": model, "prompt": prompt, "seconds": 1}
        answer = self.ask("POST", "/v1/videos/generations", body)
        assert answer.status_code == 202, answer.text  # 002-44
        return str(answer.json()["taskId"])

    def task(self, task: str) -> SimpleNamespace:
        return SimpleNamespace(**self.ask("GET", f"{TASKS}/{task}").json())

    def wait(self, task: str, status: str) -> SimpleNamespace:
        def find() -> SimpleNamespace | None:
            found = self.task(task)
            return found if found.status == status else None

        return until(find, 120, f"a task that is {status}")

    def retry(self, task: str) -> Any:
        return self.ask("POST", f"{TASKS}/{task}/retry")

    def calls(self, prompt: str) -> list[dict[str, Any]]:
        found = self.http.get(f"{self.providers.url}/calls").json()
        return [call for call in found if call["prompt"] == prompt]

    def set_fault(self, provider: str, do: str) -> None:
        order = {"provider": provider, "do": do}
        self.http.post(f"{self.providers.url}/orders", json=order).raise_for_status()

    def webhooks(self, task: str) -> list[dict[str, Any]]:
        return [body for body in self.receiver.bodies() if body["taskId"] == task]


@pytest.fixture
def site(store_url: str, tmp_path: Path) -> Iterator[Site]:
    with (
        ServiceProcess("mulligan.apps.videogen.demo.emulator") as providers,
        open_receiver() as receiver,
    ):
        deployment = Deployment(
            "videogen",
            tmp_path,
            MULLIGAN_DATABASE_URL=store_url,
            VideoGeneration__ProviderUrl=providers.url,
            VideoGeneration__Folder=str(tmp_path / "videos"),
            VideoGeneration__BaseDelaySeconds="2",
            VideoGeneration__RetryCheckIntervalSeconds="1",
            VideoGeneration__ProviderTimeoutSeconds="3",
            VideoGeneration__Webhooks=json.dumps(
                {"acme": {"url": receiver.url(), "secret": SECRET}}
            ),
            VideoGeneration__PrivateWebhooks="true",
        )
        with deployment:
            site = Site(deployment, providers, receiver)
            yield site
            site.http.close()


@pytest.mark.seed("002-01", "002-02", "002-03", "002-04", "002-05", "002-08", "002-09", "002-10")
@pytest.mark.seed("002-11", "002-13", "002-14", "002-15", "002-17", "002-19", "002-20", "002-26")
@pytest.mark.seed("002-31", "002-32", "002-33", "002-34", "002-35", "002-38", "002-39", "002-41")
@pytest.mark.seed("002-43", "002-44", "002-48", "002-51", "002-52", "002-56")
def test_flows_of_the_specification_on_worker_and_web_as_the_readme_starts_them(site):
    exhausted = site.order("always down [503]", model="quartz-2")
    hopeless = site.order("never done [break]")
    check_new_task_and_access(site)
    check_retry_of_each_retryable_failure(site)
    check_permanent_failures(site)
    check_killed_worker(site)
    check_used_up_retries_and_manual_retry(site, exhausted)
    check_rate_limit(site)
    check_outage_of_a_provider(site)
    site.wait(hopeless, "failed")
    check_report_metrics_and_log(site)
    check_page(site)
    check_settings(site)


def check_new_task_and_access(site: Site) -> None:
    task = site.order("a cat")
    new = site.task(task)
    assert (new.retryCount, new.maxRetries, new.isRetryable) == (
        0,
        3,
        True,
    )  # 002-01, 002-02, 002-03
    assert new.nextRetryAt is None  # 002-04
    wanted = {"taskId", "status", "retryCount", "maxRetries", "isRetryable", "nextRetryAt"}
    assert wanted <= set(vars(new))  # 002-41
    site.wait(task, "succeeded")
    video = site.ask("GET", f"{TASKS}/{task}/content").content
    assert video[4:8] == b"ftyp"
    for path, method in ((f"{TASKS}/{task}", "GET"), (f"{TASKS}/{task}/retry", "POST")):
        assert site.ask(method, path, key="mk_none").status_code == 401  # 002-43
    assert site.ask("GET", "/metrics").status_code == 403
    until(lambda: len(site.webhooks(task)) == 2, 60, "webhooks")
    assert [body["status"] for body in site.webhooks(task)] == ["running", "succeeded"]


def check_retry_of_each_retryable_failure(site: Site) -> None:
    reasons = {
        "a cat [503 x1]": "The provider is not available.",
        "a cat [hang x1]": "The provider took too long.",
        "a cat [reset x1]": "The provider could not be reached.",
    }
    for prompt, reason in reasons.items():
        task = site.order(prompt)
        waiting = until(
            lambda one=task: (found := site.task(one)).nextRetryAt and found, 60, "a retry"
        )
        assert (waiting.status, waiting.retryCount) == ("pending", 1)  # 002-10, 002-14
        assert waiting.error == f"Retry 1/3 scheduled: {reason}"  # 002-26
        due = datetime.fromisoformat(waiting.nextRetryAt)
        done = site.wait(task, "succeeded")
        assert (done.retryCount, done.nextRetryAt, done.error) == (1, None, None)  # 002-04
        assert len(site.calls(prompt)) == 2
        assert site.calls(prompt)[1]["at"] >= due.timestamp() - 0.01  # 002-15: not before
        assert site.calls(prompt)[1]["at"] <= due.timestamp() + 20  # 002-09: soon, under load
        until(lambda one=task: len(site.webhooks(one)) == 4, 60, "webhooks")
        bodies = site.webhooks(task)
        assert [(body["status"], body["retryCount"]) for body in bodies] == [
            ("running", 0),
            ("retrying", 1),
            ("running", 1),
            ("succeeded", 1),
        ]  # 002-39, 002-48
        assert bodies[1]["error"] == reason  # 002-39


def check_permanent_failures(site: Site) -> None:
    refusals = {
        "[400]": ("VALIDATION_ERROR", "nimbus-1"),
        "[401]": ("AUTHENTICATION_FAILED", "quartz-2"),
    }
    for prompt, (code, model) in refusals.items():
        failed = site.wait(site.order(f"a dog {prompt}", model), "failed")
        assert (failed.retryCount, failed.errorCode) == (0, code)  # 002-11
        assert (failed.isRetryable, failed.nextRetryAt) == (False, None)  # 002-03, 002-04
        assert len(site.calls(f"a dog {prompt}")) == 1  # 002-11


def check_killed_worker(site: Site) -> None:
    task = site.order("a long film [slow]")
    until(lambda: site.task(task).progress, 60, "a beginning")
    site.deployment.kill(WORKER)
    site.deployment.start(WORKER)
    done = site.wait(task, "succeeded")  # 002-31, 002-32: found although it was running
    assert (done.retryCount, done.cost) == (0, 0.1)
    assert len(site.calls("a long film [slow]")) == 1  # the started video was continued


def check_used_up_retries_and_manual_retry(site: Site, task: str) -> None:
    failed = site.wait(task, "failed")
    assert (failed.retryCount, failed.maxRetries, failed.nextRetryAt) == (2, 2, None)  # 002-13
    assert len(site.calls("always down [503]")) == 3  # 002-13: of quartz, two retries
    refused = site.retry(site.order("a bird [slow]"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (
        409,
        "task_not_failed",
    )  # 002-19
    answer = site.retry(task)
    assert (answer.status_code, answer.json()["taskId"]) == (200, task)  # 002-17
    assert answer.json()["status"] == "pending"
    asked = datetime.now(UTC).timestamp()
    until(lambda: len(site.calls("always down [503]")) == 4, 60, "a call")
    assert site.calls("always down [503]")[3]["at"] - asked < 15  # 002-20: at once, under load


def check_rate_limit(site: Site) -> None:
    task = site.order("a cat [later x1]", model="quartz-2")  # it asks for 45 seconds
    waiting = until(lambda: (found := site.task(task)).nextRetryAt and found, 60, "a retry")
    assert waiting.error == "Retry 1/2 scheduled: The provider is limiting requests."  # 002-10
    remaining = datetime.fromisoformat(waiting.nextRetryAt) - datetime.now(UTC)
    assert remaining.total_seconds() > 20


def check_outage_of_a_provider(site: Site) -> None:
    def waits(task: str) -> bool:
        return "waits for it" in (site.task(task).error or "")

    site.set_fault("nimbus", "503")
    tasks = [site.order(f"outage {n}") for n in range(12)]
    until(lambda: any(map(waits, tasks)), 90, "an open breaker")
    late = [site.order(f"late {n}") for n in range(5)]
    until(lambda: all(map(waits, late)), 90, "held tasks")
    assert [site.calls(f"late {n}") for n in range(5)] == [[]] * 5  # 002-51: not sent
    site.set_fault("nimbus", "ok")
    done = [site.wait(task, "succeeded") for task in (*tasks, *late)]  # 002-52: noticed by itself
    assert {task.retryCount for task in done[12:]} == {0}  # 002-51: uncharged


def check_report_metrics_and_log(site: Site) -> None:
    assert site.ask("GET", "/v1/videos/report").status_code == 403
    rows = site.ask("GET", "/v1/videos/report", key=site.operator_key).json()["data"]
    by_name = {row["provider"]: row for row in rows}
    assert rows[0]["provider"] == "quartz"  # 002-35: the highest failure rate first
    second = by_name["nimbus"]["retrySuccessByAttempt"]["2"]
    assert second["succeeded"] >= 3  # 002-33
    assert by_name["nimbus"]["failuresByType"] == {
        "VALIDATION_ERROR": 1,
        "GENERATION_FAILED": 1,
    }  # 002-34
    assert by_name["quartz"]["failuresByType"]["AUTHENTICATION_FAILED"] == 1  # 002-34
    metrics = site.ask("GET", "/metrics", key=site.operator_key).text
    assert "mulligan_retries_scheduled_total{" in metrics
    [task] = [
        one for one in site.ask("GET", TASKS).json()["data"] if one["prompt"] == "a cat [503 x1]"
    ]
    job = f"job={task['taskId'].removeprefix('task_')}"
    lines = site.deployment.log("worker").splitlines()
    of_task = [line for line in lines if job in line]
    [scheduled] = [line for line in of_task if "attempt 2 of video.nimbus in " in line]
    assert re.search(r"in \d[\d.]* s: .*2 s", scheduled)  # 002-38: number, delay, how computed
    assert any(re.search(r" 1 retry found due", line) for line in lines)  # 002-38: found due
    web_log = site.deployment.log("uvicorn")
    assert "manual retry of video.quartz requested by " in web_log  # 002-38: by whom


def check_page(site: Site) -> None:
    program = browsers.find_browser()
    if program is None:
        pytest.skip(browsers.MISSING)
    site.deployment.restart(VideoGeneration__BaseDelaySeconds="8")  # the page shows each wait
    with (
        browsers.browser(program) as chromium,
        open_session(chromium, site.deployment.url) as session,
    ):
        session.expected_errors = ("401", "403")  # before the sign-in; the report
        page = session.go("/")
        page.get_by_label("Virtual key").fill(site.key)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("row").filter(has_text="never done")).to_contain_text(
            "0 of 1, too few to say", timeout=60_000
        )  # 002-56
        page.get_by_label("Prompt").fill("from the page [503 x1]")
        page.get_by_role("button", name="Generate").click()
        row = page.get_by_role("row").filter(has_text="from the page")
        expect(row).to_contain_text(
            "Retry 1/3 scheduled: The provider is not available.", timeout=60_000
        )
        expect(row.get_by_role("button", name="Watch")).to_be_visible(timeout=60_000)
        failed = page.get_by_role("row").filter(has_text="a dog [401]")
        failed.get_by_role("button", name="Archive").click()
        expect(failed).to_have_count(0)
        assert page.get_by_text("What the provider does").count() == 0  # no wishes in the product


def check_settings(site: Site) -> None:
    site.deployment.restart(VideoGeneration__MaxRetries="5")
    limits = {site.task(site.order("x", model)).maxRetries for model in ("nimbus-1", "quartz-2")}
    assert limits == {5}  # 002-05: of all providers
    site.deployment.restart(VideoGeneration__EnableRetries="false")
    failed = site.wait(site.order("a bee [503]"), "failed")
    assert (failed.retryCount, failed.maxRetries) == (0, 0)  # 002-08
    assert len(site.calls("a bee [503]")) == 1  # 002-08
