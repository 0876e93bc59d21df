"""Live updates of campaigns as server-sent events.

One reader of Mulligan's event log serves all tabs. A tab costs something only when a copy of its
campaign changes, however many recipients the campaign has.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from sqlalchemy import select

from mulligan import Event
from mulligan.apps.watermark import views
from mulligan.apps.watermark.data import Campaign, Token
from mulligan.apps.watermark.jobs import app, db

TICK = 1.0  # seconds between two reads of the progress of running copies
FAILED = ("job.died", "job.cancelled")
UNCHANGED = ("job.queued", "job.cancel_requested", "job.stale_refused")  # the page shows it already


async def follow(
    campaign: Campaign, token: Token | None = None, after: int | None = None
) -> AsyncIterator[str]:
    """Yield the state of a published campaign and its copies, or of one copy; then every change.

    With `after`, the id of the last event that a browser has, yield only changes since then.
    """
    only = f"job:{token.job_id}" if token else f"batch:{campaign.batch_id}"
    token_id = token.id if token else None
    snapshot_due = after is None
    percents: dict[str, int] = {}
    async for event in app.aio.events.follow(only, after=after, heartbeat=TICK):
        if snapshot_due or event.type == "gap":
            # The reader is attached by now: what changes after the snapshot is an event.
            for frame in await asyncio.to_thread(_snapshot, campaign.id, token_id):
                yield frame
            snapshot_due = False
        for frame in await _frames(event):
            yield frame
        before = percents
        tick = int(time.monotonic() / TICK)
        percents = await asyncio.to_thread(_running_percents, str(campaign.batch_id), tick)
        for running, percent in percents.items():
            if before.get(running) != percent and token_id in (None, running):
                yield _frame("token_progress", {"token_id": running, "percent": percent})


def _snapshot(campaign_id: str, token_id: str | None) -> list[str]:
    with db() as session:
        campaign = session.get_one(Campaign, campaign_id)
        view = views.campaign_view(campaign)
        if token_id is None:
            tokens = views.token_views(campaign, view.state)
        else:
            tokens = [views.token_view(session.get_one(Token, token_id), view.state)]
    frames = [_frame("campaign", asdict(view))]
    return frames + [_frame("token", _token_body(token)) for token in tokens]


async def _frames(event: Event) -> tuple[str, ...]:
    """Return what a browser gets for an event."""
    if event.type in ("heartbeat", "gap"):
        return (": still here\n\n",)
    if event.type in UNCHANGED or event.batch_id is None:
        return ()
    error = str(event.data.get("message", "")) if event.type in FAILED else None
    return await asyncio.to_thread(_read_frames, event.id, event.batch_id, event.job_id, error)


@lru_cache(maxsize=2_000)  # each change is read once for all tabs
def _read_frames(
    event_id: int, batch_id: str, job_id: str | None, error: str | None
) -> tuple[str, ...]:
    """Return the failure, if the event is one, and the state of copy and campaign as it is now."""
    frames = []
    with db() as session:
        campaign = session.scalar(select(Campaign).where(Campaign.batch_id == batch_id))
        if campaign is None:
            return ()
        view = views.campaign_view(campaign)
        token = session.scalar(select(Token).where(Token.job_id == job_id)) if job_id else None
        if token is not None:
            body = _token_body(views.token_view(token, view.state))
            if error is not None:
                failure = {"token_id": token.id, "error": error}
                frames.append(_frame("token_failed", failure, event_id))
            frames.append(_frame("token", body, event_id))
    return (*frames, _frame("campaign", asdict(view), event_id))


@lru_cache(maxsize=1_000)  # `tick` limits the reads to one per second for all tabs
def _running_percents(batch_id: str, tick: int) -> dict[str, int]:  # noqa: ARG001 - a cache key
    return views.running_percents(batch_id)


def _token_body(token: views.TokenView) -> dict[str, Any]:
    return {**asdict(token), "token_id": token.id}


def _frame(event: str, body: dict[str, Any], event_id: int | None = None) -> str:
    position = "" if event_id is None else f"id: {event_id}\n"
    return f"{position}event: {event}\ndata: {json.dumps(body, default=str)}\n\n"
