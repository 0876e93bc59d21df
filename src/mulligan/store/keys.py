"""Verbs of API keys, and of the answers that are kept for those who ask twice."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from mulligan.job import Micros


class KeyRow(NamedTuple):
    """Who may ask over HTTP; the key itself is nowhere."""

    id: str
    hash: str
    name: str
    scope: str  # one owner, or "*"
    role: str
    created_at: Micros
    created_by: str
    expires_at: Micros | None
    last_used_at: Micros | None
    revoked_at: Micros | None


class AnswerRow(NamedTuple):
    """What was answered to a request that named itself."""

    request: str  # a hash of all it said
    status: int | None  # None: it is being worked on
    body: str


class Keyed(ABC):
    """Part of every `Unit`."""

    @abstractmethod
    def new_api_key(self, row: KeyRow) -> None: ...

    @abstractmethod
    def api_key(self, key_id: str) -> KeyRow | None: ...

    @abstractmethod
    def api_keys(self) -> list[KeyRow]:
        """All of them, oldest first."""

    @abstractmethod
    def revoke_api_key(self, key_id: str) -> KeyRow | None:
        """As it is now; None: there is none, or it was revoked before."""

    @abstractmethod
    def use_api_key(self, key_id: str) -> None:
        """It was used just now."""

    @abstractmethod
    def forget_api_keys(self, before: Micros) -> None:
        """Delete keys that have let nobody in since then."""

    @abstractmethod
    def take_answer(self, key_id: str, name: str, request: str, before: Micros) -> bool:
        """Is it ours to answer this? Also if somebody began before then and never ended."""

    @abstractmethod
    def answer(self, key_id: str, name: str) -> AnswerRow | None: ...

    @abstractmethod
    def end_answer(self, key_id: str, name: str, status: int, body: str) -> None: ...

    @abstractmethod
    def drop_answer(self, key_id: str, name: str) -> None:
        """Nothing was done: whoever asks again is not asking twice."""

    @abstractmethod
    def prune_answers(self, before: Micros, limit: int) -> int: ...


class SqlKeyed(Keyed):
    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    def new_api_key(self, row: KeyRow) -> None:
        self.rows("new_api_key", **row._asdict())

    def api_key(self, key_id: str) -> KeyRow | None:
        found = self.rows("api_key", id=key_id)
        return KeyRow._make(found[0]) if found else None

    def api_keys(self) -> list[KeyRow]:
        return [KeyRow._make(row) for row in self.rows("api_keys")]

    def revoke_api_key(self, key_id: str) -> KeyRow | None:
        found = self.rows("revoke_api_key", id=key_id)
        return KeyRow._make(found[0]) if found else None

    def use_api_key(self, key_id: str) -> None:
        self.rows("use_api_key", id=key_id)

    def forget_api_keys(self, before: Micros) -> None:
        self.rows("forget_api_keys", before=before)

    def take_answer(self, key_id: str, name: str, request: str, before: Micros) -> bool:
        return bool(self.rows("take_answer", key_id=key_id, name=name, request=request, before=before))

    def answer(self, key_id: str, name: str) -> AnswerRow | None:
        found = self.rows("answer", key_id=key_id, name=name)
        return AnswerRow._make(found[0]) if found else None

    def end_answer(self, key_id: str, name: str, status: int, body: str) -> None:
        self.rows("end_answer", key_id=key_id, name=name, status=status, body=body)

    def drop_answer(self, key_id: str, name: str) -> None:
        self.rows("drop_answer", key_id=key_id, name=name)

    def prune_answers(self, before: Micros, limit: int) -> int:
        return len(self.rows("prune_answers", before=before, most=limit))
