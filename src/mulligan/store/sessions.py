"""Verbs of who is signed in to the dashboard."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from mulligan.job import Micros


class SessionRow(NamedTuple):
    """Somebody who is signed in, or a link that signs somebody in once; what proves it is nowhere."""

    hash: str
    is_link: bool
    key_id: str | None  # the key they signed in with; None: by a link
    scope: str
    role: str
    created_at: Micros
    expires_at: Micros


class SignedIn(ABC):
    """Part of every `Unit`."""

    @abstractmethod
    def new_session(self, row: SessionRow) -> None: ...

    @abstractmethod
    def session(self, hash: str, *, is_link: bool = False) -> SessionRow | None:  # noqa: A002 - the column's name
        """None: there is none, or its time is over."""

    @abstractmethod
    def end_session(self, hash: str, *, is_link: bool = False) -> SessionRow | None:  # noqa: A002 - as above
        """As it was; None: there is none any more."""

    @abstractmethod
    def forget_sessions(self, before: Micros) -> None:
        """Delete those whose time was over then."""

    @abstractmethod
    def secret(self) -> str:
        """What signs links to status pages; empty: there is none yet."""

    @abstractmethod
    def keep_secret(self, value: str) -> str:
        """Unless there is one; the one that is there then."""


class SqlSignedIn(SignedIn):
    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    def new_session(self, row: SessionRow) -> None:
        self.rows("new_session", **row._asdict())

    def session(self, hash: str, *, is_link: bool = False) -> SessionRow | None:  # noqa: A002 - as above
        return _one(self.rows("session", hash=hash, is_link=is_link))

    def end_session(self, hash: str, *, is_link: bool = False) -> SessionRow | None:  # noqa: A002 - as above
        return _one(self.rows("end_session", hash=hash, is_link=is_link))

    def forget_sessions(self, before: Micros) -> None:
        self.rows("forget_sessions", before=before)

    def secret(self) -> str:
        found = self.rows("secret")
        return str(found[0][0]) if found else ""

    def keep_secret(self, value: str) -> str:
        self.rows("keep_secret", value=value)
        return self.secret()


def _one(found: list[tuple[Any, ...]]) -> SessionRow | None:
    return SessionRow._make(found[0])._replace(is_link=bool(found[0][1])) if found else None
