"""The jobs: a marked copy for one recipient, and a look for the mark in a video that turned up somewhere."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import select

from mulligan import Context, Mulligan
from watermark import mails, marks
from watermark.data import Session, Token, copy_of, transaction
from watermark.rules import ONCE, PACK, RETRIES

HALF_AN_HOUR = 1800
PROGRAM = [sys.executable, str(Path(marks.__file__))]

app = Mulligan()
app.queue("encode", concurrency=2)  # an encoder takes all the cores it finds


def db() -> Any:
    """A transaction on the database the jobs are in."""
    return transaction(app.settings.database_url)


def copied(token: str) -> str | None:
    return str(copy_of(token)) if copy_of(token).exists() else None


@app.job(queue="encode", timeout=HALF_AN_HOUR, policy=RETRIES, rules=PACK.rules, done=copied)
def watermark(ctx: Context, token: str) -> str:
    """One recipient's copy, from the first frame to the last at every attempt."""
    with db() as session:
        found = session.get_one(Token, token)
        source, switches = Path(found.campaign.asset.path), _switches(found)
    total, draft = marks.frames_in(source), ctx.workdir / "copy.mp4"

    def seen(line: str) -> None:
        if total and (frame := re.fullmatch(r"frame (\d+)", line.strip())):
            ctx.progress(min(int(frame[1]) / total, 0.99))

    ctx.run([*PROGRAM, "embed", str(source), str(draft), *switches], on_line=seen)
    return _delivered(draft, copy_of(token))


def _switches(token: Token) -> list[str]:
    campaign, whom = token.campaign, token.recipient
    visible = [f"--label={whom.name} {whom.email}".strip()] if campaign.visible_wm else []
    return [*visible, *([f"--mark={token.mark}"] if campaign.invisible_wm else [])]


def _delivered(draft: Path, goal: Path) -> str:
    """Whole or not at all, also from another file system."""
    goal.parent.mkdir(parents=True, exist_ok=True)
    beside = goal.with_suffix(".part")
    shutil.move(draft, beside)
    beside.replace(goal)
    return str(goal)


@app.job(queue="detect", timeout=HALF_AN_HOUR, policy=ONCE, rules=PACK.rules)
def detect(ctx: Context, file: str) -> dict[str, str] | None:
    """Whose copy is this? Never tried again: its page shows what came of it."""
    mark = ctx.run([*PROGRAM, "detect", file]).strip()
    with db() as session:
        return _whose(session, mark, ctx.job.owner) if mark else None


def _whose(session: Session, mark: str, account: str) -> dict[str, str] | None:
    token = session.scalar(select(Token).where(Token.mark == mark))
    if token is None or token.campaign.account_id != account:
        return None
    return {"token": token.id, "recipient": token.recipient.name, "campaign": token.campaign.name}


mails.subscribe(app, db)
