"""The phases and requirements of the specification, on worker and web as the README starts them.

Only HTTP, a browser, mail and signals are used. The video host and the model are emulated; they
are the outside world. An id after an assertion is the requirement that it proves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from mulligan.apps.stage import ServiceProcess
from support import browser as browsers
from support.browser import open_session
from support.deployment import Deployment
from support.receivers import MailReceiver, open_receiver
from support.waiting import until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
    pytest.mark.timeout(900),
]
ANN = "ann@example.com"
ADMIN = "admin@example.com"
PATIENCE = 120  # seconds; the longest wait between attempts is 36


class Site:
    """The deployed application, its outside world, and the keys of Ann and of the admin."""

    def __init__(self, deployment: Deployment, world: ServiceProcess, box: MailReceiver) -> None:
        self.deployment = deployment
        self.world = world
        self.box = box
        self.keys = {
            "ann": deployment.run("mulligan keys create --scope ann").strip(),
            "admin": deployment.run("mulligan keys create --scope '*'").strip(),
        }
        self.http = httpx2.Client(base_url=deployment.url, timeout=60, verify=False)

    def request(self, who: str, method: str, path: str, **options: Any) -> Any:
        headers = {"authorization": f"Bearer {self.keys[who]}"}
        return self.http.request(method, path, headers=headers, **options)

    def video(self, name: str) -> str:
        return f"{self.world.url}/videos/{name}"

    def order(self, name: str, **options: Any) -> str:
        answer = self.request("ann", "POST", "/jobs", json={"url": self.video(name), **options})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["job_id"])

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.request("ann", "GET", f"/jobs/{job_id}").json())

    def wait(self, job_id: str, *states: str) -> dict[str, Any]:
        def find() -> dict[str, Any] | None:
            view = self.job(job_id)
            return view if view["state"] in states else None

        return until(find, PATIENCE, f"{job_id} {' or '.join(states)}")

    def wait_for_mail(self, to: str, subject: str) -> Any:
        def find() -> Any:
            for mail in self.box.received:
                if mail.to == to and subject in " ".join(str(mail.body["subject"]).split()):
                    return mail
            return None

        return until(find, PATIENCE, f"a mail to {to} about {subject}")

    def wait_for_log(self, *parts: str) -> str:
        """Wait until a line of the worker's log contains all parts."""

        def find() -> str:
            lines = self.deployment.log("worker").splitlines()
            return next((line for line in lines if all(part in line for part in parts)), "")

        return until(find, PATIENCE, f"a line with {parts}")

    def letters(self) -> dict[str, dict[str, Any]]:
        return {item["job_id"]: item for item in self.request("admin", "GET", "/dlq").json()}

    def goals(self) -> dict[str, dict[str, Any]]:
        found = self.request("admin", "GET", "/success").json()
        return {item["name"].partition(" (")[0]: item for item in found}

    def metrics(self, http: httpx2.Client) -> list[str]:
        headers = {"authorization": f"Bearer {self.keys['admin']}"}
        lines = http.get("/metrics", headers=headers).text.splitlines()
        return sorted(line for line in lines if line.startswith("clipscribe_worker_failures_total"))


@pytest.fixture
def site(store_url: str, tmp_path: Path) -> Iterator[Site]:
    with (
        ServiceProcess("mulligan.apps.clipscribe.demo.world") as world,
        open_receiver(MailReceiver) as box,
    ):
        deployment = Deployment(
            "clipscribe",
            tmp_path,
            MULLIGAN_DATABASE_URL=store_url,
            MULLIGAN_MAIL__HOST="127.0.0.1",
            MULLIGAN_MAIL__PORT=str(box.port),
            MULLIGAN_MAIL__TLS="none",
            MULLIGAN_MAIL__SENDER="clips@example.com",
            CLIPSCRIBE_STORAGE_URL=str(tmp_path / "objects"),
            CLIPSCRIBE_URL="",
            CLIPSCRIBE_SECRET="of this test",
            CLIPSCRIBE_ADMIN=ADMIN,
            CLIPSCRIBE_MODEL_URL=f"{world.url}/model",
            CLIPSCRIBE_MODEL_KEY="a key",
            CLIPSCRIBE_DOWNLOAD_TIMEOUT="2",
            CLIPSCRIBE_ALLOW_PRIVATE="1",
        )
        deployment.environ["CLIPSCRIBE_URL"] = deployment.url
        with deployment:
            site = Site(deployment, world, box)
            yield site
            site.http.close()


