"""Tasks: answers of the provider and the resulting states."""

from __future__ import annotations

import json

import pytest

RETRY_MESSAGE = "Retry {}/3 scheduled: {}"
SENTENCES = {
    "[503]": "The provider is not available.",
    "[later]": "The provider is limiting requests.",
    "[hang]": "The provider took too long.",
    "[reset]": "The provider could not be reached.",
}


def download_video(ann, task):
    answer = ann.video(task)
    assert answer.status_code == 200
    return answer.content


@pytest.mark.seed("002-01", "002-02", "002-03", "002-04", "002-41", "002-44")
def test_new_task_has_all_its_retries_and_becomes_a_video(world, ann):
    task = ann.order()
    new = ann.task(task)
    assert (new.status, new.retryCount, new.maxRetries, new.isRetryable, new.nextRetryAt) == (
        "pending",
        0,
        3,
        True,
        None,
    )  # 002-01, 002-02, 002-03, 002-04, 002-41, 002-44
    world.run()
    done = ann.task(task)
    assert (done.status, done.retryCount, done.nextRetryAt, done.error, done.cost) == (
        "succeeded",
        0,
        None,
        None,
        0.1,
    )
    assert download_video(ann, task)[4:8] == b"ftyp"


@pytest.mark.any_store
@pytest.mark.seed("002-04", "002-10", "002-14", "002-26", "002-45")
@pytest.mark.parametrize("fault", SENTENCES)
def test_retryable_failure_is_scheduled_and_shown(make_world, fault):
    world = make_world(ProviderTimeoutSeconds="0.2" if fault == "[hang]" else "20")
    ann = world.caller()
    task = ann.order(f"a cat {fault.replace(']', ' x1]')}")
    world.run()
    waiting_task = ann.task(task)
    assert (waiting_task.status, waiting_task.retryCount, waiting_task.isRetryable) == (
        "pending",
        1,
        True,
    )  # 002-10, 002-14
    assert waiting_task.error == RETRY_MESSAGE.format(1, SENTENCES[fault])  # 002-26, 002-45
    assert waiting_task.nextRetryAt.endswith("Z")  # 002-04, 002-14
    if fault == "[hang]":  # with this timeout no video is ever made
        return
    world.run(until_done=True)
    assert (ann.task(task).status, ann.task(task).retryCount, len(world.calls())) == (
        "succeeded",
        1,
        2,
    )


@pytest.mark.seed("002-13", "002-15", "002-21", "002-22", "002-24", "002-42")
def test_task_fails_after_three_retries_30_60_and_120_seconds_apart(world, ann):
    task = ann.order("a cat [503]")
    for number, (low, high) in enumerate([(24, 36), (48, 72), (96, 144)], 1):
        world.run()
        assert (ann.task(task).status, ann.task(task).retryCount) == ("pending", number)
        wait = world.retry_delay(task)
        assert low - 1 <= wait <= high  # 002-21, 002-22, 002-24
        world.advance(wait - 2)
        world.run()
        assert len(world.calls()) == number  # 002-15: not before its time
        world.advance(2.1)
    world.run()
    failed = ann.task(task)
    assert (failed.status, failed.retryCount, failed.nextRetryAt, failed.isRetryable) == (
        "failed",
        3,
        None,
        True,
    )  # 002-13, 002-42
    assert failed.error == "The provider is not available."
    assert len(world.calls()) == 4


@pytest.mark.any_store
@pytest.mark.seed("002-11", "002-28", "002-45")
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("[400]", "VALIDATION_ERROR"),
        ("[422]", "VALIDATION_ERROR"),
        ("[401]", "AUTHENTICATION_FAILED"),
    ],
)
def test_permanent_failure_is_not_retried(world, ann, fault, code):
    task = ann.order(f"a cat {fault}")
    world.run(until_done=True)
    failed = ann.task(task)
    assert (failed.status, failed.retryCount, failed.isRetryable, failed.errorCode) == (
        "failed",
        0,
        False,
        code,
    )  # 002-11, 002-28
    assert failed.error == next(
        rule.public for rule in world.rules.PACK.rules if rule.code == code
    )  # 002-45
    assert len(world.calls()) == 1  # 002-11


@pytest.mark.any_store
@pytest.mark.seed("002-12")
def test_unknown_failure_is_retried_and_hides_its_details(world, ann):
    task = ann.order("a cat [odd]")
    world.run(until_done=True)
    failed = ann.task(task)
    assert (failed.status, failed.errorCode, len(world.calls())) == (
        "failed",
        "GENERATION_FAILED",
        4,
    )
    assert failed.error == "The video could not be made."


@pytest.mark.any_store
def test_lost_answer_does_not_start_a_second_paid_generation(world, ann):
    task = ann.order("a cat [lose x1]")
    world.run(until_done=True)
    assert (ann.task(task).status, ann.task(task).cost) == ("succeeded", 0.1)
    assert {call["key"] for call in world.calls()} == {f"{task.removeprefix('task_')}-0"}


@pytest.mark.any_store
@pytest.mark.seed("002-55")
def test_failed_generation_is_started_again_and_paid_again(world, ann):
    task = ann.order("a cat [break x1]")
    world.run()
    assert ann.task(task).error == RETRY_MESSAGE.format(1, "The video could not be made.")
    world.run(until_done=True)
    assert (ann.task(task).status, ann.task(task).cost) == ("succeeded", 0.2)
    assert world.app.insight(kind="video.nimbus").numbers.retry_cost == pytest.approx(0.1)


