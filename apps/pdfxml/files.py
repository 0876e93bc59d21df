"""Storage of sources and results: a folder or a bucket. Every write is atomic."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Protocol

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

FULL = (errno.ENOSPC, errno.EDQUOT)


class StorageError(OSError):
    """A file could not be read or written, whatever the file system or the bucket calls it."""


class StorageFull(StorageError):
    """There is no space left, so another attempt does not help."""


@contextmanager
def storage_errors() -> Iterator[None]:
    """Raise every error of a file system or a bucket as StorageError."""
    try:
        yield
    except (OSError, BaseError) as error:
        number = getattr(error, "errno", None) or errno.EIO
        failure = StorageFull if number in FULL else StorageError
        raise failure(number, getattr(error, "strerror", None) or str(error)) from error


class Files(Protocol):
    """Storage of files by path. `read` returns None if there is no such file.

    All errors are StorageError.
    """

    def write(self, path: str, body: BinaryIO) -> None: ...
    def read(self, path: str) -> bytes | None: ...
    def exists(self, path: str) -> bool: ...
    def remove(self, path: str) -> None: ...


class Folder:
    """Files in a folder of this machine."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    @storage_errors()
    def write(self, path: str, body: BinaryIO) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        self._remove_drafts(target)
        draft = target.with_suffix(f".{uuid.uuid4().hex}.draft")
        try:
            with draft.open("xb") as file:
                shutil.copyfileobj(body, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)

    @storage_errors()
    def read(self, path: str) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None

    @storage_errors()
    def exists(self, path: str) -> bool:
        return (self._root / path).is_file()

    @storage_errors()
    def remove(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)
        self._remove_drafts(self._root / path)

    def _remove_drafts(self, target: Path) -> None:
        """Remove drafts of killed processes. A live writer of one fails and is retried."""
        for draft in target.parent.glob(f"{target.stem}.*.draft"):
            draft.unlink(missing_ok=True)


class Bucket:
    """Files in an S3 bucket, set up by the AWS_… variables. Jobs retry, not the client."""

    def __init__(self, name: str) -> None:
        self._store = S3Store(
            name,
            retry_config={"max_retries": 1, "retry_timeout": timedelta(seconds=10)},
            client_options={"timeout": "10s", "allow_http": True},
        )

    @storage_errors()
    def write(self, path: str, body: BinaryIO) -> None:
        obstore.put(self._store, path, body)

    @storage_errors()
    def read(self, path: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            return None

    @storage_errors()
    def exists(self, path: str) -> bool:
        try:
            obstore.head(self._store, path)
        except FileNotFoundError:
            return False
        return True

    @storage_errors()
    def remove(self, path: str) -> None:
        obstore.delete(self._store, path)


def open_storage(location: str) -> Files:
    return (
        Bucket(location.removeprefix("s3://")) if location.startswith("s3://") else Folder(location)
    )