@pytest.fixture
def chromium() -> Iterator[Browser]:
    program = browsers.find_browser()
    if program is None:
        pytest.skip(browsers.MISSING)
    with browsers.browser(program) as launched:
        yield launched


def read_text(mail: Any) -> str:
    parts = [part for part in mail.body.walk() if part.get_content_type() == "text/plain"]
    return str(parts[0].get_payload(decode=True).decode())


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("Your key").fill(key)
    page.get_by_role("button", name="Sign in").click()


@pytest.mark.seed("004-02", "004-06", "004-26", "004-36", "004-47", "004-52", "004-54", "004-73")
@pytest.mark.seed("004-20", "004-27")
def test_orders_are_completed_retried_and_moved(site, chromium):
    flaky = site.order("flaky.mp4")  # its retry comes while the rest is walked
    odd = site.order("odd.mp4")
    long = site.order("talk-7h.mp4")

    # Ann orders a video on the page and sees its description.
    with open_session(chromium, site.deployment.url) as session:
        session.expected_errors = ("401",)
        page = session.go("/")
        sign_in(page, site.keys["ann"])
        page.get_by_label("Address of the video").fill(site.video("talk.mp4"))
        page.get_by_role("button", name="Process").click()
        expect(page.get_by_text("COMPLETED")).to_be_visible(timeout=PATIENCE * 1000)  # 004-02
        expect(page.get_by_text("sees a test card").first).to_be_visible()

    # A failure that may pass is retried, and says so only meanwhile.
    view = site.wait(flaky, "RETRYING", "COMPLETED")
    assert view["state"] == "RETRYING"  # 004-36
    assert view["error"]["message"].endswith("Retrying...")  # 004-47
    assert site.wait(long, "COMPLETED")["attempts"] == 2  # 004-26: others run during the wait
    view = site.wait(flaky, "COMPLETED")
    assert (view["attempts"], view["error"]) == (2, None)  # 004-06

    # The log tells of every retry and of every failure that is final.
    private = site.order("private.mp4")
    site.wait(private, "FAILED")
    site.wait_for_log(flaky, "attempt 1 of process_job failed", "TemporaryServiceError")  # 004-27
    site.wait_for_log(flaky, "attempt 2 of process_job in ", " s")  # 004-27: the wait
    site.wait_for_log(private, "attempt 1 of process_job failed with InvalidInput")  # 004-20
    site.wait_for_log(private, "process_job ended for good")  # 004-20

    # An unknown answer is mailed to the team at its first failure.
    assert "team has been notified" in site.wait(odd, "RETRYING", "FAILED")["error"]["message"]
    site.wait_for_mail(ADMIN, "UnknownError")  # 004-52

    # A video of seven hours was processed on the larger machines, which is no retry.
    text = site.request("ann", "GET", f"/status/{long}").text
    assert "adaptive chunks, gemini-flash, compute-engine-high-memory" in text  # 004-54
    goals = site.goals()
    assert goals["Retry Success Rate"]["cohort"] == "1 of 1"  # 004-73


