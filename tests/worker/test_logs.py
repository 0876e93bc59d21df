"""Log lines: one per record, with stable fields; failures, retries and manual actions."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator

import pytest

from mulligan import Context, Fail, Policy, Table
from mulligan.config import LogSection
from mulligan.core.attempt import Ending
from mulligan.core.durations import SECOND
from mulligan.observability.logs import MAX_MESSAGE, JsonFormatter, TextFormatter, configure_handler
from mulligan.worker.claim import Claimer
from mulligan.worker.job_log import log as engine_log
from mulligan.worker.supervisor.chores import Chores
from mulligan.worker.supervisor.transactions import LoopTransactions
from support.app_tools import advance, event_types, load_attempts, run_job
from support.store import FATAL, KINDS, POLICIES, claim_by_id, close_worker, enqueue, open_worker

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`

HOSTILE = [
    'first\n2026-01-01T00:00:00Z ERROR forged {"level":"error"}',
    "a\r\nb\rc",
    "\x00\x1b[31mred\x1b[0m\x07",
    "lines\u2028and\u2029paragraphs\x85more",
    '"}\n{"level":"error","message":"forged"}',
    "x" * 1_000_000,
    "\ud800 alone",
    "%s %d %(nothing)s {}",
]


class Lines(logging.Handler):
    """Handler that keeps each record, its JSON line and its text line."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []
        self.json: list[dict[str, object]] = []
        self.text: list[str] = []
        configure_handler(LogSection(), self)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.json.append(json.loads(JsonFormatter().format(record)))
        self.text.append(TextFormatter().format(record))

    def find(self, text: str) -> dict[str, object]:
        found = [line for line in self.json if text in str(line["message"])]
        assert found, [line["message"] for line in self.json]
        return found[0]

    def has_none(self, text: str) -> bool:
        return not any(text in str(line["message"]) for line in self.json)


@pytest.fixture
def lines() -> Iterator[Lines]:
    root, handler = logging.getLogger(), Lines()
    before = root.level
    root.addHandler(handler)
    root.setLevel("INFO")
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


def create_record(text: str, **more: object) -> logging.LogRecord:
    record = logging.makeLogRecord({"name": "their.app", "levelname": "INFO", "msg": text, **more})
    record.exc_info = more.get("exc_info")  # type: ignore[assignment]
    return record


# --- One line per record ---


@pytest.mark.security("S51")
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_any_text_is_one_bounded_line_in_json(text):
    line = JsonFormatter().format(create_record(text, job=text, mine={text: [text]}))
    assert len(line.splitlines()) == 1
    assert len(line) < 6 * (MAX_MESSAGE + 20_000)
    fields = json.loads(line)
    assert (fields["level"], fields["logger"]) == ("info", "their.app")


@pytest.mark.security("S51")
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_any_text_is_one_bounded_line_in_text(text):
    line = TextFormatter().format(create_record(text, job=text))
    assert len(line.splitlines()) == 1
    assert len(line) < 2 * MAX_MESSAGE
    assert "\x1b" not in line


@pytest.mark.security("S51")
def test_a_traceback_cannot_pass_for_a_record():
    class Nasty(Exception):
        def __str__(self) -> str:
            return "boom\n2026-01-01T00:00:00Z ERROR forged"

    try:
        raise Nasty
    except Nasty as error:
        record = create_record("it failed", exc_info=(Nasty, error, error.__traceback__))
    first, *rest = TextFormatter().format(record).splitlines()
    assert first.endswith("it failed")
    assert all(line.startswith("    ") for line in rest)
    assert "forged" in json.loads(JsonFormatter().format(record))["trace"]


def test_values_that_cannot_be_shown_or_do_not_fit_still_make_one_line():
    class Mute:
        def __str__(self) -> str:
            raise RuntimeError

    assert "RuntimeError" in json.loads(JsonFormatter().format(create_record("x", it=Mute())))["it"]
    broken = create_record("two: %s %s", args=("one",))
    assert "TypeError" in json.loads(JsonFormatter().format(broken))["message"]
    assert (
        json.loads(JsonFormatter().format(create_record("x", n=float("nan"), big=10**400)))["n"]
        == "nan"
    )


@pytest.mark.security("S44")
def test_secrets_do_not_reach_the_log():
    line = JsonFormatter().format(
        create_record("to postgresql://me:hunter2@db/x", url="https://u:hunter2@host/")
    )
    assert "hunter2" not in line


def test_extra_fields_do_not_replace_standard_fields():
    fields = json.loads(
        JsonFormatter().format(create_record("x", level="forged", time="never", logger="forged"))
    )
    assert (fields["level"], fields["logger"]) == ("info", "their.app")


# -- ids -----------------------------------------------------------------------------------------
def test_every_line_a_handler_logs_carries_its_job_and_attempt(app, lines):
    @app.job
    def sync(ctx: Context) -> None:
        logging.getLogger("their.library").info("plain")
        thread = threading.Thread(target=lambda: ctx.log.info("on a thread", extra={"page": 3}))
        thread.start()
        thread.join()

    @app.job
    async def nap(ctx: Context) -> None:
        await asyncio.sleep(0)
        await asyncio.to_thread(logging.getLogger("their.library").warning, "from a helper")

    one, two = sync.enqueue(), nap.enqueue()
    app.run_inline()
    logging.getLogger("their.library").info("afterwards")
    for text, job in (("plain", one), ("on a thread", one), ("from a helper", two)):
        line = lines.find(text)
        assert (line["job"], line["kind"], line["attempt"]) == (job.id, job.kind, 1)
    assert lines.find("on a thread")["page"] == 3
    assert "job" not in lines.find("afterwards")
    assert f"job={one.id}" in next(line for line in lines.text if " plain" in line)


