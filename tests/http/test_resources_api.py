"""Failures, operations, batches, queues, dependencies, workers and keys over HTTP."""

from __future__ import annotations

import pytest

from mulligan import Fail
from mulligan.manifest.declared import publish_manifest
from support.app_tools import run_job
from support.released import add_starts
from support.store import open_worker


@pytest.fixture
def call(client, key):
    """Return a function that calls the API as an admin of scope *, or with other headers."""
    admin = key("*", "admin")

    def call(verb, path, caller=None, **body):
        document = None if verb == "GET" else body
        answer = client.request(verb, f"/api/v1{path}", json=document, headers=caller or admin)
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 300:
            return answer.status_code, answer.json()["code"]
        return answer.json()

    return call


def test_a_failure_group_is_listed_read_muted_and_resolved(app, call, key):
    for owner in ("acme", "acme", "other"):
        run_job(app, app.enqueue("fails", {"text": "row 17"}, owner=owner))
    (group,) = call("GET", "/failures")["failures"]
    assert (group["count"], group["code"], group["state"], group["class"]) == (
        3,
        "BAD_FILE",
        "new",
        "invalid_input",
    )
    (mine,) = call("GET", "/failures?filter=kind:fails", key("acme", "viewer"))["failures"]
    assert (mine["count"], mine["owner"], mine["message"]) == (
        2,
        "acme",
        "This file could not be read.",
    )
    name = group["fingerprint"]
    assert "row 17" in str(call("GET", f"/failures/{name}")["sample"]["private"])
    assert call("GET", f"/failures/{name}", key("*", "viewer"))["sample"]["private"] is None
    assert call("POST", f"/failures/{name}/mute", until=3600, reason="known")["state"] == "muted"
    assert call("POST", f"/failures/{name}/unmute")["state"] == "open"
    assert call("POST", f"/failures/{name}/resolve", reason="fixed")["state"] == "resolved"
    assert call("POST", f"/failures/{name}/reopen")["state"] == "open"
    assert call("GET", f"/failures/{name}", key("acme"))["state"] == "new"
    assert call("GET", "/failures/%00")[0] == 404


def test_an_operation_is_previewed_started_paused_and_aborted(app, call, client, key):
    jobs = [run_job(app, app.enqueue("fails", {"text": str(n)}, owner="acme")).id for n in range(3)]
    request = {"action": "retry", "filter": "kind:fails", "steps": [1, "rest"], "rate": 5}
    assert call("POST", "/operations", **request, dry_run=True)["count"] == 3
    assert call("POST", "/operations", action="retry", filter="") == (422, "REFUSED")
    assert call("POST", "/operations", action="explode", filter="kind:fails")[0] == 422
    started = call("POST", "/operations", **request, reason="fixed")
    assert (started["total"], started["state"], started["actor"][:4]) == (3, "running", "key:")
    path = f"/operations/{started['id']}"
    assert call("GET", path)["under_way"] is True
    assert [item["job"] for item in call("GET", f"{path}/items?limit=1000")["items"]] == sorted(
        jobs
    )
    page = call("GET", f"{path}/items?limit=2")
    rest = call("GET", f"{path}/items?limit=2&cursor={page['next']}")
    assert [item["job"] for item in (*page["items"], *rest["items"])] == sorted(jobs)
    assert call("POST", f"{path}/pause", reason="wait")["state"] == "paused"
    assert call("POST", f"{path}/resume")["state"] == "running"
    assert call("POST", f"{path}/abort")["state"] == "aborted"
    assert call("POST", f"{path}/resume")[0] == 409
    assert [one["id"] for one in call("GET", "/operations")["operations"]] == [started["id"]]
    assert call("GET", "/operations", key("acme"))["operations"] == []
    named = {**key("acme", "operator"), "Idempotency-Key": "retry-1"}
    first, again = (
        client.post("/api/v1/operations", json=request, headers=named) for _ in range(2)
    )
    assert (first.status_code, first.json()["owner"], first.json()["id"]) == (
        201,
        "acme",
        again.json()["id"],
    )


