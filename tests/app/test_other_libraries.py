"""Names of other libraries, and values of the wrong type: each error says what to write here."""

from __future__ import annotations

import contextlib
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from mulligan import Context, Mulligan, MulliganError, Policy, Unique
from mulligan.core.errors import ConfigError, ConnectionRefused, PayloadRefused, WaitTimeout
from mulligan.core.suggest import ENQUEUE_OPTIONS
from mulligan.jobs.options import EnqueueOptions


@pytest.fixture
def app(store_url: str):
    app = Mulligan(store_url)
    yield app
    app.close()


@pytest.fixture
def work(app: Mulligan):
    @app.job(name="work")
    def work(n: int) -> int:
        return n

    return work


def refused(call: Any, *args: Any, **options: Any) -> str:
    """Return the message with which a call is refused, as an error of Mulligan."""
    with pytest.raises(MulliganError) as caught:
        call(*args, **options)
    return str(caught.value)


def missing(thing: object, name: str) -> str:
    """Return the message of the AttributeError, with all that Python would show of it."""
    with pytest.raises(AttributeError) as caught:
        getattr(thing, name)
    assert caught.value.obj is None or name.startswith("zz"), "Python would add its own guess"
    return str(caught.value)


# --- Attributes ---


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("task", "@app.job"),
        ("worker_main", "mulligan worker module:app"),
        ("run", "mulligan worker module:app"),
        ("send_task", "app.enqueue("),
        ("periodic_task", "app.schedule("),
        ("conf", "app.settings"),
    ],
)
def test_an_app_names_what_another_library_calls_otherwise(app, name, advice):
    assert advice in missing(app, name)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("get", "job.wait(timeout=10).result"),
        ("ready", "job.refresh().state"),
        ("status", "job.refresh().state"),
        ("revoke", "job.cancel()"),
        ("args", "job.payload"),
    ],
)
def test_a_job_names_what_another_library_calls_otherwise(work, name, advice):
    assert advice in missing(work.enqueue(n=1), name)


def test_a_batch_and_a_context_name_what_another_library_calls_otherwise(app, work):
    assert ".options(batch=batch).enqueue" in missing(app.batch("spring"), "add")
    answers = []

    @app.job
    def ask(ctx: Context) -> None:
        answers.append(missing(ctx, "retry"))

    ask.enqueue()
    app.run_inline()
    assert answers == ["a Context has no attribute 'retry'. Return or raise Retry(after=60)"]


def test_an_unknown_attribute_is_refused_as_python_does_it(app, work):
    for thing in (app, work.enqueue(n=1), app.batch("spring")):
        assert "no attribute 'zzz'" in missing(thing, "zzz")


def test_a_misspelt_method_has_one_suggestion(work):
    assert missing(work, "enque") == "a Kind has no attribute 'enque'. Did you mean enqueue?"


# --- Options and arguments ---


def test_limits_in_a_job_are_explained(app):
    for name in ("rate_limit", "concurrency", "rate"):
        message = refused(lambda name=name: app.job(**{name: 1})(print))
        assert 'app.queue("NAME", concurrency=1, rate="10/m")' in message


def test_an_option_among_the_arguments_is_explained(work):
    assert ".options(delay=…).enqueue(…)" in refused(work.enqueue, n=1, delay=5)
    assert ".options(delay=…).enqueue(…)" in refused(work.enqueue, n=1, countdown=5)
    assert ".options(queue=…).enqueue(…)" in refused(work.enqueue, n=1, queue="mail")


def test_the_known_options_are_those_of_enqueue():
    assert {spec.name for spec in fields(EnqueueOptions)} == ENQUEUE_OPTIONS


def test_options_with_another_shape_are_explained(app, work):
    assert "options(unique=…)" in refused(Unique, key="n")
    assert "cron with six fields" in refused(app.schedule, "s", every=60, kind=work)
    assert "Pass the time as delay=" in refused(work.options, run_at=5)
    assert 'list("state:dead kind:render")' in refused(app.jobs.list, state="dead")
    assert "Did you mean url?" in refused(Mulligan, broker="redis://localhost")


