"""Logs and output of failed attempts are stored, without secrets, for a while."""

from __future__ import annotations

import logging
import sys
import threading

import pytest

from mulligan import Cancel, Context, Fixed, Mulligan, Policy, ProcessFailed, Snooze, testing
from mulligan.core.errors import ConfigError, NotFound, Refused
from mulligan.worker.recording import MAX_MESSAGE, STORED_LIMIT
from mulligan.worker.stacks import Stack, StackFrame, format_stacks
from mulligan.worker.upkeep import prune
from support.database_contents import contents

log = logging.getLogger("shop")
ONCE = Policy(max_retries=1, backoff=Fixed(0))
DAY = 86_400


def messages(app: Mulligan, job_id: str, attempt: int | None = None) -> list[str]:
    return [line.message for line in app.jobs.log(job_id, attempt).records]


def stored_logs(app: Mulligan) -> list[object]:
    tables = {name.removeprefix("mulligan_"): rows for name, rows in contents(app.store).items()}
    return tables["attempt_log"]


@pytest.fixture
def app(app: Mulligan) -> Mulligan:
    @app.job(name="fails", policy=ONCE)
    def fails(ctx: Context) -> None:
        log.warning("attempt %d password=hunter2", ctx.attempt)
        sys.stdout.write("no newline")
        raise ValueError("end")

    @app.job(name="succeeds")
    def succeeds() -> None:
        log.warning("all is well")
        sys.stdout.write("all is well\n")

    return app


def test_each_failed_attempt_has_its_log(app):
    job = app.enqueue("fails")
    app.run_inline()
    assert messages(app, job.id, 1) == ["attempt 1 password=[redacted]", "no newline"]
    assert messages(app, job.id) == messages(app, job.id, 2)
    assert "attempt 2" in messages(app, job.id)[0]


def test_the_log_reads_as_text(app):
    job = app.enqueue("fails")
    app.run_inline()
    first, second = app.jobs.log(job.id).lines()
    assert first.endswith(" WARNING shop  attempt 2 password=[redacted]")
    assert second.endswith(" stdout  no newline")


def test_a_success_a_snooze_and_a_cancel_by_the_handler_store_nothing(app):
    app.job(name="snoozes")(lambda: log.warning("later") or Snooze(3600))
    app.job(name="cancels")(lambda: log.warning("never") or Cancel("not needed"))
    jobs = [app.enqueue(name) for name in ("succeeds", "snoozes", "cancels")]
    app.run_inline()
    assert stored_logs(app) == []
    for job in jobs:
        with pytest.raises(NotFound, match="no log"):
            app.jobs.log(job.id)


def test_records_of_other_threads_of_the_program_are_not_recorded(app):
    ready, stop = threading.Event(), threading.Event()

    def talk():
        while not stop.is_set():
            log.warning("not of the job")
            ready.set()

    @app.job(name="waits", policy=Policy(max_retries=0))
    def waits():
        ready.clear()
        ready.wait()
        raise ValueError("end")

    thread = threading.Thread(target=talk)
    thread.start()
    job = app.enqueue("waits")
    try:
        app.run_inline()
    finally:
        stop.set()
        thread.join()
    with pytest.raises(NotFound):
        app.jobs.log(job.id)


def test_the_standard_streams_and_loggers_are_restored(app):
    before = sys.stdout, sys.stderr, logging.Logger.callHandlers, threading.Thread.start
    app.enqueue("fails")
    app.run_inline()
    assert (sys.stdout, sys.stderr, logging.Logger.callHandlers, threading.Thread.start) == before


def test_the_stderr_of_a_program_is_recorded(app):
    @app.job(name="converts", policy=Policy(max_retries=0))
    def converts(ctx: Context) -> None:
        script = "import sys; print('cannot open film', file=sys.stderr); sys.exit(3)"
        with pytest.raises(ProcessFailed):
            ctx.run([sys.executable, "-c", script])
        raise ValueError("end")

    job = app.enqueue("converts")
    app.run_inline()
    (line,) = app.jobs.log(job.id).records
    assert (line.level, line.message) == ("", "cannot open film")
    assert line.source.startswith("python")
    assert line.source.endswith(" stderr")


def test_the_stored_log_is_limited_and_keeps_the_newest_records(app):
    @app.job(name="chatters", policy=Policy(max_retries=0))
    def chatters() -> None:
        for number in range(200):
            log.warning("record %d %s", number, "x" * 10_000)
        raise ValueError("end")

    job = app.enqueue("chatters")
    app.run_inline()
    kept = messages(app, job.id)
    assert kept[-1].startswith("record 199 ")
    assert len(kept) < 200
    assert max(map(len, kept)) <= MAX_MESSAGE
    (row,) = stored_logs(app)
    assert len(str(row)) < STORED_LIMIT + 1000


def test_records_of_any_text_are_kept_as_they_are(app, monkeypatch):
    logger = logging.getLogger('na"me')
    monkeypatch.setattr(logger, "propagate", False)  # reports of tests contain no lone surrogates
    texts = [
        'a "quote"',
        "back\\slash",
        "tab\tand\nnew line",
        "é 漢字 🎬",
        "\ud800 alone",
        "nul \x00",
    ]

    @app.job(name="speaks", policy=Policy(max_retries=0))
    def speaks() -> None:
        for text in texts:
            logger.warning(text)
        raise ValueError("end")

    job = app.enqueue("speaks")
    app.run_inline()
    assert messages(app, job.id)[:4] == texts[:4]
    assert len(messages(app, job.id)) == len(texts)
    assert app.jobs.log(job.id).records[0].source == 'na"me'


def test_a_stack_shows_lines_of_code_without_secrets(tmp_path):
    path = tmp_path / "shop.py"
    path.write_text('connect(password="hunter2")\n')
    text = format_stacks([Stack("Thread 1", (StackFrame(str(path), 1, "pay"),))])
    assert "connect(password=" in text
    assert "hunter2" not in text


def test_a_log_is_pruned_before_its_job(app):
    job = app.enqueue("fails")
    testing.drain(app, anywhere=True)
    testing.advance(app, 13 * DAY, anywhere=True)
    prune(app.store, app.settings, {})
    assert messages(app, job.id)
    testing.advance(app, 2 * DAY, anywhere=True)
    prune(app.store, app.settings, {})
    with pytest.raises(NotFound, match=r"retention\.logs"):
        app.jobs.log(job.id)
    assert app.jobs.get(job.id).error["code"]


def test_a_job_takes_its_logs_with_it(app):
    app.job(name="leaves", retention=DAY, policy=Policy(max_retries=0))(
        lambda: log.warning("hello") or 1 / 0
    )
    app.enqueue("leaves")
    testing.drain(app, anywhere=True)
    testing.advance(app, 2 * DAY, anywhere=True)
    prune(app.store, app.settings, {"leaves": app.registry.kinds["leaves"]})
    assert stored_logs(app) == []


@pytest.mark.parametrize("log", [-1, 1001, True, "200"])
def test_a_senseless_number_of_records_is_refused(app, log):
    with pytest.raises((ConfigError, Refused), match="log must be a whole number"):
        app.job(name="odd", log=log)(lambda: None)


@pytest.mark.parametrize("stall", [0, -1, float("nan")])
def test_a_senseless_stall_limit_is_refused(app, stall):
    with pytest.raises((ConfigError, Refused), match="stall"):
        app.job(name="odd", stall=stall)(lambda: None)
