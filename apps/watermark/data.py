"""Tables of the application: accounts, assets, recipients, campaigns and tokens.

The progress of a copy is stored in its job, and the outcome of a campaign in its batch.
`campaigns.state` repeats the outcome for other readers of the table.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from sqlalchemy import CheckConstraint, Engine, ForeignKey, UniqueConstraint, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from mulligan.apps.watermark.upgrade import upgrade

STATES = ("DRAFT", "PROCESSING", "READY", "PARTIAL", "FAILED", "EXPIRED")


def new_id() -> str:
    return secrets.token_urlsafe(12)


def now() -> str:
    return format_time(datetime.now(UTC))


def format_time(at: datetime) -> str:
    """Return a time as text of a fixed width, so that texts sort as times do."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "accounts"
    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str]
    email: Mapped[str]
    key: Mapped[str] = mapped_column(unique=True, default=secrets.token_urlsafe)  # to sign in


class Asset(Base):
    __tablename__ = "assets"
    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id", ondelete="CASCADE"))
    name: Mapped[str]
    path: Mapped[str]


class Recipient(Base):
    __tablename__ = "recipients"
    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id", ondelete="CASCADE"))
    name: Mapped[str]
    email: Mapped[str] = mapped_column(default="")


class Campaign(Base):
    __tablename__ = "campaigns"
    __table_args__ = (CheckConstraint(f"state IN {STATES}"),)
    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    account_id: Mapped[str] = mapped_column(
        ForeignKey("accounts.id", ondelete="CASCADE"), index=True
    )
    asset_id: Mapped[str] = mapped_column(ForeignKey("assets.id"))
    name: Mapped[str]
    max_downloads: Mapped[int | None]
    expires_at: Mapped[str | None]
    visible_wm: Mapped[int] = mapped_column(default=1)
    invisible_wm: Mapped[int] = mapped_column(default=1)
    # After publishing it follows the batch, a moment later: pages read the batch.
    state: Mapped[str] = mapped_column(default="DRAFT")
    created_at: Mapped[str] = mapped_column(default=now)
    published_at: Mapped[str | None]
    batch_id: Mapped[str | None] = mapped_column(index=True)
    account: Mapped[Account] = relationship()
    asset: Mapped[Asset] = relationship()
    tokens: Mapped[list[Token]] = relationship(
        back_populates="campaign", order_by="Token.id", passive_deletes=True
    )


class Token(Base):
    """One recipient's copy. The id is the link; `mark` is the content of the invisible mark."""

    __tablename__ = "tokens"
    __table_args__ = (UniqueConstraint("campaign_id", "recipient_id"),)
    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    campaign_id: Mapped[str] = mapped_column(ForeignKey("campaigns.id", ondelete="CASCADE"))
    recipient_id: Mapped[str] = mapped_column(ForeignKey("recipients.id"))
    mark: Mapped[str] = mapped_column(unique=True, default=lambda: secrets.token_hex(4))
    downloads: Mapped[int] = mapped_column(default=0)
    job_id: Mapped[str | None] = mapped_column(index=True)
    campaign: Mapped[Campaign] = relationship(back_populates="tokens")
    recipient: Mapped[Recipient] = relationship(lazy="joined")


# --- Files and database --------------------------------------------------------------------------
def files() -> Path:
    return Path(os.environ.get("WATERMARK_FILES", "watermark-files")).absolute()


def copy_of(token_id: str) -> Path:
    """Return the path of a token's copy. It does not depend on the attempt, so `done=` finds it."""
    return files() / "copies" / f"{token_id}.mp4"


@contextmanager
def transaction(url: str) -> Iterator[Session]:
    with Session(engine(url), expire_on_commit=False) as session, session.begin():
        yield session


@lru_cache(maxsize=4)
def engine(url: str) -> Engine:
    """Open the jobs' database, so that a token and its job commit in one transaction."""
    new_engine = build_engine(url)
    upgrade(new_engine, create=Base.metadata.create_all)
    return new_engine


def build_engine(url: str) -> Engine:
    url = url.replace("sqlite:", "sqlite+mulligan:").replace("postgresql:", "postgresql+psycopg:")
    new_engine = create_engine(url)
    if new_engine.dialect.name == "sqlite":
        pragma = "PRAGMA foreign_keys = ON"
        event.listen(new_engine, "connect", lambda connection, _: connection.execute(pragma))
    return new_engine
