"""`ctx.run`: programs that end well, badly, late or not at all."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from mulligan import Context, Fixed, Policy, ProcessFailed, State
from mulligan.core.errors import Refused, Stopped
from mulligan.worker.liveness import MARK, find_marked
from mulligan.worker.runner.program import OUTPUT_LIMIT, STDERR_LIMIT, Program
from support.app_tools import load_attempts, load_private, run_job
from support.waiting import until

pytestmark = pytest.mark.processes

PY = sys.executable


@pytest.fixture
def mark(tmp_path: Path) -> str:
    """A mark no other process on this machine carries."""
    return f"test/{tmp_path}"


@pytest.fixture
def program(tmp_path: Path, mark: str):
    def make(*command: str) -> Program:
        return Program(list(command), tmp_path, mark)

    return make


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


def py(script: str) -> tuple[str, ...]:
    return (PY, "-c", script)


# -- what it gives back --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("command", "given", "printed"),
    [
        (("echo", "hello"), None, "hello\n"),
        (("true",), None, ""),
        (("cat",), b"text in", "text in"),
        (("cat",), b"bytes \xff in", "bytes \ufffd in"),
        (("cat",), b"", ""),
        (("true",), b"x" * 5_000_000, ""),  # does not read what it is given
        (("wc", "-c"), b"x" * 5_000_000, "5000000\n"),
        (sh("printf 'a\\nb'; printf c >&2"), None, "a\nb"),
        (sh("head -c 3000000 /dev/zero | tr '\\0' x"), None, "x" * 3_000_000),
        (sh("head -c 3000000 /dev/zero >&2; echo done"), None, "done\n"),
        (sh("cat"), None, ""),  # without input there is an end of input, not a terminal
    ],
)
def test_a_program_that_succeeds_returns_its_output(program, command, given, printed):
    assert program(*command).run(given, 20, None) == printed


@pytest.mark.parametrize(
    ("command", "facts", "text"),
    [
        (sh("echo why >&2; exit 3"), (3, None, False), "sh exited with 3: why"),
        (sh("kill -9 $$"), (None, 9, False), "sh was killed by signal 9"),
        (sh("kill -TERM $$"), (None, 15, False), "sh was killed by signal 15"),
        (sh("exit 127"), (127, None, False), "sh exited with 127"),
    ],
)
def test_a_program_that_fails_raises_with_its_exit_code_or_signal(program, command, facts, text):
    with pytest.raises(ProcessFailed) as caught:
        program(*command).run(None, 20, None)
    error = caught.value
    assert (error.exit_code, error.signal, error.timed_out) == facts
    assert str(error) == text
    assert error.program == "sh"


def test_the_end_of_a_long_stderr_is_kept(program):
    with pytest.raises(ProcessFailed) as caught:
        program(*sh("seq 1 100000 >&2; exit 1")).run(None, 20, None)
    assert caught.value.stderr.endswith("\n99999\n100000\n")
    assert len(caught.value.stderr) <= 2 * STDERR_LIMIT


def test_each_line_reaches_the_callback_as_it_is_printed(program, tmp_path):
    recorded: list[tuple[str, bool]] = []
    script = "echo one; while [ ! -e go ]; do sleep 0.02; done; printf 'two\\r\\nthree'"

    def line(text: str) -> None:
        recorded.append((text, (tmp_path / "go").exists()))
        (tmp_path / "go").touch()

    assert program(*sh(script)).run(None, 20, line) == "one\ntwo\r\nthree"
    assert recorded == [("one", False), ("two", True), ("three", True)]


class Unusual(BaseException):
    pass


@pytest.mark.parametrize(
    "error", [ValueError("bad line"), StopIteration(), Unusual(), SystemExit(3)]
)
def test_an_error_of_the_line_callback_is_raised_when_the_program_has_ended(
    program, tmp_path, error
):
    def line(_: str) -> None:
        raise error

    with pytest.raises(type(error)):
        program(*sh("seq 1 200000; touch ended")).run(None, 20, line)
    assert (tmp_path / "ended").exists()


def test_output_beyond_the_limit_raises_an_error(program):
    flood = sh(f"yes {'x' * 999} | head -c {OUTPUT_LIMIT + 1_000_000}")
    with pytest.raises(Refused, match=r"on_line.*workdir|workdir.*on_line"):
        program(*flood).run(None, 40, None)


def test_a_line_callback_receives_any_amount_of_output(program):
    count = [0]

    def line(_: str) -> None:
        count[0] += 1

    lines = 200_000
    text = program(*sh(f"yes {'x' * 99} | head -n {lines}")).run(None, 40, line)
    assert count[0] == lines
    assert len(text) <= OUTPUT_LIMIT + 65536


# -- time limits, stops, leftovers ---------------------------------------------------------------
def test_a_program_past_its_time_limit_is_killed_with_all_its_processes(program, mark):
    script = "sleep 631 & (setsid sleep 632 &) ; trap '' TERM; sleep 633 & wait; sleep 634"
    with pytest.raises(ProcessFailed) as caught:
        program(*sh(script)).run(None, 0.3, None)
    assert caught.value.timed_out
    assert str(caught.value) == "sh timed out"
    assert list(find_marked(mark)) == []


def test_a_program_that_is_stopped_is_killed_and_raises_stopped(program, mark):
    one = program("sleep", "635")

    def stop_once_it_runs() -> None:
        until(lambda: list(find_marked(mark)), 30, "the program runs")
        one.stop()

    threading.Thread(target=stop_once_it_runs).start()
    with pytest.raises(Stopped):
        one.run(None, None, None)
    assert list(find_marked(mark)) == []


@pytest.mark.parametrize(
    "keeps", ["sleep 636 &", "(setsid sleep 637 &)", "sleep 638 >/dev/null 2>&1 &"]
)
def test_a_run_does_not_wait_for_a_grandchild_that_holds_the_pipe_open(program, keeps, mark):
    """A run that waited would exceed its time limit and raise."""
    assert program(*sh(f"echo done; {keeps}")).run(None, 20, None) == "done\n"
    for pid in find_marked(mark):
        os.kill(pid, signal.SIGKILL)


def test_a_program_past_its_time_limit_does_not_stop_another_of_the_same_job(app):
    @app.job
    async def two(ctx: Context) -> list[str]:
        ends = await asyncio.gather(
            ctx.run_async(["sleep", "639"], timeout=0.2),
            ctx.run_async(["sh", "-c", "sleep 1; echo whole"]),
            return_exceptions=True,
        )
        return [str(end).strip() for end in ends]

    assert run_job(app, two.enqueue()).result == ["sleep timed out", "whole"]


def alive(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_cancelling_one_program_stops_it_and_waits_for_its_exit(app, tmp_path):
    pid = tmp_path / "pid"

    @app.job
    async def impatient(ctx: Context) -> list[object]:
        script = f"echo $$ > {pid}; trap 'sleep 0.3; exit 0' TERM; while :; do sleep 0.05; done"
        other = asyncio.create_task(ctx.run_async(["sh", "-c", "sleep 1; echo whole"]))
        one = asyncio.create_task(ctx.run_async(["sh", "-c", script]))
        while not (pid.exists() and pid.read_text().strip()):  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.02)
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        return [alive(pid.read_text().strip()), (await other).strip()]

    assert run_job(app, impatient.enqueue()).result == [False, "whole"]


def test_programs_of_several_coroutines_run_concurrently(app):
    """The loop's own pool of threads would take six on two cores."""

    @app.job
    async def many(ctx: Context) -> int:
        here = ctx.workdir
        script = "touch $0.here; while [ $(ls *.here | wc -l) -lt 20 ]; do sleep 0.1; done"
        runs = [ctx.run_async(["sh", "-c", script, str(n)], timeout=20) for n in range(20)]
        await asyncio.gather(*runs)
        return len(list(here.glob("*.here")))

    assert run_job(app, many.enqueue()).result == 20


