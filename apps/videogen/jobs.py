"""The Mulligan app: one kind per provider, each with its policy, rules, breaker and metrics."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

import httpx2

from mulligan import Context, Kind, Message, Mulligan, Webhook
from mulligan.apps.alerts import send_alerts_to
from mulligan.apps.videogen.providers import BY_KIND, BY_MODEL, PROVIDERS, Provider
from mulligan.apps.videogen.settings import read_settings

SETTINGS = read_settings()

STATUS_OF = {
    "job.started": "running",
    "job.retry_scheduled": "retrying",
    "job.snoozed": "retrying",  # the provider is down: the task waits uncharged
    "job.lost": "retrying",
    "job.released": "pending",  # its worker stopped before the task was done
    "job.succeeded": "succeeded",
    "job.died": "failed",
    "job.retried": "pending",
}
MAX_POLL_INTERVAL = 2.0  # seconds between two polls of a generation

app = Mulligan(settings=SETTINGS.mulligan)


class GeneratedVideo(TypedDict):
    """Result of a job: the file name of the video."""

    video: str


class GenerationError(Exception):
    """The provider could not finish a generation, or its answer has an unknown form."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


# --- One video -----------------------------------------------------------------------------------
class Progress(TypedDict):
    """Checkpoint of a task: what must survive the attempt."""

    video: str | None  # id of the running generation
    failed_generations: int  # generations that failed
    spent: float


async def generate(
    ctx: Context, model: str, prompt: str, seconds: int, size: str
) -> GeneratedVideo:
    """Generate one video. A retry continues a started generation, because it is already paid."""
    order = {"model": model, "prompt": prompt, "seconds": seconds, "size": size}
    progress = await load_progress(ctx)
    async with connect_provider(BY_MODEL[model]) as provider:
        if progress["video"] is None:
            progress = await start_generation(ctx, provider, order, progress)
        await wait_for_generation(ctx, provider, progress)
        answer = await provider.get(f"/generations/{progress['video']}/content")
        answer.raise_for_status()
    return GeneratedVideo(video=store_video(ctx, answer.content))


async def load_progress(ctx: Context) -> Progress:
    """Load the checkpoint. Report costs of an earlier attempt whose worker died before it could."""
    progress: Progress | None = ctx.checkpoints.get("so_far")
    if progress is None:
        return Progress(video=None, failed_generations=0, spent=0.0)
    job = await app.aio.jobs.get(ctx.job.id)
    ctx.cost(max(0.0, progress["spent"] - job.cost))
    return progress


def connect_provider(provider: Provider) -> httpx2.AsyncClient:
    url = f"{SETTINGS.provider_url}/{provider.name}"
    return httpx2.AsyncClient(
        base_url=url, timeout=SETTINGS.provider_timeout, verify=url.startswith("https:")
    )


async def start_generation(
    ctx: Context, provider: httpx2.AsyncClient, order: dict[str, Any], progress: Progress
) -> Progress:
    """Start a generation.

    The idempotency key changes only after a failed generation, so that a lost answer does not
    start (and charge) a second one.
    """
    headers = {"Idempotency-Key": f"{ctx.job.id}-{progress['failed_generations']}"}
    answer = await provider.post("/generations", json=order, headers=headers)
    answer.raise_for_status()
    video = answer.json().get("id")
    if not isinstance(video, str):
        raise GenerationError("odd_answer", "the answer names no video")
    price = BY_MODEL[order["model"]].price * order["seconds"]
    progress = {**progress, "video": video, "spent": progress["spent"] + price}
    await ctx.checkpoint_async("so_far", progress)
    ctx.cost(price)
    return progress


async def wait_for_generation(
    ctx: Context, provider: httpx2.AsyncClient, progress: Progress
) -> None:
    interval = 0.02
    while True:
        answer = await provider.get(f"/generations/{progress['video']}")
        answer.raise_for_status()
        current = answer.json()
        if current["status"] == "succeeded":
            return
        if current["status"] == "failed":
            await ctx.checkpoint_async(
                "so_far",
                {
                    **progress,
                    "video": None,
                    "failed_generations": progress["failed_generations"] + 1,
                },
            )
            raise GenerationError(current["error"]["code"], current["error"]["message"])
        ctx.progress(current["progress"])
        await asyncio.sleep(interval)
        interval = min(2 * interval, MAX_POLL_INTERVAL)


# --- Files ---------------------------------------------------------------------------------------
def video_of(job_id: str) -> Path:
    return Path(SETTINGS.folder) / f"{job_id}.mp4"


def store_video(ctx: Context, video: bytes) -> str:
    """Store the video atomically. Return its file name."""
    target = video_of(ctx.job.id)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_suffix(f".{ctx.token}.part")
    draft.write_bytes(video)
    draft.replace(target)
    return target.name


def find_video(ctx: Context) -> GeneratedVideo | None:
    """Return the video if an earlier attempt stored it and died before it was settled."""
    target = video_of(ctx.job.id)
    return GeneratedVideo(video=target.name) if target.exists() else None


# --- Providers -----------------------------------------------------------------------------------
def register_provider(provider: Provider) -> Kind[..., Any]:
    """Register the kind of a provider, with a breaker unless retries are disabled."""

    def check_health() -> None:
        with httpx2.Client(timeout=5, verify=SETTINGS.provider_url.startswith("https:")) as client:
            client.get(f"{SETTINGS.provider_url}/{provider.name}/health").raise_for_status()

    app.dependency(
        provider.name, probe=check_health, budget=provider.retries.budget, max_concurrency=20
    )
    return app.job(
        name=provider.kind,
        uses=provider.name if SETTINGS.enable_retries else None,
        policy=provider.retries.policy,
        rules=provider.all_rules,
        timeout=SETTINGS.task_timeout,
        done=find_video,
    )(generate)


KINDS = {provider.name: register_provider(provider) for provider in PROVIDERS}


# --- Webhooks ------------------------------------------------------------------------------------
def render_webhook(message: Message) -> dict[str, Any]:
    """Render the body of a webhook.

    `seq` grows with every webhook of a task, and they arrive in this order.
    """
    data = message.data
    scheduled = message.type == "job.retry_scheduled"
    return {
        "taskId": f"task_{message.job_id}",
        "status": STATUS_OF[message.type],
        "retryCount": data["failures"] if scheduled else message.retries,
        "maxRetries": BY_KIND[data["kind"]].retries.max_retries,
        "error": data.get("message"),
        "seq": message.seq,
        "time": format_time(datetime.fromtimestamp(message.at / 1e6, UTC)),
    }


def format_time(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


send_alerts_to(app, SETTINGS.alert_email, SETTINGS.alert_webhook)

for owner, hook in SETTINGS.webhooks.items():
    app.notify(
        on=list(STATUS_OF),
        to=Webhook(
            hook.url,
            secret=hook.secret,
            render=render_webhook,
            allow_private=SETTINGS.private_webhooks,
        ),
        owner=owner,
        filter=f"kind:{','.join(BY_KIND)}",
        name=f"webhook-{owner}",
    )
