"""The pages: campaigns and tokens for owners, a link per recipient, a page per detection."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, unquote

from fastapi import Depends, FastAPI, Form, Header, HTTPException, Request, UploadFile
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

from mulligan.apps.watermark import campaigns, live, views
from mulligan.apps.watermark.data import (
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
from mulligan.apps.watermark.jobs import app, db, detect
from mulligan.core.errors import MulliganError, NotFound

HERE = Path(__file__).parent
KEY = re.compile(r"[\w-]{1,100}", re.ASCII)
NO_NUL = r"^[^\x00]*$"
pages = Jinja2Templates(HERE / "templates")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    app.open()  # not in the transaction of the first request
    with db() as session:
        campaigns.resume(session)
    yield
    app.close()


web = FastAPI(title="Watermark campaigns", lifespan=lifespan)
web.mount("/static", StaticFiles(directory=HERE / "static"), name="static")


# --- Callers ------------------------------------------------------------------------------------
def transaction() -> Iterator[Session]:
    with db() as session:
        yield session


# Committed before the answer is sent, so that the answer is true.
DB = Annotated[Session, Depends(transaction, scope="function")]


def sign_in_account(request: Request, session: DB) -> Account:
    key = request.cookies.get("key") or request.headers.get("X-Key", "")
    account = session.scalar(select(Account).where(Account.key == key)) if key else None
    if account is None:
        raise HTTPException(401, "Sign in first.")
    return account


Owner = Annotated[Account, Depends(sign_in_account, scope="function")]


def find_owned_campaign(id: str, session: DB, account: Owner) -> Campaign:  # noqa: A002 - path
    """Find a campaign of the caller. Another account's campaign answers 404, like a missing one."""
    found = session.get(Campaign, id)
    if found is None or found.account_id != account.id:
        raise HTTPException(404, "There is no such campaign.")
    return found


OwnedCampaign = Annotated[Campaign, Depends(find_owned_campaign, scope="function")]


def find_owned_token(tokenID: str, campaign: OwnedCampaign) -> Token:  # noqa: N803 - path
    for token in campaign.tokens:
        if token.id == tokenID:
            return token
    raise HTTPException(404, "There is no such token.")


OwnedToken = Annotated[Token, Depends(find_owned_token, scope="function")]


def render_page(request: Request, name: str, status: int = 200, **context: Any) -> HTMLResponse:
    flash = context.pop("flash", None) or unquote(request.cookies.get("flash", ""))
    context["flash"] = flash
    answer = pages.TemplateResponse(request, name, context, status_code=status)
    answer.delete_cookie("flash")
    return answer


def redirect(to: str, flash: str = "") -> RedirectResponse:
    answer = RedirectResponse(to, 303)
    if flash:
        answer.set_cookie("flash", quote(flash), httponly=True, samesite="lax")
    return answer


@web.exception_handler(401)
def show_sign_in(request: Request, _: Exception) -> HTMLResponse:
    return render_page(request, "sign_in.html", 401)


@web.exception_handler(DBAPIError)
def refuse_unreadable(_: Request, error: Exception) -> Response:
    """Answer 400 to text that the database refuses, such as NUL. Other errors are re-raised."""
    if not isinstance(error, DataError):
        raise error
    return Response("The request contains text that cannot be stored.", 400)


@web.exception_handler(MulliganError)
def answer_error(_: Request, error: MulliganError) -> Response:
    """Answer 503 to a retryable error (most likely a database outage), else 400."""
    if error.retryable:
        return Response("Please try again in a few seconds.", 503)
    return Response(str(error), 400)


@web.get("/")
def home(key: str = "") -> RedirectResponse:
    return sign_in(key) if key else redirect("/campaigns")


@web.post("/sign-in")
def sign_in(key: Annotated[str, Form()]) -> RedirectResponse:
    answer = redirect("/campaigns")
    if KEY.fullmatch(key):  # other text may be invalid in a cookie
        answer.set_cookie("key", key, httponly=True, samesite="lax")
    return answer


# --- Campaigns -----------------------------------------------------------------------------------
@web.get("/campaigns")
def list_campaigns(request: Request, session: DB, account: Owner) -> HTMLResponse:
    owned = session.scalars(
        select(Campaign)
        .where(Campaign.account_id == account.id)
        .order_by(Campaign.created_at.desc())
    )
    assets = session.scalars(select(Asset).where(Asset.account_id == account.id)).all()
    shown = [views.campaign_view(campaign) for campaign in owned]
    return render_page(request, "campaigns.html", account=account, campaigns=shown, assets=assets)


@web.post("/assets")
def upload(file: UploadFile, account: Owner, session: DB) -> RedirectResponse:
    asset = Asset(account_id=account.id, name=file.filename or "video", path=store_upload(file))
    session.add(asset)
    return redirect("/campaigns", f"{asset.name} is uploaded.")


def store_upload(file: UploadFile) -> str:
    target = files() / "uploads" / new_id()
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        shutil.copyfileobj(file.file, out)
    return str(target)


