"""Failures, operations, batches, queues, dependencies, workers and keys over HTTP."""

from __future__ import annotations

import pytest

from mulligan import Fail
from mulligan.manifest.declared import speak
from support.app_tools import ran
from support.store import open_worker


@pytest.fixture
def ask(client, key):
    """Asks in the name of one operator of everything, unless somebody else is named."""
    boss = key("*", "admin")

    def ask(verb, path, who=None, **body):
        said = None if verb == "GET" else body
        answer = client.request(verb, f"/api/v1{path}", json=said, headers=who or boss)
        assert answer.status_code < 500, answer.text
        return (
            answer.json()
            if answer.status_code < 300
            else (answer.status_code, answer.json()["code"])
        )

    return ask


def test_a_failure_group_is_listed_looked_at_muted_and_resolved(app, ask, key):
    for owner in ("acme", "acme", "other"):
        ran(app, app.enqueue("fails", {"text": "row 17"}, owner=owner))
    (group,) = ask("GET", "/failures")["failures"]
    assert (group["count"], group["code"], group["state"], group["class"]) == (
        3,
        "BAD_FILE",
        "new",
        "invalid_input",
    )
    (mine,) = ask("GET", "/failures?filter=kind:fails", key("acme", "viewer"))["failures"]
    assert (mine["count"], mine["owner"], mine["message"]) == (
        2,
        "acme",
        "This file could not be read.",
    )
    name = group["fingerprint"]
    assert "row 17" in str(ask("GET", f"/failures/{name}")["sample"]["private"])
    assert ask("GET", f"/failures/{name}", key("*", "viewer"))["sample"]["private"] is None
    assert ask("POST", f"/failures/{name}/mute", until=3600, reason="known")["state"] == "muted"
    assert ask("POST", f"/failures/{name}/unmute")["state"] == "open"
    assert ask("POST", f"/failures/{name}/resolve", reason="mended")["state"] == "resolved"
    assert ask("POST", f"/failures/{name}/reopen")["state"] == "open"
    assert ask("GET", f"/failures/{name}", key("acme"))["state"] == "new"
    assert ask("GET", "/failures/%00")[0] == 404


def test_an_operation_is_previewed_begun_paused_and_ended(app, ask, client, key):
    jobs = [ran(app, app.enqueue("fails", {"text": str(n)}, owner="acme")).id for n in range(3)]
    wish = {"action": "retry", "filter": "kind:fails", "steps": [1, "rest"], "rate": 5}
    assert ask("POST", "/operations", **wish, dry_run=True)["count"] == 3
    assert ask("POST", "/operations", action="retry", filter="") == (422, "REFUSED")
    assert ask("POST", "/operations", action="explode", filter="kind:fails")[0] == 422
    begun = ask("POST", "/operations", **wish, reason="mended")
    assert (begun["total"], begun["state"], begun["actor"][:4]) == (3, "running", "key:")
    path = f"/operations/{begun['id']}"
    assert ask("GET", path)["under_way"] is True
    assert [item["job"] for item in ask("GET", f"{path}/items?limit=1000")["items"]] == sorted(jobs)
    page = ask("GET", f"{path}/items?limit=2")
    rest = ask("GET", f"{path}/items?limit=2&cursor={page['next']}")
    assert [item["job"] for item in (*page["items"], *rest["items"])] == sorted(jobs)
    assert ask("POST", f"{path}/pause", reason="wait")["state"] == "paused"
    assert ask("POST", f"{path}/resume")["state"] == "running"
    assert ask("POST", f"{path}/abort")["state"] == "aborted"
    assert ask("POST", f"{path}/resume")[0] == 409
    assert [one["id"] for one in ask("GET", "/operations")["operations"]] == [begun["id"]]
    assert ask("GET", "/operations", key("acme"))["operations"] == []
    named = {**key("acme", "operator"), "Idempotency-Key": "mend-1"}
    first, again = (client.post("/api/v1/operations", json=wish, headers=named) for _ in range(2))
    assert (first.status_code, first.json()["owner"], first.json()["id"]) == (
        201,
        "acme",
        again.json()["id"],
    )


