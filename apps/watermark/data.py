"""What the application itself remembers: accounts, assets, recipients, campaigns and their tokens.

What a token's copy is doing is not here: that is its job's to say, and its campaign's outcome is its batch's.
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

from watermark.upgrade import upgrade

STATES = ("DRAFT", "PROCESSING", "READY", "PARTIAL", "FAILED", "EXPIRED")


def new_id() -> str:
    return secrets.token_urlsafe(12)


def now() -> str:
    """One fixed form, so that texts sort as times do."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "accounts"
    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str]
    email: Mapped[str]
    key: Mapped[str] = mapped_column(
        unique=True, default=secrets.token_urlsafe
    )  # signs the owner in


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
    state: Mapped[str] = mapped_column(
        default="DRAFT"
    )  # until it is published; from then on its batch knows
    created_at: Mapped[str] = mapped_column(default=now)
    published_at: Mapped[str | None]
    batch_id: Mapped[str | None]
    account: Mapped[Account] = relationship()
    asset: Mapped[Asset] = relationship()
    tokens: Mapped[list[Token]] = relationship(
        back_populates="campaign", order_by="Token.id", passive_deletes=True
    )


class Token(Base):
    """One recipient's copy: its id is the link, `mark` is what the invisible mark says."""

    __tablename__ = "tokens"
    __table_args__ = (UniqueConstraint("campaign_id", "recipient_id"),)
    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    campaign_id: Mapped[str] = mapped_column(ForeignKey("campaigns.id", ondelete="CASCADE"))
    recipient_id: Mapped[str] = mapped_column(ForeignKey("recipients.id"))
    mark: Mapped[str] = mapped_column(unique=True, default=lambda: secrets.token_hex(4))
    downloads: Mapped[int] = mapped_column(default=0)
    job_id: Mapped[str | None]
    campaign: Mapped[Campaign] = relationship(back_populates="tokens")
    recipient: Mapped[Recipient] = relationship()


# -- where ---------------------------------------------------------------------------------------
def files() -> Path:
    return Path(os.environ.get("WATERMARK_FILES", "watermark-files")).absolute()


def copy_of(token_id: str) -> Path:
    """The same place at every attempt: who finds it there need not make it again."""
    return files() / "copies" / f"{token_id}.mp4"


@contextmanager
def transaction(url: str) -> Iterator[Session]:
    with Session(engine(url), expire_on_commit=False) as session, session.begin():
        yield session


@lru_cache(maxsize=4)
def engine(url: str) -> Engine:
    """On the jobs' own database, so that a token and its job are there together or not at all."""
    made = connected(url)
    upgrade(made, create=Base.metadata.create_all)
    return made


def connected(url: str) -> Engine:
    made = create_engine(
        url.replace("sqlite:", "sqlite+mulligan:").replace("postgresql:", "postgresql+psycopg:")
    )
    if made.dialect.name == "sqlite":
        event.listen(
            made, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON")
        )
    return made