def test_processes_that_a_program_leaves_behind_are_killed_with_its_attempt(app):
    recorded = []

    @app.job
    def leaves(ctx: Context) -> str:
        recorded.append(ctx._host.mark(ctx))
        return ctx.run(["sh", "-c", "(setsid sleep 641 >/dev/null 2>&1 &); echo ok"])

    @app.job(policy=Policy(max_retries=0))
    async def leaves_too(ctx: Context) -> None:
        recorded.append(ctx._host.mark(ctx))
        await ctx.run_async(["sh", "-c", "(setsid sleep 642 >/dev/null 2>&1 &); echo ok"])
        raise OSError("and fails")

    jobs = [leaves.enqueue(), leaves_too.enqueue()]
    app.run_inline()
    assert [job.refresh().state for job in jobs] == [State.SUCCEEDED, State.DEAD]
    assert len(recorded) == 2
    assert [pid for mark in recorded for pid in find_marked(mark)] == []


# -- where it runs, what it is given -------------------------------------------------------------
def test_a_program_runs_in_the_work_directory_and_carries_the_mark_of_its_attempt(app):
    @app.job
    def shows(ctx: Context) -> list[str]:
        assert Path(ctx.run(["pwd"]).strip()) == ctx.workdir.resolve()
        (ctx.workdir / "in").write_text("from the handler")
        mark = ctx.run(["printenv", MARK]).strip()
        assert f"/{ctx.job.id}/{ctx.token}" in mark
        return [ctx.run(["cat", "in"]), ctx.run(["cat"], input="given")]

    assert run_job(app, shows.enqueue()).result == ["from the handler", "given"]


