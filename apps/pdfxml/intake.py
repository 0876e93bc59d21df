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
from mulligan.apps.pdfxml.files import StorageError
from mulligan.apps.pdfxml.jobs import UPLOAD_QUEUE, app, convert, expire, result_path, storage
from mulligan.apps.pdfxml.rules import message_for_code
from mulligan.apps.pdfxml.settings import SETTINGS
from mulligan.core.errors import NotFound

PAUSED = "Uploads are paused because of a storage issue. Please come back later."
RETRY_AFTER_SECONDS = 60  # if the pause has no end
HEAD = 1024  # a PDF has its signature within these first bytes

log = logging.getLogger("pdfxml.intake")


@dataclass
class Refusal(Exception):
    """A refused request: the status and the error body of the answer."""

    status: int
    code: str
    message: str = ""
    job: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    retryable: bool = False

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "error_code": self.code,
            "error_message": self.message or message_for_code(self.code),
            "retryable": self.retryable,
        }
        if self.job:
            body["job_id"] = self.job
        return body


@dataclass(frozen=True)
class Upload:
    owner: str
    name: str
    mapping: str
    size: int
    body: BinaryIO

    def payload(self, **fields: Any) -> dict[str, Any]:
        return {
            "name": self.name,
            "mapping": self.mapping,
            "size": self.size,
            "sha256": "",
            "source": "",
            **fields,
        }


def clean_name(name: str) -> str:
    """Return the last part of a path, without unprintable characters, for display."""
    last = re.split(r"[/\\]", name)[-1]
    return (
        "".join(character if character.isprintable() else "?" for character in last)[:120]
        or "document.pdf"
    )


def refuse_if_paused() -> None:
    """Raise Refusal (503) while uploads are paused."""
    try:
        queue = app.queues.get(UPLOAD_QUEUE)
    except NotFound:
        return
    if queue.paused:
        wait = RETRY_AFTER_SECONDS
        if queue.paused_until is not None:
            wait = max(1, round((queue.paused_until - datetime.now(UTC)).total_seconds()))
        raise Refusal(503, "IO_ERROR", PAUSED, headers={"Retry-After": str(wait)}, retryable=True)


def accept(upload: Upload) -> Job:
    """Enqueue the conversion of an upload. Return its job, or the existing job of the same file."""
    if upload.size > SETTINGS.most_bytes:
        raise reject(upload, 413, Fail("TOO_LARGE"))
    digest = compute_sha256(upload.body)
    if b"%PDF-" not in upload.body.read(HEAD):
        raise reject(upload, 400, Fail("NOT_PDF"), sha256=digest)
    upload.body.seek(0)
    return store_and_enqueue(upload, digest)


def compute_sha256(body: BinaryIO) -> str:
    digest = hashlib.sha256()
    while chunk := body.read(1 << 20):
        digest.update(chunk)
    body.seek(0)
    return digest.hexdigest()


def reject(upload: Upload, status: int, failure: Fail, **fields: Any) -> Refusal:
    """Record a failed job, so that the owner finds the upload in the queue."""
    job = convert.options(owner=upload.owner).reject(failure, **upload.payload(**fields))
    return Refusal(status, failure.failure_code, job=job.id)


def store_and_enqueue(upload: Upload, digest: str) -> Job:
    """Store the file and enqueue its conversion.

    The job that removes the files is enqueued first, so that no crash leaves a file behind.
    """
    source = f"uploads/{uuid.uuid4().hex}.pdf"
    expire.options(owner=upload.owner, delay=SETTINGS.keep).enqueue(source=source)
    payload = upload.payload(sha256=digest, source=source)
    try:
        storage.write(source, upload.body)
    except StorageError as error:
        log.exception("cannot store an upload of %d bytes", upload.size)
        job = convert.options(owner=upload.owner).reject(Fail("IO_ERROR", str(error)), **payload)
        if job.deduplicated:
            return job
        raise Refusal(500, "IO_ERROR", job=job.id) from error
    try:
        job = enqueue_conversion(upload.owner, payload)
    except BaseException:
        storage.remove(source)
        raise
    if job.deduplicated:
        storage.remove(source)
    return job


def enqueue_conversion(owner: str, payload: dict[str, Any]) -> Job:
    """Enqueue a conversion, or return the existing job of the same file.

    If the result of the existing job was removed, one new job replaces it.
    """
    kind = convert.options(owner=owner)
    job = kind.enqueue(**payload)
    while (
        job.deduplicated
        and job.state is State.SUCCEEDED
        and not storage.exists(result_path(job.id))
    ):
        job = kind.enqueue(**{**payload, "replaces": job.id})
    return job
