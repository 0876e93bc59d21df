"""Example campaigns: one that works, one whose video is deleted, one whose video is damaged."""

from __future__ import annotations

import subprocess
from pathlib import Path

from sqlalchemy import select

from mulligan.apps.watermark import campaigns, marks
from mulligan.apps.watermark.accounts import create_account
from mulligan.apps.watermark.data import Account, Asset, Campaign, Recipient, Token, files
from mulligan.apps.watermark.jobs import app, db

PEOPLE = ("Ada", "Bo", "Cy", "Dee", "Eve", "Flo")


def find_account() -> str:
    """Return the key of the only account. It is created at the first start."""
    app.open()
    with db() as session:
        found = session.scalar(select(Account.key).limit(1))
    return found or create_account("Olga", "olga@example.com")


def create_examples(key: str) -> None:
    if app.jobs.count("kind:watermark"):
        return
    spring = create_video("spring")
    autumn = create_video("autumn")
    winter = create_video("winter")
    winter.write_bytes(winter.read_bytes()[:5000])
    create_published_campaign(key, "Spring", spring)
    create_published_campaign(key, "Winter", winter)
    first = create_published_campaign(key, "Autumn", autumn)
    app.jobs.wait(first, timeout=120)
    autumn.unlink()


def create_video(name: str) -> Path:
    target = files() / "uploads" / f"{name}.mp4"
    target.parent.mkdir(parents=True, exist_ok=True)
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
    subprocess.run(
        [marks.find_ffmpeg(), "-loglevel", "error", "-y", *inputs, str(target)], check=True
    )
    return target


def create_published_campaign(key: str, title: str, source: Path) -> str:
    """Publish a campaign for all people. Return the id of its first job."""
    with db() as session:
        owner = session.scalars(select(Account).where(Account.key == key)).one()
        recipients = [
            Recipient(account_id=owner.id, name=name, email=f"{name.lower()}@example.com")
            for name in PEOPLE
        ]
        asset = Asset(account_id=owner.id, name=source.name, path=str(source))
        session.add(asset)
        session.flush()
        campaign = Campaign(
            account_id=owner.id,
            asset_id=asset.id,
            name=title,
            tokens=[Token(recipient=recipient) for recipient in recipients],
        )
        session.add(campaign)
        session.flush()
        campaigns.publish(session, campaign)
        return str(campaign.tokens[0].job_id)
