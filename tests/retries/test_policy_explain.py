"""`app.policy.explain`: effective policy, origin of each value, calendar of attempts."""

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

    explanation = app.policy.explain("render")
    assert [
        (field.name, field.value, field.scope, field.origin) for field in explanation.fields
    ] == [
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
def test_each_class_shows_limit_steps_and_calendar(app: Mulligan) -> None:
    explanation = app.policy.explain("render")
    resource, transient = explanation.of_class("resource"), explanation.of_class("transient")
    assert (resource.limit, resource.limit_origin, resource.then) == (
        1,
        "kind render",
        (Then(queue="big"),),
    )
    assert [found.at for found in transient.calendar] == [0, 60, 360, 660]
    assert not explanation.of_class("auth").retried
    assert [one.retried for one in explanation.classes] == [True] * 5 + [False] * 5


@pytest.mark.usefixtures("render")
def test_job_options_win_over_all_scopes(app: Mulligan) -> None:
    explanation = app.policy.explain(
        "render", max_retries=1, policy=Policy(backoff=Fixed(9)), queue="other"
    )
    assert (explanation.queue, explanation.field("max_losses").scope) == ("other", "system")
    assert (explanation.field("max_retries").origin, explanation.field("backoff").value) == (
        "job",
        Fixed(9),
    )


def test_kind_object_is_accepted(app: Mulligan, render: Kind[[], None]) -> None:
    assert app.policy.explain(render) == app.policy.explain("render")


@pytest.mark.usefixtures("render")
def test_explanation_is_frozen_and_json(app: Mulligan) -> None:
    explanation = app.policy.explain("render")
    with pytest.raises(FrozenInstanceError):
        explanation.kind = "other"  # type: ignore[misc]
    record = json.loads(json.dumps(explanation.to_dict()))
    assert record["fields"][-2]["value"] == {"seconds": [60.0, 300.0], "type": "table"}
    resource = next(one for one in record["classes"] if one["class"] == "resource")
    assert resource["then"] == [{"queue": "big"}]
    assert resource["calendar"][1]["at_latest"] == 60


@pytest.mark.usefixtures("render")
def test_explanation_works_from_the_stored_manifest(
    app: Mulligan, make_app: Callable[..., Mulligan]
) -> None:
    app.run_inline()
    explanation = make_app().policy.explain("render")
    assert explanation == app.policy.explain("render")


def test_rules_with_retry_terms_are_listed(
    app: Mulligan, make_app: Callable[..., Mulligan]
) -> None:
    of_kind = Rule("own", errno=5, code="OWN", cls="transient", max_retries=1)
    everywhere = Rule("everywhere", errno=6, code="APP", cls="transient", backoff=Fixed(1))
    app.rules.add(everywhere, Rule("named", errno=7, code="NAMED", cls="transient"))
    app.job(name="shoot", rules=[of_kind])(lambda: None)
    assert app.policy.explain("shoot").rules == (of_kind, everywhere)
    app.run_inline()
    assert make_app().policy.explain("shoot") == app.policy.explain("shoot")


@pytest.mark.usefixtures("render")
def test_unknown_kind_suggests_the_closest_one(app: Mulligan) -> None:
    with pytest.raises(NotFound, match="did you mean 'render'"):
        app.policy.explain("rendr")


@pytest.mark.usefixtures("render")
def test_explain_async(app: Mulligan) -> None:
    assert asyncio.run(app.aio.policy.explain("render")) == app.policy.explain("render")
    assert asyncio.run(app.aio.policy.kinds()) == ["render"]
    assert asyncio.run(app.aio.policy.system()) == app.policy.system()


def test_class_forbidden_by_settings_names_their_origin(
    make_app: Callable[..., Mulligan],
) -> None:
    app = make_app(
        retry__classes__timeout__base_delay="7", retry__classes__unknown__max_retries="1"
    )
    explanation = app.policy.system()
    assert (
        explanation.of_class("timeout").backoff_origin
        == "environment MULLIGAN_RETRY__CLASSES__TIMEOUT__BASE_DELAY"
    )
    assert (
        explanation.of_class("unknown").limit_origin
        == "environment MULLIGAN_RETRY__CLASSES__UNKNOWN__MAX_RETRIES"
    )
