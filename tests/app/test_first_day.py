"""Mistakes of the first day: each error names the value and what to write instead."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import warnings
from dataclasses import dataclass
from typing import Any

import pytest

from mulligan import (
    Context,
    Exponential,
    Fixed,
    Mulligan,
    MulliganError,
    Policy,
    Retry,
    Rule,
    Table,
    Then,
    Unique,
)
from mulligan.core.errors import ConfigError, PayloadRefused, WaitTimeout
from mulligan.manifest.declared import publish_manifest


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


def add_kind(app: Mulligan, **options: Any) -> Any:
    return app.job(**options)(lambda n: n)


def refused(call: Any, *args: Any, **options: Any) -> str:
    """Return the message with which a call is refused, as an error of Mulligan."""
    with pytest.raises(MulliganError) as caught:
        call(*args, **options)
    return str(caught.value)


# --- @app.job ---


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"max_retries": 3}, "Write policy=Policy(max_retries=3)"),
        ({"retries": 3}, "Write policy=Policy(max_retries=3)"),
        ({"retry_backoff": True}, "Write policy=Policy(backoff=…)"),
        ({"quue": "mail"}, "@app.job has no option 'quue'. Did you mean queue?"),
        ({"time_limit": 3}, "Did you mean timeout?"),
        ({"autoretry_for": (OSError,)}, "every failure is classified"),
        ({"bind": True}, "annotate a parameter: ctx: Context"),
        ({"delay": 3}, "YOUR_FUNCTION.options(delay=…).enqueue(…)"),
        ({"zzz": 3}, "It has name, title, queue,"),
    ],
)
def test_an_unknown_option_of_a_job_is_named_with_the_right_one(app, options, advice):
    assert advice in refused(add_kind, app, **options)
    with pytest.raises(TypeError):  # as for any other function
        add_kind(app, **options)


def test_an_unknown_option_of_one_job_is_named_with_the_right_one(work):
    assert refused(work.options, prio=3) == "options() has no option 'prio'. Did you mean priority?"
    assert "Did you mean delay?" in refused(work.options, countdown=3)
    assert "Did you mean deadline?" in refused(work.options, expires=3)


def test_unknown_options_of_the_other_declarations_are_named_with_the_right_ones(app, work):
    assert "Did you mean rate?" in refused(app.queue, "mail", rat=3)
    assert "Did you mean min_calls?" in refused(app.dependency, "api", min_cals=3)
    assert "Did you mean owner?" in refused(app.batch, "spring", ownr="acme")
    assert "Did you mean timezone?" in refused(app.schedule, "s", "0 3 * * *", work, timezon="UTC")
    assert "Did you mean by?" in refused(Unique, byy="payload")
    assert "Did you mean type?" in refused(
        Rule, "r", exception_type="KeyError", code="X", cls="permanent"
    )
    assert "Did you mean priority?" in refused(app.enqueue, "work", {"n": 1}, prio=3)


def test_a_type_error_inside_a_declaration_stays_what_it_is(app):
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        app.queue()  # type: ignore[call-arg]


def test_a_class_is_no_handler(app):
    assert "is a class. Decorate a function." in refused(app.job, type("Work", (), {}))


def test_a_generator_is_no_handler(app):
    def items(n: int):
        yield n

    async def later(n: int):
        yield n

    assert "is a generator function" in refused(app.job, items)
    assert "is a generator function" in refused(app.job, later)


def test_the_signature_of_job_has_every_option_and_its_documentation_names_each(app):
    from mulligan.app.kind import build_handler

    options = inspect.signature(app.job).parameters
    declared = inspect.signature(build_handler).parameters
    shown = {name: spec.default for name, spec in options.items() if name != "function"}
    assert shown == {
        name: spec.default
        for name, spec in declared.items()
        if spec.kind is inspect.Parameter.KEYWORD_ONLY
    }
    documentation = inspect.getdoc(app.job) or ""
    missing = [name for name in shown if f"`{name}`" not in documentation]
    assert not missing, "describe these options in the docstring of Mulligan.job"


# --- Methods of other libraries ---


@pytest.mark.parametrize("method", ["delay", "send", "defer", "perform_async", "s"])
def test_enqueue_is_named_for_the_method_of_another_library(work, method):
    with pytest.raises(AttributeError, match=rf"{method}.*Enqueue a job: work\.enqueue\(n=…\)"):
        getattr(work, method)


@pytest.mark.parametrize("method", ["apply_async", "send_with_options", "configure"])
def test_options_is_named_for_the_method_of_another_library(work, method):
    with pytest.raises(AttributeError, match=r"work\.options\(delay=30\)\.enqueue\(n=…\)"):
        getattr(work, method)


def test_a_misspelt_method_of_a_kind_is_named_with_the_right_one(work):
    with pytest.raises(AttributeError, match=r"Did you mean enqueue\?"):
        _ = work.enque
    assert not hasattr(work, "_nothing")


# --- Policies ---


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Policy(max_retry=3),  # type: ignore[call-arg]
            "Policy has no option 'max_retry'. Did you mean max_retries?",
        ),
        (
            lambda: Policy(max_retries=-1),
            "Policy: max_retries must be between 0 and 2147483647, not -1",
        ),
        (lambda: Policy(max_retries="often"), "Policy: max_retries: Input should be"),  # type: ignore[arg-type]
        (
            lambda: Policy(classes={"timeot": Policy()}),
            "Policy: unknown class 'timeot'; did you mean 'timeout'?",
        ),
        (Exponential, "Exponential: base is missing"),  # type: ignore[call-arg]
        (lambda: Fixed(-1), "Fixed: seconds must be between 0 s and 100 years, not -1"),
        (lambda: Table([]), "Table: seconds must contain at least one delay"),
        (lambda: Then(que="big"), "Did you mean queue?"),  # type: ignore[call-arg]
    ],
)
def test_an_invalid_policy_is_refused_in_one_sentence(make, message):
    text = refused(make)
    assert message in text
    assert "\n" not in text
    assert "pydantic" not in text
    with pytest.raises(ValueError, match=r"."):  # as for any invalid value
        make()


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            Policy(max_retries=6, classes={"rate_limited": Policy(max_retries=20)}),
            "the entry for rate_limited allows 20 retries, but max_retries=6",
        ),
        (Policy(backoff=Exponential(base=100, cap=10)), "already above the cap. Raise cap"),
    ],
)
def test_a_policy_that_cannot_work_is_refused(app, policy, message):
    assert message in refused(add_kind, app, policy=policy)


def test_retries_of_a_class_that_is_not_retried_cause_a_warning_at_the_line_of_the_caller(app):
    with pytest.warns(UserWarning, match="class permanent is not retried") as caught:
        add_kind(app, policy=Policy(classes={"permanent": Policy(max_retries=2)}))
    assert caught[0].filename == __file__


def test_a_deadline_before_the_delay_causes_a_warning_at_the_line_of_the_caller(work):
    with pytest.warns(UserWarning, match=r"delay=100 is not before deadline=10") as caught:
        work.options(delay=100, deadline=10).enqueue(n=1)
    assert caught[0].filename == __file__


def test_a_blocking_enqueue_on_an_event_loop_warns_once_per_line(work):
    async def enqueue_twice() -> None:
        for n in range(2):
            work.enqueue(n=n)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        asyncio.run(enqueue_twice())
    assert len(caught) == 1
    assert str(caught[0].message).endswith("In a coroutine use: await enqueue_async(…)")
    assert caught[0].filename == __file__


# --- Arguments ---


def test_a_context_without_annotation_is_named(app):
    @app.job
    def render(ctx, clip: int) -> int:
        return clip

    assert refused(render.enqueue, clip=1).endswith(
        "If ctx is the context, annotate it: ctx: Context"
    )
    assert "annotate it: ctx: Context" in refused(app.enqueue, render.name, {"clip": 1})


def test_a_misspelt_argument_is_named_with_the_right_one(work):
    assert refused(work.enqueue, number=1).endswith("unknown argument 'number'. It takes n.")
    assert "Did you mean n?" in refused(work.enqueue, nn=1)


class Picture:
    """A class that neither JSON nor pydantic knows."""


class FakeModel:
    """Stand-in for a Django model: `_meta` and `pk`. Django itself is tried in a process."""

    _meta = object()
    pk = 7


@dataclass
class Album:
    name: str
    cover: Picture


@dataclass
class Letter:
    body: bytes


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (
            Picture,
            "argument value is of type Picture, which cannot be written as JSON. Pass its id",
        ),
        (FakeModel, "Pass its pk, and read it in the handler."),
        (Album, "argument value.cover is of type Picture"),
        (Letter, "argument value.body is bytes, which JSON cannot hold"),
        (list[bytes | None], "argument value is bytes"),
        (dict[str, Picture], "argument value is of type Picture"),
        (type, "argument value is a class, which JSON cannot hold"),
        (type(len), "argument value is of type builtin_function_or_method"),
    ],
)
def test_an_annotation_that_cannot_be_stored_is_refused_at_registration(app, annotation, message):
    def keep(value) -> None: ...

    keep.__annotations__["value"] = annotation
    assert message in refused(app.job, keep)


def test_an_annotation_that_cannot_be_resolved_causes_a_warning(app):
    def keep(n: int, first: Nope, second: "list[Nope]" = ()) -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037

    with pytest.warns(UserWarning, match="cannot be resolved") as caught:
        app.job(keep)
    assert [str(one.message).partition(" cannot be resolved")[0] for one in caught] == [
        f"kind {keep.__qualname__!r}: the annotation 'Nope' of argument first",
        f"kind {keep.__qualname__!r}: the annotation \"'list[Nope]'\" of argument second",
    ]
    assert {one.filename for one in caught} == {__file__}


def test_retry_names_its_option_for_the_wait():
    with pytest.raises(
        TypeError, match=r"Retry\(\) has no option 'delay'. Write Retry\(after=60\)"
    ):
        Retry(delay=5)  # type: ignore[call-arg]


def test_a_value_that_cannot_be_stored_is_refused_with_advice(app):
    @app.job(name="keep")
    def keep(value: Any) -> None: ...

    assert "keep: value: the value cannot be written as JSON" in refused(keep.enqueue, Picture())
    assert "Pass its pk, and read it in the handler." in refused(keep.enqueue, [FakeModel()])
    assert "Pass its id, or a dataclass or pydantic model." in refused(
        keep.enqueue, {"a": Picture()}
    )
    assert "Pass base64 text, or store the data" in refused(keep.enqueue, b"\xff")
    assert "Pass its pk" in refused(app.enqueue, "elsewhere", {"value": FakeModel()})


def test_a_django_model_is_refused_as_an_argument(tmp_path):
    (tmp_path / "shop.py").write_text(
        "import django\n"
        "from django.conf import settings\n"
        "settings.configure(INSTALLED_APPS=[])\n"
        "django.setup()\n"
        "from django.db import models\n"
        "class Order(models.Model):\n"
        "    class Meta: app_label = 'shop'\n"
        "from mulligan import Mulligan\n"
        "app = Mulligan('sqlite:///jobs.db')\n"
        "@app.job\n"
        "def ship(order: Order): ...\n"
    )
    done = subprocess.run(
        [sys.executable, "shop.py"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert "argument order is of type Order, which cannot be written as JSON." in done.stderr
    assert "Pass its pk, and read it in the handler." in done.stderr


# --- Running ---


def test_a_wait_without_a_worker_says_what_the_job_waits_for(app, work):
    job = work.enqueue(n=1)
    why = "no live worker handles kind work; start one that does"
    with pytest.raises(WaitTimeout, match=f"is still queued after 0 s: {why}"):
        app.jobs.wait(job.id, timeout=0)
    with pytest.raises(WaitTimeout, match=why):
        asyncio.run(app.aio.jobs.wait(job.id, timeout=0))


@pytest.mark.processes
def test_a_worker_of_an_app_without_kinds_warns(tmp_path, store_url):
    from mulligan.testing import worker

    (tmp_path / "empty_app.py").write_text("from mulligan import Mulligan\napp = Mulligan()\n")
    app = Mulligan(store_url)
    with worker(app, "empty_app:app", env={"PYTHONPATH": str(tmp_path)}) as running:
        running.stop()
        assert "empty_app:app has no kinds, so this worker will run nothing" in running.output
    app.close()


@pytest.mark.parametrize("url", ["postgresql+asyncpg://db/shop", "mysql://db/shop", "jobs.db"])
def test_the_url_of_another_database_is_refused_at_once(url):
    with pytest.raises(ConfigError, match="is not supported"):
        Mulligan(url)


def test_arguments_by_name_are_checked_against_the_stored_declaration(app, work):
    with app.store.begin() as tx:
        publish_manifest(tx, app.manifest("shop"))
    client = Mulligan(app.settings.database_url)
    with pytest.raises(PayloadRefused, match="n"):
        client.enqueue("work", {"n": "abc"})
    client.close()


# --- What people see in a shell ---


def test_a_kind_shows_its_name_signature_and_options(app):
    @app.job(name="render")
    def render(ctx: Context, clip: int, size: str = "small") -> str:
        return size * clip

    assert repr(render) == "<Kind render(clip: int, size: str = 'small') -> str>"
    assert repr(render.options(delay=30)).endswith("-> str with delay=30>")


def test_a_policy_shows_the_fields_that_are_set():
    policy = Policy(max_retries=3, backoff=Fixed(5), then=Then(queue="big"))
    assert (
        repr(policy)
        == "Policy(max_retries=3, backoff=Fixed(seconds=5.0), then=(Then(queue='big'),))"
    )
    assert repr(Policy()) == "Policy()"
    assert eval(repr(policy)) == policy  # noqa: S307 - our own text


def test_a_job_shows_what_it_is_and_where_it_stands(work):
    job = work.enqueue(n=1)
    assert repr(job) == f"<Job {job.id} work queued (ready) {{'n': 1}}>"