@web.post("/campaigns")
def create(  # noqa: PLR0913 - the fields of the form
    *,
    session: DB,
    account: Owner,
    name: Annotated[str, Form(min_length=1, max_length=200, pattern=NO_NUL)],
    asset: Annotated[str, Form()],
    recipients: Annotated[str, Form(max_length=100_000, pattern=NO_NUL)] = "",
    max_downloads: Annotated[int | None, Form(ge=1, le=1_000_000)] = None,
    expires_at: Annotated[datetime | None, Form()] = None,
    visible_wm: Annotated[bool, Form()] = False,  # browsers do not send an unticked box
    invisible_wm: Annotated[bool, Form()] = False,
) -> RedirectResponse:
    source = session.get(Asset, asset)
    if source is None or source.account_id != account.id:
        raise HTTPException(404, "There is no such asset.")
    campaign = Campaign(
        account_id=account.id,
        asset_id=source.id,
        name=name,
        max_downloads=max_downloads,
        expires_at=assume_utc(expires_at).isoformat() if expires_at else None,
        visible_wm=int(visible_wm),
        invisible_wm=int(invisible_wm),
        tokens=[Token(recipient=person) for person in parse_recipients(account.id, recipients)],
    )
    session.add(campaign)
    session.flush()
    return redirect(f"/campaigns/{campaign.id}")


def parse_recipients(account: str, lines: str) -> Iterator[Recipient]:
    """Parse one recipient per line: Ada Lovelace <ada@example.com>."""
    for line in lines.splitlines():
        entry = line.strip()
        if not entry:
            continue
        name, email = entry, ""
        with_email = re.fullmatch(r"(.*?)\s*<(.*)>", entry)
        if with_email:
            name, email = with_email.groups()
        yield Recipient(account_id=account, name=name, email=email)


def assume_utc(at: datetime) -> datetime:
    return at if at.tzinfo else at.replace(tzinfo=UTC)


@web.get("/campaigns/{id}")
def show_campaign(request: Request, campaign: OwnedCampaign) -> HTMLResponse:
    return render_campaign(request, campaign)


def render_campaign(
    request: Request, campaign: Campaign, status: int = 200, flash: str = ""
) -> HTMLResponse:
    view = views.campaign_view(campaign)
    token_views = views.token_views(campaign, view.state)
    return render_page(
        request,
        "campaign_detail.html",
        status,
        campaign=view,
        row=campaign,
        tokens=token_views,
        flash=flash,
    )


@web.get("/campaigns/{id}/tokens")
def list_tokens(campaign: OwnedCampaign) -> dict[str, Any]:
    view = views.campaign_view(campaign)
    return {
        **asdict(view),
        "tokens": [asdict(token) for token in views.token_views(campaign, view.state)],
    }


@web.post("/campaigns/{id}/publish")
def publish(request: Request, session: DB, campaign: OwnedCampaign) -> Response:
    try:
        campaigns.publish(session, campaign)
    except campaigns.Refused as refusal:
        return render_campaign(request, campaign, 400, str(refusal))
    return redirect(f"/campaigns/{campaign.id}")


@web.post("/campaigns/{id}/tokens/{tokenID}/retry")
def retry(request: Request, campaign: OwnedCampaign, token: OwnedToken) -> Response:
    try:
        campaigns.retry(campaign, token)
    except campaigns.Refused as refusal:
        return render_campaign(request, campaign, 400, str(refusal))
    return redirect(f"/campaigns/{campaign.id}", f"Retry queued for {token.recipient.name}.")


# --- Live updates --------------------------------------------------------------------------------
LastEvent = Annotated[int | None, Header(alias="Last-Event-ID")]


@web.get("/campaigns/{id}/events")
def campaign_events(campaign: OwnedCampaign, last_event_id: LastEvent = None) -> Response:
    return stream(campaign, None, last_event_id)


@web.get("/campaigns/{id}/tokens/{tokenID}/events")
def token_events(
    campaign: OwnedCampaign, token: OwnedToken, last_event_id: LastEvent = None
) -> Response:
    return stream(campaign, token, last_event_id)


def stream(campaign: Campaign, token: Token | None, after: int | None) -> Response:
    if campaign.batch_id is None:
        return Response(status_code=204)  # nothing happens in a draft: do not connect again
    frames = live.follow(campaign, token, after)
    return StreamingResponse(frames, media_type="text/event-stream")


# --- Recipients ----------------------------------------------------------------------------------
@web.get("/t/{tokenID}")
def download_copy(tokenID: str, session: DB) -> FileResponse:  # noqa: N803 - path
    token = session.get(Token, tokenID)
    if token is None:
        raise HTTPException(404, "There is no such link.")
    state = views.campaign_view(token.campaign).state
    status = views.token_view(token, state).status
    if status in ("CONSUMED", "EXPIRED"):
        raise HTTPException(410, f"This link is {status.lower()}.")
    if status != "ACTIVE" or not copy_of(token.id).exists():
        raise HTTPException(409, "The video is not ready yet.")
    if not campaigns.download(session, token):
        raise HTTPException(410, "This link is consumed.")
    return FileResponse(
        copy_of(token.id), media_type="video/mp4", filename=token.campaign.asset.name
    )


# --- Detection -----------------------------------------------------------------------------------
@web.get("/detect")
def show_detections(request: Request, account: Owner) -> HTMLResponse:
    found = app.jobs.list("kind:detect", owner=account.id)
    return render_page(request, "detect.html", account=account, jobs=found)


@web.post("/detect")
def start_detection(file: UploadFile, account: Owner) -> RedirectResponse:
    job = detect.options(owner=account.id).enqueue(file=store_upload(file))
    return redirect(f"/detections/{job.id}")


@web.get("/detections/{id}")
def show_detection(request: Request, id: str, account: Owner) -> HTMLResponse:  # noqa: A002 - path
    try:
        return render_page(request, "detection.html", job=app.jobs.get(id, owner=account.id))
    except NotFound:
        raise HTTPException(404, "There is no such detection.") from None
