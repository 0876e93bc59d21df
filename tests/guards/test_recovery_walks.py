"""Cached traceback summaries equal the summary of the first time."""

from __future__ import annotations

from types import TracebackType

from mulligan.failures import capture as frames
from mulligan.failures.capture import summarise_traceback


def raised(deep: int = 0) -> BaseException:
    def fail(left: int) -> None:
        if left:
            fail(left - 1)
        raise ValueError("no")

    try:
        fail(deep)
    except ValueError as error:
        return error
    raise AssertionError


def test_same_traceback_gives_the_same_location():
    frames._summaries.clear()
    first, again = (
        summarise_traceback(raised(2).__traceback__),
        summarise_traceback(raised(2).__traceback__),
    )
    assert first == again == frames._summarise(steps(raised(2).__traceback__), "")
    assert len(frames._summaries) == 1


def count_frames(trace: TracebackType | None) -> int:
    lines, _, _ = summarise_traceback(trace)
    return sum(" in " in line and "| " not in line for line in lines)


def test_other_depth_or_home_gives_another_location():
    assert count_frames(raised(1).__traceback__) == count_frames(raised(3).__traceback__) - 2
    assert (
        summarise_traceback(raised().__traceback__)[2]
        != summarise_traceback(raised().__traceback__, "elsewhere")[2]
        == "elsewhere"
    )


def test_made_up_line_number_is_reported():
    trace = raised().__traceback__
    assert trace is not None
    for line in (7, 8):
        made = TracebackType(None, trace.tb_frame, trace.tb_lasti, line)
        assert f":{line} in " in summarise_traceback(made)[0][0]


def test_location_cache_is_bounded(monkeypatch):
    frames._summaries.clear()
    monkeypatch.setattr(frames, "_MAX_SUMMARIES", 3)
    for deep in range(10):
        summarise_traceback(raised(deep).__traceback__)
        assert len(frames._summaries) <= 3


def test_innermost_frames_of_a_deep_traceback_count():
    trace = raised(100).__traceback__
    _, app_frames, _ = summarise_traceback(trace)
    assert (count_frames(trace), len(app_frames)) == (frames.MAX_FRAMES, 1)


def test_no_traceback_has_no_location():
    assert summarise_traceback(None) == ([], [], "")


def steps(trace: TracebackType | None) -> list[TracebackType]:
    return [] if trace is None else [trace, *steps(trace.tb_next)]