def test_a_batch_is_begun_filled_sealed_retried_and_cancelled(app, ask, key):
    who = key("acme", "operator")
    batch = ask(
        "POST", "/batches", who, name="spring", tolerance="10%", on_complete="works", unique="s-1"
    )
    assert (batch["owner"], batch["state"], batch["on_complete"]) == ("acme", "processing", "works")
    assert ask("POST", "/batches", who, name="spring", unique="s-1")["id"] == batch["id"]
    path = f"/batches/{batch['id']}"
    member = ask("POST", f"{path}/jobs", who, kind="fails")
    assert (member["batch_id"], member["owner"]) == (batch["id"], "acme")
    assert ask("POST", "/jobs", who, kind="works", batch_id=batch["id"])["batch_id"] == batch["id"]
    assert ask("POST", "/jobs", key("other", "operator"), kind="works", batch_id=batch["id"]) == (
        404,
        "NOT_FOUND",
    )
    nobodys = app.batch("nobody's")
    assert ask("POST", "/jobs", who, kind="works", batch_id=nobodys.id) == (404, "NOT_FOUND")
    assert ask("POST", f"{path}/seal", who)["sealed_at"]
    assert ask("POST", f"{path}/seal", who) == (409, "BATCH_SEALED")
    app.run_inline()
    assert ask("GET", path, who)["state"] == "partial"
    assert {job["state"] for job in ask("GET", f"{path}/jobs", who)["jobs"]} == {
        "dead",
        "succeeded",
    }
    assert len(ask("GET", f"{path}/jobs?filter=state:dead", who)["jobs"]) == 1
    retried = ask("POST", f"{path}/retry-failed", who, reason="mended")
    assert (retried["jobs"], retried["refused"]) == ([member["id"]], {})
    assert ask("POST", f"{path}/cancel", who)["cancelled_at"]
    assert [
        one["id"] for one in ask("GET", "/batches?state=processing&limit=1", who)["batches"]
    ] == []
    assert ask("GET", "/batches?state=done", who)[0] == 422
    assert ask("POST", "/batches", who, name="x", tolerance="many")[0] == 422
    assert ask("POST", "/batches", who, name="x", on_complete="nobody")[0] == 422


def test_a_queue_is_paused_resumed_and_limited(app, ask):
    app.enqueue("works", queue="pdf")
    assert [
        (one["name"], one["ready"]) for one in ask("GET", "/queues")["queues"] if one["ready"]
    ] == [("pdf", 1)]
    assert ask("POST", "/queues/pdf/pause", until=60, reason="printer")["paused"] is True
    assert ask("POST", "/queues/pdf/pause", until="2001-01-01T00:00:00Z")[0] == 422
    assert ask("POST", "/queues/pdf/resume")["paused"] is False
    limited = ask("PATCH", "/queues/pdf", concurrency=3, rate="100/m")
    assert (limited["concurrency"], round(limited["rate"], 2)) == (3, 1.67)
    assert ask("PATCH", "/queues/pdf", rate=None)["concurrency"] == 3
    assert ask("PATCH", "/queues/pdf", clear=True)["set_by_hand"] is False
    assert ask("GET", "/queues/nope") == (404, "NOT_FOUND")
    assert ask("POST", "/queues/a%20b/pause")[0] == 422


def test_a_dependency_is_opened_closed_probed_and_limited(app, ask):
    app.job(name="call", uses="https://gw/v1")(lambda: None).enqueue()
    (one,) = ask("GET", "/dependencies")["dependencies"]
    assert (one["key"], one["state"]) == ("https://gw/v1", "closed")
    path = "/dependencies/https://gw/v1"
    assert ask("POST", f"{path}/open", until=60, reason="they told us")["state"] == "open"
    assert ask("POST", f"{path}/close")["state"] in {"closed", "ramping"}
    assert ask("POST", f"{path}/probe")[0] == 409
    assert ask("PATCH", path, concurrency=2)["concurrency"] == 2
    assert ask("GET", path)["set_by_hand"] is True
    assert ask("PATCH", path, clear=True)["set_by_hand"] is False
    assert ask("GET", "/dependencies/nope") == (404, "NOT_FOUND")


def test_workers_are_seen_and_their_hosts_by_operators(app, ask, key):
    open_worker(app.store, "w_9")
    (worker,) = ask("GET", "/workers")["workers"]
    assert (worker["id"], worker["host"], worker["running"]) == ("w_9", "here", 0)
    assert "host" not in ask("GET", "/workers", key("*", "viewer"))["workers"][0]


