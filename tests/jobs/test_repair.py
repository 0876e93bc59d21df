"""Retry by hand: what is asked first, what may be changed, and what it is told as."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from mulligan import Fail, Fixed, Policy, Then, Unique
from mulligan.config import read_settings
from mulligan.core.errors import (
    ChoiceRefused,
    ConfigError,
    DeadlineFirst,
    DependencyOpen,
    IllegalMove,
    NotFound,
    OverrideRefused,
    PayloadRefused,
    ReasonMissing,
    Refused,
    RetryLimited,
    RetryRefused,
    UniqueTaken,
)
from mulligan.guards.limits import owner_share
from mulligan.jobs.preconditions import redact_value
from mulligan.jobs.queries import JobQueries
from mulligan.jobs.service import Jobs
from mulligan.manifest.declared import publish_manifest
from support.app_tools import advance, event_types, load_attempts, load_row, run_job
from support.store import run_concurrently, sql

NOW_OR_NEVER = Policy(max_retries=0)


@pytest.fixture
def broken(app):
    """Register a kind that fails until it is fixed."""
    app.is_fixed = False

    @app.job(name="render", policy=NOW_OR_NEVER, editable=("clip", "password"), cost=2.5)
    def render(clip: int, password: str = "", quality: str = "low") -> str | Fail:
        return f"clip {clip} {quality}" if app.is_fixed else Fail("GW_5XX", "503", final=True)

    return render


@pytest.fixture
def dead(app, broken):
    job = run_job(app, broken.options(owner="acme").enqueue(clip=7))
    assert job.state == "dead"
    return job


def apart(app) -> Jobs:
    """Return the jobs service as CLI and dashboard use it: from stored manifests, without the app."""
    with app.store.begin() as tx:
        publish_manifest(tx, app.manifest("test"))
    return Jobs(lambda: app.store, lambda: app.settings, actor="cli:ann")


def last(app, job):
    return app.jobs.history(job.id)[-1]


def unchanged(app, job, call, error, match=None):
    """Refused with this error, and nothing at all has changed."""
    before, story = load_row(app, job), event_types(app, job)
    with pytest.raises(error, match=match) as refused:
        call()
    assert load_row(app, job) == before
    assert event_types(app, job) == story
    return refused.value


# -- what a retry is -----------------------------------------------------------------------------
def test_a_manual_retry_keeps_history_limits_and_cost_and_resets_counters(app, broken):
    job = broken.options(max_retries=5, timeout=40).enqueue(clip=7)
    run_job(app, job)
    app.is_fixed = True
    again = app.jobs.retry(job.id, reason="the farm is back")
    assert (again.state, again.generation, again.attempt, again.failures) == ("queued", 2, 0, 0)
    assert (again.max_retries, again.cost, load_row(app, job).timeout) == (5, 2.5, 40_000_000)
    assert run_job(app, job).result == "clip 7 low"
    assert [attempt.code for attempt in load_attempts(app, job)] == ["GW_5XX", None]
    assert last(app, job).type == "job.succeeded"


def test_a_job_without_retries_left_may_be_retried_manually_any_number_of_times(app, broken, dead):
    for generation in (2, 3):
        assert app.jobs.retry(dead.id).generation == generation
        assert run_job(app, dead).state == "dead"


@pytest.mark.parametrize("state", ["queued", "running", "succeeded"])
def test_a_job_in_another_state_is_refused_with_its_state(app, broken, state):
    app.is_fixed = True
    job = broken.enqueue(clip=1)
    if state == "succeeded":
        run_job(app, job)
    elif state == "running":
        sql(
            app.store,
            "UPDATE {p}job SET state = 'running', worker = 'w_1', token = 1 WHERE id = :id",
            {"id": job.id},
        )
    refused = unchanged(
        app, job, lambda: app.jobs.retry(job.id), IllegalMove, f"the job is {state}"
    )
    assert refused.code == "ILLEGAL_MOVE"


@pytest.mark.processes
@pytest.mark.any_store
def test_concurrent_retries_of_processes_make_one_generation(app, dead, store_url, tmp_path):
    press = tmp_path / "press.py"
    press.write_text(
        "import sys\n"
        "from mulligan import Mulligan\n"
        "from mulligan.core.errors import IllegalMove\n"
        f"app = Mulligan({store_url!r}).open()\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "try:\n"
        f"    print(app.jobs.retry({dead.id!r}).generation)\n"
        "except IllegalMove as error:\n"
        "    print(error.code)\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    people = [subprocess.Popen([sys.executable, str(press)], **pipes) for _ in range(5)]
    for one in people:
        assert one.stdout.readline() == "ready\n"
    answers = [one.communicate("now\n", timeout=60)[0].strip() for one in people]
    assert sorted(answers) == ["2"] + ["ILLEGAL_MOVE"] * 4
    assert event_types(app, dead).count("retried") == 1


def test_twenty_concurrent_retries_with_overrides_make_one_generation(app, dead):
    def press(n):
        try:
            return app.jobs.retry(
                dead.id, overrides={"payload": {"clip": n}, "priority": 3}
            ).payload["clip"]
        except IllegalMove:
            return None

    answers = run_concurrently(*[lambda n=n: press(n) for n in range(100, 120)])
    (winner,) = [answer for answer in answers if answer is not None]
    row = load_row(app, dead)
    assert (row.generation, json.loads(row.payload)["clip"]) == (2, winner)
    assert last(app, dead).data["changes"]["payload.clip"] == {"before": 7, "after": winner}


# -- when ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "at", [300, timedelta(minutes=5), "moment"], ids=["seconds", "timedelta", "datetime"]
)
def test_a_retry_may_be_scheduled_for_later(app, dead, at):
    app.is_fixed = True
    moment = datetime.now(UTC) + timedelta(minutes=5) if at == "moment" else at
    job = app.jobs.retry(dead.id, at=moment)
    assert (job.phase, job.run_at > datetime.now(UTC) + timedelta(minutes=4)) == ("scheduled", True)
    assert run_job(app, job).state == "queued"
    advance(app, 301)
    assert run_job(app, job).state == "succeeded"
    assert "retried it manually for" in app.jobs.explain(job.id).text


def test_a_past_time_means_now(app, dead):
    app.is_fixed = True
    assert (
        run_job(app, app.jobs.retry(dead.id, at=datetime(2020, 1, 1, tzinfo=UTC))).state
        == "succeeded"
    )


@pytest.mark.parametrize("at", [-1, float("nan"), "soon", datetime(2030, 1, 1)])  # noqa: DTZ001 - must be refused
def test_an_invalid_time_is_refused(app, dead, at):
    unchanged(app, dead, lambda: app.jobs.retry(dead.id, at=at), Refused, "at")


def test_a_time_after_its_own_deadline_is_refused(app, broken):
    job = run_job(app, broken.options(deadline=60).enqueue(clip=1))
    refused = unchanged(
        app, job, lambda: app.jobs.retry(job.id, at=3600), DeadlineFirst, "deadline"
    )
    assert refused.code == "DEADLINE_FIRST"
    assert app.jobs.retry(job.id, at=30).state == "queued"


# -- whose ---------------------------------------------------------------------------------------
VERBS = {
    "retry": lambda jobs, job_id, **options: jobs.retry(job_id, **options),
    "preview_retry": lambda jobs, job_id, **options: jobs.preview_retry(job_id, **options),
    "cancel": lambda jobs, job_id, **options: jobs.cancel(job_id, **options),
    "release": lambda jobs, job_id, **options: jobs.release(job_id, **options),
    "discard": lambda jobs, job_id, **options: jobs.discard(job_id, reason="x", **options),
}


@pytest.mark.parametrize("verb", VERBS)
def test_another_owners_job_is_refused_like_an_unknown_one(app, dead, verb):
    refused = unchanged(app, dead, lambda: VERBS[verb](app.jobs, dead.id, owner="globex"), NotFound)
    with pytest.raises(NotFound) as unknown:
        VERBS[verb](app.jobs, "x" * 28, owner="globex")
    assert str(refused) == str(unknown.value).replace("x" * 28, dead.id)


def test_an_owner_may_act_on_their_jobs(app, dead):
    assert app.jobs.retry(dead.id, owner="acme").state == "queued"
    assert app.jobs.cancel(dead.id, owner="acme").state == "cancelled"


# -- preconditions -------------------------------------------------------------------------------
def test_a_key_that_another_job_holds_refuses_with_that_jobs_id(app, broken):
    first = run_job(app, broken.options(unique="sha:1", owner="acme").enqueue(clip=1))
    second = broken.options(unique="sha:1", owner="acme").enqueue(clip=1)
    assert second.id != first.id
    refused = unchanged(app, first, lambda: app.jobs.retry(first.id), UniqueTaken, second.id)
    assert refused.code == "UNIQUE_TAKEN"
    (found,) = app.jobs.preview_retry(first.id).refused
    assert (found.code, second.id in str(found)) == ("UNIQUE_TAKEN", True)


def test_an_expired_unique_key_does_not_refuse_a_retry(app):
    @app.job(unique=Unique(by="payload.clip", for_=60), policy=NOW_OR_NEVER)
    def render(clip: int, why: str = "") -> Fail | None:
        return Fail(why, final=True) if why else None

    first = run_job(app, render.enqueue(clip=1, why="X"))
    second = run_job(app, render.enqueue(clip=1))
    assert second.state == "succeeded"
    with pytest.raises(UniqueTaken, match=second.id):
        app.jobs.retry(first.id)
    advance(app, 61)
    assert app.jobs.retry(first.id).state == "queued"


@pytest.mark.parametrize("mode", ["hold", "fail_fast"])
def test_a_retry_is_refused_while_a_fail_fast_dependency_is_down(app, mode):
    app.dependency("gateway", mode=mode)

    @app.job(uses="gateway", policy=NOW_OR_NEVER)
    def call() -> Fail:
        return Fail("X", final=True)

    job = run_job(app, call.enqueue())
    app.dependencies.open("gateway", reason="they are moving")
    if mode == "hold":
        waits = app.jobs.retry(job.id)
        assert (waits.phase, "gateway" in waits.why) == ("held", True)
        return
    refused = unchanged(
        app, job, lambda: app.jobs.retry(job.id), DependencyOpen, "deps close gateway"
    )
    assert (refused.code, refused.retryable) == ("DEPENDENCY_OPEN", True)
    assert app.jobs.retry(job.id, at=600).state == "queued"


def test_can_retry_is_called_before_anything_changes(app, tmp_path):
    source = tmp_path / "in.mp4"

    def still_there(path: str) -> str | None:
        return (
            None
            if path.startswith("s3:") or source.exists()
            else f"The file {source.name} is gone."
        )

    @app.job(policy=NOW_OR_NEVER, can_retry=still_there, editable="path")
    def convert(path: str, size: int = 1) -> Fail:
        return Fail("X", final=True)

    job = run_job(app, convert.enqueue(path=str(source)))
    refused = unchanged(
        app, job, lambda: app.jobs.retry(job.id), RetryRefused, r"The file in\.mp4 is gone\."
    )
    assert refused.code == "RETRY_REFUSED"
    assert app.jobs.retry(job.id, overrides={"payload": {"path": "s3://b/in.mp4"}}).generation == 2
    assert run_job(app, job).state == "dead"
    assert load_attempts(app, job)[-1].code == "X"


@pytest.mark.parametrize("answer", [None, True, False, "", "no"], ids=repr)
def test_answers_of_can_retry(app, answer):
    @app.job(policy=NOW_OR_NEVER, can_retry=lambda: answer)
    def work() -> Fail:
        return Fail("X", final=True)

    job = run_job(app, work.enqueue())
    if answer in (None, True) or answer is True:
        assert app.jobs.retry(job.id).state == "queued"
    else:
        unchanged(app, job, lambda: app.jobs.retry(job.id), RetryRefused)


def test_an_async_can_retry_is_awaited(app):
    async def no() -> str:
        await asyncio.sleep(0)
        return "not on Sundays"

    @app.job(policy=NOW_OR_NEVER, can_retry=no)
    def work() -> Fail:
        return Fail("X", final=True)

    job = run_job(app, work.enqueue())
    unchanged(app, job, lambda: app.jobs.retry(job.id), RetryRefused, "not on Sundays")

    async def pressed() -> None:
        with pytest.raises(RetryRefused):
            await app.aio.jobs.retry(job.id)
        app.jobs.retry(job.id)

    with pytest.raises(RetryRefused, match="not on Sundays"):
        asyncio.run(pressed())


def test_an_error_in_can_retry_changes_nothing(app):
    def ask() -> str:
        raise ConnectionError("bucket is away: key=AKIAIOSFODNN7EXAMPLE")

    @app.job(policy=NOW_OR_NEVER, can_retry=ask)
    def work() -> Fail:
        return Fail("X", final=True)

    job = run_job(app, work.enqueue())
    refused = unchanged(app, job, lambda: app.jobs.retry(job.id), RetryRefused, "ConnectionError")
    assert "AKIA" not in str(refused)


# -- where the app is not at hand ----------------------------------------------------------------
@pytest.fixture
def guarded(app):
    """A kind whose app answers what `app.answer` says, and counts how often it is asked and called."""
    app.answer, app.checked, app.called = None, [], []

    def may(clip: int) -> str | None:
        app.checked.append(clip)
        if isinstance(app.answer, Exception):
            raise app.answer
        return app.answer

    @app.job(name="convert", policy=Policy(max_retries=1, backoff=Fixed(0)), can_retry=may)
    def convert(clip: int) -> str | Fail:
        app.called.append(clip)
        return Fail("GW_5XX", "503") if len(app.called) <= 2 else "done"

    return convert


def test_a_worker_calls_can_retry_first_and_a_refusal_ends_the_job_uncharged(app, guarded):
    job = run_job(app, guarded.enqueue(clip=7))
    assert (job.state, app.checked, len(app.called)) == ("dead", [], 2)
    app.answer = "The source was deleted."
    assert apart(app).retry(job.id).state == "queued"
    assert app.checked == []
    after = run_job(app, job)
    assert (after.state, after.error["code"], after.error["message"]) == (
        "dead",
        "RETRY_REFUSED",
        "The source was deleted.",
    )
    assert (after.failures, after.losses, after.attempt, len(app.called), app.checked) == (
        0,
        0,
        1,
        2,
        [7],
    )
    assert load_attempts(app, job)[-1].ended == "refused"
    assert "The source was deleted." in app.jobs.explain(job.id).text


def test_a_worker_calls_can_retry_once_per_later_generation(app, guarded):
    job = run_job(app, guarded.enqueue(clip=7))
    apart(app).retry(job.id)
    assert run_job(app, job).state == "succeeded"
    assert (app.checked, len(app.called)) == ([7], 3)


def test_an_error_in_can_retry_fails_the_attempt_and_it_is_called_again(app, guarded):
    job = run_job(app, guarded.enqueue(clip=7))
    app.answer = ConnectionError("bucket is away")
    apart(app).retry(job.id)
    with app.store.read() as tx:
        assert JobQueries(tx).get_job(job.id).state == "queued"
    app.run_inline(until_idle=False)
    row = load_row(app, job)
    assert (row.state, row.failures, len(app.called)) == ("queued", 1, 2)
    assert json.loads(load_attempts(app, job)[-1].evidence)["asked"] == "can_retry"
    app.answer = None
    assert run_job(app, job).state == "succeeded"
    assert app.checked == [7, 7]


def test_a_secret_in_a_refusal_is_not_shown(app, guarded):
    job = run_job(app, guarded.enqueue(clip=7))
    app.answer = "no: password=hunter2 in /home/ann/in.mp4"
    apart(app).retry(job.id)
    assert "hunter2" not in run_job(app, job).error["message"]


# -- overrides -----------------------------------------------------------------------------------
def test_all_overrides_apply_and_are_reported_as_before_and_after(app, dead):
    policy = Policy(max_retries=4, backoff=Fixed(7))
    options = {
        "max_retries": 5,
        "queue": "big",
        "priority": -3,
        "timeout": timedelta(minutes=9),
        "policy": policy,
    }
    job = app.jobs.retry(dead.id, reason="more room", overrides={**options, "payload": {"clip": 8}})
    row = load_row(app, job)
    assert (row.max_retries, row.queue, row.priority, row.timeout) == (5, "big", -3, 540_000_000)
    assert (json.loads(row.payload), Policy.from_json(row.policy)) == ({"clip": 8}, policy)
    assert sql(app.store, "SELECT lane FROM {p}job") == [("big|render||0",)]
    data = last(app, job).data
    assert data["changes"] == {
        "max_retries": {"before": None, "after": 5},
        "queue": {"before": "default", "after": "big"},
        "priority": {"before": 0, "after": -3},
        "timeout": {"before": None, "after": 540.0},
        "policy": {"before": None, "after": json.loads(policy.to_json())},
        "payload.clip": {"before": 7, "after": 8},
    }
    assert (data["before"]["state"], data["after"]["state"], data["reason"]) == (
        "dead",
        "queued",
        "more room",
    )
    text = app.jobs.explain(job.id).text
    assert "queue big (was default)" in text
    assert "payload.clip 8 (was 7)" in text
    app.is_fixed = True
    assert run_job(app, job).result == "clip 8 low"


def test_an_override_equal_to_the_old_value_is_no_change(app, dead):
    job = app.jobs.retry(
        dead.id, overrides={"queue": "default", "priority": 0, "payload": {"clip": 7}}
    )
    assert "changes" not in last(app, job).data


def test_a_policy_override_may_be_a_dict(app, dead):
    job = app.jobs.retry(dead.id, overrides={"policy": {"max_retries": 9}})
    assert Policy.from_json(load_row(app, job).policy).max_retries == 9


BAD = [
    (
        {"colour": "red"},
        "cannot override colour. Possible: max_retries, queue, priority, timeout, policy, payload",
    ),
    ({"max_retries": -1}, "max_retries"),
    ({"max_retries": True}, "max_retries"),
    ({"max_retries": None}, "max_retries"),
    ({"queue": ""}, "queue"),
    ({"queue": "a b"}, "queue"),
    ({"queue": "mulligan.x"}, "queue"),
    ({"priority": 10}, "priority"),
    ({"priority": "first"}, "priority"),
    ({"timeout": 0}, "timeout"),
    ({"timeout": float("inf")}, "timeout"),
    ({"policy": {"max_retrys": 3}}, "policy"),
    ({"policy": 3}, "policy"),
    ({"payload": [1]}, "names to values"),
    (
        {"payload": {"quality": "high"}},
        "payload field quality cannot be changed; kind render allows: clip, password",
    ),
    ({"payload": {"colour": "red", "clip": 8}}, "payload field colour"),
    ({7: 8}, "names to values"),
    ("queue=big", "names to values"),
]


@pytest.mark.parametrize("apart_from_it", [False, True], ids=["with the app", "without it"])
@pytest.mark.parametrize(("overrides", "match"), BAD, ids=[str(one) for one, _ in BAD])
def test_an_override_that_is_not_allowed_changes_nothing(
    app, dead, overrides, match, apart_from_it
):
    jobs = apart(app) if apart_from_it else app.jobs
    refused = unchanged(
        app, dead, lambda: jobs.retry(dead.id, overrides=overrides), OverrideRefused, match
    )
    assert refused.code == "OVERRIDE_REFUSED"


@pytest.mark.parametrize("apart_from_it", [False, True], ids=["with the app", "without it"])
def test_an_edit_that_breaks_the_payloads_schema_changes_nothing(app, dead, apart_from_it):
    jobs = apart(app) if apart_from_it else app.jobs
    bad = {"payload": {"clip": "seven"}}
    refused = unchanged(
        app, dead, lambda: jobs.retry(dead.id, overrides=bad), PayloadRefused, "clip"
    )
    assert refused.code == "PAYLOAD_REFUSED"
    assert jobs.retry(dead.id, overrides={"payload": {"clip": 8}}).payload == {"clip": 8}


def test_an_edit_that_makes_a_payload_too_large_changes_nothing(app, dead):
    huge = {"payload": {"password": "x" * 2_000_000}}
    unchanged(app, dead, lambda: app.jobs.retry(dead.id, overrides=huge), PayloadRefused, "limit")


def test_without_the_app_an_unknown_kind_has_no_editable_fields(app, dead):
    jobs = Jobs(lambda: app.store, lambda: app.settings)
    sql(app.store, "DELETE FROM {p}manifest")
    edit = {"payload": {"clip": 8}}
    unchanged(
        app,
        dead,
        lambda: jobs.retry(dead.id, overrides=edit),
        OverrideRefused,
        "no worker has declared",
    )
    assert jobs.retry(dead.id, overrides={"queue": "big"}).queue == "big"


def test_a_secret_field_is_reported_without_its_value(app, dead):
    app.jobs.retry(dead.id, overrides={"payload": {"password": "hunter2"}})
    data = last(app, dead).data
    assert "hunter2" not in json.dumps(data)
    assert data["changes"]["payload.password"]["after"] == "[redacted]"


def test_dependencies_and_lane_follow_a_changed_payload(app):
    @app.job(
        uses=lambda payload: f"account-{payload['account']}",
        editable="account",
        policy=NOW_OR_NEVER,
    )
    def transfer(account: str) -> Fail:
        return Fail("X", final=True)

    job = run_job(app, transfer.enqueue(account="acme"))
    edit = {"payload": {"account": "globex"}}
    unchanged(
        app,
        job,
        lambda: apart(app).retry(job.id, overrides=edit),
        OverrideRefused,
        "only its app can compute them",
    )
    assert app.jobs.retry(job.id, overrides=edit).uses == ("account-globex",)
    row = load_row(app, job)
    lanes = sql(app.store, "SELECT lane FROM {p}job WHERE id = :id", {"id": job.id})
    assert lanes == [(f"default|{row.kind}|account-globex|0",)]


def test_in_a_fair_queue_the_lane_belongs_to_the_owner(app, dead):
    app.queue("turns", fair=True)
    apart(app).retry(dead.id, overrides={"queue": "turns"})
    assert sql(app.store, "SELECT lane FROM {p}job") == [
        (f"turns|render||{owner_share('acme')}|0",)
    ]


def test_a_unique_key_made_of_the_payload_changes_with_it(app):
    @app.job(unique=Unique(by="payload.clip"), editable="clip", policy=NOW_OR_NEVER)
    def render(clip: int, fail: bool = True) -> Fail | None:
        return Fail("X", final=True) if fail else None

    job = run_job(app, render.enqueue(clip=7))
    other = run_job(app, render.enqueue(clip=9, fail=False))
    taken = {"payload": {"clip": 9}}
    unchanged(app, job, lambda: app.jobs.retry(job.id, overrides=taken), UniqueTaken, other.id)
    app.jobs.retry(job.id, overrides={"payload": {"clip": 8}})
    assert render.enqueue(clip=8).id == job.id
    assert render.enqueue(clip=7).id != job.id


def test_a_unique_key_chosen_by_the_caller_stays(app, broken):
    job = run_job(app, broken.options(unique="mine").enqueue(clip=7))
    assert app.jobs.retry(job.id, overrides={"payload": {"clip": 8}}).unique_key == "mine"


def test_a_retry_returns_an_escalated_job_to_its_queue_unless_overridden(app):
    @app.job(queue="small", policy=Policy(max_retries=1, backoff=Fixed(0), then=Then(queue="big")))
    def work() -> Fail:
        return Fail("GW_5XX", "503")

    job = run_job(app, work.enqueue())
    assert (job.state, job.queue) == ("dead", "big")
    assert app.jobs.retry(job.id).queue == "small"
    assert run_job(app, job).queue == "big"
    assert app.jobs.retry(job.id, overrides={"queue": "huge"}).queue == "huge"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"editable": ("clip", "colour")}, "colour"),
        ({"can_retry": lambda colour: None}, "colour"),
        ({"can_retry": "yes"}, "function"),
        ({"done": lambda colour: None}, "colour"),
        ({"done": 7}, "function"),
    ],
    ids=["editable", "can_retry", "no function", "done", "no function either"],
)
def test_editable_must_name_arguments_of_the_handler(app, options, match):
    with pytest.raises(ConfigError, match=match):

        @app.job(**options)
        def render(clip: int) -> None: ...


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("clip", 7, 7),
        ("token", "x", "[redacted]"),
        ("api_key", 7, "[redacted]"),
        ("password", None, None),
        ("path", "/home/ann/in.mp4", "[path]"),
        ("note", "password=hunter2", "password=[redacted]"),
        ("options", {"password": "hunter2"}, "[redacted]"),
    ],
)
def test_payload_values_in_events_are_redacted(name, value, shown):
    assert redact_value(name, value) == shown


def test_a_long_value_is_shortened():
    assert len(redact_value("note", "word " * 1000)) < 400


# -- a limit per owner ---------------------------------------------------------------------------
def test_an_owner_over_the_retry_limit_learns_when_the_next_is_possible(make_app):
    app = make_app(limits__retries_by_hand="2/h")

    @app.job(policy=NOW_OR_NEVER)
    def work() -> Fail:
        return Fail("X", final=True)

    jobs = work.options(owner="acme").enqueue_many([{}] * 4)
    app.run_inline()
    for job in jobs[:2]:
        app.jobs.retry(job.id, owner="acme")
    refused = unchanged(
        app, jobs[2], lambda: app.jobs.retry(jobs[2].id, owner="acme"), RetryLimited, "2/h"
    )
    assert (refused.code, refused.retryable) == ("RETRY_LIMITED", True)
    wait = refused.at - datetime.now(UTC)
    assert timedelta(minutes=29) < wait < timedelta(minutes=31)
    assert app.jobs.retry(jobs[2].id).state == "queued"  # who acts for all has no limit
    advance(app, 1801)
    assert app.jobs.retry(jobs[3].id, owner="acme").state == "queued"


def test_a_refused_retry_does_not_count_against_the_limit(make_app):
    app = make_app(limits__retries_by_hand="1/h")

    @app.job(policy=NOW_OR_NEVER)
    def work() -> Fail:
        return Fail("X", final=True)

    job = run_job(app, work.options(owner="acme", deadline=60).enqueue())
    with pytest.raises(DeadlineFirst):
        app.jobs.retry(job.id, owner="acme", at=3600)
    assert app.jobs.retry(job.id, owner="acme").state == "queued"


def test_concurrent_retries_of_one_owner_respect_the_limit(make_app):
    app = make_app(limits__retries_by_hand="5/d")

    @app.job(policy=NOW_OR_NEVER)
    def work() -> Fail:
        return Fail("X", final=True)

    jobs = work.options(owner="acme").enqueue_many([{}] * 20)
    app.run_inline()

    def press(job):
        try:
            return app.jobs.retry(job.id, owner="acme").generation
        except RetryLimited:
            return None

    answers = run_concurrently(*[lambda job=job: press(job) for job in jobs])
    assert answers.count(2) == 5
    assert app.jobs.count("state:queued") == 5


@pytest.mark.parametrize("limit", ["20", "0/h", "many", "20/week", "-1/h"])
def test_an_invalid_retry_limit_is_refused_at_start(tmp_path, limit):
    environ = {"MULLIGAN_LIMITS__RETRIES_BY_HAND": limit}
    with pytest.raises(ConfigError, match=r"limits\.retries_by_hand"):
        read_settings(environ=environ, file=tmp_path / "none.toml")


# -- before one presses --------------------------------------------------------------------------
def test_a_preview_returns_changes_and_refusals_and_writes_nothing(app, dead):
    before = load_row(app, dead)
    preview = app.jobs.preview_retry(dead.id, overrides={"queue": "big"})
    assert (preview.changes, preview.refused) == (
        {"queue": {"before": "default", "after": "big"}},
        (),
    )
    app.jobs.retry(dead.id)
    preview = app.jobs.preview_retry(dead.id, overrides={"priority": 99})
    assert [error.code for error in preview.refused] == ["ILLEGAL_MOVE", "OVERRIDE_REFUSED"]
    assert before.generation == 1


def test_the_effort_so_far_is_reported(app, dead):
    app.jobs.retry(dead.id)
    run_job(app, dead)
    facts = {fact.name: fact.value for fact in app.jobs.explain(dead.id).facts}
    assert facts["so far"] == "2 attempts in 2 generations, cost 5"


# -- release, cancel, discard --------------------------------------------------------------------
def test_each_refused_action_has_its_error_code(app, broken, dead):
    assert (
        unchanged(app, dead, lambda: app.jobs.discard(dead.id, reason=" "), ReasonMissing).code
        == "REASON_MISSING"
    )
    assert (
        unchanged(app, dead, lambda: app.jobs.release(dead.id), IllegalMove).code == "ILLEGAL_MOVE"
    )
    sql(
        app.store,
        "UPDATE {p}job SET state = 'parked', error = NULL, died_code = NULL, died_class = NULL, "
        'died_group = NULL, finished_at = NULL, choices = \'["left","right"]\'',
    )
    refused = unchanged(
        app, dead, lambda: app.jobs.release(dead.id, choice="up"), ChoiceRefused, "left, right"
    )
    assert refused.code == "CHOICE_REFUSED"
    assert app.jobs.release(dead.id, choice="left", owner="acme").state == "queued"


def test_every_method_has_an_awaitable_form(app, dead):
    async def pressed():
        preview = await app.aio.jobs.preview_retry(dead.id)
        job = await app.aio.jobs.retry(dead.id, overrides={"priority": 2}, at=60, owner="acme")
        gone = await app.aio.jobs.cancel(dead.id, owner="acme")
        await app.aio.jobs.retry(dead.id)
        return preview.refused, job.priority, gone.state

    assert asyncio.run(pressed()) == ((), 2, "cancelled")


def test_an_edited_job_is_found_by_its_new_arguments(make_app):
    app = make_app()

    @app.job(policy=Policy(max_retries=0), editable=("clip",), index=("clip",))
    def render(clip: int) -> Fail:
        return Fail("BAD", final=True)

    job = render.enqueue(clip=7)
    app.run_inline()
    app.jobs.retry(job.id, overrides={"payload": {"clip": 8}})
    assert [found.id for found in app.jobs.list("arg.clip:8")] == [job.id]
    assert app.jobs.list("arg.clip:7") == []
