"""The Mulligan app: one kind converts, one removes what has been kept long enough."""

from __future__ import annotations

import io
import re
from datetime import timedelta
from typing import Any, TypedDict
from xml.etree import ElementTree as ET

import httpx2

from mulligan import Context, Fail, Mulligan, Snooze, Unique, redact
from pdfxml import files
from pdfxml.rules import LINES, PACK, POLICY
from pdfxml.settings import SETTINGS

DAY = timedelta(days=1)
UPLOADING = timedelta(hours=1)  # longer than it can take from a file to its job
NEAR_THE_LIMIT = 60  # seconds beside the gateway's own limit, for reading and writing
SAFE = re.compile(
    r"[A-Z][\w ,’'-]{2,80}\."
)  # of the gateway's own words: a plain sentence, nothing that names a place

app = Mulligan()
storage = files.opened(SETTINGS.storage)


class Converted(TypedDict):
    path: str


# -- the gateway ---------------------------------------------------------------------------------
def calling(timeout: float) -> httpx2.Client:
    """Certificates take a while to load, and without TLS nobody looks at them."""
    secure = SETTINGS.gateway_url.startswith("https:")
    return httpx2.Client(base_url=SETTINGS.gateway_url, timeout=timeout, verify=secure)


def healthy() -> None:
    with calling(timeout=2) as gateway:
        gateway.get("/health").raise_for_status()


app.dependency(
    "gateway",
    probe=healthy,
    mode=SETTINGS.breaker_mode,
    open_at=0.5,
    window=180,
    cool_down=SETTINGS.breaker_cool_down,
)


@app.on_start
def connect(state: Any) -> None:
    state.gateway = calling(SETTINGS.gateway_timeout)


@app.on_stop
def disconnect(state: Any) -> None:
    state.gateway.close()


def ask(gateway: httpx2.Client, pdf: bytes, mapping: str, sha256: str) -> bytes:
    """The XML. What comes instead is raised, and judged by the rules of the pack."""
    answer = gateway.post(
        "/convert", params={"mapping": mapping}, content=pdf, headers={"X-Document": sha256}
    )
    try:
        answer.raise_for_status()
    except httpx2.HTTPStatusError as error:
        if answer.status_code in (400, 406, 413, 415) and (words := safe_words(answer.text)):
            raise Fail("GW_4XX", public=f"{LINES['GW_4XX']} {words}") from error
        raise
    try:
        ET.fromstring(answer.content)  # noqa: S314 - our own gateway, and expat bounds what entities may grow to
    except ET.ParseError as error:
        message = f"no XML in {len(answer.content)} bytes with status {answer.status_code}: {error}"
        raise Fail("UNKNOWN", message) from None
    return answer.content


def safe_words(text: str) -> str:
    """What the gateway said, if an owner may read it."""
    words = text.strip()
    return words if SAFE.fullmatch(words) and redact(words) == words else ""


# -- the conversion ------------------------------------------------------------------------------
def result_path(job_id: str) -> str:
    return f"results/{job_id}.xml"


def converted(ctx: Context) -> Converted | None:
    """An earlier attempt may have written the result and died before anybody heard of it."""
    path = result_path(ctx.job.id)
    return Converted(path=path) if storage.exists(path) else None


def source_is_there(source: str) -> str | None:
    return None if source and storage.exists(source) else LINES["EXPIRED"]


@app.job(
    queue="pdf",
    uses="gateway",
    policy=POLICY,
    rules=PACK.rules,
    timeout=SETTINGS.gateway_timeout + NEAR_THE_LIMIT,
    unique=Unique(
        by=("owner", "payload.sha256", "payload.mapping", "payload.size", "payload.replaces")
    ),
    done=converted,
    can_retry=source_is_there,
    index="source",
    retention=30 * DAY,
)
def convert(
    ctx: Context,
    mapping: str,
    sha256: str,
    source: str,
    name: str,  # noqa: ARG001
    size: int,  # noqa: ARG001
    replaces: str = "",  # noqa: ARG001 - the job whose result was removed since, if this is not the first
) -> Converted | Fail:
    pdf = storage.read(source)
    if pdf is None:
        return Fail("EXPIRED", f"{source} is gone")
    xml = ask(ctx.state.gateway, pdf, mapping, sha256)
    path = result_path(ctx.job.id)
    storage.write(path, io.BytesIO(xml))
    return Converted(path=path)


# -- retention -----------------------------------------------------------------------------------
@app.job(queue="housekeeping")
def expire(ctx: Context, source: str) -> str | Snooze:
    """Remove source and result, once the conversion has been over for long enough, or if there never was one."""
    conversion = next(iter(app.jobs.list(f'kind:convert arg.source:"{source}"', limit=1)), None)
    ended, kept = ctx.job.created_at, max(SETTINGS.keep, UPLOADING)
    if conversion:
        ended, kept = conversion.finished_at, SETTINGS.keep
    if ended is None:
        return Snooze(DAY, "not converted yet")
    left = ended + kept - (ctx.job.started_at or ctx.job.created_at)
    if left > timedelta(0):
        return Snooze(left, "it ended later, or was tried again")
    if conversion:
        storage.remove(result_path(conversion.id))
    storage.remove(source)
    return "removed"