def test_a_batch_is_created_filled_sealed_retried_and_cancelled(app, call, key):
    headers = key("acme", "operator")
    batch = call(
        "POST",
        "/batches",
        headers,
        name="spring",
        tolerance="10%",
        on_complete="works",
        unique="s-1",
    )
    assert (batch["owner"], batch["state"], batch["on_complete"]) == ("acme", "processing", "works")
    assert call("POST", "/batches", headers, name="spring", unique="s-1")["id"] == batch["id"]
    path = f"/batches/{batch['id']}"
    member = call("POST", f"{path}/jobs", headers, kind="fails")
    assert (member["batch_id"], member["owner"]) == (batch["id"], "acme")
    assert (
        call("POST", "/jobs", headers, kind="works", batch_id=batch["id"])["batch_id"]
        == batch["id"]
    )
    assert call("POST", "/jobs", key("other", "operator"), kind="works", batch_id=batch["id"]) == (
        404,
        "NOT_FOUND",
    )
    nobodys = app.batch("nobody's")
    assert call("POST", "/jobs", headers, kind="works", batch_id=nobodys.id) == (404, "NOT_FOUND")
    assert call("POST", f"{path}/seal", headers)["sealed_at"]
    assert call("POST", f"{path}/seal", headers) == (409, "BATCH_SEALED")
    app.run_inline()
    assert call("GET", path, headers)["state"] == "partial"
    assert {job["state"] for job in call("GET", f"{path}/jobs", headers)["jobs"]} == {
        "dead",
        "succeeded",
    }
    assert len(call("GET", f"{path}/jobs?filter=state:dead", headers)["jobs"]) == 1
    retried = call("POST", f"{path}/retry-failed", headers, reason="fixed")
    assert (retried["jobs"], retried["refused"]) == ([member["id"]], {})
    assert call("POST", f"{path}/cancel", headers)["cancelled_at"]
    assert [
        one["id"] for one in call("GET", "/batches?state=processing&limit=1", headers)["batches"]
    ] == []
    assert call("GET", "/batches?state=done", headers)[0] == 422
    assert call("POST", "/batches", headers, name="x", tolerance="many")[0] == 422
    assert call("POST", "/batches", headers, name="x", on_complete="nobody")[0] == 422


def test_a_queue_is_paused_resumed_and_limited(app, call):
    app.enqueue("works", queue="pdf")
    assert [
        (one["name"], one["ready"]) for one in call("GET", "/queues")["queues"] if one["ready"]
    ] == [("pdf", 1)]
    assert call("POST", "/queues/pdf/pause", until=60, reason="printer")["paused"] is True
    assert call("POST", "/queues/pdf/pause", until="2001-01-01T00:00:00Z")[0] == 422
    assert call("POST", "/queues/pdf/resume")["paused"] is False
    limited = call("PATCH", "/queues/pdf", concurrency=3, rate="100/m")
    assert (limited["concurrency"], round(limited["rate"], 2)) == (3, 1.67)
    assert call("PATCH", "/queues/pdf", rate=None)["concurrency"] == 3
    assert call("PATCH", "/queues/pdf", clear=True)["set_by_hand"] is False
    assert call("GET", "/queues/nope") == (404, "NOT_FOUND")
    assert call("POST", "/queues/a%20b/pause")[0] == 422


def test_a_dependency_is_opened_closed_probed_and_limited(app, call):
    app.job(name="call", uses="https://gw/v1")(lambda: None).enqueue()
    (one,) = call("GET", "/dependencies")["dependencies"]
    assert (one["key"], one["state"]) == ("https://gw/v1", "closed")
    path = "/dependencies/https://gw/v1"
    assert call("POST", f"{path}/open", until=60, reason="they told us")["state"] == "open"
    assert call("POST", f"{path}/close")["state"] in {"closed", "ramping"}
    assert call("POST", f"{path}/probe")[0] == 409
    assert call("PATCH", path, concurrency=2)["concurrency"] == 2
    assert call("GET", path)["set_by_hand"] is True
    assert call("PATCH", path, clear=True)["set_by_hand"] is False
    assert call("GET", "/dependencies/nope") == (404, "NOT_FOUND")


