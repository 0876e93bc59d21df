"""`@app.on`: functions of the app that run as jobs when an event happens."""

from __future__ import annotations

import pytest

from mulligan import Context, Event, Fail, Fixed, Policy
from mulligan.core.errors import ConfigError, Refused
from mulligan.core.event import EventType
from mulligan.notifications.dispatcher import Dispatcher
from mulligan.notifications.queries import NotificationQueries
from support.app_tools import advance, run_job


@pytest.fixture
def app(make_app):
    app = make_app()

    @app.job(name="fails", policy=Policy(max_retries=0))
    def fails(code: str = "X") -> Fail:
        return Fail(code, final=True)

    @app.job(name="works")
    def works() -> None: ...

    return app


def run(app, *kinds: str) -> list:
    """Publish the app, then run one job of each kind and the reactions to it."""
    app.run_inline()
    return [run_job(app, app.enqueue(kind)) for kind in kinds]


def test_a_function_runs_for_each_matching_event(app):
    got: list[Event] = []

    @app.on("job.died", filter="kind:fails")
    def on_death(event: Event) -> None:
        got.append(event)

    failed, *_ = run(app, "fails", "works")
    (event,) = got
    assert (event.type, event.job_id, event.data["code"]) == ("job.died", failed.id, "X")
    assert event.time.tzinfo is not None
    (reaction,) = app.jobs.list("kind:" + on_death.__qualname__)
    assert (reaction.state, reaction.queue, reaction.owner) == ("succeeded", "reactions", "")


def test_an_async_function_gets_the_event_and_its_context(app):
    got: list[tuple[str, int]] = []

    @app.on(["job.succeeded", "job.died"], name="audit", queue="audits")
    async def audit(ctx: Context, happened: Event) -> None:
        got.append((happened.type, ctx.attempt))

    run(app, "fails", "works")
    assert got == [("job.died", 1), ("job.succeeded", 1)]
    assert {job.queue for job in app.jobs.list("kind:audit")} == {"audits"}


def test_a_reaction_that_fails_is_retried_and_holds_back_later_ones_of_the_same_job(app):
    got: list[tuple[str, str]] = []
    failures = [Fail("HTTP_5XX")]

    @app.on("job.*", name="mirror", policy=Policy(max_retries=3, backoff=Fixed(5)))
    def mirror(event: Event) -> Fail | None:
        if failures:
            return failures.pop()
        got.append((event.job_id, event.type))
        return None

    first, second = run(app, "works", "works")
    assert {job_id for job_id, _ in got} == {second.id}
    for _ in range(3):
        advance(app, 10)
        app.run_inline()
    types = [type_ for job_id, type_ in got if job_id == first.id]
    assert types == ["job.queued", "job.started", "job.succeeded"]


def test_events_about_reactions_start_no_reaction(app):
    calls: list[str] = []

    @app.on("job.*", name="one", policy=Policy(max_retries=0))
    def one(event: Event) -> Fail:
        calls.append("one")
        return Fail("BROKEN", final=True)

    @app.on("job.died", name="other", policy=Policy(max_retries=0))
    def other(event: Event) -> Fail:
        calls.append("other")
        return Fail("BROKEN", final=True)

    run(app, "fails")
    assert sorted(calls) == ["one", "one", "one", "other"]
    assert app.jobs.count("kind:one state:dead") == 3


def test_a_reaction_gets_only_events_of_its_owner(app):
    got: list[str] = []

    @app.on("job.died", owner="acme")
    def on_death(event: Event) -> None:
        got.append(event.owner)

    app.run_inline()
    for owner in ("acme", "globex"):
        app.enqueue("fails", owner=owner)
    app.run_inline()
    assert got == ["acme"]


def test_events_of_a_batch_reach_a_reaction(app):
    got: list[str] = []

    @app.on("batch.*")
    def on_batch(event: Event) -> None:
        got.append(event.type)

    app.run_inline()
    batch = app.batch("spring")
    app.enqueue("fails", batch=batch)
    batch.seal()
    app.run_inline()
    assert got == ["batch.sealed", "batch.failed"]


def test_an_event_and_its_reaction_survive_a_dispatcher_that_dies(app, monkeypatch):
    """The dispatcher fails after it enqueued the reaction: both are undone, and done again."""
    got: list[int] = []

    @app.on("job.died")
    def on_death(event: Event) -> None:
        got.append(event.id)

    app.run_inline()
    app.enqueue("fails")
    with monkeypatch.context() as patch:
        patch.setattr(Dispatcher, "run_once", lambda *_: False)
        app.run_inline()
    with monkeypatch.context() as patch:
        patch.setattr("mulligan.notifications.dispatcher._add_lost", _die)
        with pytest.raises(SystemError):
            Dispatcher(app.settings).run_once(app.store)
    assert got == []
    app.run_inline()
    assert len(got) == 1


def _die(*_: object) -> str:
    raise SystemError


def test_an_operator_can_disable_a_reaction(app):
    got: list[str] = []

    @app.on("job.died", name="on_death")
    def on_death(event: Event) -> None:
        got.append(event.type)

    app.run_inline()
    (subscription,) = app.subscriptions.list()
    assert (subscription.name or subscription.id, subscription.channel) == ("on_death", "reaction")
    app.subscriptions.disable("on_death", reason="too slow")
    run(app, "fails")
    assert got == []
    with pytest.raises(Refused, match="disabled"):
        app.subscriptions.test("on_death")
    app.subscriptions.enable("on_death")
    with pytest.raises(Refused, match="is a reaction"):
        app.subscriptions.test("on_death")
    run(app, "fails")
    assert got == ["job.died"]


def test_an_app_without_reactions_has_no_subscription(app):
    run(app, "fails")
    with app.store.read() as tx:
        assert NotificationQueries(tx).list_subscriptions() == []


def test_a_reaction_that_is_no_longer_declared_gets_nothing(make_app, store_url):
    before = make_app()

    @before.on("job.died", name="on_death")
    def on_death(event: Event) -> None: ...

    before.run_inline()
    after = make_app()

    @after.job(name="fails", policy=Policy(max_retries=0))
    def fails() -> Fail:
        return Fail("X", final=True)

    advance(after, 3600)  # the manifest of the first app expires
    run(after, "fails")
    assert after.jobs.count("kind:on_death") == 0


def test_the_decorated_function_stays_a_function(app):
    @app.on("job.died")
    def on_death(event: Event) -> str:
        return event.type

    event = Event(1, 0, EventType.JOB_DIED, "a", None, "", 1, 1, "", {})
    assert on_death(event) == "job.died"


def test_wrong_declarations_are_refused(app):
    with pytest.raises(ConfigError, match="must take one event"):

        @app.on("job.died")
        def none() -> None: ...

    with pytest.raises(Refused, match=r"unknown event 'job\.dead'"):

        @app.on("job.dead")
        def unknown(event: Event) -> None: ...

    with pytest.raises(Refused, match="unknown filter"):

        @app.on("job.died", filter="colour:red")
        def filtered(event: Event) -> None: ...

    with pytest.raises(ConfigError, match="reserved"):

        @app.on("job.died", name="mulligan.mine")
        def reserved(event: Event) -> None: ...
