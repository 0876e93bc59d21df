"""Dead letters, phases, numbers and alerts: what the admin has."""

from __future__ import annotations

import pytest

from mulligan import Fail
from support.alert_driver import AlertDriver

DAY = 86_400
BAD = Fail("InvalidInput", "Video is private")


@pytest.mark.seed("004-22", "004-28", "004-31", "004-32", "004-33", "004-21")
def test_a_dead_letter_tells_everything_and_is_retried_as_it_was(world):
    first, second = world.order("private.mp4"), world.order("missing.mp4", model="gemini-flash")
    world.run()
    found = world.letters()
    assert [one["job_id"] for one in found] == [second, first]
    assert world.letters(limit=1) == found[:1]
    letter = found[1]
    assert (letter["error_type"], letter["attempts"]) == ("InvalidInput", 1)
    assert "Video is private" in letter["error_message"]
    assert letter["failed_at"]
    assert letter["payload"]["url"].endswith("/private.mp4")
    assert world.admin("POST", f"/dlq/{second}/retry").json() == {"retried": True}
    assert [one["job_id"] for one in world.letters()] == [first]
    assert world.job(second).payload["model"] == "gemini-flash"
    world.run()
    assert world.job(second).generation == 2
    for unknown in ("nothing", world.order()):
        answer = world.admin("POST", f"/dlq/{unknown}/retry")
        assert (answer.status_code, answer.json()) == (404, {"retried": False})


@pytest.mark.seed("004-18", "004-29", "004-30", "004-33")
def test_results_go_after_a_day_and_dead_letters_after_thirty(world):
    good, dead = world.order(), world.order("private.mp4")
    world.run()
    world.later(DAY + 60)
    assert world.ask("GET", f"/jobs/{good}", good).status_code == 404
    world.later(28 * DAY)
    assert [one["job_id"] for one in world.letters()] == [dead]
    world.later(DAY)
    assert world.letters() == []
    assert world.app.jobs.count("kind:process_job state:dead") == 0
    assert world.admin("POST", f"/dlq/{dead}/retry").status_code == 404


@pytest.mark.seed("004-85", "004-79")
def test_all_letters_of_one_type_are_recovered_step_by_step(world):
    jobs = [world.order() for _ in range(4)]
    with world.force(Fail("TemporaryServiceError", "the model is away", final=True), times=4):
        world.run()
    other = world.order("private.mp4")
    world.run()
    answer = world.admin(
        "POST", "/dlq/recover", data={"error_type": "TemporaryServiceError"}, follow_redirects=False
    )
    assert answer.status_code == 303
    world.run(all_of_it=True)
    assert {world.look(job)["state"] for job in jobs} == {"COMPLETED"}
    assert [one["job_id"] for one in world.letters()] == [other]
    assert "4 of 4 recovered" in world.admin("GET", "/admin").text


@pytest.mark.seed("004-82", "004-84")
def test_an_owner_retries_with_the_cheaper_model_and_the_change_is_on_record(world):
    job = world.order()
    with world.force(BAD):
        world.run()
    assert (
        world.ask("POST", f"/jobs/{job}/retry", job, data={"model": "gemini-flash"}).status_code
        == 303
    )
    world.run()
    assert world.job(job).result["model"] == "gemini-flash"
    retried = next(one for one in world.app.jobs.history(job) if one.type == "job.retried")
    assert retried.data["changes"] == {
        "payload.model": {"before": "gemini-pro", "after": "gemini-flash"}
    }
    assert world.ask("POST", f"/jobs/{job}/retry", job).status_code == 409


@pytest.mark.seed("004-01", "004-81")
@pytest.mark.any_store
def test_what_an_owner_thinks_of_a_failure_reaches_the_admin(make_world):
    world = make_world(PHASE="beta")
    job = world.order("private.mp4")
    assert (
        world.ask("POST", f"/jobs/{job}/feedback", job, data={"text": "early"}).status_code == 409
    )
    world.run()
    said = "It is public for <b>me</b>"
    assert world.ask("POST", f"/jobs/{job}/feedback", job, data={"text": said}).status_code == 303
    page = world.admin("GET", "/admin").text
    assert "It is public for &lt;b&gt;me&lt;/b&gt;" in page
    assert world.mails("ann@example.com") == [
        "Your video could not be processed: This video cannot be processed. It may be private or deleted."
    ]
    assert world.ask("POST", f"/jobs/{job}/retry", job).status_code == 404  # not before production