def test_only_operators_see_the_hosts_of_workers(app, call, key):
    open_worker(app.store, "w_9")
    (worker,) = call("GET", "/workers")["workers"]
    assert (worker["id"], worker["host"], worker["running"]) == ("w_9", "here", 0)
    assert "host" not in call("GET", "/workers", key("*", "viewer"))["workers"][0]


def test_keys_are_created_listed_and_revoked_within_a_scope(app, call, key):
    created = call("POST", "/keys", scope="acme", role="admin", name="theirs", expires=3600)
    assert app.keys.authenticate(created["key"]).name == "theirs"
    theirs = {"Authorization": f"Bearer {created['key']}"}
    assert call("POST", "/keys", theirs, scope="*", role="viewer")[0] == 403
    mine = call("POST", "/keys", theirs, scope="acme", role="viewer")
    assert {one["scope"] for one in call("GET", "/keys", theirs)["keys"]} == {"acme"}
    assert "hash" not in str(call("GET", "/keys"))
    foreign = app.keys.create("other", "viewer").key
    assert call("POST", f"/keys/{foreign.id}/revoke", theirs) == (404, "NOT_FOUND")
    assert call("POST", f"/keys/{mine['id']}/revoke", theirs)["state"] == "revoked"
    assert call("POST", "/keys", scope="acme", role="root")[0] == 422


def test_a_webhook_is_created_tested_rotated_disabled_and_removed(app, call, client, key):
    headers = key("acme", "operator")
    created = call(
        "POST",
        "/webhooks",
        headers,
        url="https://example.com/hook?token=s3cret",
        on=["job.died", "job.parked"],
    )
    assert created["secret"].startswith("whsec_")
    assert (created["owner"], created["on"], created["enabled"]) == (
        "acme",
        ["job.died", "job.parked"],
        True,
    )
    path = f"/webhooks/{created['id']}"
    shown = call("GET", path, headers)
    assert "secret" not in shown
    assert "s3cret" not in str(shown)
    assert [one["id"] for one in call("GET", "/webhooks", headers)["webhooks"]] == [created["id"]]
    assert call("GET", "/webhooks", key("other"))["webhooks"] == []
    sent = call("POST", f"{path}/test", headers)
    (listed,) = call("GET", f"/deliveries?subscription={created['id']}", headers)["deliveries"]
    assert (listed["id"], listed["type"], listed["state"]) == (
        sent["id"],
        "subscription.test",
        "queued",
    )
    assert call("GET", f"/deliveries/{sent['id']}", headers)["message"] == listed["message"]
    assert call("POST", f"/deliveries/{sent['id']}/retry", headers)[0] == 409
    assert call("GET", "/deliveries", key("other"))["deliveries"] == []
    assert call("POST", f"{path}/rotate", headers)["secret"] != created["secret"]
    assert call("POST", f"{path}/disable", headers, reason="quiet")["enabled"] is False
    assert call("POST", f"{path}/enable", headers)["enabled"] is True
    assert client.delete(f"/api/v1{path}", headers=headers).status_code == 204
    assert call("GET", path, headers) == (404, "NOT_FOUND")
    for wrong in (
        {"url": "ftp://x"},
        {"on": "job.deid"},
        {"url": "https://x\r\nhost: y"},
        {"owner": "b"},
        {"headers": {"a": "b\r\nc: d"}},
    ):
        body = {"url": "https://example.com", "on": "job.died", **wrong}
        assert call("POST", "/webhooks", headers, **body)[0] in {403, 422}


def test_bulk_enqueue_is_all_or_nothing(app, call, key):
    headers = key("acme", "operator")
    created = call(
        "POST",
        "/jobs/bulk",
        headers,
        jobs=[{"kind": "works"}, {"kind": "works", "timeout": 5, "deadline": 60}],
    )
    assert [job["owner"] for job in created["jobs"]] == ["acme", "acme"]
    assert (
        call("POST", "/jobs/bulk", headers, jobs=[{"kind": "works"}, {"kind": "nobody"}])[0] == 422
    )
    assert call("POST", "/jobs/bulk", headers, jobs=[])[0] == 422
    app.enqueue("works", owner="other")
    assert call("GET", "/jobs/count?filter=kind:works", headers) == {
        "count": 2,
        "capped": False,
        "partial": False,
    }
    assert call("GET", "/jobs/count?filter=owner:other", headers)["count"] == 0
    assert call("GET", "/jobs/count")["count"] == 3


