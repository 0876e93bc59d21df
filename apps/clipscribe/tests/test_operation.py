"""Phases, metrics, goals and alerts."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest

from mulligan import Fail
from support.alert_driver import AlertDriver

BAD = Fail("InvalidInput", "Video is private")


# --- Phases --------------------------------------------------------------------------------------
@pytest.mark.seed("004-69", "004-70", "004-71", "004-72")
@pytest.mark.parametrize(
    ("phase", "attempts"),
    [
        ("1", (1, 1)),  # 004-69
        ("2", (4, 1)),  # 004-70
        ("3", (4, 4)),  # 004-71
        ("4", (4, 4)),  # 004-72
    ],
)
@pytest.mark.any_store
def test_each_phase_has_its_retries_and_notifications(make_world, phase, attempts):
    world = make_world(PHASE=phase)
    slow = world.order()
    with world.force(TimeoutError("Connection timeout"), times=4):
        world.run(until_done=True)
    down = world.order("down.mp4")
    world.run(until_done=True)
    results = [world.fetch(job) for job in (slow, down)]
    assert [item["error"]["type"] for item in results] == [
        "NetworkTimeout",
        "TemporaryServiceError",
    ]  # 004-69: classified in every phase
    assert (results[0]["attempts"], results[1]["attempts"]) == attempts
    letters = world.admin("GET", "/dlq")
    if phase == "4":
        assert len(letters.json()) == len(world.mails("ann@example.com")) == 2  # 004-72
    else:
        assert (letters.status_code, world.mails("ann@example.com")) == (404, [])


@pytest.mark.seed("004-80")
@pytest.mark.any_store
def test_alpha_phase_retries_timeouts_only_and_mails_every_failure_to_the_admin(make_world):
    world = make_world(PHASE="alpha")
    jobs = [world.order("private.mp4"), world.order("down.mp4"), world.order("unpaid.mp4")]
    world.run(until_done=True)
    assert [world.fetch(job)["attempts"] for job in jobs] == [1, 1, 1]  # 004-80
    slow = world.order()
    with world.force(TimeoutError("Connection timeout")):
        world.run()
    assert world.fetch(slow)["state"] == "RETRYING"  # 004-80
    types = ("InvalidInput", "TemporaryServiceError", "PaymentRequired", "NetworkTimeout")
    mailed = Counter(subject.partition(":")[0] for subject in world.mails())
    assert mailed == Counter(types)  # 004-80
    assert world.mails("ann@example.com") == []


# --- Metrics -------------------------------------------------------------------------------------
@pytest.mark.seed("004-57", "004-58", "004-60", "004-73", "004-75", "004-76")
def test_metrics_match_a_manual_count(world):
    alert_driver = AlertDriver(world.app)
    jobs = [world.order() for _ in range(3)] + [world.order("private.mp4")]
    with world.force(TimeoutError("Connection timeout")):
        world.run()
    world.run(until_done=True)
    down = world.order("down-0.1h.mp4")
    world.run()
    assert sorted(world.fetch(job)["state"] for job in jobs) == ["COMPLETED"] * 3 + ["FAILED"]
    assert world.fetch(down)["state"] == "RETRYING"
    alert_driver.run()
    text = world.admin("GET", "/metrics").text
    series = (
        'clipscribe_worker_failures_total{duration_bucket="%s",'
        'error_type="%s",is_permanent="%s"} 1.0'
    )
    assert series % ("unknown", "NetworkTimeout", "False") in text  # 004-57
    assert series % ("unknown", "InvalidInput", "True") in text
    assert series % ("5-15min", "TemporaryServiceError", "False") in text
    assert 'clipscribe_worker_failure_rate{window="5m"} 0.5' in text  # 004-58: three of six
    assert f"clipscribe_dlq_size {len(world.letters())}.0" in text  # 004-60
    assert len(world.letters()) == 1
    goals = {item["name"]: item for item in world.admin("GET", "/success").json()}
    retried = goals["Retry Success Rate"]  # 004-73
    assert (retried["value"], retried["cohort"]) == (1.0, "1 of 1")
    assert (retried["goal"], retried["met"]) == ("> 60 %", True)
    dead = goals["User Experience (permanent failures)"]  # 004-75
    assert (dead["value"], dead["cohort"], dead["met"]) == (0.0, "0 of 4", True)
    assert goals["Videos that cannot be processed"]["cohort"] == "1 of 4"
    cost = goals["Cost Efficiency (dollars for retries, by job)"]  # 004-76
    assert (cost["value"], cost["met"]) == (pytest.approx(0.02 / 5), True)
    world.advance(301)  # the retry of `down` fails; older attempts are outside the window
    alert_driver.run()
    text = world.admin("GET", "/metrics").text
    assert 'clipscribe_worker_failure_rate{window="5m"} 1.0' in text  # 004-58


def test_table_of_failures_is_created_once_however_many_processes_start(world):
    def count():
        world.records._create_table.cache_clear()
        return world.records.count_failures(world.app)

    with ThreadPoolExecutor(8) as pool:
        found = [future.result() for future in [pool.submit(count) for _ in range(16)]]
    assert found == [[]] * 16


@pytest.mark.seed("004-74")
def test_false_positive_rate_counts_verdicts_that_an_unchanged_retry_disproved(world):
    wrong, changed, right = world.order(), world.order(), world.order("private.mp4")
    with world.force(BAD, times=2):
        world.run()
    world.run()
    assert {world.fetch(job)["state"] for job in (wrong, changed, right)} == {"FAILED"}
    world.admin("POST", f"/dlq/{wrong}/retry")
    world.admin("POST", f"/dlq/{right}/retry")
    world.request_as_owner(
        "POST", f"/jobs/{changed}/retry", changed, data={"model": "gemini-flash"}
    )
    world.run()
    assert [world.fetch(job)["state"] for job in (wrong, changed, right)] == [
        "COMPLETED",
        "COMPLETED",
        "FAILED",
    ]
    goals = {
        item["name"].partition(" (")[0]: item for item in world.admin("GET", "/success").json()
    }
    goal = goals["False Positive Rate"]
    assert (goal["cohort"], goal["value"]) == ("1 of 4", 0.25)  # 004-74: `right` counts twice
    assert (goal["goal"], goal["met"]) == ("< 5 %", False)
    page = world.admin("GET", "/admin").text
    assert "False Positive Rate" in page
    assert "1 of 4" in page


@pytest.mark.seed("004-83")
@pytest.mark.any_store
def test_chance_of_a_retry_is_learned_from_the_retries_so_far(world):
    for _ in range(8):
        world.order()
    with world.force(MemoryError(), times=8):
        world.run()
    world.run(until_done=True)
    hopeless = [world.order("odd.mp4") for _ in range(8)]
    world.run(until_done=True)
    assert {world.fetch(job)["state"] for job in hopeless} == {"FAILED"}
    found = world.app.insight(timedelta(days=1), kind="process_job").numbers.chances
    chances = {one.code: one.chance for one in found if one.code}
    assert chances["ResourceConstraint"].mean > 0.7  # 004-83: eight of eight succeeded
    assert chances["UnknownError"].mean < 0.3  # 004-83: none of sixteen did


@pytest.mark.seed("004-77")
@pytest.mark.any_store
def test_jobs_that_fail_together_are_retried_at_different_times(world):
    payloads = [{"url": f"https://videos.example/{n}.mp4"} for n in range(200)]
    world.jobs.process_job.enqueue_many(payloads)
    with world.force(MemoryError(), times=200):
        world.run()
    waiting = world.app.jobs.list("kind:process_job phase:backing_off", limit=1000)
    seconds = Counter(int(job.next_retry_at.timestamp()) for job in waiting)
    assert sum(seconds.values()) == 200
    assert max(seconds.values()) < 50  # 004-77: ± 20 % of 30 s are 12 s


# --- Alerts --------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.seed("004-61", "004-63", "004-64")
def test_failure_rate_and_rate_limits_reach_mail_and_slack_and_reduce_concurrency(
    make_world, receiver
):
    world = make_world(PHASE="3", SLACK_URL=receiver.url("slack"))
    alert_driver = AlertDriver(world.app)

    def model():
        return world.app.dependencies.get("model").concurrency

    before = model()
    for _ in range(21):
        world.order()
    with world.force(*[Fail("RateLimitExceeded", "no")] * 90):
        world.run()
        alert_driver.run(12)
        spike = ("alert.fired", "specific-error-spike", "model")
        assert spike in alert_driver.reported()  # 004-63
        assert model() < before  # 004-64
        for _ in range(5):
            alert_driver.run(62)
            world.run()
    assert ("alert.fired", "high-failure-rate", "process_job") in alert_driver.reported()  # 004-61
    (slack,) = receiver.bodies("slack")  # 004-61
    assert set(slack) == {"text"}
    subjects = " ".join(world.mails())
    assert "high-failure-rate" in subjects  # 004-61
    assert "specific-error-spike" in subjects  # 004-63
    for _ in range(3):
        world.advance(3600)
    assert model() == before  # 004-64: and back up


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.seed("004-62")
def test_dead_letters_of_any_type_page(make_world, receiver):
    world = make_world(PAGERDUTY_URL=receiver.url("pager"), PAGERDUTY_KEY="k")
    alert_driver = AlertDriver(world.app)
    for _ in range(11):
        world.order("private.mp4")  # a downloader that takes everything for private
    world.run()
    alert_driver.run(12)
    world.run()
    assert ("alert.fired", "dlq-growing", "") in alert_driver.reported()  # 004-62
    (pager,) = receiver.bodies("pager")  # 004-62
    assert (pager["event_action"], pager["routing_key"], pager["dedup_key"]) == (
        "trigger",
        "k",
        "dlq-growing",
    )
    assert set(pager["payload"]) == {"summary", "source", "severity"}
    assert any("dlq-growing" in subject for subject in world.mails())  # 004-62


@pytest.mark.slow
@pytest.mark.seed("004-78")
@pytest.mark.any_store
def test_retries_that_cost_more_than_the_goal_raise_an_alert(make_world):
    world = make_world(PRO_PRICE="0.05")
    alert_driver = AlertDriver(world.app)
    for _ in range(20):
        world.order("down.mp4")
    world.run(until_done=True)
    cost = next(
        goal for goal in world.admin("GET", "/success").json() if goal["name"].startswith("Cost")
    )
    assert cost["value"] > 0.1
    assert cost["met"] is False
    alert_driver.run(12)
    world.run()
    assert "retry_cost" in {rule for _, rule, _ in alert_driver.reported()}  # 004-78
    assert any("retry_cost" in subject for subject in world.mails())  # 004-78


@pytest.mark.any_store
@pytest.mark.parametrize(("seconds", "expected"), [(3600, set()), (6600, {"slow_jobs"})])
def test_long_videos_raise_no_alert_until_their_time_limit_is_near(
    world, monkeypatch, seconds, expected
):
    """Each video takes `seconds` more on the clock of the worker. Its limit is two hours."""
    added = [0.0]
    clock = SimpleNamespace(**vars(time))
    clock.monotonic = lambda: time.monotonic() + added[0]
    monkeypatch.setattr("mulligan.worker.inline.time", clock)
    read_duration = world.media.read_duration

    def read_slowly(*arguments):
        added[0] += seconds
        return read_duration(*arguments)

    monkeypatch.setattr(world.media, "read_duration", read_slowly)
    for _ in range(20):
        world.order()
    world.run()
    alert_driver = AlertDriver(world.app)
    alert_driver.run(30)
    reported = {rule for _, rule, _ in alert_driver.reported()}
    assert reported & {"slow_jobs"} == expected


@pytest.mark.seed("004-17")
@pytest.mark.any_store
@pytest.mark.parametrize(("limit", "seconds"), [({}, 7200), ({"TIME_LIMIT": "60"}, 60)])
def test_workers_run_an_attempt_for_two_hours_unless_set_otherwise(make_world, limit, seconds):
    world = make_world(**limit)
    limit_micros = world.app.manifest().kinds["process_job"].timeout
    assert limit_micros == seconds * 1_000_000  # 004-17
