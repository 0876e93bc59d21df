"""Text log lines of failed attempts: exception type and traceback, readable in a terminal."""

from __future__ import annotations

import io
import logging

import pytest

from mulligan.config import LogSection
from mulligan.observability.logs import configure_handler
from support.app_tools import run_job


@pytest.fixture
def terminal():
    """Text that a worker would print to a terminal."""
    stream = io.StringIO()
    handler = configure_handler(LogSection(), logging.StreamHandler(stream))
    root = logging.getLogger("mulligan")
    root.addHandler(handler)
    yield stream
    root.removeHandler(handler)


def test_a_failed_attempt_shows_its_exception_type_and_traceback(make_app, terminal):
    app = make_app()

    @app.job(name="lookup")
    def lookup() -> int:
        return {}["zz"]

    run_job(app, lookup.enqueue())
    lines = terminal.getvalue().splitlines()
    [first] = [n for n, line in enumerate(lines) if "attempt 1 of lookup failed" in line]
    assert "failed with PROGRAMMING_ERROR (permanent): KeyError: 'zz'" in lines[first]
    assert any(
        "test_failure_lines.py" in line and "in lookup" in line for line in lines[first + 1 :]
    )
    assert lines[first + 1].startswith("    ")


def deep(levels: int) -> None:
    if levels:
        deep(levels - 1)
    else:
        raise KeyError("zz")


@pytest.fixture
def is_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)


def test_a_terminal_shows_the_innermost_ten_frames(make_app, is_a_terminal, terminal):
    app = make_app()

    @app.job(name="lookup")
    def lookup() -> None:
        deep(25)

    run_job(app, lookup.enqueue())
    lines = terminal.getvalue().splitlines()
    frames = [line for line in lines if line.endswith(" in deep")]
    assert len(frames) == 10
    assert any(line.startswith("      … ") and line.endswith(" more frames") for line in lines)
    assert lines[lines.index(frames[-1]) + 1].endswith('| raise KeyError("zz")')


def test_a_terminal_shows_frames_of_the_cause_too(make_app, is_a_terminal, terminal):
    app = make_app()

    @app.job(name="lookup")
    def lookup() -> None:
        try:
            deep(25)
        except KeyError as error:
            raise RuntimeError("no such code") from error

    run_job(app, lookup.enqueue())
    shown = terminal.getvalue()
    assert shown.index("RuntimeError: no such code\n") < shown.index("caused by builtins.KeyError")
    assert shown.count(" in deep") == 5
    assert "in lookup" in shown


def test_a_file_gets_every_frame(make_app, terminal):
    app = make_app()

    @app.job(name="lookup")
    def lookup() -> None:
        deep(20)

    run_job(app, lookup.enqueue())
    assert terminal.getvalue().count(" in deep") == 21