def test_an_enqueue_by_name_explains_its_arguments(app, work):
    assert refused(app.enqueue, work, {"n": 1}).endswith("write work.enqueue(…)")
    assert "decorate it with @app.job" in refused(app.enqueue, print, {"n": 1})
    assert refused(app.enqueue, "work", n=1).endswith("enqueue('work', {'n': …})")
    assert "decorate it with @app.job" in refused(app.batch, "spring", on_complete=print)


def test_enqueue_many_takes_mappings(app, work):
    with pytest.raises(PayloadRefused, match="must map argument names to values, not 1"):
        work.enqueue_many([1, 2])

    @app.job(name="more")
    def more(**extra: int) -> None: ...

    with pytest.raises(PayloadRefused, match="must map argument names to values, not 'ab'"):
        more.enqueue_many(["ab"])


def test_a_problem_with_an_argument_is_described_in_plain_words(app, work):
    message = refused(app.enqueue, "work", {"m": 1})
    assert message.endswith("work: n: is missing; m: unknown argument")


def test_what_is_no_connection_is_refused_before_the_database_is_opened(app, work):
    for wrong in ("postgresql://localhost/shop", 7, {}):
        with pytest.raises(ConnectionRefused, match=r"what a \w+ store accepts"):
            work.options(connection=wrong).enqueue(n=1)
        with pytest.raises(ConnectionRefused, match=r"what a \w+ store accepts"):
            app.enqueue("work", {"n": 1}, connection=wrong)


def test_a_direct_call_with_options_warns(work):
    with pytest.warns(UserWarning, match=r"enqueues nothing. Write work\.options\(…\)\.enqueue"):
        assert work.options(delay=5)(n=1) == 1


# --- Declarations that would fail later, or silently ---


def test_a_misspelt_argument_of_a_unique_key_is_refused(app, work):
    """It would be absent in every payload: all jobs would have one key."""
    with pytest.raises(ConfigError, match="unique names 'sha', which is not an argument"):

        @app.job(unique=Unique(by=("payload.sha",)))
        def scan(sha256: str) -> None: ...

    wrong = Unique(by=("owner", "payload.m"))
    assert "unique names 'm', which is not an argument" in refused(work.options, unique=wrong)

    @app.job(unique=Unique(by=("owner", "payload.size.width")))
    def crop(size: dict[str, int]) -> None: ...


def test_two_contexts_and_an_empty_name_are_refused(app):
    with pytest.raises(ConfigError, match="ctx and other are both Context"):

        @app.job
        def ask(ctx: Context, other: Context) -> None: ...

    with pytest.raises(ConfigError, match="kind ''"):
        app.job(name="")(lambda: None)


def test_a_backoff_of_another_type_is_named(app):
    message = refused(Policy, backoff="exponential")
    assert message.endswith("Exponential(...) or Fixed(...), not 'exponential'")


def test_a_hook_that_returns_no_context_manager_is_explained(app, work, caplog):
    @app.around
    def measure(ctx: Context) -> int:
        return 1

    job = work.enqueue(n=1)
    app.run_inline()
    assert "returned 1, not a context manager. Write a generator with one yield" in caplog.text
    assert job.refresh().state == "succeeded"


def test_a_database_in_memory_is_refused():
    with pytest.raises(ConfigError, match=r"Name a file, for example sqlite:///jobs\.db"):
        Mulligan("sqlite:///:memory:")


# --- Waiting ---


def test_the_timeout_of_a_wait_is_a_duration(app, work):
    job = work.enqueue(n=1)
    batch = app.batch("spring")
    for thing in (job, batch):
        assert "timeout must be seconds or a timedelta" in refused(thing.wait, timeout="5s")
        with pytest.raises(WaitTimeout, match=r"after 0\.01 s"):
            thing.wait(timeout=timedelta(seconds=0.01))


def test_a_state_alone_is_no_filter_but_the_filter_is_named(app):
    app.open()
    assert "did you mean state:dead?" in refused(app.jobs.list, "dead")


def test_an_attribute_error_inside_a_property_is_not_hidden(app):
    class Broken(Mulligan):
        @property
        def broken(self) -> int:
            return len(self.nothing_here)

    broken = Broken("sqlite:///unused.db")
    with contextlib.closing(broken), pytest.raises(AttributeError, match="nothing_here"):
        getattr(broken, "broken")  # noqa: B009
