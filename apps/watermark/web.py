"""The pages: campaigns and their tokens for owners, a link for every recipient, a page for every detection."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, unquote

from fastapi import Depends, FastAPI, Form, HTTPException, Request, UploadFile
from fastapi.responses import (
    FileResponse,
    HTMLResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from sqlalchemy import select
from sqlalchemy.exc import DataError, DBAPIError

from mulligan.core.errors import MulliganError, NotFound
from watermark import campaigns
from watermark.data import (
    Account,
    Asset,
    Campaign,
    Recipient,
    Session,
    Token,
    copy_of,
    files,
    new_id,
)
from watermark.jobs import app, db, detect

HERE = Path(__file__).parent
EVERY = 0.5  # seconds between two looks of a live page
BEAT = 30  # looks without news until a comment keeps the line open
KEY = re.compile(r"[\w-]{1,100}", re.ASCII)
WRITABLE = r"^[^\x00]*$"
pages = Jinja2Templates(HERE / "templates")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    app.open()  # not at the first request, in the middle of its transaction
    with db() as session:
        campaigns.resume(session)
    yield
    app.close()


web = FastAPI(title="Watermark campaigns", lifespan=lifespan)
web.mount("/static", StaticFiles(directory=HERE / "static"), name="static")


# -- who asks ------------------------------------------------------------------------------------
def transaction() -> Iterator[Session]:
    with db() as session:
        yield session


# Ended before the answer is sent: who is told of a retry can rely on it.
DB = Annotated[Session, Depends(transaction, scope="function")]


def signed_in(request: Request, session: DB) -> Account:
    key = request.cookies.get("key") or request.headers.get("X-Key", "")
    account = session.scalar(select(Account).where(Account.key == key)) if key else None
    if account is None:
        raise HTTPException(401, "Sign in first.")
    return account


Owner = Annotated[Account, Depends(signed_in, scope="function")]


def own_campaign(id: str, session: DB, account: Owner) -> Campaign:  # noqa: A002 - the path's own word
    """Another account's answers like one that does not exist."""
    found = session.get(Campaign, id)
    if found is None or found.account_id != account.id:
        raise HTTPException(404, "There is no such campaign.")
    return found


Own = Annotated[Campaign, Depends(own_campaign, scope="function")]


def own_token(tokenID: str, campaign: Own) -> Token:  # noqa: N803 - the same
    for token in campaign.tokens:
        if token.id == tokenID:
            return token
    raise HTTPException(404, "There is no such token.")


OwnToken = Annotated[Token, Depends(own_token, scope="function")]


def page(request: Request, name: str, status: int = 200, **said: Any) -> HTMLResponse:
    flash = said.pop("flash", None) or unquote(request.cookies.get("flash", ""))
    answer = pages.TemplateResponse(request, name, {**said, "flash": flash}, status_code=status)
    answer.delete_cookie("flash")
    return answer


def back(to: str, flash: str = "") -> RedirectResponse:
    answer = RedirectResponse(to, 303)
    if flash:
        answer.set_cookie("flash", quote(flash), httponly=True, samesite="lax")
    return answer


@web.exception_handler(401)
def to_sign_in(request: Request, _: Exception) -> HTMLResponse:
    return page(request, "sign_in.html", 401)


@web.exception_handler(DBAPIError)
def unreadable(_: Request, error: Exception) -> Response:
    """A text that no database takes, such as one with a NUL; anything else is ours to answer for."""
    if not isinstance(error, DataError):
        raise error
    return Response("That cannot be read.", 400)


@web.exception_handler(MulliganError)
def not_now(_: Request, error: MulliganError) -> Response:
    """The database is away, most likely; else it is told what is wrong."""
    return (
        Response("Please try again in a moment.", 503)
        if error.retryable
        else Response(str(error), 400)
    )


@web.get("/")
def home(key: str = "") -> RedirectResponse:
    return enter(key) if key else back("/campaigns")


@web.post("/sign-in")
def enter(key: Annotated[str, Form()]) -> RedirectResponse:
    answer = back("/campaigns")
    if KEY.fullmatch(key):  # what is none cannot be in a cookie, and lets nobody in
        answer.set_cookie("key", key, httponly=True, samesite="lax")
    return answer