# --- Manual retries -----------------------------------------------------------------------------
@pytest.mark.seed("002-17", "002-18", "002-20", "002-29", "002-40")
def test_manual_retry_starts_at_once_with_all_retries(world, ann):
    task = ann.order("a cat [503 x4]")
    world.run(until_done=True)
    assert (ann.task(task).status, ann.task(task).retryCount) == ("failed", 3)
    answer = ann.retry(task)
    assert answer.status_code == 200
    body = answer.json()
    assert (body["taskId"], body["status"]) == (task, "pending")  # 002-17
    assert body["error"] is None  # 002-40
    assert body["message"] == "Retry scheduled; up to 3 more follow by themselves."
    assert (body["retryCount"], body["nextRetryAt"]) == (0, None)  # 002-18, 002-29
    world.run()
    assert ann.task(task).status == "succeeded"  # 002-20: no wait


@pytest.mark.seed("002-19")
def test_only_a_failed_task_can_be_retried(world, ann):
    task = ann.order("a cat [503 x1]")
    refused = [ann.retry(task)]
    world.run()
    refused.append(ann.retry(task))
    world.run(until_done=True)
    refused.append(ann.retry(task))
    assert {(answer.status_code, answer.json()["error"]["code"]) for answer in refused} == {
        (409, "task_not_failed")
    }
    assert len(world.calls()) == 2


@pytest.mark.seed("002-18")
def test_owner_may_retry_only_so_many_tasks_within_an_hour(make_world):
    world = make_world(ManualRetriesPerHour="3")
    ann, bob, operator = (world.caller(owner) for owner in ("acme", "globex", "*"))
    tasks = [ann.order(f"a cat {n} [400]") for n in range(5)]
    other = bob.order("a dog [400]")
    world.run()
    answers = [ann.retry(task) for task in tasks]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert answers[-1].json()["error"]["code"] == "too_many_retries"
    assert answers[-1].headers["retry-after"] == "60"
    assert ann.task(tasks[-1]).status == "failed"
    assert bob.retry(other).status_code == operator.retry(tasks[3]).status_code == 200
    world.advance(3601)
    assert ann.retry(tasks[-1]).status_code == 200


# --- Access -------------------------------------------------------------------------------------
@pytest.mark.seed("002-43")
def test_missing_key_answers_401_and_key_of_another_owner_404(world, ann):
    task = ann.order()
    path = f"/v1/videos/generations/tasks/{task}"
    for headers in ({}, {"Authorization": "Bearer mk_nobody"}, {"Authorization": "Basic YTpi"}):
        answers = [
            world.client.get(path, headers=headers),
            world.client.post(f"{path}/retry", headers=headers),
        ]
        assert [(answer.status_code, answer.json()["error"]["code"]) for answer in answers] == [
            (401, "invalid_api_key")
        ] * 2
    bob = world.caller("globex")
    for other in (task, "task_nothing", "nothing"):
        answers = [
            bob.fetch(other),
            bob.retry(other),
            bob.archive(other),
            bob.video(other),
        ]
        assert {(answer.status_code, answer.text) for answer in answers} == {(404, answers[0].text)}
    assert (bob.tasks(), ann.tasks(), world.caller("*").tasks()) == ([], [task], [task])
    assert (bob.get("/v1/videos/report").status_code, bob.get("/metrics").status_code) == (403, 403)


@pytest.mark.seed("002-43")
def test_viewer_key_may_only_read_and_revoked_key_may_not(world, ann):
    task = ann.order()
    reader = world.caller("acme", "viewer")
    assert reader.task(task).status == "pending"
    assert reader.retry(task).status_code == 403
    for key in world.app.keys.list():
        world.app.keys.revoke(key.id)
    assert (ann.fetch(task).status_code, reader.archive(task).status_code) == (401, 401)


@pytest.mark.any_store
@pytest.mark.seed("002-45")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "nimbus-9"}, "model: Value error, there are nimbus-1, nimbus-1-fast, quartz-2"),
        ({"prompt": ""}, "prompt: String should have at least 1 character"),
        ({"seconds": 90}, "seconds: Input should be less than or equal to 20"),
        ({"size": "9x9"}, "size: Input should be '320x180', '640x360' or '1280x720'"),
        ({"secnods": 3}, "secnods: Extra inputs are not permitted"),
    ],
)
def test_invalid_order_is_refused_with_the_field_and_creates_no_task(world, ann, fields, message):
    answer = ann.post(
        "/v1/videos/generations", **{"model": "nimbus-1", "prompt": "a cat", **fields}
    )
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)
    assert ann.tasks() == []


def test_unstorable_or_too_large_requests_are_refused(world, ann):
    for prompt in ("a\x00b", "a\ud800b"):
        body = '{"model": "nimbus-1", "prompt": ' + json.dumps(prompt) + "}"
        headers = {**ann.headers, "Content-Type": "application/json"}
        answer = world.client.post("/v1/videos/generations", content=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert (
        ann.post("/v1/videos/generations", model="nimbus-1", prompt="x" * 20_000).status_code == 413
    )
    assert [
        ann.fetch(task).status_code
        for task in ("task_%00", "task_" + "x" * 5000, "task_%F0%9F%90%88")
    ] == [404] * 3


# --- Archive ------------------------------------------------------------------------------------
@pytest.mark.seed("002-30")
def test_archived_task_never_starts_and_is_in_no_list(world, ann):
    waiting = ann.order("first")
    failed = ann.order("second [400]")
    retrying = ann.order("third [503 x1]")
    assert ann.archive(waiting).status_code == 204
    world.run()
    assert [ann.archive(task).status_code for task in (failed, retrying)] == [204, 204]
    done = ann.order()
    world.run(until_done=True)
    assert ann.tasks() == [done]
    assert [call["prompt"] for call in world.calls()] == ["second [400]", "third [503 x1]", "a cat"]
    assert {ann.retry(task).status_code for task in (waiting, failed, retrying)} == {404}
    assert ann.archive(done).status_code == 409