def test_the_api_accepts_the_enqueue_options_of_python(call):
    policy = {"max_retries": 1, "backoff": {"type": "fixed", "seconds": 5}}
    created = call("POST", "/jobs", kind="works", policy=policy, deadline="2099-01-01T00:00:00Z")
    assert created["deadline_at"].startswith("2099-01-01")
    assert call("POST", "/jobs", kind="works", policy={"max_retries": -1})[0] == 422
    assert call("POST", "/jobs", kind="works", policy={"nonsense": 1})[0] == 422


def test_a_dry_run_of_a_retry_reports_its_changes(app, call):
    job = run_job(app, app.enqueue("fails", owner="acme"))
    preview = call("POST", f"/jobs/{job.id}/retry", overrides={"max_retries": 2}, dry_run=True)
    assert (preview["job_id"], list(preview["changes"]), preview["refused"]) == (
        job.id,
        ["max_retries"],
        [],
    )
    assert app.jobs.get(job.id).state == "dead"
    fine = run_job(app, app.enqueue("works"))
    (why,) = call("POST", f"/jobs/{fine.id}/retry", dry_run=True)["refused"]
    assert why["code"] == "ILLEGAL_MOVE"


def test_operators_create_status_links(app, client, call, key):
    job = run_job(app, app.enqueue("fails", owner="acme"))
    headers = key("acme", "operator")
    link = call("POST", f"/jobs/{job.id}/status-link", headers, expires=60)["link"]
    assert "This file could not be read." in client.get(link).text
    batch = app.batch("spring", owner="acme")
    assert call("POST", f"/batches/{batch.id}/status-link", headers)["link"].startswith(
        "/status/b-"
    )


def test_a_batch_lists_its_failures_and_events(app, call, key):
    batch = app.batch("spring", owner="acme")
    app.enqueue("fails", batch=batch)
    batch.seal()
    app.run_inline()
    headers = key("acme", "viewer")
    (failed,) = call("GET", f"/batches/{batch.id}/failures", headers)["failures"]
    assert (failed["code"], failed["count"]) == ("BAD_FILE", 1)
    types = [
        event["type"] for event in call("GET", f"/batches/{batch.id}/events", headers)["events"]
    ]
    assert types == ["batch.sealed", "batch.failed"]


def test_a_kind_is_held_and_released(app, call):
    app.enqueue("works")
    assert call("POST", "/kinds/works/hold", until=60, reason="wait")["held"] is True
    assert call("GET", "/kinds")["kinds"][0]["name"] == "works"
    assert call("GET", "/kinds/works")["reason"] == "wait"
    assert call("POST", "/kinds/works/release")["held"] is False
    assert call("GET", "/kinds/nope") == (404, "NOT_FOUND")


def test_a_policy_is_explained_and_an_error_is_classified(app, call):
    assert "works" in call("GET", "/policies")["kinds"]
    explained = call("GET", "/policies/fails?max_retries=2")
    assert {one["class"] for one in explained["classes"]} >= {"transient", "permanent"}
    assert call("GET", "/policies/nope") == (404, "NOT_FOUND")
    assert call("GET", "/policies/fails?max_retries=-1")[0] == 422
    verdict = call("POST", "/policies/test", http_status=503, kind="works")
    assert (verdict["class"], verdict["retryable"]) == ("transient", True)
    assert call("POST", "/policies/test", text="x", kind="nope")[0] == 422
    run_job(app, app.enqueue("fails", {"text": "row"}))
    rule = {"id": "mine", "code": "MINE", "cls": "transient", "message": r"\bprivate: row\b"}
    tried = call("POST", "/policies/backtest", rules=[rule], since=3600)
    assert (tried["failures"], tried["partial"]) == (1, False)
    assert call("POST", "/policies/backtest", rules=[{"id": "x"}])[0] == 422