# -- phases --------------------------------------------------------------------------------------
@pytest.mark.seed("004-69", "004-70", "004-71", "004-72")
@pytest.mark.parametrize(
    ("phase", "tried"), [("1", (1, 1)), ("2", (4, 1)), ("3", (4, 4)), ("4", (4, 4))]
)
@pytest.mark.any_store
def test_each_phase_retries_what_it_says_and_tells_whom_it_says(make_world, phase, tried):
    world = make_world(PHASE=phase)
    slow = world.order()
    with world.force(TimeoutError("Connection timeout"), times=4):
        world.run(all_of_it=True)
    down = world.order("down.mp4")
    world.run(all_of_it=True)
    found = [world.look(job) for job in (slow, down)]
    assert [one["error"]["type"] for one in found] == ["NetworkTimeout", "TemporaryServiceError"]
    assert (found[0]["attempts"], found[1]["attempts"]) == tried
    letters = world.admin("GET", "/dlq")
    if phase == "4":
        assert len(letters.json()) == len(world.mails("ann@example.com")) == 2
    else:
        assert (letters.status_code, world.mails("ann@example.com")) == (404, [])


@pytest.mark.seed("004-80")
@pytest.mark.any_store
def test_in_alpha_every_failure_goes_to_the_admin(make_world):
    world = make_world(PHASE="alpha")
    assert world.app.settings.log.level == "DEBUG"
    world.order("private.mp4")
    world.order("down.mp4")
    world.run(all_of_it=True)
    world.later(10)
    told = " ".join(world.mails())
    assert "InvalidInput" in told
    assert "TemporaryServiceError" in told


# -- numbers -------------------------------------------------------------------------------------
@pytest.mark.seed("004-57", "004-58", "004-60", "004-73", "004-75", "004-76")
def test_the_numbers_are_those_one_counts_by_hand(world):
    desk = AlertDriver(world.app)
    jobs = [world.order() for _ in range(3)] + [world.order("private.mp4")]
    with world.force(TimeoutError("Connection timeout")):
        world.run()
    world.run(all_of_it=True)
    assert sorted(world.look(job)["state"] for job in jobs) == ["COMPLETED"] * 3 + ["FAILED"]
    desk.run()
    text = world.admin("GET", "/metrics").text
    series = 'clipscribe_worker_failures_total{duration_bucket="unknown",error_type="%s",is_permanent="%s"} 1.0'
    assert series % ("NetworkTimeout", "False") in text
    assert series % ("InvalidInput", "True") in text
    assert 'clipscribe_worker_failure_rate{window="5m"} 0.4' in text  # two of five attempts
    assert "clipscribe_dlq_size 1.0" in text
    found = {one["name"]: one for one in world.admin("GET", "/success").json()}
    retried = found["Retry Success Rate"]
    assert (retried["value"], retried["cohort"], retried["goal"], retried["met"]) == (
        1.0,
        "1 of 1",
        "> 60 %",
        True,
    )
    assert found["User Experience (permanent failures)"]["cohort"] == "0 of 4"
    cost = next(one for name, one in found.items() if name.startswith("Cost"))
    assert (cost["value"], cost["met"]) == (pytest.approx(0.02 / 4), True)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.seed("004-61", "004-62", "004-63", "004-64")
def test_the_three_alerts_reach_mail_slack_and_pager_and_fewer_calls_go_to_the_model(
    make_world, receiver
):
    world = make_world(
        PHASE="3",
        SLACK_URL=receiver.url("slack"),
        PAGERDUTY_URL=receiver.url("pager"),
        PAGERDUTY_KEY="k",
    )
    desk, model = AlertDriver(world.app), lambda: world.app.dependencies.get("model").concurrency
    before = model()
    for _ in range(32):
        world.order()
    with world.force(
        *[Fail("AuthenticationFailure", "no", final=True)] * 11,
        *[Fail("RateLimitExceeded", "no")] * 90,
    ):
        world.run()
        desk.run(12)  # what is counted over ten minutes is counted anew every ten seconds
        first = {("dlq-growing", ""), ("specific-error-spike", "model")}
        assert first <= {(rule, key) for _, rule, key in desk.reported()}
        assert model() < before
        for _ in range(5):
            desk.run(62)
            world.run()
    assert ("alert.fired", "high-failure-rate", "process_job") in desk.reported()
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
        world.later(3600)
    assert model() == before
