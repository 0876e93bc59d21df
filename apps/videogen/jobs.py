"""The Mulligan app: a kind for each provider, so that each has its own policy, rules, breaker and numbers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypedDict

import httpx2

from mulligan import Context, Kind, Message, Mulligan, Webhook
from videogen.providers import BY_KIND, BY_MODEL, PROVIDERS, Provider
from videogen.settings import read_settings

SETTINGS = read_settings()

STATUS_OF = {
    "job.started": "running",
    "job.retry_scheduled": "retrying",
    "job.snoozed": "retrying",  # its provider is down: it waits, and is not charged
    "job.lost": "retrying",
    "job.succeeded": "succeeded",
    "job.died": "failed",
    "job.retried": "pending",
}
LONGEST_PAUSE = 2.0  # seconds between two looks at a video in the making

app = Mulligan()


class Made(TypedDict):
    video: str


class GenerationError(Exception):
    """The provider could not end what it has begun, or says what nobody understands."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


# -- one video -----------------------------------------------------------------------------------
class SoFar(TypedDict):
    """What is known of a task beyond its attempts."""

    video: str | None  # that the provider is making
    given_up: int  # videos that it could not end
    spent: float


async def generate(ctx: Context, model: str, prompt: str, seconds: int, size: str) -> Made:
    """What was begun goes on at the next attempt, for it is paid for."""
    order = {"model": model, "prompt": prompt, "seconds": seconds, "size": size}
    so_far = await remembered(ctx)
    async with calling(BY_MODEL[model]) as provider:
        if so_far["video"] is None:
            so_far = await begun(ctx, provider, order, so_far)
        await finished(ctx, provider, so_far)
        answer = await provider.get(f"/generations/{so_far['video']}/content")
        answer.raise_for_status()
    return Made(video=stored(ctx, answer.content))


async def remembered(ctx: Context) -> SoFar:
    """An attempt whose worker died has told nobody what it spent: then this one does."""
    so_far: SoFar | None = ctx.checkpoints.get("so_far")
    if so_far is None:
        return SoFar(video=None, given_up=0, spent=0.0)
    ctx.cost(max(0.0, so_far["spent"] - (await app.aio.jobs.get(ctx.job.id)).cost))
    return so_far


def calling(provider: Provider) -> httpx2.AsyncClient:
    url = f"{SETTINGS.provider_url}/{provider.name}"
    return httpx2.AsyncClient(
        base_url=url, timeout=SETTINGS.provider_timeout, verify=url.startswith("https:")
    )


async def begun(
    ctx: Context, provider: httpx2.AsyncClient, order: dict[str, Any], so_far: SoFar
) -> SoFar:
    """Under the same key until a video was given up: an answer that was lost is no second video."""
    headers = {"Idempotency-Key": f"{ctx.job.id}-{so_far['given_up']}"}
    answer = await provider.post("/generations", json=order, headers=headers)
    answer.raise_for_status()
    if not isinstance(video := answer.json().get("id"), str):
        raise GenerationError("odd_answer", "the answer names no video")
    price = BY_MODEL[order["model"]].price * order["seconds"]
    so_far = {**so_far, "video": video, "spent": so_far["spent"] + price}
    await ctx.checkpoint_async("so_far", so_far)
    ctx.cost(price)
    return so_far


async def finished(ctx: Context, provider: httpx2.AsyncClient, so_far: SoFar) -> None:
    pause = 0.02
    while True:
        answer = await provider.get(f"/generations/{so_far['video']}")
        answer.raise_for_status()
        now = answer.json()
        if now["status"] == "succeeded":
            return
        if now["status"] == "failed":
            await ctx.checkpoint_async(
                "so_far", {**so_far, "video": None, "given_up": so_far["given_up"] + 1}
            )
            raise GenerationError(now["error"]["code"], now["error"]["message"])
        ctx.progress(now["progress"])
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


# -- files ---------------------------------------------------------------------------------------
def video_of(job_id: str) -> Path:
    return Path(SETTINGS.folder) / f"{job_id}.mp4"


def stored(ctx: Context, video: bytes) -> str:
    """Whole or not at all."""
    goal = video_of(ctx.job.id)
    goal.parent.mkdir(parents=True, exist_ok=True)
    draft = goal.with_suffix(f".{ctx.token}.part")
    draft.write_bytes(video)
    draft.replace(goal)
    return goal.name


def there(ctx: Context) -> Made | None:
    """An earlier attempt may have stored it and died before anybody heard of it."""
    goal = video_of(ctx.job.id)
    return Made(video=goal.name) if goal.exists() else None


# -- providers -----------------------------------------------------------------------------------
def registered(provider: Provider) -> Kind[..., Any]:
    """With its breaker, unless nothing is tried again: then there is nothing to hold back."""

    def well() -> None:
        with httpx2.Client(timeout=5, verify=SETTINGS.provider_url.startswith("https:")) as client:
            client.get(f"{SETTINGS.provider_url}/{provider.name}/health").raise_for_status()

    app.dependency(provider.name, probe=well, budget=provider.retries.budget, max_concurrency=20)
    return app.job(
        name=provider.kind,
        uses=provider.name if SETTINGS.enable_retries else None,
        policy=provider.retries.policy,
        rules=provider.all_rules,
        timeout=SETTINGS.task_timeout,
        done=there,
    )(generate)


KINDS = {provider.name: registered(provider) for provider in PROVIDERS}


# -- webhooks ------------------------------------------------------------------------------------
def told(message: Message) -> dict[str, Any]:
    """A task in a few words; which retry it is counts from one."""
    data = message.data
    return {
        "taskId": f"task_{message.job_id}",
        "status": STATUS_OF[message.type],
        "retryCount": data.get("failures" if message.retrying else "failed_before", 0),
        "maxRetries": BY_KIND[data["kind"]].retries.max_retries,
        "error": data.get("message"),
    }


for owner, hook in SETTINGS.webhooks.items():
    app.notify(
        on=list(STATUS_OF),
        to=Webhook(
            hook.url, secret=hook.secret, render=told, allow_private=SETTINGS.private_webhooks
        ),
        owner=owner,
        filter=f"kind:{','.join(BY_KIND)}",
        name=f"webhook-{owner}",
    )