def test_keys_are_made_listed_and_revoked_within_a_scope(app, ask, key):
    made = ask("POST", "/keys", scope="acme", role="admin", name="theirs", expires=3600)
    assert app.keys.known(made["key"]).name == "theirs"
    theirs = {"Authorization": f"Bearer {made['key']}"}
    assert ask("POST", "/keys", theirs, scope="*", role="viewer")[0] == 403
    mine = ask("POST", "/keys", theirs, scope="acme", role="viewer")
    assert {one["scope"] for one in ask("GET", "/keys", theirs)["keys"]} == {"acme"}
    assert "hash" not in str(ask("GET", "/keys"))
    foreign = app.keys.create("other", "viewer").key
    assert ask("POST", f"/keys/{foreign.id}/revoke", theirs) == (404, "NOT_FOUND")
    assert ask("POST", f"/keys/{mine['id']}/revoke", theirs)["state"] == "revoked"
    assert ask("POST", "/keys", scope="acme", role="root")[0] == 422


def test_a_webhook_is_made_tested_rotated_switched_and_removed(app, ask, client, key):
    who = key("acme", "operator")
    made = ask(
        "POST",
        "/webhooks",
        who,
        url="https://example.com/hook?token=s3cret",
        on=["job.died", "job.parked"],
    )
    assert made["secret"].startswith("whsec_")
    assert (made["owner"], made["on"], made["enabled"]) == (
        "acme",
        ["job.died", "job.parked"],
        True,
    )
    path = f"/webhooks/{made['id']}"
    shown = ask("GET", path, who)
    assert "secret" not in shown
    assert "s3cret" not in str(shown)
    assert [one["id"] for one in ask("GET", "/webhooks", who)["webhooks"]] == [made["id"]]
    assert ask("GET", "/webhooks", key("other"))["webhooks"] == []
    sent = ask("POST", f"{path}/test", who)
    (listed,) = ask("GET", f"/deliveries?subscription={made['id']}", who)["deliveries"]
    assert (listed["id"], listed["type"], listed["state"]) == (
        sent["id"],
        "subscription.test",
        "queued",
    )
    assert ask("GET", f"/deliveries/{sent['id']}", who)["message"] == listed["message"]
    assert ask("POST", f"/deliveries/{sent['id']}/retry", who)[0] == 409
    assert ask("GET", "/deliveries", key("other"))["deliveries"] == []
    assert ask("POST", f"{path}/rotate", who)["secret"] != made["secret"]
    assert ask("POST", f"{path}/disable", who, reason="quiet")["enabled"] is False
    assert ask("POST", f"{path}/enable", who)["enabled"] is True
    assert client.delete(f"/api/v1{path}", headers=who).status_code == 204
    assert ask("GET", path, who) == (404, "NOT_FOUND")
    for wrong in (
        {"url": "ftp://x"},
        {"on": "job.deid"},
        {"url": "https://x\r\nhost: y"},
        {"owner": "b"},
        {"headers": {"a": "b\r\nc: d"}},
    ):
        said = {"url": "https://example.com", "on": "job.died", **wrong}
        assert ask("POST", "/webhooks", who, **said)[0] in {403, 422}


def test_jobs_are_counted_and_made_together_or_not_at_all(app, ask, key):
    who = key("acme", "operator")
    made = ask(
        "POST",
        "/jobs/bulk",
        who,
        jobs=[{"kind": "works"}, {"kind": "works", "timeout": 5, "deadline": 60}],
    )
    assert [job["owner"] for job in made["jobs"]] == ["acme", "acme"]
    assert ask("POST", "/jobs/bulk", who, jobs=[{"kind": "works"}, {"kind": "nobody"}])[0] == 422
    assert ask("POST", "/jobs/bulk", who, jobs=[])[0] == 422
    app.enqueue("works", owner="other")
    assert ask("GET", "/jobs/count?filter=kind:works", who) == {
        "count": 2,
        "capped": False,
        "partial": False,
    }
    assert ask("GET", "/jobs/count?filter=owner:other", who)["count"] == 0
    assert ask("GET", "/jobs/count")["count"] == 3


