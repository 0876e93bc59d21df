"""The jobs: make a marked copy for one recipient, and detect the mark in a leaked video."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import select, update

from mulligan import Context, Event, Mulligan
from mulligan.apps.watermark import mails, marks
from mulligan.apps.watermark.data import Campaign, Session, Token, copy_of, transaction
from mulligan.apps.watermark.rules import ONCE, PACK, RETRIES, STALL_SECONDS, TIME_LIMIT

PROGRAM = [sys.executable, str(Path(marks.__file__)), f"--stall={STALL_SECONDS}"]

app = Mulligan(name="watermark")
app.queue("encode", concurrency=2)  # an encoder uses every core


def db() -> Any:
    """Open a transaction on the database of the jobs."""
    return transaction(app.settings.database_url)


def find_copy(token: str) -> str | None:
    return str(copy_of(token)) if copy_of(token).exists() else None


@app.job(queue="encode", timeout=TIME_LIMIT, policy=RETRIES, rules=PACK.rules, done=find_copy)
def watermark(ctx: Context, token: str) -> str:
    """Make one recipient's copy. Every attempt starts at the first frame."""
    with db() as session:
        found = session.get_one(Token, token)
        source = Path(found.campaign.asset.path)
        switches = _switches(found)
    draft = ctx.workdir / "copy.mp4"

    def report_progress(line: str) -> None:
        if share := re.fullmatch(r"progress ([\d.]+)", line.strip()):
            ctx.progress(min(float(share[1]), 0.99))

    ctx.progress(0.0)
    ctx.run([*PROGRAM, str(source), str(draft), *switches], on_line=report_progress)
    return _deliver(draft, copy_of(token))


def _switches(token: Token) -> list[str]:
    switches = []
    if token.campaign.visible_wm:
        switches.append(f"--label={token.recipient.name} {token.recipient.email}".strip())
    if token.campaign.invisible_wm:
        switches.append(f"--mark={token.mark}")
    return switches


def _deliver(draft: Path, target: Path) -> str:
    """Move the copy to its place atomically, even from another file system."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".part")
    shutil.move(draft, partial)
    partial.replace(target)
    return str(target)


@app.job(queue="detect", timeout=TIME_LIMIT, policy=ONCE, rules=PACK.rules)
def detect(ctx: Context, file: str) -> dict[str, str] | None:
    """Find the recipient of a leaked copy. Never retried: the page shows the failure."""
    mark = ctx.run([*PROGRAM, file]).strip()
    with db() as session:
        return _find_owner_of_copy(session, mark, ctx.job.owner) if mark else None


def _find_owner_of_copy(session: Session, mark: str, account: str) -> dict[str, str] | None:
    token = session.scalar(select(Token).where(Token.mark == mark))
    if token is None or token.campaign.account_id != account:
        return None
    return {"token": token.id, "recipient": token.recipient.name, "campaign": token.campaign.name}


@app.on("batch.*")
def store_campaign_state(event: Event) -> None:
    """Store the state of a campaign, for reports and programs that read the table.

    It is read from the batch, so it is right in whatever order events are handled.
    """
    state = app.batches.get(str(event.batch_id)).state.upper()
    with db() as session:
        of_batch = Campaign.batch_id == event.batch_id
        session.execute(update(Campaign).where(of_batch).values(state=state))


mails.subscribe(app, db)