def test_insight_needs_scope_star(app, call, key):
    run_job(app, app.enqueue("works"))
    found = call("GET", "/insight?since=1d&kind=works")
    assert (found["numbers"]["jobs"], found["kind"]) == (1, "works")
    assert call("GET", "/insight?since=yesterday")[0] == 422
    assert call("GET", "/insight", key("acme"))[0] == 403


def test_a_schedule_is_listed_previewed_and_run(app, call):
    app.schedule("nightly", "0 3 * * *", "works", {"text": "x"}, timezone="Europe/Berlin")
    with app.store.begin() as tx:
        publish_manifest(tx, app.manifest("site:app"))
    (one,) = call("GET", "/schedules")["schedules"]
    assert (one["name"], one["kind"], one["timezone"]) == ("nightly", "works", "Europe/Berlin")
    assert len(call("GET", "/schedules/nightly/next?n=3")["next"]) == 3
    assert call("GET", "/schedules/nightly/next?n=0")[0] == 422
    assert call("POST", "/schedules/nightly/run", reason="now")["payload"] == {"text": "x"}
    assert call("POST", "/schedules/nope/run") == (404, "NOT_FOUND")
    assert call("POST", "/schedules/nightly/pause", until=3600, reason="moving")["paused"] is True
    assert call("GET", "/schedules/nightly")["reason"] == "moving"
    assert call("POST", "/schedules/nightly/resume")["paused"] is False


def test_an_alert_is_silenced_for_a_while(app, call):
    name = call("GET", "/alerts/rules")["rules"][0]["name"]
    assert call("GET", "/alerts?all=true")["alerts"] == []
    assert call("POST", f"/alerts/{name}/silence", until=60, reason="known")["silenced_until"]
    assert call("POST", f"/alerts/{name}/silence")[0] == 422
    assert call("POST", f"/alerts/{name}/unsilence")["silenced_until"] is None
    assert call("POST", "/alerts/nope/silence", until=60) == (404, "NOT_FOUND")


def test_a_worker_can_be_drained(app, call):
    open_worker(app.store, "w_9")
    assert call("POST", "/workers/w_9/drain", reason="new release")["draining"] is True
    assert call("POST", "/workers/w_8/drain") == (404, "NOT_FOUND")
    assert app.events.list(type="worker.drain_requested")[0].data["reason"] == "new release"


def test_the_audit_is_paged_and_hides_names_from_owners(app, call, key):
    for _ in range(3):
        job = run_job(app, app.enqueue("fails", owner="acme"))
        call("POST", f"/jobs/{job.id}/retry", key("acme", "operator"), reason="fixed")
    call("POST", "/queues/pdf/pause", reason="printer")
    page = call("GET", "/audit?type=job.retried&limit=2")
    rest = call("GET", f"/audit?type=job.retried&limit=2&cursor={page['next']}")
    assert [len(page["events"]), len(rest["events"]), rest["next"]] == [2, 1, None]
    assert page["events"][0]["actor"].startswith("key:mk_")
    mine = call("GET", "/audit?since=1h", key("acme", "viewer"))["events"]
    assert {(event["type"], event["actor"]) for event in mine} == {("job.retried", "key")}
    assert call("GET", "/audit?actor=python", key("acme", "admin"))[0] == 403
    assert call("GET", "/audit?type=nope")[0] == 422


def test_members_are_added_to_a_batch_all_or_none(app, call, key):
    headers = key("acme", "operator")
    batch = app.batch("spring", owner="acme")
    created = call(
        "POST", f"/batches/{batch.id}/jobs", headers, jobs=[{"kind": "works"}, {"kind": "fails"}]
    )
    assert {job["batch_id"] for job in created["jobs"]} == {batch.id}
    assert (
        call(
            "POST",
            f"/batches/{batch.id}/jobs",
            headers,
            jobs=[{"kind": "works"}, {"kind": "nobody"}],
        )[0]
        == 422
    )
    assert call("GET", f"/batches/{batch.id}", headers)["counts"]["total"] == 2


