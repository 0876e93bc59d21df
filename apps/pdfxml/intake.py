"""Uploads: refused early, deduplicated, stored, enqueued."""

from __future__ import annotations

import hashlib
import logging
import re
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, BinaryIO

from mulligan import Fail, Job, State
from mulligan.core.errors import NotFound
from pdfxml.files import STORAGE_ERRORS
from pdfxml.jobs import app, convert, expire, result_path, storage
from pdfxml.rules import line
from pdfxml.settings import SETTINGS

DOOR = "uploads"  # a queue without jobs: `mulligan queues pause uploads` closes the door
PAUSED = "Uploads are paused because of a storage issue. Please come back later."
ASK_AGAIN = 60  # seconds, if nobody has said until when
HEAD = 1024  # a PDF says so within these first bytes

log = logging.getLogger("pdfxml.intake")


@dataclass
class Refusal(Exception):
    """Nothing was done, and this is the answer."""

    status: int
    code: str
    line: str = ""
    job: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    retryable: bool = False

    def plain(self) -> dict[str, Any]:
        said = {
            "error_code": self.code,
            "error_message": self.line or line(self.code),
            "retryable": self.retryable,
        }
        return said | ({"job_id": self.job} if self.job else {})


@dataclass(frozen=True)
class Upload:
    owner: str
    name: str
    mapping: str
    size: int
    body: BinaryIO

    def payload(self, **more: Any) -> dict[str, Any]:
        return {
            "name": self.name,
            "mapping": self.mapping,
            "size": self.size,
            "sha256": "",
            "source": "",
            **more,
        }


def clean_name(name: str) -> str:
    """For people to read: the last part of a path, without what cannot be printed."""
    last = re.split(r"[/\\]", name)[-1]
    return "".join(sign if sign.isprintable() else "?" for sign in last)[:120] or "document.pdf"


def check_the_door() -> None:
    try:
        door = app.queues.get(DOOR)
    except NotFound:
        return
    if door.paused:
        wait = ASK_AGAIN
        if door.paused_until is not None:
            wait = max(1, round((door.paused_until - datetime.now(UTC)).total_seconds()))
        raise Refusal(503, "IO_ERROR", PAUSED, headers={"Retry-After": str(wait)}, retryable=True)


def accept(upload: Upload) -> Job:
    """The job of this upload, or of its twin."""
    if upload.size > SETTINGS.most_bytes:
        raise rejected(upload, 413, Fail("TOO_LARGE"))
    digest = sha256_of(upload.body)
    if b"%PDF-" not in upload.body.read(HEAD):
        raise rejected(upload, 400, Fail("NOT_PDF"), sha256=digest)
    upload.body.seek(0)
    return stored(upload, digest)


def sha256_of(body: BinaryIO) -> str:
    found = hashlib.sha256()
    while chunk := body.read(1 << 20):
        found.update(chunk)
    body.seek(0)
    return found.hexdigest()


def rejected(upload: Upload, status: int, why: Fail, **more: Any) -> Refusal:
    """Its owner finds it in the queue, as failed."""
    job = convert.options(owner=upload.owner).reject(why, **upload.payload(**more))
    return Refusal(status, why.failure_code, job=job.id)


def stored(upload: Upload, digest: str) -> Job:
    """Who will remove its files one day is enqueued first: no crash and no refusal can leave a file for ever."""
    source = f"uploads/{uuid.uuid4().hex}.pdf"
    expire.options(owner=upload.owner, delay=SETTINGS.keep).enqueue(source=source)
    payload = upload.payload(sha256=digest, source=source)
    try:
        storage.write(source, upload.body)
    except STORAGE_ERRORS as error:
        log.exception("an upload of %d bytes cannot be written", upload.size)
        job = convert.options(owner=upload.owner).reject(Fail("IO_ERROR", str(error)), **payload)
        if job.deduplicated:
            return job
        raise Refusal(500, "IO_ERROR", job=job.id) from error
    try:
        job = enqueued(upload.owner, payload)
    except BaseException:
        storage.remove(source)
        raise
    if job.deduplicated:
        storage.remove(source)
    return job


def enqueued(owner: str, payload: dict[str, Any]) -> Job:
    """A twin whose result is gone is no answer: then its successor is, and there is one for all who ask."""
    mine = convert.options(owner=owner)
    job = mine.enqueue(**payload)
    while (
        job.deduplicated
        and job.state is State.SUCCEEDED
        and not storage.exists(result_path(job.id))
    ):
        job = mine.enqueue(**{**payload, "replaces": job.id})
    return job
