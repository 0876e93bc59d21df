"""Dead letters, recovery and feedback."""

from __future__ import annotations

import pytest

from mulligan import Fail

DAY = 86_400
BAD = Fail("InvalidInput", "Video is private")


def post_as_owner(world, job, action, **form):
    """Send a form of the job's page as its owner. Return the status."""
    answer = world.request_as_owner("POST", f"/jobs/{job}/{action}", job, data=form)
    return answer.status_code


@pytest.mark.seed("004-28", "004-31", "004-32", "004-33", "004-21")
def test_dead_letter_has_all_details_and_is_retried_unchanged(world):
    first = world.order("private.mp4")
    second = world.order("missing.mp4", model="gemini-flash")
    world.run()
    results = world.letters()
    assert [item["job_id"] for item in results] == [second, first]  # 004-21 004-31
    letter = results[1]
    assert set(letter) == {
        "job_id",
        "error_type",
        "error_message",
        "attempts",
        "failed_at",
        "payload",
    }  # 004-28
    assert (letter["error_type"], letter["attempts"]) == ("InvalidInput", 1)  # 004-28
    assert "Video is private" in letter["error_message"]
    assert letter["failed_at"] == world.fetch(first)["updated_at"]
    assert letter["payload"]["url"].endswith("/private.mp4")
    assert world.admin("POST", f"/dlq/{second}/retry").json() == {"retried": True}  # 004-32
    assert [item["job_id"] for item in world.letters()] == [first]  # 004-32
    world.run()
    assert world.job(second).payload["model"] == "gemini-flash"  # 004-32
    assert world.job(second).generation == 2
    for unknown in ("nothing", world.order()):
        answer = world.admin("POST", f"/dlq/{unknown}/retry")
        assert (answer.status_code, answer.json()) == (404, {"retried": False})  # 004-33


@pytest.mark.seed("004-31")
@pytest.mark.any_store
def test_list_of_dead_letters_has_a_hundred_entries_unless_asked_for_more(world):
    jobs = [world.post(size=11 * 1024**3).json()["job_id"] for _ in range(101)]
    assert [item["job_id"] for item in world.letters()] == jobs[:0:-1]  # 004-31
    assert len(world.letters(limit=1000)) == 101
    assert [item["job_id"] for item in world.letters(limit=1)] == jobs[-1:]


@pytest.mark.seed("004-18", "004-29", "004-30", "004-33")
def test_results_expire_after_a_day_and_dead_letters_after_thirty(world):
    good, dead = world.order(), world.order("private.mp4")
    world.run()
    world.advance(DAY - 600)
    assert world.fetch(good)["state"] == "COMPLETED"  # 004-18
    world.advance(660)
    assert world.request_as_owner("GET", f"/jobs/{good}", good).status_code == 404  # 004-18
    world.advance(28 * DAY)
    assert [item["job_id"] for item in world.letters()] == [dead]  # 004-29
    world.advance(DAY)
    assert world.letters() == []  # 004-29
    assert "clipscribe_dlq_size 0.0" in world.admin("GET", "/metrics").text  # 004-30
    assert world.admin("POST", f"/dlq/{dead}/retry").json() == {"retried": False}  # 004-33


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
    assert {world.fetch(job)["state"] for job in jobs} == {"COMPLETED"}  # 004-85 004-79
    assert [item["job_id"] for item in world.letters()] == [other]
    assert "4 of 4 recovered" in world.admin("GET", "/admin").text


@pytest.mark.seed("004-82", "004-84")
def test_owner_retries_with_another_model_and_the_change_is_recorded(world):
    job = world.order()
    with world.force(BAD):
        world.run()
    assert post_as_owner(world, job, "retry", model="gemini-flash") == 303
    world.run()
    assert world.job(job).result["model"] == "gemini-flash"  # 004-82 004-84
    retried = next(item for item in world.app.jobs.history(job) if item.type == "job.retried")
    assert retried.data["changes"] == {  # 004-84
        "payload.model": {"before": "gemini-pro", "after": "gemini-flash"}
    }
    assert post_as_owner(world, job, "retry") == 409


@pytest.mark.seed("004-01", "004-81")
@pytest.mark.any_store
def test_feedback_of_an_owner_is_shown_to_the_admin(make_world):
    world = make_world(PHASE="beta")
    job = world.order("private.mp4")
    assert post_as_owner(world, job, "feedback", text="early") == 409
    world.run()
    assert post_as_owner(world, job, "feedback", text="It is public for <b>me</b>") == 303
    page = world.admin("GET", "/admin").text
    assert "It is public for &lt;b&gt;me&lt;/b&gt;" in page  # 004-01 004-81
    assert [item["job_id"] for item in world.letters()] == [job]  # 004-81
    assert world.run_order("busy.mp4")["attempts"] == 3  # 004-81: full classification
    assert world.mails("ann@example.com") == [  # 004-81
        (
            "Your video could not be processed: "
            "This video cannot be processed. It may be private or deleted."
        )
    ]
    assert post_as_owner(world, job, "retry") == 404  # not before production
