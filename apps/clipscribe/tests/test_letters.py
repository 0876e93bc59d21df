"""Dead letters, phases, metrics and alerts."""

from __future__ import annotations

import pytest

from mulligan import Fail
from support.alert_driver import AlertDriver

DAY = 86_400
BAD = Fail("InvalidInput", "Video is private")


@pytest.mark.seed("004-22", "004-28", "004-31", "004-32", "004-33", "004-21")
def test_dead_letter_has_all_details_and_is_retried_unchanged(world):
    first = world.order("private.mp4")
    second = world.order("missing.mp4", model="gemini-flash")
    world.run()
    results = world.letters()
    assert [item["job_id"] for item in results] == [second, first]
    assert world.letters(limit=1) == results[:1]
    letter = results[1]
    assert (letter["error_type"], letter["attempts"]) == ("InvalidInput", 1)
    assert "Video is private" in letter["error_message"]
    assert letter["failed_at"]
    assert letter["payload"]["url"].endswith("/private.mp4")
    assert world.admin("POST", f"/dlq/{second}/retry").json() == {"retried": True}
    assert [item["job_id"] for item in world.letters()] == [first]
    assert world.job(second).payload["model"] == "gemini-flash"
    world.run()
    assert world.job(second).generation == 2
    for unknown in ("nothing", world.order()):
        answer = world.admin("POST", f"/dlq/{unknown}/retry")
        assert (answer.status_code, answer.json()) == (404, {"retried": False})


@pytest.mark.seed("004-18", "004-29", "004-30", "004-33")
def test_results_expire_after_a_day_and_dead_letters_after_thirty(world):
    good, dead = world.order(), world.order("private.mp4")
    world.run()
    world.advance(DAY + 60)
    assert world.request_as_owner("GET", f"/jobs/{good}", good).status_code == 404
    world.advance(28 * DAY)
    assert [item["job_id"] for item in world.letters()] == [dead]
    world.advance(DAY)
    assert world.letters() == []
    assert world.app.jobs.count("kind:process_job state:dead") == 0
    assert world.admin("POST", f"/dlq/{dead}/retry").status_code == 404


@pytest.mark.seed("004-85", "004-79")
def test_all_dead_letters_of_one_type_are_recovered_in_steps(world):
    jobs = [world.order() for _ in range(4)]
    with world.force(Fail("TemporaryServiceError", "the model is away", final=True), times=4):
        world.run()
    other = world.order("private.mp4")
    world.run()
    answer = world.admin(
        "POST", "/dlq/recover", data={"error_type": "TemporaryServiceError"}, follow_redirects=False
    )
    assert answer.status_code == 303
    world.run(until_done=True)
    assert {world.fetch(job)["state"] for job in jobs} == {"COMPLETED"}
    assert [item["job_id"] for item in world.letters()] == [other]
    assert "4 of 4 recovered" in world.admin("GET", "/admin").text


@pytest.mark.seed("004-82", "004-84")
def test_owner_retries_with_another_model_and_the_change_is_recorded(world):
    job = world.order()
    with world.force(BAD):
        world.run()
    assert (
        world.request_as_owner(
            "POST", f"/jobs/{job}/retry", job, data={"model": "gemini-flash"}
        ).status_code
        == 303
    )
    world.run()
    assert world.job(job).result["model"] == "gemini-flash"
    retried = next(item for item in world.app.jobs.history(job) if item.type == "job.retried")
    assert retried.data["changes"] == {
        "payload.model": {"before": "gemini-pro", "after": "gemini-flash"}
    }
    assert world.request_as_owner("POST", f"/jobs/{job}/retry", job).status_code == 409


@pytest.mark.seed("004-01", "004-81")
@pytest.mark.any_store
def test_feedback_of_an_owner_is_shown_to_the_admin(make_world):
    world = make_world(PHASE="beta")
    job = world.order("private.mp4")
    assert (
        world.request_as_owner(
            "POST", f"/jobs/{job}/feedback", job, data={"text": "early"}
        ).status_code
        == 409
    )
    world.run()
    text = "It is public for <b>me</b>"
    assert (
        world.request_as_owner(
            "POST", f"/jobs/{job}/feedback", job, data={"text": text}
        ).status_code
        == 303
    )
    page = world.admin("GET", "/admin").text
    assert "It is public for &lt;b&gt;me&lt;/b&gt;" in page
    assert world.mails("ann@example.com") == [
        (
            "Your video could not be processed: "
            "This video cannot be processed. It may be private or deleted."
        )
    ]
    assert (
        world.request_as_owner("POST", f"/jobs/{job}/retry", job).status_code == 404
    )  # not before production


