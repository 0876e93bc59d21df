"""A key of one owner may name only queues that the app or an operator has declared."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from mulligan.http.api import create_api
from mulligan.testing import advance

ESCALATION = {"then": [{"queue": "hidden"}]}
ESCALATION_OF_A_CLASS = {"classes": {"timeout": {"then": [{"queue": "hidden"}]}}}


@pytest.fixture
def app(app):
    app.queue("declared", concurrency=2)

    @app.job(name="renders", queue="render")
    def renders() -> None:
        """Do nothing."""

    return app


@pytest.fixture
def owner(key):
    return key("acme", "operator")


def post(client, path, headers, **body):
    return client.post(f"/api/v1{path}", json=body, headers=headers)


def check_refused(answer, queue="hidden"):
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (403, "QUEUE_REFUSED"), problem
    assert f"queue '{queue}'" in problem["detail"]
    assert f"app.queue('{queue}')" in problem["detail"]
    assert f"mulligan queues set {queue}" in problem["detail"]
    assert not problem["retryable"]


@pytest.mark.parametrize("role", ["operator", "admin"])
@pytest.mark.parametrize(
    "options",
    [{"queue": "hidden"}, {"policy": ESCALATION}, {"policy": ESCALATION_OF_A_CLASS}],
    ids=["queue", "escalation", "escalation of a class"],
)
def test_an_owner_cannot_enqueue_into_a_queue_that_is_not_declared(app, client, key, role, options):
    headers = key("acme", role)
    batch = app.batch("spring", owner="acme")
    job = {"kind": "works", **options}
    jobs = [{"kind": "works"}, job]
    check_refused(post(client, "/jobs", headers, **job))
    check_refused(post(client, "/jobs/bulk", headers, jobs=jobs))
    check_refused(post(client, f"/batches/{batch.id}/jobs", headers, **job))
    check_refused(post(client, f"/batches/{batch.id}/jobs", headers, jobs=jobs))
    assert app.jobs.count("") == 0


def test_an_owner_uses_the_queues_that_the_app_declares(client, owner):
    for queue in ("declared", "render", "default"):
        made = post(client, "/jobs", owner, kind="works", queue=queue)
        assert (made.status_code, made.json()["queue"]) == (201, queue)
    jobs = [{"kind": "works", "queue": "declared"}, {"kind": "renders"}]
    made = post(client, "/jobs/bulk", owner, jobs=jobs)
    assert [job["queue"] for job in made.json()["jobs"]] == ["declared", "render"]


def test_an_owner_uses_the_queues_that_an_operator_limits_or_pauses(app, client, owner):
    app.queues.set("limited", concurrency=1)
    app.queues.pause("paused", reason="later")
    for queue in ("limited", "paused"):
        assert post(client, "/jobs", owner, kind="works", queue=queue).status_code == 201
    app.queues.clear("limited")
    check_refused(post(client, "/jobs", owner, kind="works", queue="limited"), "limited")


def test_jobs_of_others_and_limits_of_dependencies_declare_no_queue(app, client, key, owner):
    made = post(client, "/jobs", key("*", "operator"), kind="works", queue="hidden")
    assert (made.status_code, made.json()["queue"]) == (201, "hidden")
    app.dependencies.set("hidden", concurrency=3)
    app.kinds.hold("hidden", reason="later")
    check_refused(post(client, "/jobs", owner, kind="works", queue="hidden"))


def test_an_owner_cannot_escalate_into_a_queue_of_mulligan_itself(app, client, owner):
    policy = {"then": [{"queue": "mulligan.deliveries"}]}
    answer = post(client, "/jobs", owner, kind="works", policy=policy)
    check_refused(answer, "mulligan.deliveries")


def test_a_queue_stays_declared_while_all_workers_are_down(app, client, owner):
    advance(app, 3 * 86_400, anywhere=True)
    assert post(client, "/jobs", owner, kind="works", queue="declared").status_code == 201


def test_an_app_that_serves_the_api_declares_queues_before_its_first_worker(app, owner):
    with TestClient(create_api(app)) as api:
        made = api.post("/jobs", json={"kind": "works", "queue": "declared"}, headers=owner)
        assert made.status_code == 201
        check_refused(api.post("/jobs", json={"kind": "works", "queue": "hidden"}, headers=owner))


@pytest.mark.parametrize(
    "overrides", [{"queue": "hidden"}, {"policy": ESCALATION}], ids=["queue", "escalation"]
)
def test_an_owner_cannot_retry_into_a_queue_that_is_not_declared(
    app, client, key, owner, overrides
):
    dead = app.enqueue("fails", {}, owner="acme")
    app.run_inline()
    path = f"/jobs/{dead.id}/retry"
    preview = post(client, path, owner, overrides=overrides, dry_run=True).json()
    assert [why["code"] for why in preview["refused"]] == ["QUEUE_REFUSED"]
    check_refused(post(client, path, owner, overrides=overrides))
    operation = {"action": "retry", "filter": "state:dead", "overrides": overrides}
    check_refused(post(client, "/operations", owner, **operation))
    check_refused(post(client, "/operations", owner, **operation, dry_run=True))
    assert app.jobs.get(dead.id).state == "dead"
    retried = post(client, path, key("*", "operator"), overrides=overrides)
    assert retried.status_code == 200


def test_an_owner_retries_into_a_declared_queue(app, client, owner):
    dead = app.enqueue("fails", {}, owner="acme")
    app.run_inline()
    answer = post(client, f"/jobs/{dead.id}/retry", owner, overrides={"queue": "declared"})
    assert (answer.status_code, answer.json()["queue"]) == (200, "declared")


def test_an_owner_moves_jobs_only_to_declared_queues(app, client, key, owner):
    app.enqueue("works", {}, owner="acme", delay=60)
    move = {"action": "move", "filter": "state:queued"}
    check_refused(post(client, "/operations", owner, **move, queue="hidden"))
    assert app.operations.list() == []
    assert post(client, "/operations", owner, **move, queue="declared").status_code == 201
    staff = key("*", "operator")
    assert post(client, "/operations", staff, **move, queue="hidden").status_code == 201
