"""A way through the code that was walked before is told as it was the first time."""

from __future__ import annotations

from types import TracebackType

from mulligan.failures import capture as frames
from mulligan.failures.capture import walk


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


def test_the_same_way_is_told_the_same():
    frames._walked.clear()
    first, again = walk(raised(2).__traceback__), walk(raised(2).__traceback__)
    assert first == again == frames._walk(steps(raised(2).__traceback__), "")
    assert len(frames._walked) == 1


def test_another_depth_or_another_home_is_another_way():
    assert len(walk(raised(1).__traceback__)[0]) == len(walk(raised(3).__traceback__)[0]) - 2
    assert (
        walk(raised().__traceback__)[2]
        != walk(raised().__traceback__, "elsewhere")[2]
        == "elsewhere"
    )


def test_a_line_that_somebody_has_made_up_is_told():
    trace = raised().__traceback__
    assert trace is not None
    for line in (7, 8):
        made = TracebackType(None, trace.tb_frame, trace.tb_lasti, line)
        assert f":{line} in " in walk(made)[0][0]


def test_no_more_ways_are_remembered_than_is_good(monkeypatch):
    frames._walked.clear()
    monkeypatch.setattr(frames, "_MOST_WAYS", 3)
    for deep in range(10):
        walk(raised(deep).__traceback__)
        assert len(frames._walked) <= 3


def test_of_a_very_deep_one_the_innermost_count():
    lines, own, _ = walk(raised(100).__traceback__)
    assert (len(lines), len(own)) == (frames.FRAMES, 1)


def test_nothing_is_no_way():
    assert walk(None) == ([], [], "")


def steps(trace: TracebackType | None) -> list[TracebackType]:
    return [] if trace is None else [trace, *steps(trace.tb_next)]
