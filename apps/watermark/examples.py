"""Something to look at: a campaign that works, one whose video disappears half-way, one whose video is damaged."""

from __future__ import annotations

import subprocess
from pathlib import Path

from sqlalchemy import select

from watermark import campaigns, marks
from watermark.data import Account, Asset, Campaign, Recipient, Token, files
from watermark.jobs import app, db

PEOPLE = ("Ada", "Bo", "Cy", "Dee", "Eve", "Flo")


def account() -> str:
    """The key of the one account; made at the first start."""
    app.open()
    with db() as session:
        found = session.scalar(select(Account).limit(1))
        if found is None:
            session.add(found := Account(name="Olga", email="olga@example.com"))
            session.flush()
        return found.key


def fill(key: str) -> None:
    if app.jobs.count("kind:watermark"):
        return
    spring, autumn, winter = (video(name) for name in ("spring", "autumn", "winter"))
    winter.write_bytes(winter.read_bytes()[:5000])
    published(key, "Spring", spring)
    published(key, "Winter", winter)
    first = published(key, "Autumn", autumn)
    app.jobs.wait(first, timeout=120)
    autumn.unlink()


def video(name: str) -> Path:
    goal = files() / "uploads" / f"{name}.mp4"
    goal.parent.mkdir(parents=True, exist_ok=True)
    inputs = [
        "-f",
        "lavfi",
        "-i",
        "testsrc2=duration=6:size=640x360:rate=25",
        "-f",
        "lavfi",
        "-i",
        "sine=duration=6",
    ]
    subprocess.run([marks.ffmpeg(), "-loglevel", "error", "-y", *inputs, str(goal)], check=True)
    return goal


def published(key: str, name: str, source: Path) -> str:
    """Returns the id of its first job."""
    with db() as session:
        owner = session.scalars(select(Account).where(Account.key == key)).one()
        whom = [
            Recipient(account_id=owner.id, name=one, email=f"{one.lower()}@example.com")
            for one in PEOPLE
        ]
        asset = Asset(account_id=owner.id, name=source.name, path=str(source))
        session.add(asset)
        session.flush()
        made = Campaign(
            account_id=owner.id,
            asset_id=asset.id,
            name=name,
            tokens=[Token(recipient=one) for one in whom],
        )
        session.add(made)
        session.flush()
        campaigns.publish(session, made)
        return str(made.tokens[0].job_id)
