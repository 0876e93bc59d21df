"""Where sources and results live: a folder, or a bucket. What is written is there whole or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Protocol

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

STORAGE_ERRORS = (OSError, BaseError)


class Files(Protocol):
    def write(self, path: str, body: BinaryIO) -> None: ...
    def read(self, path: str) -> bytes | None: ...
    def exists(self, path: str) -> bool: ...
    def remove(self, path: str) -> None: ...


class Folder:
    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def write(self, path: str, body: BinaryIO) -> None:
        goal = self._root / path
        goal.parent.mkdir(parents=True, exist_ok=True)
        self._tidy(goal)
        draft = goal.with_suffix(f".{uuid.uuid4().hex}.draft")
        try:
            with draft.open("xb") as file:
                shutil.copyfileobj(body, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(goal)
        finally:
            draft.unlink(missing_ok=True)

    def read(self, path: str) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None

    def exists(self, path: str) -> bool:
        return (self._root / path).is_file()

    def remove(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)
        self._tidy(self._root / path)

    def _tidy(self, goal: Path) -> None:
        """What a process that was killed has left; one that only seems dead finds its draft gone, and fails."""
        for draft in goal.parent.glob(f"{goal.stem}.*.draft"):
            draft.unlink(missing_ok=True)


class Bucket:
    """S3 and its kin; keys and endpoint come from the usual AWS_… variables. Jobs are what retries, not the client."""

    def __init__(self, name: str) -> None:
        self._store = S3Store(
            name,
            retry_config={"max_retries": 1, "retry_timeout": timedelta(seconds=10)},
            client_options={"timeout": "10s", "allow_http": True},
        )

    def write(self, path: str, body: BinaryIO) -> None:
        obstore.put(self._store, path, body)

    def read(self, path: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            return None

    def exists(self, path: str) -> bool:
        try:
            obstore.head(self._store, path)
        except FileNotFoundError:
            return False
        return True

    def remove(self, path: str) -> None:
        obstore.delete(self._store, path)


def opened(where: str) -> Files:
    return Bucket(where.removeprefix("s3://")) if where.startswith("s3://") else Folder(where)
