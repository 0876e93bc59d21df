"""The Mulligan app: one kind converts, another removes expired files."""

from __future__ import annotations

import io
import re
from datetime import timedelta
from typing import Any, TypedDict
from xml.etree import ElementTree as ET

import httpx2

from mulligan import Context, Fail, Mulligan, Snooze, Unique, redact
from mulligan.apps.alerts import send_alerts_to
from mulligan.apps.pdfxml import files
from mulligan.apps.pdfxml.rules import MESSAGES, POLICY, RULES
from mulligan.apps.pdfxml.settings import SETTINGS

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
MAX_UPLOAD_TIME = timedelta(hours=1)  # longer than it takes from storing a file to its job
TIMEOUT_MARGIN = 60  # seconds for reading and writing, on top of the gateway's timeout
# Text of the gateway that may be shown to owners: one sentence, without paths or addresses.
SAFE_SENTENCE = re.compile(r"[A-Z][\w ,’'-]{2,80}\.")

app = Mulligan(
    settings={
        "metrics_prefix": "",  # the names of the specification: queue_depth, jobs_failed_total
        "notify.runbook_url": f"{SETTINGS.public_url}/runbook",
    }
)
storage = files.open_storage(SETTINGS.storage)


send_alerts_to(app, SETTINGS.alert_email, SETTINGS.alert_webhook)


class Converted(TypedDict):
    path: str
    http_status: int | None  # of the gateway; None if an earlier attempt wrote the file


# --- Gateway ---------------------------------------------------------------------------------
def connect_gateway(timeout: float) -> httpx2.Client:
    """Create a client. Certificates are slow to load, so they are loaded only for https."""
    secure = SETTINGS.gateway_url.startswith("https:")
    return httpx2.Client(base_url=SETTINGS.gateway_url, timeout=timeout, verify=secure)


def check_health() -> None:
    with connect_gateway(timeout=2) as gateway:
        gateway.get("/health").raise_for_status()


# It has no jobs: `mulligan queues pause uploads` pauses uploads.
UPLOAD_QUEUE = "uploads"
app.queue(UPLOAD_QUEUE)
app.dependency(
    "gateway",
    probe=check_health,
    mode=SETTINGS.breaker_mode,
    open_at=0.5,
    window=180,
    cool_down=SETTINGS.breaker_cool_down,
)


@app.on_start
def open_client(state: Any) -> None:
    state.gateway = connect_gateway(SETTINGS.gateway_timeout)


@app.on_stop
def close_client(state: Any) -> None:
    state.gateway.close()


def request_conversion(
    gateway: httpx2.Client, pdf: bytes, mapping: str, sha256: str
) -> httpx2.Response:
    """Return the answer with the XML. Errors are raised and classified by the rules of the pack."""
    answer = gateway.post(
        "/convert", params={"mapping": mapping}, content=pdf, headers={"X-Document": sha256}
    )
    try:
        answer.raise_for_status()
    except httpx2.HTTPStatusError as error:
        sentence = extract_safe_sentence(answer.text)
        if answer.status_code in (400, 406, 413, 415) and sentence:
            raise Fail("GW_4XX", public=f"{MESSAGES['GW_4XX']} {sentence}") from error
        raise
    try:
        ET.fromstring(answer.content)  # noqa: S314 - trusted gateway; expat limits entities
    except ET.ParseError as error:
        message = f"no XML in {len(answer.content)} bytes with status {answer.status_code}: {error}"
        raise Fail("UNKNOWN", message) from None
    return answer


def extract_safe_sentence(text: str) -> str:
    """Return the text of the gateway if it may be shown to an owner, else ''."""
    sentence = text.strip()
    return sentence if SAFE_SENTENCE.fullmatch(sentence) and redact(sentence) == sentence else ""


# --- Conversion ------------------------------------------------------------------------------
def result_path(job_id: str) -> str:
    return f"results/{job_id}.xml"


def find_result(ctx: Context) -> Converted | None:
    """Return the result if an earlier attempt wrote it and died before it was settled."""
    path = result_path(ctx.job.id)
    return Converted(path=path, http_status=None) if storage.exists(path) else None


def check_source(source: str) -> str | None:
    """Return why a job cannot be retried, or None if its source exists."""
    return None if source and storage.exists(source) else MESSAGES["EXPIRED"]


@app.job(
    queue="pdf",
    uses="gateway",
    policy=POLICY,
    rules=RULES,
    timeout=SETTINGS.gateway_timeout + TIMEOUT_MARGIN,
    unique=Unique(
        by=("owner", "payload.sha256", "payload.mapping", "payload.size", "payload.replaces")
    ),
    done=find_result,
    can_retry=check_source,
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
    replaces: str = "",  # noqa: ARG001 - id of an earlier job whose result was removed
) -> Converted | Fail:
    pdf = storage.read(source)
    if pdf is None:
        return Fail("EXPIRED", f"{source} is gone")
    answer = request_conversion(ctx.state.gateway, pdf, mapping, sha256)
    path = result_path(ctx.job.id)
    storage.write(path, io.BytesIO(answer.content))
    return Converted(path=path, http_status=answer.status_code)


# --- Retention -----------------------------------------------------------------------------------
@app.job(queue="housekeeping")
def expire(ctx: Context, source: str) -> str | Snooze:
    """Remove source and result after the retention, or if the file never got a conversion."""
    conversion = next(iter(app.jobs.list(f'kind:convert arg.source:"{source}"', limit=1)), None)
    if conversion:
        ended_at = conversion.finished_at
        retention = SETTINGS.keep
    else:
        ended_at = ctx.job.created_at
        retention = max(SETTINGS.keep, MAX_UPLOAD_TIME)
    if ended_at is None:
        return Snooze(max(SECOND, min(DAY, retention)), "not converted yet")
    remaining = ended_at + retention - (ctx.job.started_at or ctx.job.created_at)
    if remaining > timedelta(0):
        return Snooze(remaining, "the conversion ended later or was retried")
    if conversion:
        storage.remove(result_path(conversion.id))
    storage.remove(source)
    return "removed"
