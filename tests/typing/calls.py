"""Calls as users write them. Lines that must be a type error end with `# wrong: arg-type`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from mulligan import Batch, Context, Fixed, Job, Kind, Mulligan, Policy, Retry, Table, Then, Unique
from mulligan.guards.gate_status import Queue
from mulligan.jobs.search import CappedCount, JobList
from mulligan.operations.request import OperationPreview
from mulligan.operations.service import Operation

app = Mulligan("sqlite:///x.db")


@dataclass
class Order:
    item: str


@app.job
def simple(clip: int, size: str = "small") -> dict[str, int]:
    return {size: clip}


@app.job
def with_context(ctx: Context, clip: int) -> int:
    return ctx.attempt + clip


@app.job(
    queue="render",
    uses="gateway",
    timeout=300,
    policy=Policy(max_retries=3),
    unique=Unique(by="payload.clip"),
)
def with_options(ctx: Context, clip: int, *, loud: bool = False) -> str | Retry:
    return Retry(after=3) if loud else str(clip)


@app.job
async def waits(clip: int) -> str:
    return str(clip)


@app.job
async def waits_with_context(ctx: Context, clip: int) -> str:
    await ctx.checkpoint_async("clip", clip)
    return await ctx.run_async(["echo", str(clip)], timeout=5, on_line=print)


@app.job(priority=3, uses=lambda payload: payload["host"])
async def waits_with_options(ctx: Context, host: str) -> None: ...


@app.job
def nothing() -> None: ...


@app.job
def perhaps_with_context(ctx: Context | None, clip: int) -> None: ...


@app.job(timeout=timedelta(minutes=5))
def takes_anything(data: Any, note: str = "") -> None: ...


@app.job
def takes_an_object(data: object, note: str) -> None: ...


@app.job
def takes_a_model(order: Order, *, express: bool) -> Order:
    return order


@app.job
def takes_the_context_last(clip: int, ctx: Context) -> None: ...


class Shop:
    @staticmethod
    @app.job
    def ship(order: int) -> str:
        return str(order)


# -- right ---------------------------------------------------------------------------------------
configured = simple
configured = simple.options(
    delay=30, priority=5, owner="acme", unique="key", max_retries=5
)  # the same type
assert_type(simple.enqueue(clip=7), Job[dict[str, int]])
assert_type(simple.enqueue(7, "large"), Job[dict[str, int]])
assert_type(with_context.enqueue(7), Job[int])
assert_type(with_options.enqueue(7, loud=True), Job[str])
assert_type(waits_with_options.enqueue(host="a"), Job[None])
assert_type(nothing.enqueue(), Job[None])
assert_type(simple.options(delay=30).enqueue(clip=7), Job[dict[str, int]])
assert_type(with_context.options(deadline=60).options(owner="acme").enqueue(clip=7), Job[int])
assert_type(simple.enqueue_many([{"clip": 1}, {"clip": 2}]), list[Job[dict[str, int]]])
assert_type(simple(7), dict[str, int])
assert_type(app.enqueue("simple", {"clip": 7}, queue="render"), Job)
assert_type(app.jobs.get("id"), Job)
assert_type(app.jobs.list("state:dead"), JobList)
assert_type(app.jobs.count("state:dead"), CappedCount)
assert_type(simple.name, str)
assert_type(perhaps_with_context.enqueue(clip=7), Job[None])
takes_anything.enqueue(
    data={"a": 1}, note="x"
)  # a first parameter that could be a context: left unchecked
takes_an_object.enqueue(data={"a": 1}, note="x")
assert_type(takes_a_model.enqueue(Order("lamp"), express=True), Job[Order])
assert_type(takes_a_model.enqueue(Order("lamp"), express=True).value(), Order)
assert_type(takes_a_model(Order("lamp"), express=True), Order)
assert_type(Shop.ship.enqueue(order=7), Job[str])
assert_type(
    simple.options(delay=datetime.now(UTC), deadline=timedelta(hours=1), unique=Unique()).enqueue(
        7
    ),
    Job[dict[str, int]],
)
assert_type(simple.options(connection=object()).enqueue_many([]), list[Job[dict[str, int]]])
assert_type(
    app.batch("spring", owner="acme", on_complete=nothing, tolerance="10%", expires_in=3600), Batch
)
with app.batch("spring", on_complete="nothing", tolerance=0.1, unique="k") as batch:
    assert_type(batch, Batch)
    assert_type(simple.options(batch=batch, must_have=True).enqueue(7).value(), dict[str, int])
    assert_type(simple.options(batch=batch.id).enqueue(7), Job[dict[str, int]])
assert_type(batch.refresh(), Batch)
assert_type(batch.wait(timeout=3), Batch)
assert_type(batch.jobs(), list[Job])
assert_type(with_context.enqueue(7).result, int)
assert_type(with_context.enqueue(7).wait(timeout=3).value(), int)
assert_type(with_context.enqueue(7).refresh().cancel(reason="late"), Job[int])
assert_type(with_options.enqueue(7).release, str)
assert_type(waits.enqueue(7).retry(), Job[str])
assert_type(app.jobs.get("id").value(), Any)
assert_type(app.batches.get("id"), Batch)


async def walk() -> None:
    assert_type(await simple.enqueue_async(clip=7), Job[dict[str, int]])
    assert_type((await simple.options(owner="acme").enqueue_async(7)).value(), dict[str, int])
    assert_type(await simple.enqueue_many_async([{"clip": 1}]), list[Job[dict[str, int]]])
    assert_type(await waits(7), str)
    assert_type(await waits.enqueue_async(clip=7), Job[str])
    assert_type((await waits.enqueue_async(clip=7)).value(), str)
    assert_type(await (await waits_with_context.enqueue_async(clip=7)).wait_async(3), Job[str])
    assert_type(await app.aio.jobs.wait("id", timeout=3), Job)
    assert_type(await app.aio.jobs.list(), JobList)
    assert_type(await app.aio.jobs.get("id", owner="acme"), Job)
    assert_type(await app.aio.batches.seal("id"), Batch)
    assert_type(await app.aio.queues.set("render", concurrency=4, rate="5/s"), Queue)
    assert_type(await app.aio.operations.start("retry", "state:dead"), Operation)
    assert_type(
        await app.aio.operations.start("retry", "state:dead", dry_run=True), OperationPreview
    )
    assert_type((await app.aio.keys.create("acme", "viewer")).text, str)
    async with await app.aio.batch("spring") as batch:
        assert_type(batch, Batch)
    assert_type(await app.aio.enqueue("simple", {"clip": 7}), Job)


@app.on_start
def opened() -> dict[str, int]:
    return {"size": 3}


# -- wrong ---------------------------------------------------------------------------------------
simple.enqueue(clip="x")  # wrong: arg-type
simple.enqueue("x")  # wrong: arg-type
simple.enqueue()  # wrong: call-arg
simple.enqueue(clip=7, colour="red")  # wrong: call-arg
simple.enqueue(7, "large", 3)  # wrong: call-arg
with_context.enqueue(clip="x")  # wrong: arg-type
with_context.enqueue(ctx=None, clip=7)  # wrong: call-arg
with_options.enqueue(clip="x")  # wrong: arg-type
with_options.enqueue(7, loud="yes")  # wrong: arg-type
waits.enqueue(clip="x")  # wrong: arg-type
waits_with_context.enqueue(clip="x")  # wrong: arg-type
waits_with_options.enqueue(host=3)  # wrong: arg-type
nothing.enqueue(1)  # wrong: call-arg
simple.options(delay=30).enqueue(clip="x")  # wrong: arg-type
with_options.options(priority=1).enqueue(clip="x")  # wrong: arg-type
simple.options(prio=3)  # wrong: call-arg
simple.options(priority="high")  # wrong: arg-type
perhaps_with_context.enqueue(clip="x")  # wrong: arg-type
takes_a_model.enqueue(order="lamp", express=True)  # wrong: arg-type
takes_a_model.enqueue(Order("lamp"))  # wrong: call-arg
takes_the_context_last.enqueue(clip=7)  # wrong: call-arg
Shop.ship.enqueue(order="x")  # wrong: arg-type
simple.enqueue_many([7])  # wrong: list-item
simple.options(unique=7)  # wrong: arg-type
simple.options(batch=7)  # wrong: arg-type
app.batch("spring", on_complete=7)  # wrong: arg-type
simple.options(delay="soon")  # wrong: arg-type
app.job(timeout="long")  # wrong: call-overload
app.enqueue(7, {})  # wrong: arg-type
Policy(max_retries="often")  # wrong: arg-type
Policy(
    backoff=Table([60, 300, 900]),
    classes={"timeout": Policy(backoff=Fixed(5))},
    then=Then(queue="big"),
)
Policy(then=[Then(memory_limit=8_000_000_000, timeout=60), Then(settings={"preset": "fast"})])
Then(queue=7)  # wrong: arg-type


async def goes_wrong() -> None:
    await simple.enqueue_async(clip="x")  # wrong: arg-type
    await waits.enqueue_async(clip="x")  # wrong: arg-type
    await waits_with_context.enqueue_async(clip="x")  # wrong: arg-type
    await app.aio.jobs.get(7)  # wrong: arg-type
    await app.aio.jobs.get("id", colour="red")  # wrong: call-arg
    await app.aio.jobs.find("id")  # wrong: attr-defined
    await app.aio.workers.list()  # wrong: attr-defined
    await app.aio.queues.set("render", concurrency="many")  # wrong: arg-type


def takes_kinds(kind: Kind[[int], Any], call: Callable[..., Coroutine[Any, Any, str]]) -> None: ...


def takes_jobs(job: Job, number: Job[int]) -> None: ...


takes_jobs(waits.enqueue(7), with_context.enqueue(7))
takes_jobs(waits.enqueue(7), waits.enqueue(7))  # wrong: arg-type
takes_kinds(with_context, waits)
takes_kinds(nothing, waits)  # wrong: arg-type
