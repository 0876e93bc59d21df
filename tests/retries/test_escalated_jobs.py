"""Escalation of real jobs: another queue, more time, other settings, and manual retry."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from mulligan import Context, Fixed, Mulligan, Policy, Then
from mulligan.core.errors import ConfigError
from support.app_tools import advance, load_attempts, load_row, run_job

STEPS = [Then(queue="slow", settings={"preset": "fast"}), Then(settings={"preset": "tiny"})]


@pytest.fixture
def recorded(app: Mulligan) -> list[tuple[str, dict[str, str]]]:
    """Record the queue and the settings of each attempt."""
    recorded: list[tuple[str, dict[str, str]]] = []
    policy = Policy(max_retries=5, backoff=Fixed(0), classes={"resource": Policy(then=STEPS)})

    @app.job(name="encode", policy=policy)
    def encode(ctx: Context, fails: int) -> str:
        recorded.append((ctx.job.queue, dict(ctx.settings)))
        if len(recorded) <= fails:
            raise MemoryError
        return "encoded"

    return recorded


def test_each_failure_of_the_class_advances_one_step(app: Mulligan, recorded: list[object]) -> None:
    job = run_job(app, app.enqueue("encode", {"fails": 3}))
    assert (job.state, job.queue, job.failures) == ("succeeded", "slow", 3)
    assert recorded == [
        ("default", {}),
        ("slow", {"preset": "fast"}),
        ("slow", {"preset": "tiny"}),
        ("slow", {"preset": "tiny"}),
    ]
    steps = [json.loads(attempt.judged or "{}").get("then") for attempt in load_attempts(app, job)]
    assert steps == [
        {"queue": "slow", "settings": {"preset": "fast"}},
        {"settings": {"preset": "tiny"}},
        None,
        None,
    ]


def test_manual_retry_restores_queue_and_settings(app: Mulligan, recorded: list[object]) -> None:
    job = run_job(app, app.enqueue("encode", {"fails": 6}))
    assert (job.state, job.queue) == ("dead", "slow")
    again = app.jobs.retry(job.id, reason="more memory")
    assert (again.queue, load_row(app, job).counts, load_row(app, job).settings) == (
        "default",
        None,
        None,
    )
    assert run_job(app, job).state == "succeeded"
    assert recorded[-1] == ("default", {})


def test_context_settings_are_read_only(app: Mulligan) -> None:
    @app.job(name="curious")
    def curious(ctx: Context) -> bool:
        with pytest.raises(TypeError):
            ctx.settings["preset"] = "mine"  # type: ignore[index]
        return ctx.settings == {}

    assert run_job(app, app.enqueue("curious")).result is True


@pytest.mark.usefixtures("recorded")
def test_counts_remain_after_success(app: Mulligan) -> None:
    job = run_job(app, app.enqueue("encode", {"fails": 2}))
    counts = json.loads(load_row(app, job).counts or "{}")
    assert counts["classes"] == {"resource": 2}
    assert list(counts["codes"].values()) == [2]


@pytest.mark.parametrize("queue", ["two words", "a|b", ""])
def test_invalid_queue_of_a_step_is_refused(queue: str) -> None:
    with pytest.raises(ValueError, match="a name is 1 to 200 characters"):
        Then(queue=queue)


def test_environment_can_switch_off_a_class(make_app: Callable[..., Mulligan]) -> None:
    app = make_app(retry__classes__timeout__max_retries="0")

    @app.job(name="slow", policy=Policy(max_retries=3, backoff=Fixed(0)))
    def slow() -> None:
        raise TimeoutError

    dead = run_job(app, app.enqueue("slow"))
    assert (dead.state, dead.attempts) == ("dead", 1)
    assert "retry.classes.timeout.max_retries allows no retries for class timeout" in dead.why


def test_only_classes_in_retry_only_are_retried(make_app: Callable[..., Mulligan]) -> None:
    app = make_app(retry__only="timeout, rate_limited")

    @app.job(name="fail", policy=Policy(max_retries=1, backoff=Fixed(0)))
    def fail(slow: bool) -> None:
        raise TimeoutError if slow else ConnectionError

    slow, refused = app.enqueue("fail", {"slow": True}), app.enqueue("fail", {"slow": False})
    app.run_inline()
    assert (slow.refresh().attempts, refused.refresh().attempts) == (2, 1)
    assert "is not in retry.only (rate_limited, timeout)" in refused.refresh().why


def test_unknown_class_suggests_the_closest_one(make_app: Callable[..., Mulligan]) -> None:
    with pytest.raises(
        ConfigError, match="did you mean MULLIGAN_RETRY__CLASSES__TIMEOUT__MAX_RETRIES"
    ):
        make_app(retry__classes__timeuot__max_retries="0")
    with pytest.raises(ConfigError, match="class auth is never retried, so it has no settings"):
        make_app(retry__classes__auth__max_retries="3")
    with pytest.raises(ConfigError, match="class auth is never retried"):
        make_app(retry__only="timeout,auth")
    with pytest.raises(ConfigError, match="names no class"):
        make_app(retry__only="")
    with pytest.raises(
        ConfigError, match=r"retry\.only: unknown class 'timout'; did you mean 'timeout'"
    ):
        make_app(retry__only="timout")


def test_last_attempt_is_known_from_the_class_count(app: Mulligan) -> None:
    hints: list[bool] = []

    @app.job(name="mixed")
    def mixed(ctx: Context) -> None:
        hints.append(ctx.last_attempt)
        raise ConnectionError if ctx.attempt == 1 else RuntimeError

    job = app.enqueue("mixed")
    for _ in range(4):
        job = run_job(app, job)
        advance(app, 3600)
    assert (job.state, hints) == ("dead", [False, False, False, True])
