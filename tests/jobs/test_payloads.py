"""Tests of payloads: checked before anything is written, and again by the runner."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import pydantic
import pytest

from mulligan import Context, Mulligan, Policy, State, Unique
from mulligan.config import Settings
from mulligan.core.errors import ConfigError, MulliganError, PayloadRefused, Refused
from mulligan.core.ids import new_id
from mulligan.core.job import NewJob
from mulligan.events.queries import EventQueries
from mulligan.jobs.queries import JobQueries
from support.app_tools import assert_other_jobs_run, error_code, load_private, run_job

if TYPE_CHECKING:
    from somewhere import Nothing  # type: ignore[import-not-found]


def nothing_was_written(app: Mulligan) -> bool:
    with app.store.read() as tx:
        return app.jobs.list() == [] and EventQueries(tx).list_events_after(0, 10) == []


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


# -- arguments -----------------------------------------------------------------------------------
NOT_TAKEN = [
    ({}, "clip: is missing"),
    ({"clip": "x"}, "clip: .*integer"),
    ({"clip": 1.5}, "clip: .*integer"),
    ({"clip": None}, "clip: .*integer"),
    ({"clip": 1, "size": "wide"}, "size: .*'small' or 'large'"),
    ({"clip": 1, "clap": 2}, "clap: unknown argument"),
    ({"clip": 1, "ctx": 2}, "ctx: unknown argument"),
    ({"clip": 1, 2: 3}, "must map argument names"),
    ({"clip": 1, "more": math.nan}, "JSON"),
    ({"clip": 1, "more": object()}, "JSON"),
    ({"clip": 1, "more": b"\xff"}, "JSON"),
    ({"clip": 1, "more": 10**5000}, "JSON"),
    ({"clip": 1, "more": nested(10_000)}, "JSON|nested"),
    ({"clip": 1, "more": nested(150)}, "nested"),
    ({"clip": 1, "more": "x" * 1_100_000}, "1,100,020 bytes.*limit is 1,048,576"),
]


def test_a_payload_that_does_not_fit_the_handler_is_refused_before_writing(app):
    @app.job(name="render")
    def render(
        ctx: Context, clip: int, size: Literal["small", "large"] = "small", more: Any = None
    ) -> None: ...

    for payload, message in NOT_TAKEN:
        with pytest.raises(PayloadRefused, match=message):
            render.enqueue_many([{"clip": 1}, payload])
        with pytest.raises(PayloadRefused, match=message):
            app.enqueue("render", payload)
    assert nothing_was_written(app)


def test_without_a_handler_a_payload_must_still_be_json(app):
    for payload in (math.nan, object(), nested(10_000), nested(150), 10**5000, "x" * 1_100_000):
        with pytest.raises(PayloadRefused):
            app.enqueue("elsewhere", {"value": payload})
    assert nothing_was_written(app)


def test_calls_that_do_not_fit_the_signature_are_refused_by_name(app):
    @app.job
    def render(ctx: Context, clip: int, *, size: str = "small") -> None: ...

    for args, kwargs, message in (
        ((), {}, "missing.*'clip'"),
        ((1, 2), {}, "too many"),
        ((1,), {"clip": 2}, "multiple values.*'clip'"),
        ((1,), {"colour": 2}, "unknown argument 'colour'. It takes clip, size"),
    ):
        with pytest.raises(PayloadRefused, match=message):
            render.enqueue(*args, **kwargs)
    assert nothing_was_written(app)


LOOKED_AT = pydantic.Field()  # and says nothing


def stored(kind: Any, values: dict[str, Any]) -> Any:
    """Its payload, with its order and the types in it, or why there is none."""
    try:
        return json.dumps(kind.enqueue_many([values])[0].payload)
    except PayloadRefused as refused:
        return str(refused).replace("simple", "checked")


def test_values_of_exact_types_are_stored_like_validated_values(app):
    @app.job
    def simple(
        n: int, ratio: float, text: str, flag: bool, maybe: int | None, late: str = ""
    ) -> None: ...

    @app.job
    def checked(
        n: Annotated[int, LOOKED_AT],
        ratio: Annotated[float, LOOKED_AT],
        text: Annotated[str, LOOKED_AT],
        flag: Annotated[bool, LOOKED_AT],
        maybe: Annotated[int | None, LOOKED_AT],
        late: Annotated[str, LOOKED_AT] = "",
    ) -> None: ...

    every = {"late": "l", "n": 1, "ratio": 1.5, "text": "t", "flag": True, "maybe": None}
    values = [
        0,
        1,
        -(10**30),
        10**5000,
        1.0,
        -0.0,
        math.nan,
        math.inf,
        True,
        None,
        "",
        "7",
        "ü 😀",
        "a\x00b",
        "\ud800",
        [],
        {},
    ]
    values = [every, *({**every, name: value} for name in every for value in values)]
    values += [{name: every[name] for name in every if name != left} for left in every] + [
        {**every, "more": 1}
    ]
    for one in values:
        assert stored(simple, one) == stored(checked, one), one


def test_a_default_may_be_of_another_type_than_the_annotation(app):
    @app.job
    def few(n: int = pydantic.Field(3, le=10)) -> None: ...

    with pytest.raises(PayloadRefused, match=r"n: .*10"):
        few.enqueue(n=11)


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Order(pydantic.BaseModel):
    id: UUID
    at: datetime


def test_arguments_arrive_with_their_annotated_types(app):
    received = []

    @app.job
    def takes(
        ctx: Context,
        n: int,
        point: Point,
        order: Order,
        path: Path,
        wait: timedelta,
        tags: set[str],
        few: Annotated[int, pydantic.Field(le=10)] = 3,
        *,
        flag: bool = False,
    ) -> None:
        received.append((n, point, order, path, wait, tags, few, flag))

    order = Order(id=UUID(int=7), at=datetime(2026, 1, 2, tzinfo=UTC))
    values = (7, Point(1, 2), order, Path("/x"), timedelta(seconds=90), {"a"})
    job = takes.enqueue(*values, flag=True)
    assert run_job(app, job).state is State.SUCCEEDED
    assert received == [(*values, 3, True)]
    assert "few" not in job.payload  # a later default applies to what waits in the queue
    with pytest.raises(PayloadRefused, match="few"):
        takes.enqueue(*values, few=11)


def test_parameters_may_have_any_name(app):
    @app.job
    def odd(
        model_config: str,
        schema: int,
        self_: int,
        copy: int,
        _hidden: int = 1,
        arg__x: int = 2,
        json: int = 3,
    ) -> Any:
        return [model_config, schema, self_, copy, _hidden, arg__x, json]

    done = run_job(
        app, odd.enqueue(model_config="m", schema=1, self_=2, copy=3, _hidden=4, arg__x=5)
    )
    assert done.result == ["m", 1, 2, 3, 4, 5, 3]
    assert done.payload == {
        "model_config": "m",
        "schema": 1,
        "self_": 2,
        "copy": 3,
        "_hidden": 4,
        "arg__x": 5,
    }
    properties = app.registry.handlers[odd.name].spec.schema["properties"]
    assert list(properties) == [
        "model_config",
        "schema",
        "self_",
        "copy",
        "_hidden",
        "arg__x",
        "json",
    ]
    assert (properties["schema"]["title"], properties["schema"]["type"]) == ("Schema", "integer")


def test_extra_keywords_are_accepted_if_the_handler_has_kwargs(app):
    @app.job
    def open_minded(a: int, **rest: Any) -> Any:
        return [a, rest]

    assert run_job(app, open_minded.enqueue(1, b=2, schema=[3])).result == [
        1,
        {"b": 2, "schema": [3]},
    ]


@pytest.mark.parametrize("where", ["first", "last", "optional"])
def test_the_context_parameter_is_found_by_its_annotation(app, where):
    def first(ctx: Context, n: int) -> Any:
        return [ctx.attempt, n]

    def last(n: int, *, context: Context) -> Any:
        return [context.attempt, n]

    def optional(n: int, ctx: Context | None = None) -> Any:
        return [ctx.attempt if ctx else 0, n]

    function = {"first": first, "last": last, "optional": optional}[where]
    kind = app.job(function)
    assert run_job(app, kind.enqueue(n=7)).result == [1, 7]
    assert "ctx" not in app.registry.handlers[kind.name].spec.schema["properties"]
    assert app.registry.handlers[kind.name].spec.needs_history


def test_job_decorator_takes_options_and_refuses_non_functions(app):
    def shout(n: int) -> Any:
        return n

    assert app.job(shout, name="loud").name == "loud"
    for wrong in (("render",), (shout, "mail")):
        with pytest.raises(ConfigError, match=r"by name, for example @app.job\(name='"):
            app.job(*wrong)


def test_a_handler_without_a_context_parameter_gets_none(app):
    def simple(n: int) -> Any:
        return n

    def callback(n: int) -> Any:
        return None

    kinds = {
        "plain": app.job(name="plain")(simple),
        "done": app.job(name="done", done=callback)(simple),
        "can_retry": app.job(name="can_retry", can_retry=callback)(simple),
    }
    remembers = {
        name for name, kind in kinds.items() if app.registry.handlers[kind.name].spec.needs_history
    }
    assert remembers == {"done", "can_retry"}


def test_annotations_under_type_checking_do_not_break_others(app):
    with pytest.warns(UserWarning, match="annotation 'Nothing' of argument other cannot"):

        @app.job
        def partly(ctx: Context, n: int, other: Nothing = None) -> Any:
            return [ctx.attempt, n, other]

    with pytest.raises(PayloadRefused, match="n:"):
        partly.enqueue(n="x")
    assert run_job(app, partly.enqueue(n=7, other=[1])).result == [1, 7, [1]]


def test_any_text_survives_the_round_trip(app):
    @app.job
    def echo(value: Any) -> Any:
        return value

    for value in (
        "nul \x00",
        "half \ud800",
        "😀 ü \u2028",
        "",
        {"": [{}]},
        "'; DROP TABLE job; --",
        "%s %(x)s :name ?",
    ):
        assert run_job(app, echo.enqueue(value=value)).result == value


@pytest.mark.parametrize("value", [{"half \ud800": 1}, {"deep": [{"\udfff": "x"}]}], ids=ascii)
def test_a_name_that_json_cannot_hold_is_refused_with_the_name_of_its_field(app, value):
    @app.job(name="echo")
    def echo(first: str, value: Any, **more: Any) -> None: ...

    with pytest.raises(PayloadRefused, match=r"echo: value: .*surrogates"):
        echo.enqueue(first="half \ud801", value=value)
    with pytest.raises(PayloadRefused, match=r"echo: extra: .*surrogates"):
        echo.enqueue(first="ü", value=1, extra=value)
    assert nothing_was_written(app)


# -- a stored payload that no longer fits --------------------------------------------------------
def test_a_payload_of_an_older_schema_dies_and_others_run(app):
    @app.job
    def render(ctx: Context, clip: int) -> int:
        return clip

    @app.job
    def bare() -> int:
        return 2

    texts = ('{"old_name":7}', '{"clip":"seven"}', "{}", "[1,2]", '"text"', "null", "7")
    stored = [(render.name, text) for text in texts]
    stored += [(bare.name, text) for text in ("[1,2]", "7")]
    old = [NewJob(id=new_id(), kind=kind, queue="default", payload=text) for kind, text in stored]
    with app.store.begin() as tx:
        JobQueries(tx).insert_jobs(old, announce=True)
    other = render.enqueue(clip=2)
    app.run_inline()
    for new in old:
        done = app.jobs.get(new.id)
        assert (done.state, error_code(done), done.attempt) == (State.DEAD, "PAYLOAD_REFUSED", 1), (
            new.payload
        )
        assert load_private(app, done)["message"]
    assert other.refresh().result == 2


# -- options -------------------------------------------------------------------------------------
OUT_OF_RANGE = [
    ({"priority": 10}, "priority"),
    ({"priority": -10}, "priority"),
    ({"priority": 1.0}, "priority"),
    ({"priority": True}, "priority"),
    ({"priority": "high"}, "priority"),
    ({"delay": -1}, "delay"),
    ({"delay": math.nan}, "delay"),
    ({"delay": math.inf}, "delay"),
    ({"delay": 1e308}, "delay"),
    ({"delay": timedelta(days=-1)}, "delay"),
    ({"delay": timedelta.max}, "delay"),
    ({"delay": 1e300}, "delay"),
    ({"delay": "5"}, "delay"),
    ({"delay": True}, "delay"),
    ({"delay": datetime(2031, 1, 1)}, "delay.*zone"),  # noqa: DTZ001 - must be refused
    ({"deadline": -1}, "deadline"),
    ({"deadline": math.nan}, "deadline"),
    ({"deadline": datetime(2031, 1, 1)}, "deadline.*zone"),  # noqa: DTZ001 - must be refused
    ({"timeout": 0}, "timeout"),
    ({"timeout": -1}, "timeout"),
    ({"timeout": math.inf}, "timeout"),
    ({"timeout": datetime(2031, 1, 1, tzinfo=UTC)}, "timeout"),
    ({"max_retries": -1}, "max_retries"),
    ({"max_retries": 1.5}, "max_retries"),
    ({"max_retries": 10**9}, "max_retries"),
    ({"queue": "with space"}, "queue"),
    ({"queue": "pi|pe"}, "queue"),
    ({"queue": "com,ma"}, "queue"),
    ({"queue": "nul\x00"}, "queue"),
    ({"queue": "q" * 201}, "queue"),
    ({"queue": 7}, "queue"),
    ({"owner": None}, "owner"),
    ({"owner": "nul\x00"}, "owner"),
    ({"owner": "half \ud800"}, "owner"),
    ({"owner": "o" * 501}, "owner"),
    ({"unique": ""}, "unique"),
    ({"unique": 7}, "unique"),
    ({"unique": "nul\x00"}, "unique"),
    ({"unique": "u" * 501}, "unique"),
    ({"batch": 7}, "batch"),
    ({"batch": object()}, "batch"),
    ({"batch": "nul\x00"}, "batch"),
    ({"policy": "often"}, "policy"),
    ({"policy": {"max_retries": 3}}, "policy"),
    ({"connection": 7}, "connection"),
]


@pytest.mark.security("S20")
def test_an_option_out_of_range_is_refused_by_name_before_anything_is_written(app):
    app.open()

    @app.job(name="render")
    def render() -> None: ...

    for options, message in OUT_OF_RANGE:
        with pytest.raises((Refused, ConfigError), match=message):
            render.options(**options).enqueue()
        with pytest.raises((Refused, ConfigError), match=message):
            app.enqueue("render", {}, **options)
    assert nothing_was_written(app)


def test_an_unknown_option_is_refused(app):
    with pytest.raises(Refused, match="prio"):
        app.enqueue("render", {}, prio=3)
    assert nothing_was_written(app)


@pytest.mark.security("S18")
def test_a_kind_that_cannot_be_a_name_is_refused(app):
    for kind in ("with space", "pi|pe", "com,ma", "", "nul\x00", "k" * 201, 7, None, "new\nline"):
        with pytest.raises((Refused, ConfigError), match="kind"):
            app.enqueue(kind, {})
    assert nothing_was_written(app)


@pytest.mark.parametrize("payload", [[1], "abc", 7, [("clip", 1)]])
def test_a_payload_by_name_must_be_a_mapping(app, payload):
    with pytest.raises(PayloadRefused):
        app.enqueue("elsewhere", payload)


@pytest.mark.parametrize("kind", ["line\n", "half\ud800"])
def test_a_kind_with_a_newline_at_its_end_or_half_a_character_is_refused(app, kind):
    with pytest.raises((Refused, ConfigError), match="kind"):
        app.enqueue(kind, {})


@pytest.mark.parametrize(
    ("uses", "error"),
    [
        (lambda _: "a b", ConfigError),
        (lambda _: ["ok", 7], ConfigError),
        (lambda _: 7, Refused),
        (lambda payload: payload["missing"], KeyError),
    ],
)
def test_computed_dependencies_are_checked(app, uses, error):
    @app.job(uses=uses)
    def render() -> None: ...

    with pytest.raises(error):
        render.enqueue()
    assert nothing_was_written(app)


def test_dependencies_may_be_computed_from_the_payload(app):
    @app.job(uses=lambda payload: [f"host-{payload['host']}", "gateway", "gateway"])
    def fetch(host: str) -> None: ...

    assert fetch.enqueue(host="a").uses == ("gateway", "host-a")


# -- registration --------------------------------------------------------------------------------
def test_a_second_registration_is_refused_with_both_locations(app):
    def handler() -> None: ...

    def another() -> None: ...

    app.job(name="twice")(handler)
    with pytest.raises(ConfigError) as caught:
        app.job(name="twice")(another)
    lines = [function.__code__.co_firstlineno for function in (handler, another)]
    assert all(f"{Path(__file__).name}:{line}" in str(caught.value) for line in lines)


def test_a_kind_is_named_by_its_function_without_its_module(app):
    @app.job
    def inner() -> str:
        return "ran"

    class Box:
        @staticmethod
        def method() -> str:
            return "ran"

    boxed = app.job(Box.method)
    prefix = "test_a_kind_is_named_by_its_function_without_its_module.<locals>"
    assert (inner.name, boxed.name) == (f"{prefix}.inner", f"{prefix}.Box.method")
    assert [run_job(app, app.enqueue(kind.name)).result for kind in (inner, boxed)] == [
        "ran",
        "ran",
    ]


@pytest.mark.parametrize(
    ("register", "message"),
    [
        (lambda app: app.job(lambda *args: None), r"\*args"),
        (lambda app: app.job(eval("lambda a, /: None")), "cannot be stored by name"),  # noqa: S307 - a positional-only lambda
        (lambda app: app.job(name="with space")(lambda: None), "kind"),
        (lambda app: app.job(name="pi|pe")(lambda: None), "kind"),
        (lambda app: app.job(queue="with space")(lambda: None), "queue"),
        (lambda app: app.job(uses="a,b")(lambda: None), "dependency"),
        (lambda app: app.job(timeout=-1)(lambda: None), "timeout"),
        (lambda app: app.job(timeout=math.nan)(lambda: None), "timeout"),
        (lambda app: app.job(retention=-1)(lambda: None), "retention"),
        (lambda app: app.job(unique=Unique(for_=10**9))(lambda: None), "for_"),
        (lambda app: Unique(by="colour"), "colour"),
        (lambda app: Unique(while_="asleep"), "asleep"),
        (lambda app: Unique(for_=-1).period, "for_"),
        (lambda app: Policy(max_retries=-1), "max_retries"),
        (lambda app: Policy(classes={"transcient": Policy()}), "transient"),
    ],
)
def test_an_invalid_registration_is_refused_at_once(register, message):
    with pytest.raises((MulliganError, pydantic.ValidationError), match=message):
        register(Mulligan(settings=Settings()))


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 10},
        {"priority": "high"},
        {"timeout": 0},
        {"memory_limit": -1},
        {"memory_limit": 0},
        {"cost": -1},
        {"cost": math.nan},
        {"unique": "key"},
        {"policy": {"max_retries": 3}},
    ],
    ids=repr,
)
def test_an_option_of_a_kind_out_of_range_is_refused_when_it_is_registered(options):
    with pytest.raises(MulliganError):
        Mulligan(settings=Settings()).job(**options)(lambda: None)


def test_the_decorated_function_can_be_called_directly(app):
    @app.job
    def double(ctx: Context, n: int) -> int:
        "Twice as much."
        return 2 * n

    @app.job
    async def triple(n: int) -> int:
        return 3 * n

    assert double(None, n=7) == 14
    assert asyncio.run(triple(7)) == 21
    assert (double.__doc__, double.__wrapped__(None, 2)) == ("Twice as much.", 4)


# -- unique --------------------------------------------------------------------------------------
def test_a_derived_unique_key_uses_the_named_parts(app):
    @app.job(unique=Unique(by=("owner", "payload.file.sha256")))
    def convert(file: dict[str, Any]) -> None: ...

    first = convert.options(owner="acme").enqueue(file={"sha256": "a", "name": "one"})
    twin = convert.options(owner="acme").enqueue(file={"sha256": "a", "name": "two"})
    others = [
        convert.options(owner="other").enqueue(file={"sha256": "a"}),
        convert.options(owner="acme").enqueue(file={"sha256": "b"}),
    ]
    assert (twin.id, twin.deduplicated, first.deduplicated) == (first.id, True, False)
    assert len({first.id, *(job.id for job in others)}) == 3


class Size(pydantic.BaseModel):
    width: int
    format: str = "webp"


def test_a_default_that_is_passed_or_left_out_gives_one_unique_key(app):
    by = ("payload.clip", "payload.size.format", "payload.style")

    @app.job(name="render", unique=Unique(by=by))
    def render(clip: int, size: Size, style: str = "flat", note: str = "") -> None: ...

    first = render.enqueue(clip=1, size=Size(width=3))
    again = render.enqueue(clip=1, size=Size(width=3, format="webp"), style="flat", note="x")
    by_name = app.enqueue("render", {"clip": 1, "size": {"width": 4}, "style": "flat"})
    assert {again.id, by_name.id} == {first.id}
    assert first.payload == {"clip": 1, "size": {"width": 3}}  # a later default still applies
    other = render.enqueue(clip=1, size=Size(width=3), style="bold")
    assert other.id != first.id


def test_duplicates_in_one_call_become_one_job(app):
    @app.job(unique=Unique())
    def render(clip: int) -> None: ...

    jobs = render.enqueue_many([{"clip": 1}, {"clip": 2}, {"clip": 1}])
    assert jobs[0].id == jobs[2].id
    assert [job.deduplicated for job in jobs] == [False, False, True]
    assert len(app.jobs.list()) == 2


def test_no_job_of_a_bulk_is_stored_if_one_is_refused(app):
    @app.job
    def render(clip: int) -> None: ...

    with pytest.raises(PayloadRefused):
        render.enqueue_many([*({"clip": n} for n in range(100)), {"clip": "x"}])
    assert nothing_was_written(app)
    assert_other_jobs_run(app)