def test_a_failed_program_is_a_failure_with_exit_code_program_and_stderr(app):
    @app.job(policy=Policy(max_retries=1, backoff=Fixed(0)))
    def fails(ctx: Context) -> None:
        ctx.run(["sh", "-c", "echo 'password=hunter2 and so on' >&2; exit 7"])

    job = fails.enqueue()
    done = run_job(app, job)
    assert done.error["code"] == "PROCESS_FAILED"
    assert (done.error["exit_code"], done.error["program"]) == (7, "sh")
    assert load_private(app, job)["stderr"].strip() == "password=[redacted] and so on"
    assert [a.cls for a in load_attempts(app, job)] == ["unknown", "unknown"]


@pytest.mark.parametrize(
    ("command", "options", "error", "words"),
    [
        ("ls -l", {}, Refused, "list"),
        (b"ls", {}, Refused, "list"),
        ([], {}, Refused, "list"),
        (["true"], {"timeout": -1}, Refused, "timeout"),
        (["true"], {"timeout": float("nan")}, Refused, "timeout"),
        (["true"], {"timeout": float("inf")}, Refused, "timeout"),
        (["true"], {"timeout": "5"}, Refused, "timeout"),
        (["true"], {"input": 7}, Refused, "input"),
        (["true"], {"input": "\ud800"}, Refused, "input"),
        (["/no/such/program"], {}, FileNotFoundError, "no/such"),
    ],
)
def test_invalid_arguments_are_refused_before_a_program_starts(app, command, options, error, words):
    @app.job
    def asks(ctx: Context) -> list[int]:
        with pytest.raises(error, match=words):
            ctx.run(command, **options)
        return list(find_marked(ctx._host.mark(ctx)))

    assert run_job(app, asks.enqueue()).result == []


@pytest.mark.parametrize("limit", [0.3, timedelta(milliseconds=300)])
def test_a_time_limit_is_seconds_or_a_timedelta(app, limit):
    @app.job
    def late(ctx: Context) -> str:
        with pytest.raises(ProcessFailed) as caught:
            ctx.run(["sleep", "643"], timeout=limit)
        return str(caught.value)

    assert run_job(app, late.enqueue()).result == "sleep timed out"


def test_no_reader_or_writer_thread_outlives_its_program(program):
    before = threading.active_count()
    for _ in range(20):
        program("true").run(b"x" * 100_000, 10, None)
    until(lambda: threading.active_count() <= before, 5)