def test_what_python_says_of_a_job_can_be_said_here(ask):
    policy = {"max_retries": 1, "backoff": {"type": "fixed", "seconds": 5}}
    made = ask("POST", "/jobs", kind="works", policy=policy, deadline="2099-01-01T00:00:00Z")
    assert made["deadline_at"].startswith("2099-01-01")
    assert ask("POST", "/jobs", kind="works", policy={"max_retries": -1})[0] == 422
    assert ask("POST", "/jobs", kind="works", policy={"nonsense": 1})[0] == 422


def test_a_retry_says_before_what_it_would_do(app, ask):
    job = ran(app, app.enqueue("fails", owner="acme"))
    told = ask("POST", f"/jobs/{job.id}/retry", overrides={"max_retries": 2}, dry_run=True)
    assert (told["job_id"], list(told["changes"]), told["refused"]) == (job.id, ["max_retries"], [])
    assert app.jobs.get(job.id).state == "dead"
    fine = ran(app, app.enqueue("works"))
    (why,) = ask("POST", f"/jobs/{fine.id}/retry", dry_run=True)["refused"]
    assert why["code"] == "ILLEGAL_MOVE"


def test_a_link_to_the_status_of_a_job_or_a_batch_is_made_by_operators(app, client, ask, key):
    job = ran(app, app.enqueue("fails", owner="acme"))
    who = key("acme", "operator")
    link = ask("POST", f"/jobs/{job.id}/status-link", who, expires=60)["link"]
    assert "This file could not be read." in client.get(link).text
    batch = app.batch("spring", owner="acme")
    assert ask("POST", f"/batches/{batch.id}/status-link", who)["link"].startswith("/status/b-")


def test_a_batch_tells_what_failed_and_what_happened(app, ask, key):
    batch = app.batch("spring", owner="acme")
    app.enqueue("fails", batch=batch)
    batch.seal()
    app.run_inline()
    who = key("acme", "viewer")
    (failed,) = ask("GET", f"/batches/{batch.id}/failures", who)["failures"]
    assert (failed["code"], failed["count"]) == ("BAD_FILE", 1)
    types = [event["type"] for event in ask("GET", f"/batches/{batch.id}/events", who)["events"]]
    assert types == ["batch.sealed", "batch.failed"]


def test_a_kind_is_held_and_released(app, ask):
    app.enqueue("works")
    assert ask("POST", "/kinds/works/hold", until=60, reason="wait")["held"] is True
    assert ask("GET", "/kinds")["kinds"][0]["name"] == "works"
    assert ask("GET", "/kinds/works")["reason"] == "wait"
    assert ask("POST", "/kinds/works/release")["held"] is False
    assert ask("GET", "/kinds/nope") == (404, "NOT_FOUND")


def test_a_policy_is_explained_and_an_error_is_tried_on_it(app, ask):
    assert "works" in ask("GET", "/policies")["kinds"]
    explained = ask("GET", "/policies/fails?max_retries=2")
    assert {one["class"] for one in explained["classes"]} >= {"transient", "permanent"}
    assert ask("GET", "/policies/nope") == (404, "NOT_FOUND")
    assert ask("GET", "/policies/fails?max_retries=-1")[0] == 422
    verdict = ask("POST", "/policies/test", http_status=503, kind="works")
    assert (verdict["class"], verdict["retryable"]) == ("transient", True)
    assert ask("POST", "/policies/test", text="x", kind="nope")[0] == 422
    ran(app, app.enqueue("fails", {"text": "row"}))
    rule = {"id": "mine", "code": "MINE", "cls": "transient", "message": r"\bprivate: row\b"}
    tried = ask("POST", "/policies/backtest", rules=[rule], since=3600)
    assert (tried["failures"], tried["partial"]) == (1, False)
    assert ask("POST", "/policies/backtest", rules=[{"id": "x"}])[0] == 422


def test_insight_is_for_who_sees_everything(app, ask, key):
    ran(app, app.enqueue("works"))
    found = ask("GET", "/insight?since=1d&kind=works")
    assert (found["numbers"]["jobs"], found["kind"]) == (1, "works")
    assert ask("GET", "/insight?since=yesterday")[0] == 422
    assert ask("GET", "/insight", key("acme"))[0] == 403