# -- campaigns -----------------------------------------------------------------------------------
@web.get("/campaigns")
def list_campaigns(request: Request, session: DB, account: Owner) -> HTMLResponse:
    own = session.scalars(
        select(Campaign)
        .where(Campaign.account_id == account.id)
        .order_by(Campaign.created_at.desc())
    )
    assets = session.scalars(select(Asset).where(Asset.account_id == account.id)).all()
    shown = [campaigns.campaign_view(one) for one in own]
    return page(request, "campaigns.html", account=account, campaigns=shown, assets=assets)


@web.post("/assets")
def upload(file: UploadFile, account: Owner, session: DB) -> RedirectResponse:
    asset = Asset(account_id=account.id, name=file.filename or "video", path=kept(file))
    session.add(asset)
    return back("/campaigns", f"{asset.name} is uploaded.")


def kept(file: UploadFile) -> str:
    goal = files() / "uploads" / new_id()
    goal.parent.mkdir(parents=True, exist_ok=True)
    with goal.open("wb") as out:
        shutil.copyfileobj(file.file, out)
    return str(goal)


@web.post("/campaigns")
def create(  # noqa: PLR0913 - the fields of the form
    *,
    session: DB,
    account: Owner,
    name: Annotated[str, Form(min_length=1, max_length=200, pattern=WRITABLE)],
    asset: Annotated[str, Form()],
    recipients: Annotated[str, Form(max_length=100_000, pattern=WRITABLE)] = "",
    max_downloads: Annotated[int | None, Form(ge=1, le=1_000_000)] = None,
    expires_at: Annotated[datetime | None, Form()] = None,
    visible_wm: Annotated[bool, Form()] = False,  # a box that is not ticked is not sent
    invisible_wm: Annotated[bool, Form()] = False,
) -> RedirectResponse:
    source = session.get(Asset, asset)
    if source is None or source.account_id != account.id:
        raise HTTPException(404, "There is no such asset.")
    made = Campaign(
        account_id=account.id,
        asset_id=source.id,
        name=name,
        max_downloads=max_downloads,
        expires_at=in_utc(expires_at).isoformat() if expires_at else None,
        visible_wm=int(visible_wm),
        invisible_wm=int(invisible_wm),
        tokens=[Token(recipient=one) for one in people(account.id, recipients)],
    )
    session.add(made)
    session.flush()
    return back(f"/campaigns/{made.id}")


def people(account: str, lines: str) -> Iterator[Recipient]:
    """One a line: Ada Lovelace <ada@example.com>."""
    for line in filter(None, map(str.strip, lines.splitlines())):
        named = re.fullmatch(r"(.*?)\s*<(.*)>", line)
        yield Recipient(
            account_id=account, name=named[1] if named else line, email=named[2] if named else ""
        )


def in_utc(at: datetime) -> datetime:
    return at if at.tzinfo else at.replace(tzinfo=UTC)


@web.get("/campaigns/{id}")
def show_campaign(request: Request, campaign: Own) -> HTMLResponse:
    return show(request, campaign)


def show(request: Request, campaign: Campaign, status: int = 200, flash: str = "") -> HTMLResponse:
    seen = campaigns.campaign_view(campaign)
    tokens = campaigns.token_views(campaign, seen.state)
    return page(
        request,
        "campaign_detail.html",
        status,
        campaign=seen,
        row=campaign,
        tokens=tokens,
        flash=flash,
    )


@web.get("/campaigns/{id}/tokens")
def tokens(campaign: Own) -> dict[str, Any]:
    seen = campaigns.campaign_view(campaign)
    return {
        **asdict(seen),
        "tokens": [asdict(one) for one in campaigns.token_views(campaign, seen.state)],
    }


@web.post("/campaigns/{id}/publish")
def publish(request: Request, session: DB, campaign: Own) -> Response:
    try:
        campaigns.publish(session, campaign)
    except campaigns.Refused as why:
        return show(request, campaign, 400, str(why))
    return back(f"/campaigns/{campaign.id}")


