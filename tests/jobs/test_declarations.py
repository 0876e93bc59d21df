"""Declarations that cannot work are refused when they are made, with advice."""

from __future__ import annotations

import asyncio
import warnings
from dataclasses import dataclass

import pytest
from pydantic import Base64Bytes

from mulligan import Exponential, Mulligan, Policy
from mulligan.core.errors import ConfigError, Refused
from support.app_tools import run_job

USELESS = [
    (
        Policy(max_retries=6, classes={"rate_limited": Policy(max_retries=20)}),
        r"rate_limited allows 20 retries, but max_retries=6",
    ),
    (Policy(backoff=Exponential(base=100, cap=10)), r"base=100, cap=10\): the first delay"),
    (
        Policy(classes={"timeout": Policy(backoff=Exponential(base=100, cap=10))}),
        r"base=100, cap=10\): the first delay",
    ),
]


@pytest.mark.any_store
@pytest.mark.parametrize(("policy", "message"), USELESS)
def test_a_policy_that_cannot_work_is_refused(app, policy, message):
    with pytest.raises(Refused, match=message):
        app.job(policy=policy)(lambda: None)
    with pytest.raises(Refused, match=message):
        app.queue("slow", policy=policy)

    @app.job(name="fine", policy=Policy(max_retries=20, classes={"timeout": Policy(max_retries=2)}))
    def fine() -> None: ...

    with pytest.raises(Refused, match=message):
        fine.options(policy=policy).enqueue()


@pytest.mark.any_store
def test_retries_of_a_class_that_is_not_retried_cause_a_warning(app):
    with pytest.warns(UserWarning, match="class permanent is not retried") as caught:

        @app.job(name="hopeful", policy=Policy(classes={"permanent": Policy(max_retries=2)}))
        def hopeful() -> None: ...

    assert len(caught) == 1
    app.job(name="strict", policy=Policy(classes={"permanent": Policy(max_retries=0)}))(
        lambda: None
    )


def test_a_deadline_before_the_delay_causes_a_warning(app, render):
    with pytest.warns(UserWarning, match="delay=100 is not before deadline=10") as caught:
        render.options(delay=100, deadline=10).enqueue(clip=1)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert render.options(delay=10, deadline=100).enqueue(clip=1).phase == "scheduled"


def test_a_blocking_enqueue_on_an_event_loop_causes_a_warning(app, render):
    async def enqueue_all():
        for call in (
            lambda: render.enqueue(clip=1),
            lambda: render.enqueue_many([{"clip": 1}]),
            lambda: app.enqueue("render", {"clip": 1}),
        ):
            with pytest.warns(RuntimeWarning, match="blocks the event loop") as caught:
                call()
            assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await render.enqueue_async(clip=1)
            await render.enqueue_many_async([{"clip": 1}])
            await app.aio.enqueue("render", {"clip": 1})
            await asyncio.to_thread(render.enqueue, clip=1)

    asyncio.run(enqueue_all())
    assert app.jobs.count("kind:render") == 7


class Invoice:
    """A class that JSON cannot hold, as a model of an ORM is."""


@dataclass
class Line:
    price: float


def takes_bytes(data: bytes) -> None: ...
def takes_many(data: dict[str, list[bytes | None]]) -> None: ...
def takes_model(invoice: Invoice | None = None) -> None: ...


@pytest.mark.any_store
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (takes_bytes, "argument data is bytes, which JSON cannot hold. Use pydantic.Base64Bytes"),
        (takes_many, "argument data is bytes"),
        (takes_model, "argument invoice is of type Invoice, which cannot be written as JSON"),
    ],
)
def test_an_argument_that_json_cannot_hold_is_refused_at_registration(app, function, message):
    with pytest.raises(ConfigError, match=message):
        app.job(function)
    assert function.__qualname__ not in app.registry.handlers


def test_base64_bytes_and_dataclasses_are_arguments(app):
    @app.job(name="store")
    def store(data: Base64Bytes, lines: list[Line]) -> list[object]:
        return [data.hex(), lines[0].price]

    job = store.enqueue(data=b"/wA=", lines=[Line(2.5)])
    assert run_job(app, job).result == ["ff00", 2.5]


@pytest.mark.parametrize(
    "url",
    ["postgresql+asyncpg://u:secret@db/x", "postgresql+psycopg2://db/x", "sqlite+aiosqlite:///x"],
)
def test_the_url_of_another_driver_is_refused_at_once(url):
    driver = url.partition("://")[0].partition("+")[2]
    with pytest.raises(ConfigError, match=f"does not use the driver {driver}") as refused:
        Mulligan(url)
    assert "secret" not in str(refused.value)