def test_failure_groups_are_paged(app, call, key):
    for code in ("ONE", "TWO", "THREE", "FOUR", "FIVE"):
        app.job(name=code.lower())(lambda code=code: Fail(code, final=True)).options(
            owner="acme"
        ).enqueue()
        app.run_inline()
    headers = key("acme", "viewer")
    codes = []
    cursor = ""
    while cursor is not None:
        page = call("GET", f"/failures?limit=2{cursor and f'&cursor={cursor}'}", headers)
        codes += [group["code"] for group in page["failures"]]
        cursor = page["next"]
    assert sorted(codes) == ["FIVE", "FOUR", "ONE", "THREE", "TWO"]
    assert (len(page["failures"]), page["more"]) == (1, False)
    assert sorted(codes[:2]) == ["FIVE", "FOUR"]
    assert call("GET", "/failures?limit=501")[0] == 422


def test_scale_answers_the_workers_that_are_wanted_for_the_chosen_queues(app, call, client, key):
    for number in range(40):
        app.enqueue("works", owner="acme", queue="bulk" if number % 4 else "default")
    found = call("GET", "/scale?queue=bulk&target=1&slots=5")
    assert (found["ready"], found["slots"], found["workers"]) == (30, 30, 6)
    assert (found["queues"], found["unmeasured"]) == (["bulk"], ["works"])
    assert call("GET", "/scale?queue=bulk&queue=default&target=1")["ready"] == 40
    app.queues.pause("bulk", reason="deploy")
    found = call("GET", "/scale?target=1", key("*", "viewer"))
    assert (found["ready"], found["held"], found["slots"]) == (10, 30, 10)
    assert call("GET", "/scale?target=0") == (422, "INVALID")
    assert call("GET", "/scale", key("acme", "admin"))[0] == 403
    admin = key("*", "admin")
    metrics = client.get("/api/v1/metrics", headers=admin).text
    assert 'mulligan_workers_wanted{queue="default"} 1.0' in metrics
    assert 'mulligan_workers_wanted{queue="bulk"} 0.0' in metrics


def test_releases_are_listed_compared_and_held(app, call, key):
    for release, failures in (("r41", 20), ("r42", 600)):
        add_starts(app, release, "works", 1000, failures)
        add_starts(app, release, "fails", 1000, 20)
    newest, oldest = call("GET", "/releases", key("*", "viewer"))["releases"]
    assert (newest["name"], newest["state"], oldest["name"]) == ("r42", "worse", "r41")
    assert call("GET", "/releases/r42")["counts"]["failures"] == 620
    for query in ("", "?before=r41"):
        rows = call("GET", f"/releases/r42/compare{query}")["kinds"]
        assert [(row["kind"], row["state"]) for row in rows] == [
            ("fails", "fine"),
            ("works", "worse"),
        ]
    (only,) = call("GET", "/releases/r42/compare?kind=works")["kinds"]
    assert (only["before"]["failures"], only["after"]["failures"]) == (20, 600)
    held = call("POST", "/releases/r42/hold", kind="works", until=3600, reason="codec")
    assert [(hold["kind"], hold["reason"]) for hold in held["holds"]] == [("works", "codec")]
    assert call("POST", "/releases/r42/unhold", kind="works")["holds"] == []
    assert call("GET", "/releases/r9") == (404, "NOT_FOUND")
    assert call("POST", "/releases/r9/hold") == (404, "NOT_FOUND")
    for caller in (key("*", "viewer"), key("acme", "operator")):
        assert call("POST", "/releases/r42/hold", caller)[0] == 403


def test_a_cause_is_assigned_and_a_discard_is_undone(app, call):
    job = run_job(app, app.enqueue("fails", {"text": "row 17"}, owner="acme"))
    (group,) = call("GET", "/failures")["failures"]
    path = f"/failures/{group['fingerprint']}"
    assert call("POST", f"{path}/assign", person="ada")["assignee"] == "ada"
    assert call("GET", path)["assignee"] == "ada"
    assert call("POST", f"/jobs/{job.id}/discard", reason="not needed")["state"] == "cancelled"
    assert call("POST", f"/jobs/{job.id}/undiscard", reason="it is needed")["state"] == "dead"
    assert call("POST", f"/jobs/{job.id}/undiscard")[0] == 409