@web.post("/campaigns/{id}/tokens/{tokenID}/retry")
def retry(request: Request, campaign: Own, token: OwnToken) -> Response:
    try:
        campaigns.retry(campaign, token)
    except campaigns.Refused as why:
        return show(request, campaign, 400, str(why))
    return back(f"/campaigns/{campaign.id}", f"Retry queued for {token.recipient.name}.")


# -- live ----------------------------------------------------------------------------------------
@web.get("/campaigns/{id}/events")
def campaign_events(campaign: Own) -> StreamingResponse:
    return stream(campaign.id, None)


@web.get("/campaigns/{id}/tokens/{tokenID}/events")
def token_events(campaign: Own, token: OwnToken) -> StreamingResponse:
    return stream(campaign.id, token.id)


def stream(campaign: str, token: str | None) -> StreamingResponse:
    return StreamingResponse(follow(campaign, token), media_type="text/event-stream")


async def follow(campaign: str, token: str | None) -> AsyncIterator[str]:
    """What changed since the last look; the first look tells how everything stands, to who comes back too."""
    before: dict[str, Any] = {}
    quiet = 0
    while True:
        after = await asyncio.to_thread(looked, campaign, token)
        for key in after:
            if after[key] != before.get(key):
                quiet = 0
                for event, body in told(key, before.get(key), after[key]):
                    yield frame(event, body)
        before, quiet = after, quiet + 1
        if quiet % BEAT == 0:
            yield ": still here\n\n"
        await asyncio.sleep(EVERY)


def looked(campaign: str, token: str | None) -> dict[str, Any]:
    with db() as session:
        found = session.get_one(Campaign, campaign)
        seen = campaigns.campaign_view(found)
        rows = [one for one in campaigns.token_views(found, seen.state) if token in (None, one.id)]
    return {"campaign": seen, **{one.id: one for one in rows}}


def told(key: str, before: Any, after: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if key == "campaign":
        yield "campaign", asdict(after)
        return
    if (
        after.failed
        and before is not None
        and (not before.failed or before.generation != after.generation)
    ):
        yield "token_failed", {"token_id": after.id, "error": after.error}
    yield "token", {**asdict(after), "token_id": after.id}


def frame(event: str, body: dict[str, Any]) -> str:
    return f"event: {event}\ndata: {json.dumps(body, default=str)}\n\n"


# -- recipients ----------------------------------------------------------------------------------
@web.get("/t/{tokenID}")
def fetch(tokenID: str, session: DB) -> FileResponse:  # noqa: N803 - the path's own word
    token = session.get(Token, tokenID)
    if token is None:
        raise HTTPException(404, "There is no such link.")
    state = campaigns.campaign_view(token.campaign).state
    status = campaigns.token_view(token, state).status
    if status in ("CONSUMED", "EXPIRED"):
        raise HTTPException(410, f"This link is {status.lower()}.")
    if status != "ACTIVE" or not copy_of(token.id).exists():
        raise HTTPException(409, "The video is not ready yet.")
    if not campaigns.download(session, token):
        raise HTTPException(410, "This link is consumed.")
    return FileResponse(
        copy_of(token.id), media_type="video/mp4", filename=token.campaign.asset.name
    )


# -- detection -----------------------------------------------------------------------------------
@web.get("/detect")
def ask(request: Request, account: Owner) -> HTMLResponse:
    found = app.jobs.list("kind:detect", owner=account.id)
    return page(request, "detect.html", account=account, jobs=found)


@web.post("/detect")
def look_for(file: UploadFile, account: Owner) -> RedirectResponse:
    job = detect.options(owner=account.id).enqueue(file=kept(file))
    return back(f"/detections/{job.id}")


@web.get("/detections/{id}")
def result(request: Request, id: str, account: Owner) -> HTMLResponse:  # noqa: A002 - the path's own word
    try:
        return page(request, "detection.html", job=app.jobs.get(id, owner=account.id))
    except NotFound:
        raise HTTPException(404, "There is no such detection.") from None