@pytest.mark.seed("004-22", "004-28", "004-32", "004-36", "004-43", "004-55", "004-72", "004-82")
@pytest.mark.seed("004-01", "004-63", "004-74", "004-75", "004-76", "004-84", "004-85")
def test_failures_reach_their_owner_and_the_admin(site, chromium):
    private = site.order("private.mp4")
    review = site.order("talk-9h.mp4")

    # Ann gets a mail, comments on the failure, and retries from the link.
    site.wait(private, "FAILED")  # 004-36
    mail = site.wait_for_mail(ANN, "It may be private or deleted")  # 004-43 004-72
    link = re.search(r"/status/\w+\?key=\w+", read_text(mail))[0]
    with open_session(chromium, site.deployment.url) as session:
        page = session.go(link)
        page.get_by_label("What did you expect?").fill("It is public for me")
        with page.expect_navigation():
            page.get_by_role("button", name="Send").click()
        page.get_by_label("Model").select_option("gemini-flash")
        with page.expect_navigation():
            page.get_by_role("button", name="Retry").click()  # 004-82 004-84
    letter = until(lambda: site.letters().get(private), PATIENCE, "a dead letter")
    assert letter["payload"]["model"] == "gemini-flash"  # 004-84
    assert (letter["error_type"], letter["attempts"]) == ("InvalidInput", 1)  # 004-22 004-28
    assert site.request("ann", "GET", "/dlq").status_code == 403

    # The admin decides about nine hours, reads the feedback, and recovers all of one type.
    site.wait(review, "MANUAL_REVIEW")
    site.wait_for_mail(ADMIN, "Manual review")  # 004-55
    with open_session(chromium, site.deployment.url) as session:
        session.expected_errors = ("401",)
        page = session.go("/admin")
        sign_in(page, site.keys["admin"])
        expect(page.get_by_text("It is public for me")).to_be_visible()  # 004-01
        with page.expect_navigation():
            page.get_by_role("button", name=f"Refuse {review[-6:]}").click()
        assert site.wait(review, "FAILED")["error"]["type"] == "VideoExceedsLimits"  # 004-55
        for goal in ("Retry Success Rate", "False Positive Rate", "User Experience"):
            expect(page.get_by_text(goal).first).to_be_visible()
        page.get_by_role("button", name="Recover all InvalidInput").click()
        expect(page.get_by_role("heading", name="Recoveries")).to_be_visible()  # 004-85
    goals = site.goals()
    wrong = goals["False Positive Rate"]
    assert (wrong["value"], wrong["met"]) == (0, True)  # 004-74
    assert goals["User Experience"]["goal"] == "< 2 %"  # 004-75
    assert goals["Cost Efficiency"]["met"] is True  # 004-76
    retried = site.request("admin", "POST", f"/dlq/{review}/retry").json()
    assert retried == {"retried": True}  # 004-32

    # The model refuses every call for its rate.
    for number in range(25):
        site.order(f"overrun-{number}.mp4")
    site.wait_for_mail(ADMIN, "specific-error-spike")  # 004-63


@pytest.mark.seed("004-82", "004-86")
def test_outage_of_the_model_holds_jobs_and_its_end_retries_what_died(site):
    outage = f"{site.world.url}/outage"
    site.http.post(f"{outage}/begin").raise_for_status()
    died = site.order("talk-7h.mp4", duration=7 * 3600)  # it has one retry
    assert site.wait(died, "FAILED")["attempts"] == 2
    failing = [site.order(f"talk-{number}.mp4") for number in range(12)]
    site.wait_for_log("dependency model opened")
    held = site.order("talk.mp4")
    view = until(lambda: (found := site.job(held))["waits_for"] and found, PATIENCE, "a held job")
    assert (view["state"], view["attempts"]) == ("QUEUED", 0)  # 004-86
    assert site.job(died)["state"] == "FAILED"  # 004-82: not before the model is back
    site.http.post(f"{outage}/end").raise_for_status()
    assert site.wait(held, "COMPLETED")["attempts"] == 1  # 004-86: uncharged
    assert site.wait(died, "COMPLETED")["attempts"] == 1  # 004-82: retried, with all its attempts
    site.wait_for_log("automatic recovery: the model is back")
    assert {site.wait(job, "COMPLETED")["state"] for job in failing} == {"COMPLETED"}