def test_a_schedule_is_listed_looked_ahead_and_run(app, ask):
    app.schedule("nightly", "0 3 * * *", "works", {"text": "x"}, timezone="Europe/Berlin")
    with app.store.begin() as unit:
        speak(unit, app.manifest("site:app"))
    (one,) = ask("GET", "/schedules")["schedules"]
    assert (one["name"], one["kind"], one["timezone"]) == ("nightly", "works", "Europe/Berlin")
    assert len(ask("GET", "/schedules/nightly/next?n=3")["next"]) == 3
    assert ask("GET", "/schedules/nightly/next?n=0")[0] == 422
    assert ask("POST", "/schedules/nightly/run", reason="now")["payload"] == {"text": "x"}
    assert ask("POST", "/schedules/nope/run") == (404, "NOT_FOUND")
    assert ask("POST", "/schedules/nightly/pause", until=3600, reason="moving")["paused"] is True
    assert ask("GET", "/schedules/nightly")["reason"] == "moving"
    assert ask("POST", "/schedules/nightly/resume")["paused"] is False


def test_an_alert_is_silenced_for_a_while(app, ask):
    name = ask("GET", "/alerts/rules")["rules"][0]["name"]
    assert ask("GET", "/alerts?all=true")["alerts"] == []
    assert ask("POST", f"/alerts/{name}/silence", until=60, reason="known")["silenced_until"]
    assert ask("POST", f"/alerts/{name}/silence")[0] == 422
    assert ask("POST", f"/alerts/{name}/unsilence")["silenced_until"] is None
    assert ask("POST", "/alerts/nope/silence", until=60) == (404, "NOT_FOUND")


def test_a_worker_is_asked_to_leave(app, ask):
    open_worker(app.store, "w_9")
    assert ask("POST", "/workers/w_9/drain", reason="new release")["draining"] is True
    assert ask("POST", "/workers/w_8/drain") == (404, "NOT_FOUND")
    assert app.events.list(type="worker.drain_requested")[0].data["reason"] == "new release"


def test_who_did_what_is_told_page_by_page_and_to_owners_without_names(app, ask, key):
    for _ in range(3):
        job = ran(app, app.enqueue("fails", owner="acme"))
        ask("POST", f"/jobs/{job.id}/retry", key("acme", "operator"), reason="mended")
    ask("POST", "/queues/pdf/pause", reason="printer")
    page = ask("GET", "/audit?type=job.retried&limit=2")
    rest = ask("GET", f"/audit?type=job.retried&limit=2&cursor={page['next']}")
    assert [len(page["events"]), len(rest["events"]), rest["next"]] == [2, 1, None]
    assert page["events"][0]["actor"].startswith("key:mk_")
    mine = ask("GET", "/audit?since=1h", key("acme", "viewer"))["events"]
    assert {(event["type"], event["actor"]) for event in mine} == {("job.retried", "key")}
    assert ask("GET", "/audit?actor=python", key("acme", "admin"))[0] == 403
    assert ask("GET", "/audit?type=nope")[0] == 422


def test_a_batch_takes_several_members_at_once_or_none_of_them(app, ask, key):
    who = key("acme", "operator")
    batch = app.batch("spring", owner="acme")
    made = ask(
        "POST", f"/batches/{batch.id}/jobs", who, jobs=[{"kind": "works"}, {"kind": "fails"}]
    )
    assert {job["batch_id"] for job in made["jobs"]} == {batch.id}
    assert (
        ask("POST", f"/batches/{batch.id}/jobs", who, jobs=[{"kind": "works"}, {"kind": "nobody"}])[
            0
        ]
        == 422
    )
    assert ask("GET", f"/batches/{batch.id}", who)["counts"]["total"] == 2


def test_failure_groups_go_on_page_by_page(app, ask, key):
    for code in ("ONE", "TWO", "THREE", "FOUR", "FIVE"):
        app.job(name=code.lower())(lambda code=code: Fail(code, final=True)).options(
            owner="acme"
        ).enqueue()
        app.run_inline()
    who, seen, cursor = key("acme", "viewer"), [], ""
    while cursor is not None:
        page = ask("GET", f"/failures?limit=2{cursor and f'&cursor={cursor}'}", who)
        seen += [group["code"] for group in page["failures"]]
        cursor = page["next"]
    assert sorted(seen) == ["FIVE", "FOUR", "ONE", "THREE", "TWO"]
    assert (len(page["failures"]), page["more"]) == (1, False)
    assert sorted(seen[:2]) == ["FIVE", "FOUR"]
    assert ask("GET", "/failures?limit=501")[0] == 422
