"""A world to test in: an account, an asset that ffmpeg has made, campaigns, a store of each kind."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mulligan.testing import Helper
from watermark import campaigns, data, jobs, marks


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half a second with sound."""
    file = tmp_path_factory.mktemp("clip") / "clip.mp4"
    picture, sound = "testsrc2=duration=0.5:size=320x192:rate=20", "sine=duration=0.5"
    inputs = ["-f", "lavfi", "-i", picture, "-f", "lavfi", "-i", sound]
    subprocess.run([marks.ffmpeg(), "-loglevel", "error", *inputs, "-preset", "ultrafast", str(file)], check=True)
    return file


class World:
    """One account with its assets, on the store of a test."""

    def __init__(self, mulligan: Helper, clip: Path, folder: Path) -> None:
        self.mulligan, self.clip, self.folder = mulligan, clip, folder
        self.account = self.add(data.Account(name="Olga", email="olga@example.com"))

    def add(self, thing: Any) -> Any:
        with jobs.db() as session:
            session.add(thing)
        return thing

    def asset(self, content: bytes | None = None) -> data.Asset:
        file = self.folder / f"{data.new_id()}.mp4"
        if content is None:
            shutil.copyfile(self.clip, file)
        else:
            file.write_bytes(content)
        return self.add(data.Asset(account_id=self.account.id, name="talk.mp4", path=str(file)))

    def campaign(self, *names: str, asset: data.Asset | None = None, **said: Any) -> str:
        """A draft; returns its id."""
        asset = asset or self.asset()
        with jobs.db() as session:
            whom = [data.Recipient(account_id=self.account.id, name=name, email=f"{name}@x.org") for name in names]
            made = data.Campaign(account_id=self.account.id, asset_id=asset.id, name="Spring", **said)
            made.tokens = [data.Token(recipient=one) for one in whom]
            session.add(made)
        return made.id

    def publish(self, campaign_id: str) -> str:
        with jobs.db() as session:
            campaigns.publish(session, session.get_one(data.Campaign, campaign_id))
        return campaign_id

    def look(self, campaign_id: str) -> tuple[campaigns.CampaignView, list[campaigns.TokenView]]:
        with jobs.db() as session:
            campaign = session.get_one(data.Campaign, campaign_id)
            seen = campaigns.campaign_view(campaign)
            return seen, campaigns.token_views(campaign, seen.state)

    def state(self, campaign_id: str) -> str:
        return self.look(campaign_id)[0].state

    def token(self, campaign_id: str, recipient: str = "ada") -> campaigns.TokenView:
        return next(one for one in self.look(campaign_id)[1] if one.recipient == recipient)


@pytest.fixture
def world(
    on_store: Callable[..., Helper], clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    monkeypatch.setenv("WATERMARK_FILES", str(tmp_path / "files"))
    mulligan = on_store(jobs.app, "watermark.jobs:app")
    jobs.app.open()
    made = World(mulligan, clip, tmp_path)
    yield made
    data.engine(jobs.app.settings.database_url).dispose()
    data.engine.cache_clear()