@pytest.mark.seed("004-02", "004-26", "004-57", "004-60", "004-38")
def test_killed_worker_and_restarted_web_lose_no_job_and_no_number(site, tmp_path):
    dead = [site.order(name) for name in ("private.mp4", "locked.mp4")]
    for job in dead:
        site.wait(job, "FAILED")
    slow = site.order("slow.mp4")  # the model does not answer
    site.wait(slow, "PROCESSING")
    flaky = site.order("flaky-2.mp4")
    due = site.wait(flaky, "RETRYING")["next_retry_at"]
    until(lambda: len(site.metrics(site.http)) == 3, PATIENCE, "three failures are counted")
    site.deployment.kill("mulligan worker")
    waiting = site.order("talk.mp4")
    (tmp_path / "second").mkdir()
    second = Deployment("clipscribe", tmp_path / "second", **site.deployment.environ)
    second.start("uvicorn")
    with ExitStack() as stack:
        stack.push(second)
        http = stack.enter_context(httpx2.Client(base_url=second.url, verify=False))
        assert site.metrics(http) == site.metrics(site.http)  # 004-57: in every web process
        site.deployment.start("mulligan worker")
        assert site.wait(waiting, "COMPLETED")["attempts"] == 1  # 004-02
        site.deployment.stop("uvicorn")
        site.deployment.start("uvicorn")
        numbers = site.metrics(site.http)
        assert len(numbers) == 3
        assert numbers == site.metrics(http)  # 004-57: and after a restart
    assert site.job(flaky)["next_retry_at"] in (due, None)  # 004-26: kept over the restart
    assert site.wait(flaky, "COMPLETED")["attempts"] == 2
    text = site.request("admin", "GET", "/metrics").text
    assert "clipscribe_dlq_size 2.0" in text  # 004-60
    manifest = tmp_path / "objects" / "jobs" / dead[0] / "manifest.json"
    assert '"state": "FAILED"' in manifest.read_text()  # 004-38


@pytest.mark.seed("004-69", "004-70", "004-71", "004-80", "004-01", "004-17")
def test_each_rollout_phase_retries_what_it_should(site):
    expected = {  # a video that the model answers with 503, and one that the host does not send
        "1": ("FAILED", "FAILED"),  # 004-69
        "2": ("FAILED", "RETRYING"),  # 004-70
        "3": ("RETRYING", "RETRYING"),  # 004-71
        "alpha": ("FAILED", "RETRYING"),  # 004-80
    }
    for phase, states in expected.items():
        site.deployment.restart(CLIPSCRIBE_PHASE=phase)
        jobs = [site.order("down.mp4"), site.order("hang.mp4")]
        views = [site.wait(job, "FAILED", "RETRYING") for job in jobs]
        assert tuple(view["state"] for view in views) == states, phase
        assert [view["attempts"] for view in views] == [1, 1]
        types = [view["error"]["type"] for view in views]
        assert types == ["TemporaryServiceError", "NetworkTimeout"]  # 004-69: only classified
        assert site.request("admin", "GET", "/dlq").status_code == 404
    site.deployment.restart(CLIPSCRIBE_TIME_LIMIT="4")
    slow = site.order("slow.mp4")  # the model does not answer
    assert site.wait(slow, "RETRYING")["error"]["type"] == "NetworkTimeout"  # 004-17: at the limit
    site.wait_for_mail(ADMIN, "TemporaryServiceError")  # 004-80
    site.wait_for_mail(ADMIN, "NetworkTimeout")
    assert not [mail for mail in site.box.received if mail.to == ANN]
    debug_lines = [line for line in site.deployment.log("worker").splitlines() if "DEBUG" in line]
    assert debug_lines  # 004-01 004-80: fuller logs
