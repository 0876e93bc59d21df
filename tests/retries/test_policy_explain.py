"""`app.policy.explain`: one call says what holds, who says it, and when attempts would come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError

import pytest

from mulligan import Fixed, Kind, Mulligan, Policy, Rule, Table, Then
from mulligan.core.errors import NotFound


@pytest.fixture
def render(app: Mulligan) -> Kind[[], None]:
    app.queue("media", policy=Policy(max_losses=7, max_age=3600))
    ladder = Policy(max_retries=1, then=[Then(queue="big")])

    @app.job(
        name="render",
        queue="media",
        policy=Policy(backoff=Table([60, 300]), classes={"resource": ladder}),
    )
    def render() -> None: ...

    return render


def test_every_field_names_the_scope_that_set_it(make_app: Callable[..., Mulligan]) -> None:
    app = make_app(retry__max_retries="5")
    app.queue("media", policy=Policy(max_losses=7))

    @app.job(name="render", queue="media", policy=Policy(backoff=Table([60, 300])))
    def render() -> None: ...

    told = app.policy.explain("render")
    assert [(field.name, field.value, field.scope, field.origin) for field in told.fields] == [
        ("enabled", True, "system", "default"),
        ("only", None, "system", "default"),
        ("max_retries", 5, "system", "environment MULLIGAN_RETRY__MAX_RETRIES"),
        ("max_losses", 7, "queue", "queue media"),
        ("max_snoozes", None, "system", "default"),
        ("max_age", None, "system", "default"),
        ("retry_unknown", None, "system", "default"),
        ("backoff", Table([60, 300]), "kind", "kind render"),
        ("then", (), "system", "default"),
    ]


@pytest.mark.usefixtures("render")
def test_each_class_has_its_limit_its_ladder_and_its_calendar(app: Mulligan) -> None:
    told = app.policy.explain("render")
    resource, transient = told.of_class("resource"), told.of_class("transient")
    assert (resource.limit, resource.limit_origin, resource.then) == (
        1,
        "kind render",
        (Then(queue="big"),),
    )
    assert [found.at for found in transient.calendar] == [0, 60, 360, 660]
    assert not told.of_class("auth").retried
    assert [one.retried for one in told.classes] == [True] * 5 + [False] * 5


@pytest.mark.usefixtures("render")
def test_what_a_job_would_say_stands_above_all(app: Mulligan) -> None:
    told = app.policy.explain(
        "render", max_retries=1, policy=Policy(backoff=Fixed(9)), queue="other"
    )
    assert (told.queue, told.field("max_losses").scope) == ("other", "system")
    assert (told.field("max_retries").origin, told.field("backoff").value) == ("job", Fixed(9))


def test_a_kind_may_be_given_itself(app: Mulligan, render: Kind[[], None]) -> None:
    assert app.policy.explain(render) == app.policy.explain("render")


@pytest.mark.usefixtures("render")
def test_the_answer_is_frozen_and_plain_json(app: Mulligan) -> None:
    told = app.policy.explain("render")
    with pytest.raises(FrozenInstanceError):
        told.kind = "other"  # type: ignore[misc]
    plain = json.loads(json.dumps(told.to_plain()))
    assert plain["fields"][-2]["value"] == {"seconds": [60.0, 300.0], "type": "table"}
    resource = next(one for one in plain["classes"] if one["class"] == "resource")
    assert resource["then"] == [{"queue": "big"}]
    assert resource["calendar"][1]["at_latest"] == 60


@pytest.mark.usefixtures("render")
def test_another_process_knows_it_from_the_manifest(
    app: Mulligan, make_app: Callable[..., Mulligan]
) -> None:
    app.run_inline()
    told = make_app().policy.explain("render")
    assert told == app.policy.explain("render")


def test_rules_that_change_more_than_a_name_are_part_of_it(
    app: Mulligan, make_app: Callable[..., Mulligan]
) -> None:
    own = Rule("own", errno=5, code="OWN", cls="transient", max_retries=1)
    everywhere = Rule("everywhere", errno=6, code="APP", cls="transient", backoff=Fixed(1))
    app.rules.add(everywhere, Rule("named", errno=7, code="NAMED", cls="transient"))
    app.job(name="shoot", rules=[own])(lambda: None)
    assert app.policy.explain("shoot").rules == (own, everywhere)
    app.run_inline()
    assert make_app().policy.explain("shoot") == app.policy.explain("shoot")


@pytest.mark.usefixtures("render")
def test_an_unknown_kind_gets_the_nearest_one(app: Mulligan) -> None:
    with pytest.raises(NotFound, match="did you mean 'render'"):
        app.policy.explain("rendr")


@pytest.mark.usefixtures("render")
def test_the_same_can_be_awaited(app: Mulligan) -> None:
    assert asyncio.run(app.aio.policy.explain("render")) == app.policy.explain("render")
    assert asyncio.run(app.aio.policy.kinds()) == ["render"]
    assert asyncio.run(app.aio.policy.system()) == app.policy.system()


def test_a_class_that_the_settings_forbid_says_where_they_come_from(
    make_app: Callable[..., Mulligan],
) -> None:
    app = make_app(
        retry__classes__timeout__base_delay="7", retry__classes__unknown__max_retries="1"
    )
    told = app.policy.system()
    assert (
        told.of_class("timeout").backoff_origin
        == "environment MULLIGAN_RETRY__CLASSES__TIMEOUT__BASE_DELAY"
    )
    assert (
        told.of_class("unknown").limit_origin
        == "environment MULLIGAN_RETRY__CLASSES__UNKNOWN__MAX_RETRIES"
    )