# --- Lines about jobs ---


@pytest.mark.seed("000-38")
def test_a_failure_is_logged_as_error_with_its_private_details(app, lines):
    """000-38, 001-61, 003-53."""

    @app.job(name="convert")
    def convert() -> None:
        raise RuntimeError("the gateway's internals: table 7 is corrupt")

    job = run_job(app, convert.enqueue())
    line = lines.find("attempt 1 of convert failed")
    assert (line["level"], line["job"], line["kind"]) == ("error", job.id, "convert")
    assert "table 7 is corrupt" in str(line["error"])
    assert "RuntimeError" in str(line["error_trace"])
    assert "table 7" not in json.dumps([event.data for event in app.jobs.history(job.id)])


@pytest.mark.seed("002-38", "003-53", "004-27")
def test_a_retry_is_logged_with_its_wait_and_how_it_was_computed(app, lines):
    @app.job(name="fetch", policy=Policy(max_retries=1, backoff=Table([60])))
    def fetch() -> None:
        raise ConnectionError("no route")

    job = run_job(app, fetch.enqueue())
    line = lines.find("attempt 2 of fetch in 1 min")
    assert (line["level"], line["job"], line["next_attempt"], line["delay"]) == (
        "info",
        job.id,  # 003-53
        2,
        60.0,
    )
    assert "step 1 of the backoff table" in str(line["computed"])  # 002-38
    assert line["code"] == job.error["code"]  # 004-27
    assert lines.has_none("found due")
    advance(app, 61)
    app.run_inline()
    assert lines.find("1 retry found due")["retries"] == 1
    app.jobs.retry(job.id, reason="the route is back")
    action = lines.find("manual retry")
    assert (action["job"], action["actor"], action["reason"]) == (
        job.id,
        "python",
        "the route is back",
    )


@pytest.mark.seed("004-20")
def test_a_dead_job_is_logged_once(app, lines):
    """004-20, 003-55."""

    @app.job(name="check")
    def check() -> Fail:
        return Fail("BAD_FILE", "no moov atom", public="This file could not be read.", final=True)

    job = run_job(app, check.enqueue())
    line = lines.find("check ended for good")
    assert (line["job"], line["permanent"], line["code"]) == (job.id, True, "BAD_FILE")  # 004-20
    assert lines.has_none("attempt 2")
    assert event_types(app, job) == ["queued", "started", "died"]


def test_stderr_of_a_program_is_in_the_private_part_and_in_the_log(app, lines):
    """003-54."""

    @app.job(name="encode")
    def encode(ctx: Context) -> None:
        ctx.run(["sh", "-c", "echo 'moov atom not found' >&2; exit 1"])

    job = run_job(app, encode.enqueue())
    assert "moov atom not found" in str(lines.find("attempt 1 of encode failed")["error_stderr"])
    assert "moov atom not found" in json.loads(load_attempts(app, job)[0].private or "{}")["stderr"]


@pytest.mark.seed("000-90")
def test_a_sweep_logs_the_count_of_recovered_jobs_and_nothing_when_idle(app, lines, tmp_path):
    """000-90."""

    @app.job
    def nap() -> None: ...

    job = nap.enqueue()
    chores = Chores(app.store, app.settings, tmp_path)
    open_worker(app.store, "w_gone")
    assert claim_by_id(app.store, job.id, worker="w_gone")
    close_worker(app.store, "w_gone")
    assert chores.recover("w_me") == 1
    assert lines.find("jobs of lost workers")["count"] == 1
    before = len(lines.json)
    chores.recover("w_me")
    assert len(lines.json) == before


def test_a_success_logs_nothing_above_debug(app, lines):
    @app.job(name="fine")
    def fine() -> None: ...

    fine.enqueue()
    app.run_inline()
    assert not [line for line in lines.json if line["logger"] == engine_log.name]
    engine_log.setLevel("DEBUG")
    fine.enqueue()
    app.run_inline()
    engine_log.setLevel("NOTSET")
    assert lines.find("attempt 1 of fine succeeded")


def test_of_many_equal_failures_the_first_are_logged_and_the_others_counted(app, lines):
    open_worker(app.store)
    leases = claim_by_id(app.store, *enqueue(app.store, 31))
    transactions = LoopTransactions(app.store, POLICIES, Claimer("w1", KINDS))
    transactions.settle_and_claim(
        [Ending(lease, FATAL, 1) for lease in leases[:30]], 0, 5 * SECOND, None
    )
    assert len([line for line in lines.json if "failed with" in str(line["message"])]) == 20
    assert lines.has_none("of kind render in the last second")
    transactions.settle_and_claim([Ending(leases[30], FATAL, 1)], 0, 6 * SECOND, None)
    more = lines.find("10 more")
    assert (more["suppressed"], more["kind"], more["verb"]) == (10, "render", "die")
