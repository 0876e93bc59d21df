"""Ladders in life: another queue, more time, other settings, and back home by hand."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from mulligan import Context, Fixed, Mulligan, Policy, Then
from mulligan.core.errors import ConfigError
from support.app_tools import advance, attempts_of, ran, row_of

STEPS = [Then(queue="slow", settings={"preset": "fast"}), Then(settings={"preset": "tiny"})]


@pytest.fixture
def seen(app: Mulligan) -> list[tuple[str, dict[str, str]]]:
    """What each attempt saw: its queue and its settings."""
    seen: list[tuple[str, dict[str, str]]] = []
    policy = Policy(max_retries=5, backoff=Fixed(0), classes={"resource": Policy(then=STEPS)})

    @app.job(name="encode", policy=policy)
    def encode(ctx: Context, fails: int) -> str:
        seen.append((ctx.job.queue, dict(ctx.settings)))
        if len(seen) <= fails:
            raise MemoryError
        return "encoded"

    return seen


def test_each_failure_of_the_class_leads_a_step_further(app: Mulligan, seen: list[object]) -> None:
    job = ran(app, app.enqueue("encode", {"fails": 3}))
    assert (job.state, job.queue, job.failures) == ("succeeded", "slow", 3)
    assert seen == [
        ("default", {}),
        ("slow", {"preset": "fast"}),
        ("slow", {"preset": "tiny"}),
        ("slow", {"preset": "tiny"}),
    ]
    told = [json.loads(attempt.judged or "{}").get("then") for attempt in attempts_of(app, job)]
    assert told == [
        {"queue": "slow", "settings": {"preset": "fast"}},
        {"settings": {"preset": "tiny"}},
        None,
        None,
    ]


def test_a_retry_by_hand_begins_at_home_with_nothing(app: Mulligan, seen: list[object]) -> None:
    job = ran(app, app.enqueue("encode", {"fails": 6}))
    assert (job.state, job.queue) == ("dead", "slow")
    again = app.jobs.retry(job.id, reason="more memory")
    assert (again.queue, row_of(app, job).counts, row_of(app, job).settings) == (
        "default",
        None,
        None,
    )
    assert ran(app, job).state == "succeeded"
    assert seen[-1] == ("default", {})


def test_settings_can_be_read_and_not_changed(app: Mulligan) -> None:
    @app.job(name="curious")
    def curious(ctx: Context) -> bool:
        with pytest.raises(TypeError):
            ctx.settings["preset"] = "mine"  # type: ignore[index]
        return ctx.settings == {}

    assert ran(app, app.enqueue("curious")).result is True


@pytest.mark.usefixtures("seen")
def test_counts_stay_with_a_job_that_succeeded_in_the_end(app: Mulligan) -> None:
    job = ran(app, app.enqueue("encode", {"fails": 2}))
    counts = json.loads(row_of(app, job).counts or "{}")
    assert counts["classes"] == {"resource": 2}
    assert list(counts["codes"].values()) == [2]


@pytest.mark.parametrize("queue", ["two words", "a|b", ""])
def test_a_queue_that_cannot_be_is_refused_when_it_is_declared(queue: str) -> None:
    with pytest.raises(ValueError, match="a name is 1 to 200 characters"):
        Then(queue=queue)


def test_a_class_can_be_switched_off_by_the_environment(make_app: Callable[..., Mulligan]) -> None:
    app = make_app(retry__classes__timeout__max_retries="0")

    @app.job(name="slow", policy=Policy(max_retries=3, backoff=Fixed(0)))
    def slow() -> None:
        raise TimeoutError

    dead = ran(app, app.enqueue("slow"))
    assert (dead.state, dead.attempts) == ("dead", 1)
    assert "retry.classes.timeout.max_retries allows no retries for class timeout" in dead.why


def test_only_named_classes_are_retried(make_app: Callable[..., Mulligan]) -> None:
    app = make_app(retry__only="timeout, rate_limited")

    @app.job(name="fail", policy=Policy(max_retries=1, backoff=Fixed(0)))
    def fail(slow: bool) -> None:
        raise TimeoutError if slow else ConnectionError

    slow, refused = app.enqueue("fail", {"slow": True}), app.enqueue("fail", {"slow": False})
    app.run_inline()
    assert (slow.refresh().attempts, refused.refresh().attempts) == (2, 1)
    assert "is not in retry.only (rate_limited, timeout)" in refused.refresh().why


def test_a_wrong_class_gets_the_nearest_right_one(make_app: Callable[..., Mulligan]) -> None:
    with pytest.raises(
        ConfigError, match="did you mean MULLIGAN_RETRY__CLASSES__TIMEOUT__MAX_RETRIES"
    ):
        make_app(retry__classes__timeuot__max_retries="0")
    with pytest.raises(
        ConfigError, match="class auth is never retried, so nothing can be set for it"
    ):
        make_app(retry__classes__auth__max_retries="3")
    with pytest.raises(ConfigError, match="class auth is never retried"):
        make_app(retry__only="timeout,auth")
    with pytest.raises(ConfigError, match="names no class"):
        make_app(retry__only="")
    with pytest.raises(
        ConfigError, match=r"retry\.only: unknown class 'timout'; did you mean 'timeout'"
    ):
        make_app(retry__only="timout")


def test_the_last_attempt_is_known_by_the_count_of_its_class(app: Mulligan) -> None:
    hints: list[bool] = []

    @app.job(name="mixed")
    def mixed(ctx: Context) -> None:
        hints.append(ctx.last_attempt)
        raise ConnectionError if ctx.attempt == 1 else RuntimeError

    job = app.enqueue("mixed")
    for _ in range(4):
        job = ran(app, job)
        advance(app, 3600)
    assert (job.state, hints) == ("dead", [False, False, False, True])