# --- Phases --------------------------------------------------------------------------------------
@pytest.mark.seed("004-69", "004-70", "004-71", "004-72")
@pytest.mark.parametrize(
    ("phase", "attempts"), [("1", (1, 1)), ("2", (4, 1)), ("3", (4, 4)), ("4", (4, 4))]
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
    ]
    assert (results[0]["attempts"], results[1]["attempts"]) == attempts
    letters = world.admin("GET", "/dlq")
    if phase == "4":
        assert len(letters.json()) == len(world.mails("ann@example.com")) == 2
    else:
        assert (letters.status_code, world.mails("ann@example.com")) == (404, [])


@pytest.mark.seed("004-80")
@pytest.mark.any_store
def test_alpha_phase_mails_every_failure_to_the_admin(make_world):
    world = make_world(PHASE="alpha")
    assert world.app.settings.log.level == "DEBUG"
    world.order("private.mp4")
    world.order("down.mp4")
    world.run(until_done=True)
    world.advance(10)
    subjects = " ".join(world.mails())
    assert "InvalidInput" in subjects
    assert "TemporaryServiceError" in subjects


# --- Metrics -------------------------------------------------------------------------------------
@pytest.mark.seed("004-57", "004-58", "004-60", "004-73", "004-75", "004-76")
def test_metrics_match_a_manual_count(world):
    alert_driver = AlertDriver(world.app)
    jobs = [world.order() for _ in range(3)] + [world.order("private.mp4")]
    with world.force(TimeoutError("Connection timeout")):
        world.run()
    world.run(until_done=True)
    assert sorted(world.fetch(job)["state"] for job in jobs) == ["COMPLETED"] * 3 + ["FAILED"]
    alert_driver.run()
    text = world.admin("GET", "/metrics").text
    series = (
        'clipscribe_worker_failures_total{duration_bucket="unknown",'
        'error_type="%s",is_permanent="%s"} 1.0'
    )
    assert series % ("NetworkTimeout", "False") in text
    assert series % ("InvalidInput", "True") in text
    assert 'clipscribe_worker_failure_rate{window="5m"} 0.4' in text  # two of five attempts
    assert "clipscribe_dlq_size 1.0" in text
    results = {item["name"]: item for item in world.admin("GET", "/success").json()}
    retried = results["Retry Success Rate"]
    assert (retried["value"], retried["cohort"], retried["goal"], retried["met"]) == (
        1.0,
        "1 of 1",
        "> 60 %",
        True,
    )
    assert results["User Experience (permanent failures)"]["cohort"] == "0 of 4"
    cost = next(item for name, item in results.items() if name.startswith("Cost"))
    assert (cost["value"], cost["met"]) == (pytest.approx(0.02 / 4), True)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.seed("004-61", "004-62", "004-63", "004-64")
def test_three_alerts_reach_mail_slack_and_pagerduty_and_reduce_concurrency(make_world, receiver):
    world = make_world(
        PHASE="3",
        SLACK_URL=receiver.url("slack"),
        PAGERDUTY_URL=receiver.url("pager"),
        PAGERDUTY_KEY="k",
    )
    alert_driver = AlertDriver(world.app)

    def model():
        return world.app.dependencies.get("model").concurrency

    before = model()
    for _ in range(32):
        world.order()
    with world.force(
        *[Fail("AuthenticationFailure", "no", final=True)] * 11,
        *[Fail("RateLimitExceeded", "no")] * 90,
    ):
        world.run()
        alert_driver.run(12)  # the ten-minute measure is updated every ten seconds
        first = {("dlq-growing", ""), ("specific-error-spike", "model")}
        assert first <= {(rule, key) for _, rule, key in alert_driver.reported()}
        assert model() < before
        for _ in range(5):
            alert_driver.run(62)
            world.run()
    assert ("alert.fired", "high-failure-rate", "process_job") in alert_driver.reported()
    (pager,), (slack,) = receiver.bodies("pager"), receiver.bodies("slack")
    assert (pager["event_action"], pager["routing_key"], pager["dedup_key"]) == (
        "trigger",
        "k",
        "dlq-growing",
    )
    assert set(pager["payload"]) == {"summary", "source", "severity"}
    assert set(slack) == {"text"}
    assert len(world.mails()) >= 3
    for _ in range(3):
        world.advance(3600)
    assert model() == before
